# SPDX-License-Identifier: Apache-2.0
"""What a stock TRL GRPO run with `log_completions=True` leaves behind: its completions and its log history.

TRL 1.16 writes one file per log entry, `<output_dir>/completions/completions_<step>.parquet`, with the columns step,
prompt, completion, one per reward function, one per extra that a reward function logged, and advantage. It holds the
latest generation batch: completions without end and padding tokens, as strings or as lists of messages. The trainer
writes its log history to `trainer_state.json` in every checkpoint, and to `output_dir` on `save_state()`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

REQUIRED_COLUMNS = ("step", "prompt", "completion")
TRAINER_STATE = "trainer_state.json"

_REWARD_METRIC = re.compile(r"rewards/(.+)/mean")


class UnreadableRun(ValueError):
    """The files are not the completions or the log of a TRL run; the text names what is wrong and the remedy."""


@dataclass(frozen=True)
class Batch:
    """One generation batch, as one file holds it."""

    step: int  # optimizer step at which it was logged
    prompts: list[str]  # key of each completion's prompt, length N
    texts: list[str]  # what the policy wrote, length N
    numbers: dict[str, list[float | None]]  # every numeric column but step, in the file's order, length N

    @property
    def content(self) -> str:
        """Equal for the same batch, logged at another step, also where a number is nan."""
        return repr((self.prompts, self.texts, self.numbers))


@dataclass(frozen=True)
class Completions:
    """The completions of a run, N of them in M groups."""

    steps: tuple[int, ...]  # step of each generation batch
    batch: np.ndarray  # index into `steps` of each completion, shape (N,), int64
    prompts: tuple[str, ...]  # prompt of each, as it was logged, length N
    group: np.ndarray  # completions of one prompt in one batch share an index, shape (N,), int64, in [0, M)
    texts: tuple[str, ...]  # what the policy wrote, length N
    numbers: dict[str, np.ndarray]  # numeric columns but step and advantage, shape (N,), nan where there is none
    advantage: np.ndarray  # shape (N,), nan where there is none
    notes: tuple[str, ...]  # what the reader should know about the files

    @cached_property
    def prompt_number(self) -> np.ndarray:
        """Equal for completions of the same prompt, shape (N,), int64."""
        number = {prompt: index for index, prompt in enumerate(dict.fromkeys(self.prompts))}
        return np.array([number[prompt] for prompt in self.prompts], dtype=np.int64)


@dataclass(frozen=True)
class RunLog:
    """The log history of a run; empty where none was found."""

    path: Path | None = None  # file it was read from
    history: Sequence[Mapping[str, Any]] = ()  # entries in order

    def values(self, name: str) -> dict[int, float]:
        """A metric by step."""
        found = [entry for entry in self.history if "step" in entry and isinstance(entry.get(name), int | float)]
        return {entry["step"]: float(entry[name]) for entry in found}

    @property
    def evaluated_steps(self) -> set[int]:
        """Steps at which TRL overwrote the file of the step with completions of an evaluation."""
        return {e["step"] for e in self.history if "step" in e and any(key.startswith("eval_") for key in e)}

    @property
    def reward_names(self) -> set[str]:
        """Names of the reward functions."""
        return {match[1] for entry in self.history for key in entry if (match := _REWARD_METRIC.fullmatch(key))}

    @property
    def is_gated(self) -> bool:
        """Whether this trainer wrote it, so that its completions were gated already."""
        return any(key.startswith("duet/") for entry in self.history for key in entry)


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Parquet files of one run: the files themselves, those of their folder, or of the run's output folder."""
    found: list[Path] = []
    for path in paths:
        files = [path] if path.is_file() else [*path.glob("*.parquet")] or [*path.glob("completions/*.parquet")]
        if not files:
            raise UnreadableRun(
                f"{path} leads to no parquet file. Give the files that TRL writes with log_completions=True to "
                "<output_dir>/completions, or that folder."
            )
        found += files
    if len(folders := {file.parent.resolve() for file in found}) > 1:
        raise UnreadableRun(f"the files are of {len(folders)} folders. Estimate one run at a time.")
    return sorted(set(found))


def read_completions(files: Sequence[Path], skip: Iterable[int] = ()) -> Completions:
    """Read logged completions in order of the step, and sort them into groups by step and prompt.

    A batch that TRL logged again, because it updates several times on one generation, counts once; batches of the
    steps `skip` are left out.
    """
    skip, notes = frozenset(skip), []
    read = {file: _read_file(file) for file in files}
    if empty := [file.name for file, batch in read.items() if batch is None]:
        notes.append(f"{counted(len(empty), 'file')} without rows: {_listed(empty)}.")
    batches = sorted(filter(None, read.values()), key=lambda batch: batch.step)
    usable = [batch for batch in batches if batch.step not in skip]
    if len(usable) < len(batches):
        steps = _listed([batch.step for batch in batches if batch.step in skip])
        what = "Left out" if usable else "Counted all the same, as there is no other"
        notes.append(f"{what}: step {steps}. TRL wrote completions of an evaluation into the file of that step.")
    kept, repeated = [], []
    for batch in usable or batches:
        (repeated if kept and batch.content == kept[-1].content else kept).append(batch)
    if repeated:
        steps = _listed([batch.step for batch in repeated])
        notes.append(f"Counted once: step {steps} repeats the batch that was logged before it.")
    if not kept:
        raise UnreadableRun(
            f"no completions in {_listed([str(file) for file in files])}. Train with log_completions=True and "
            "logging_steps such that at least one training step is logged."
        )
    return _combine(kept, notes)


def read_run_log(run: Path) -> RunLog:
    """The log history of a run, empty if none is found.

    `run` is the folder of the parquet files; the run's `output_dir` is its parent, or itself. Its own
    `trainer_state.json` is read, else that of its last checkpoint.
    """
    path = _find_trainer_state(run)
    if path is None:
        return RunLog()
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableRun(f"{path} cannot be read as a trainer state: {error}. Give a {TRAINER_STATE}.") from error
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        raise UnreadableRun(f"{path} has no log_history. Give a {TRAINER_STATE} that transformers' Trainer wrote.")
    return RunLog(path, state["log_history"])


def completion_text(value: str | Sequence[Mapping[str, Any]] | None) -> str:
    """What the policy wrote in one completion: a string, or the assistant's messages.

    Reasoning that a response template split off stands before the answer, as a thought.
    """
    if value is None or isinstance(value, str):
        return value or ""
    own = [message for message in value if message.get("role", "assistant") == "assistant"]
    thoughts = [f"<think>{text}</think>" if (text := message.get("reasoning_content")) else "" for message in own]
    return "".join(thought + (message.get("content") or "") for thought, message in zip(thoughts, own, strict=True))


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun in singular or plural."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _find_trainer_state(run: Path) -> Path | None:
    for folder in dict.fromkeys((run.resolve().parent, run.resolve())):
        if (folder / TRAINER_STATE).is_file():
            return folder / TRAINER_STATE
        paths = {path.parent.name.partition("-")[2]: path for path in folder.glob(f"checkpoint-*/{TRAINER_STATE}")}
        if steps := [step for step in paths if step.isdecimal()]:
            return paths[max(steps, key=int)]
    return None


def _read_file(file: Path) -> Batch | None:
    """The batch of a file; None if it is empty, as a run that was killed while writing leaves it."""
    if file.stat().st_size == 0:
        return None
    try:
        table = pq.ParquetFile(file).read()
    except (pa.ArrowInvalid, OSError) as error:
        raise UnreadableRun(f"{file} is not a readable parquet file: {str(error).rstrip('.')}.") from error
    missing = [name for name in REQUIRED_COLUMNS if name not in table.column_names]
    if missing:
        raise UnreadableRun(
            f"{file} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; it has "
            f"{', '.join(table.column_names) or 'none'}. Give files that TRL writes with log_completions=True."
        )
    if not table.num_rows:
        return None
    (step, *others), completions = set(table["step"].to_pylist()), table["completion"].to_pylist()
    if others or not isinstance(step, int):
        steps = _listed(sorted(map(str, [step, *others])))
        raise UnreadableRun(f"the column step of {file} must hold one integer, got {steps}.")
    if not all(value is None or isinstance(value, str | list) for value in completions):
        raise UnreadableRun(
            f"the column completion of {file} must hold strings or lists of messages, got "
            f"{table.schema.field('completion').type}. Give files that TRL writes with log_completions=True."
        )
    prompts = table["prompt"].to_pylist()
    return Batch(
        step=step,
        prompts=[value if isinstance(value, str) else json.dumps(value, default=str) for value in prompts],
        texts=list(map(completion_text, completions)),
        numbers={name: table[name].to_pylist() for name in table.column_names if _is_numeric(table, name)},
    )


def _is_numeric(table: pa.Table, name: str) -> bool:
    """Whether a column may hold rewards; one without any value counts, because a reward may be None throughout."""
    kind, types = table.schema.field(name).type, pa.types
    numeric = types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind)
    return numeric and name not in REQUIRED_COLUMNS


def _combine(batches: Sequence[Batch], notes: list[str]) -> Completions:
    keys = [(index, prompt) for index, batch in enumerate(batches) for prompt in batch.prompts]
    number = {key: group for group, key in enumerate(dict.fromkeys(keys))}
    group = np.array([number[key] for key in keys], dtype=np.int64)
    columns = dict.fromkeys(name for batch in batches for name in batch.numbers)
    for name in columns:
        values = (batch.numbers.get(name, [None] * len(batch.texts)) for batch in batches)
        columns[name] = np.array([*chain.from_iterable(values)], dtype=np.float64)
    advantage = columns.pop("advantage", np.full(len(group), np.nan))
    sizes = np.bincount(group)
    usual, _ = Counter(sizes.tolist()).most_common(1)[0]
    if others := int((sizes != usual).sum()):
        notes.append(
            f"{counted(others, 'group')} of {len(sizes)} have another size than {usual}: evaluation completions in "
            "the log, a prompt that stands several times in a batch, or uneven rollout counts."
        )
    return Completions(
        steps=tuple(batch.step for batch in batches),
        batch=np.array([index for index, _ in keys], dtype=np.int64),
        prompts=tuple(prompt for _, prompt in keys),
        group=group,
        texts=tuple(text for batch in batches for text in batch.texts),
        numbers=columns,
        advantage=advantage,
        notes=tuple(notes),
    )


def _listed(names: Sequence[Any], maximum: int = 6) -> str:
    shown = ", ".join(map(str, names[:maximum]))
    return shown if len(names) <= maximum else f"{shown} and {len(names) - maximum} more"
