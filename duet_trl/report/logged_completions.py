# SPDX-License-Identifier: Apache-2.0
"""What a stock TRL GRPO run with `log_completions=True` leaves behind: its completions and its log history.

TRL 1.16 writes one file per log entry, `<output_dir>/completions/completions_<step>.parquet`, with the columns step,
prompt, completion, one per reward function, one per extra that a reward function logged, and advantage. It holds the
latest generation batch: completions without end and padding tokens, as strings or as lists of messages. The trainer
writes its log history to `trainer_state.json` in every checkpoint, and to `output_dir` on `save_state()`.
"""

import glob
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

REQUIRED_COLUMNS = ("step", "prompt", "completion")
TRAINER_STATE = "trainer_state.json"

_STEP_OF_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_REWARD_METRIC = re.compile(r"rewards/(.+)/mean")


class UnreadableRun(ValueError):
    """The files are not the completions or the log of a TRL run; the text names what is wrong and the remedy."""


@dataclass(frozen=True)
class Batch:
    """One generation batch as one file holds it.

    Attributes:
        run (Path): Folder of the file, which tells runs apart.
        step (int): Optimizer step at which it was logged.
        prompts (tuple[str, ...]): Key of each completion's prompt, length N.
        texts (tuple[str, ...]): What the policy wrote, length N.
        numbers (dict[str, np.ndarray]): Every numeric column but step, in the file's order, shape (N,), nan for none.
        num_conversations (int): Completions with more messages than the policy's answer.
    """

    run: Path
    step: int
    prompts: tuple[str, ...]
    texts: tuple[str, ...]
    numbers: dict[str, np.ndarray]
    num_conversations: int

    @property
    def digest(self) -> str:
        """Equal for two files that hold the same batch."""
        content = repr((self.prompts, self.texts, [(name, column.tolist()) for name, column in self.numbers.items()]))
        return hashlib.blake2b(content.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Completions:
    """The completions of one or several runs, N of them in M groups.

    Attributes:
        runs (tuple[Path, ...]): Folders they were read from.
        num_files (int): Files with completions.
        batches (tuple[tuple[Path, int], ...]): Run and step of each generation batch.
        batch (np.ndarray): Index into `batches` of each completion, shape (N,), int64.
        prompts (tuple[str, ...]): Prompt of each, as it was logged, length N.
        group (np.ndarray): Completions of one prompt in one batch share an index, shape (N,), int64, in [0, M).
        texts (tuple[str, ...]): What the policy wrote, length N.
        numbers (dict[str, np.ndarray]): Numeric columns but step and advantage, shape (N,), nan where there is none.
        advantage (np.ndarray): Shape (N,), nan where there is none.
        notes (tuple[str, ...]): What the reader should know about the files.
    """

    runs: tuple[Path, ...]
    num_files: int
    batches: tuple[tuple[Path, int], ...]
    batch: np.ndarray
    prompts: tuple[str, ...]
    group: np.ndarray
    texts: tuple[str, ...]
    numbers: dict[str, np.ndarray]
    advantage: np.ndarray
    notes: tuple[str, ...]


@dataclass(frozen=True)
class RunLog:
    """The log history of a run.

    Attributes:
        path (Path): File it was read from.
        num_steps (int): Optimizer steps done.
        history (tuple[Mapping[str, Any], ...]): Entries in order.
    """

    path: Path
    num_steps: int
    history: tuple[Mapping[str, Any], ...]

    def values(self, name: str) -> dict[int, float]:
        """A metric by step."""
        return {
            entry["step"]: float(entry[name])
            for entry in self.history
            if isinstance(entry.get(name), int | float) and "step" in entry
        }

    @property
    def evaluated_steps(self) -> frozenset[int]:
        """Steps at which TRL overwrote the file of the step with completions of an evaluation."""
        return frozenset(
            entry["step"] for entry in self.history if "step" in entry and any(k.startswith("eval_") for k in entry)
        )

    @property
    def reward_names(self) -> frozenset[str]:
        """Names of the reward functions."""
        return frozenset(m[1] for entry in self.history for key in entry if (m := _REWARD_METRIC.fullmatch(key)))

    @property
    def is_gated(self) -> bool:
        """Whether this trainer wrote it, so that its completions were gated already."""
        return any(key.startswith("duet/") for entry in self.history for key in entry)


def find_files(paths: Sequence[str | Path]) -> list[Path]:
    """Parquet files behind files, patterns and folders, in order, each once.

    Args:
        paths (Sequence[str | Path]): Files, glob patterns, folders of parquet files, or output folders of runs.

    Returns:
        list[Path]: At least one file.

    Raises:
        UnreadableRun: If one of the paths leads to no parquet file.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        places = [path] if path.exists() else sorted(map(Path, glob.glob(str(path), recursive=True)))
        files = [file for place in places for file in _files_in(place)]
        if not files:
            raise UnreadableRun(
                f"{path} leads to no parquet file. Give the files that TRL writes with log_completions=True to "
                "<output_dir>/completions, or that folder."
            )
        found.update({file.resolve(): file for file in files})
    return list(found.values())


def _files_in(place: Path) -> list[Path]:
    """Parquet files in a folder or in its folder of completions; a file itself."""
    if not place.is_dir():
        return [place]
    return sorted(place.glob("*.parquet")) or sorted(place.glob("completions/*.parquet"))


def read_completions(files: Sequence[Path], skip: Iterable[tuple[Path, int]] = ()) -> Completions:
    """Read logged completions and sort them into groups by run, step and prompt.

    A batch that TRL logged again, because it updates several times on one generation, counts once.

    Args:
        files (Sequence[Path]): Parquet files.
        skip (Iterable[tuple[Path, int]]): Folder and step of batches that are to be left out.

    Returns:
        Completions: In order of run and step; within a batch in order of the file.

    Raises:
        UnreadableRun: If a file is no parquet file, lacks a column, or if there is no completion at all.
    """
    skip, notes = frozenset(skip), []
    batches, empty = [], []
    for file in files:
        found = _read_file(file)
        batches += found
        if not found:
            empty.append(file.name)
    if empty:
        notes.append(f"{counted(len(empty), 'file')} without rows: {_listed(empty)}.")
    batches.sort(key=lambda batch: (str(batch.run), batch.step))
    usable = [batch for batch in batches if (batch.run, batch.step) not in skip]
    if len(usable) < len(batches):
        steps = _listed([batch.step for batch in batches if (batch.run, batch.step) in skip])
        what = "Left out" if usable else "Counted all the same, as there is no other"
        notes.append(f"{what}: step {steps}. TRL wrote completions of an evaluation into the file of that step.")
    kept, repeated = [], []
    for batch in usable or batches:
        if kept and kept[-1].run == batch.run and kept[-1].digest == batch.digest:
            repeated.append(batch.step)
        else:
            kept.append(batch)
    if repeated:
        notes.append(f"Counted once: step {_listed(repeated)} repeats the batch that was logged before it.")
    if not kept:
        raise UnreadableRun(
            f"no completions in {_listed([str(file) for file in files])}. Train with log_completions=True and "
            "logging_steps such that at least one training step is logged."
        )
    return _combine(kept, len(files) - len(empty), notes)


def find_trainer_state(run: Path) -> Path | None:
    """The latest `trainer_state.json` that belongs to a folder of completions.

    Args:
        run (Path): Folder of the parquet files; the run's `output_dir` is its parent, or itself.

    Returns:
        Path | None: The file of `output_dir`, else that of the last checkpoint, else None.
    """
    for folder in dict.fromkeys((run.resolve().parent, run.resolve())):
        if (folder / TRAINER_STATE).is_file():
            return folder / TRAINER_STATE
        steps = {
            int(match[1]): path
            for path in folder.glob(f"checkpoint-*/{TRAINER_STATE}")
            if (match := _STEP_OF_CHECKPOINT.fullmatch(path.parent.name))
        }
        if steps:
            return steps[max(steps)]
    return None


def read_run_log(path: Path) -> RunLog:
    """Read a `trainer_state.json`.

    Args:
        path (Path): The file.

    Returns:
        RunLog: Its history.

    Raises:
        UnreadableRun: If it does not exist or is no trainer state.
    """
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableRun(f"{path} cannot be read as a trainer state: {error}. Give a {TRAINER_STATE}.") from error
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        raise UnreadableRun(f"{path} has no log_history. Give a {TRAINER_STATE} that transformers' Trainer wrote.")
    return RunLog(path, int(state.get("global_step", 0)), tuple(state["log_history"]))


def completion_text(value: str | Sequence[Mapping[str, Any]] | None) -> str:
    """What the policy wrote in one completion.

    Args:
        value (str | Sequence[Mapping[str, Any]] | None): A string, or messages. Of messages the assistant's count;
            reasoning that a response template split off stands before the answer, as a thought.

    Returns:
        str: The text; empty for None.
    """
    if value is None or isinstance(value, str):
        return value or ""
    return "".join(_message_text(message) for message in value if message.get("role", "assistant") == "assistant")


def _message_text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part.get("text") or "" for part in content)
    reasoning = message.get("reasoning_content") or message.get("thinking")
    return f"<think>{reasoning}</think>{content}" if reasoning else content


def _read_file(file: Path) -> list[Batch]:
    """The batches of one file: one as TRL writes it, several if files were concatenated, none if it is empty."""
    if file.stat().st_size == 0:
        return []  # a run that was killed while writing leaves such a file
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
    _check_types(file, table)
    steps = table["step"].to_numpy(zero_copy_only=False)
    prompts = [
        value if isinstance(value, str) else json.dumps(value, default=str) for value in table["prompt"].to_pylist()
    ]
    values = table["completion"].to_pylist()
    numbers = _numeric_columns(table)
    batches = []
    for step in dict.fromkeys(steps.tolist()):
        rows = np.flatnonzero(steps == step)
        chosen = [values[row] for row in rows]
        batches.append(
            Batch(
                run=file.parent,
                step=int(step),
                prompts=tuple(prompts[row] for row in rows),
                texts=tuple(map(completion_text, chosen)),
                numbers={name: column[rows] for name, column in numbers.items()},
                num_conversations=sum(isinstance(value, list) and len(value) != 1 for value in chosen),
            )
        )
    return batches


def _check_types(file: Path, table: pa.Table) -> None:
    step, completion = table.schema.field("step").type, table.schema.field("completion").type
    if table.num_rows and (not pa.types.is_integer(step) or table["step"].null_count):
        raise UnreadableRun(f"the column step of {file} must hold an integer in every row, got {step}.")
    kinds = pa.types
    lists = kinds.is_list(completion) or kinds.is_large_list(completion)
    messages = lists and kinds.is_struct(completion.value_type)
    strings = any(is_text(completion) for is_text in (kinds.is_string, kinds.is_large_string, kinds.is_string_view))
    if table.num_rows and not strings and not messages:
        raise UnreadableRun(
            f"the column completion of {file} must hold strings or lists of messages, got {completion}. "
            "Give files that TRL writes with log_completions=True."
        )


def _numeric_columns(table: pa.Table) -> dict[str, np.ndarray]:
    """Columns of numbers as float64; a column without any value counts, because a reward may be None throughout."""
    numbers = {}
    for name in table.column_names:
        kind = table.schema.field(name).type
        kinds = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_null)
        numeric = any(is_kind(kind) for is_kind in kinds)
        if numeric and name not in REQUIRED_COLUMNS and not name.startswith("__"):  # pandas' index
            numbers[name] = table[name].cast(pa.float64()).to_numpy(zero_copy_only=False).astype(np.float64)
    return numbers


def _combine(batches: Sequence[Batch], num_files: int, notes: list[str]) -> Completions:
    steps = tuple(dict.fromkeys((batch.run, batch.step) for batch in batches))  # a step may be spread over files
    keys = [(batch.run, batch.step, prompt) for batch in batches for prompt in batch.prompts]
    number = {key: group for group, key in enumerate(dict.fromkeys(keys))}
    group = np.array([number[key] for key in keys], dtype=np.int64)
    sizes = [len(batch.texts) for batch in batches]
    names = dict.fromkeys(name for batch in batches for name in batch.numbers)
    columns = {
        name: np.concatenate(
            [batch.numbers.get(name, np.full(size, np.nan)) for batch, size in zip(batches, sizes, strict=True)]
        )
        for name in names
    }
    advantage = columns.pop("advantage", np.full(len(group), np.nan))
    notes += _group_notes(np.bincount(group))
    conversations = sum(batch.num_conversations for batch in batches)
    if conversations:
        notes.append(
            f"{counted(conversations, 'completion')} with more than one message: only the assistant's text was read. "
            "DUETGRPOTrainer refuses tools and turns."
        )
    return Completions(
        runs=tuple(dict.fromkeys(batch.run for batch in batches)),
        num_files=num_files,
        batches=steps,
        batch=np.repeat([steps.index((batch.run, batch.step)) for batch in batches], sizes),
        prompts=tuple(prompt for batch in batches for prompt in batch.prompts),
        group=group,
        texts=tuple(text for batch in batches for text in batch.texts),
        numbers=columns,
        advantage=advantage,
        notes=tuple(notes),
    )


def _group_notes(sizes: np.ndarray) -> list[str]:
    usual, _ = Counter(sizes.tolist()).most_common(1)[0]
    others = int((sizes != usual).sum())
    if not others:
        return []
    return [
        f"{counted(others, 'group')} of {len(sizes)} have another size than {usual}: evaluation completions in the "
        "log, a prompt that stands several times in a batch, or uneven rollout counts."
    ]


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun in singular or plural."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _listed(names: Sequence[Any], most: int = 6) -> str:
    shown = ", ".join(map(str, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
