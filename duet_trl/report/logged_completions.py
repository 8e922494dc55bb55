# SPDX-License-Identifier: Apache-2.0
"""The output of a stock TRL GRPO run with `log_completions=True`: its completions, rewards and tokenizer.

TRL writes the latest generation batch at every log entry to `<output_dir>/completions/completions_<step>.parquet`:
step, prompt, completion, a column per reward function and per extra that one logged, advantage. The log history is
in the `trainer_state.json` of a checkpoint.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

_NO_REWARDS = ("step", "prompt", "completion", "advantage")


class UnreadableRun(ValueError):
    """The files are not those of a TRL run; the message names the fault and the remedy."""


@dataclass(frozen=True)
class LoggedRun:
    """The completions of a run, N of them in M groups."""

    steps: list[int]  # of each generation batch
    rewards: list[str]  # columns
    prompts: list[str]  # of each completion, length N
    texts: list[str]  # what the policy wrote, length N
    prompt: np.ndarray  # number of the prompt, shape (N,)
    group: np.ndarray  # completions of one prompt in one batch share a number, shape (N,), in [0, M)
    reward: np.ndarray  # weighted sum, shape (N,), nan where no function gave one
    credit: np.ndarray  # advantage, or reward above the group's mean where none is logged, shape (N,)
    notes: list[str]  # what the reader should know


def read_run(path: Path, weights: Sequence[float] | None = None) -> LoggedRun:
    """Read the `output_dir` of a run, or its folder of completions; `weights` are those of the reward functions.

    A batch that TRL logged again, because it updates several times on one generation, counts once. Completions of an
    evaluation, which TRL writes over those of the step, do not count.

    Raises:
        UnreadableRun: For files that TRL did not write, and weights that do not fit the reward columns.
    """
    files = sorted([*path.glob("completions_*.parquet"), *path.glob("completions/completions_*.parquet")])
    history, notes = _log_history(path), []
    evaluated = {e["step"] for e in history if "step" in e and any(key.startswith("eval_") for key in e)}
    if any(key.startswith("duet/") for entry in history for key in entry):
        notes.append("DUETGRPOTrainer made this run: its completions were gated already, so this is an underestimate.")
    batches: list[pd.DataFrame] = []
    for batch in sorted(filter(len, map(_read, files)), key=lambda batch: batch.step.iloc[0]):
        step = int(batch.step.iloc[0])
        if step in evaluated:
            notes.append(f"Left out: step {step}. TRL wrote completions of an evaluation into the file of that step.")
        elif batches and batch.drop(columns="step").equals(batches[-1].drop(columns="step")):
            notes.append(f"Counted once: step {step} repeats the batch that was logged before it.")
        else:
            batches.append(batch)
    if not batches:
        raise UnreadableRun(
            f"no completions of a training step in {path}. Give the output_dir of a GRPO run with "
            "log_completions=True, or its folder of completions_<step>.parquet."
        )
    rows = pd.concat(batches, ignore_index=True)
    named = {match[1] for entry in history for key in entry if (match := re.fullmatch(r"rewards/(.+)/mean", key))}
    numeric = [name for name in rows if name not in _NO_REWARDS and _is_numeric(rows[name])]
    columns = [name for name in numeric if name in named] or numeric
    group = rows.groupby(["step", "prompt"], sort=False).ngroup()
    reward = _total(rows, columns, weights)
    advantage = rows.get("advantage", pd.Series(np.nan, rows.index)).astype(float)
    trained = advantage.nunique() > 1 or not columns  # constant advantages add nothing to rewards
    return LoggedRun(
        steps=[int(batch.step.iloc[0]) for batch in batches],
        rewards=columns,
        prompts=rows.prompt.tolist(),
        texts=rows.completion.tolist(),
        prompt=pd.factorize(rows.prompt)[0],
        group=group.to_numpy(),
        reward=reward.to_numpy(),
        credit=(advantage if trained else reward - reward.groupby(group).transform("mean")).to_numpy(),
        notes=notes,
    )


def find_tokenizer(path: Path, given: str | None = None) -> Any:
    """The `tokenizers.Tokenizer` of a folder or a name on the Hub, by default that of the run's last checkpoint."""
    # Not transformers, which loads torch: this is all that counting tokens needs.
    from tokenizers import Tokenizer

    places = [Path(given)] if given else [*_run_folders(path)]
    file = next((place / "tokenizer.json" for place in places if (place / "tokenizer.json").is_file()), None)
    if file is None and given is None:
        raise UnreadableRun(f"no tokenizer in {path} or its checkpoints. Name it: --tokenizer Qwen/Qwen3-1.7B-Base.")
    try:
        tokenizer = Tokenizer.from_file(str(file)) if file is not None else Tokenizer.from_pretrained(given)
    except Exception as error:  # the library raises no other class
        raise UnreadableRun(
            f"no tokenizer in {given or file} ({error}). Give a folder with a tokenizer.json, or a model's name that "
            "is in the local Hub cache or can be downloaded."
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def completion_text(value: str | Sequence[Mapping[str, Any]] | None) -> str:
    """The policy's text: a string, or the assistant's messages, with reasoning that a template split off."""
    if value is None or isinstance(value, str):
        return value or ""
    own = [message for message in value if message.get("role", "assistant") == "assistant"]
    thoughts = [f"<think>{text}</think>" if (text := message.get("reasoning_content")) else "" for message in own]
    return "".join(thought + (message.get("content") or "") for thought, message in zip(thoughts, own, strict=True))


def _read(file: Path) -> pd.DataFrame:
    if file.stat().st_size == 0:  # of a run that was killed while it wrote
        return pd.DataFrame()
    try:
        rows = pd.read_parquet(file)
        rows["prompt"] = [one if isinstance(one, str) else json.dumps(list(one), default=str) for one in rows.prompt]
        rows["completion"] = list(map(completion_text, rows.completion))
        rows["step"] = rows.step.astype(int)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UnreadableRun(
            f"{file} is not a file that TRL writes with log_completions=True, with step, prompt and completion: "
            f"{error}."
        ) from error
    return rows


def _run_folders(path: Path) -> list[Path]:
    """Folders with the state of a run: its own, then its checkpoints, the last one first."""
    run = path.resolve().parent if path.resolve().name == "completions" else path.resolve()
    checkpoints = [folder for folder in run.glob("checkpoint-*") if folder.name[11:].isdecimal()]
    return [run, *sorted(checkpoints, key=lambda folder: -int(folder.name[11:]))]


def _log_history(path: Path) -> list[dict[str, Any]]:
    states = [folder / "trainer_state.json" for folder in _run_folders(path)]
    for state in filter(Path.is_file, states):
        try:
            return json.loads(state.read_text(encoding="utf-8"))["log_history"]
        except (ValueError, KeyError, TypeError) as error:
            raise UnreadableRun(f"{state} cannot be read as a trainer state: {error!r}.") from error
    return []


def _is_numeric(column: pd.Series) -> bool:
    """Whether a column may hold rewards; one without any value counts, because a reward may be None throughout."""
    return is_numeric_dtype(column) or is_bool_dtype(column) or bool(column.isna().all())


def _total(rows: pd.DataFrame, columns: Sequence[str], weights: Sequence[float] | None) -> pd.Series:
    """Weighted sum as TRL adds rewards up, nan where no function gave a number."""
    if weights is not None and len(weights) != len(columns):
        raise UnreadableRun(f"{len(weights)} reward weights for the columns {', '.join(columns) or 'none'}.")
    values = rows[list(columns)].astype(float)
    if infinite := [name for name in columns if np.isinf(values[name]).any()]:
        raise UnreadableRun(f"infinite rewards in {', '.join(infinite)}.")
    return (values * (1.0 if weights is None else np.asarray(weights))).sum(axis=1, min_count=1)
