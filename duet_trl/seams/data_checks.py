# SPDX-License-Identifier: Apache-2.0
"""Checks of the data set: text prompts, with an identity across epochs, and more of them."""

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from datasets import Dataset, IterableDataset
from trl.trainer.utils import RepeatSampler

from ..config import DUETGRPOConfig
from ..rollouts import NoMorePrompts, Prompt, Prompts

_SAMPLED_ROWS = 64
"""Spread over the data: a row added, removed or moved before one of them shows."""
_TABLE_ROWS = 65_536
"""Rows of a column that are in memory at a time."""
_SHOWN = 120
"""Characters of a value in an error."""
_GIVEN = {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}
"""Arguments that TRL passes to a reward function besides the columns of the data set."""
_WITHHELD = {"prompt", "completion", "completion_ids"}
"""Columns that TRL does not pass on."""


def check_data(dataset: Any, args: DUETGRPOConfig, *, needs_prompt: bool) -> None:
    """Refuse images, missing columns and rows that cannot be trained on before a model is loaded.

    All rows of a table are read, column by column; those of a stream as they are trained on (`check_row`).
    """
    if dataset is None:  # GRPOTrainer knows when it can do without
        return
    if not isinstance(dataset, Dataset | IterableDataset):
        raise TypeError(
            f"train_dataset must be a Dataset or IterableDataset of `datasets`, got {type(dataset).__name__}. "
            "Dataset.from_list makes one of a list of dictionaries."
        )
    columns = _columns(dataset)
    for name in ("image", "images"):
        if name in columns:
            raise ValueError(f"The data set has a column {name!r}; DUET trains on text. Use GRPOTrainer for images.")
    for name in [args.prompt_id_column, *(args.audit_columns or [])]:
        if name is not None and name not in columns:
            raise ValueError(f"The data set has no column {name!r}, only {sorted(columns)}.")
        if name is not None and args.remove_unused_columns:
            raise ValueError(f"remove_unused_columns=True removes the column {name!r}, which is needed. Leave it out.")
    _check_prompts(dataset, "The data set", needs_prompt=needs_prompt)
    if args.prompt_id_column is not None and _is_table(dataset):
        _check_ids(dataset, args.prompt_id_column)


def check_evaluation(dataset: Any, *, needs_prompt: bool) -> None:
    """The same for the prompts of an `eval_dataset`: a data set, or several by name."""
    for name, one in _named(dataset):
        _check_prompts(one, f"The evaluation set{name}", needs_prompt=needs_prompt)


def check_reward_columns(reward_funcs: list, train: Any, evaluation: Any) -> None:
    """Refuse a data set that lacks a column without which one of the reward functions cannot be called."""
    sets = [("train_dataset", train), *((f"eval_dataset{name}", one) for name, one in _named(evaluation))]
    for which, dataset in sets:
        if not isinstance(dataset, Dataset | IterableDataset):
            continue
        columns = set(_columns(dataset))
        for function in reward_funcs:
            missing = sorted(_wanted(function) - _GIVEN - (columns - _WITHHELD))
            if missing:
                raise ValueError(
                    f"The reward function {_name(function)} needs the argument {missing[0]!r}, and {which} has no "
                    f"such column, only {sorted(columns)}. Rename the column that holds it: "
                    f"dataset.rename_column(name, {missing[0]!r}); or give the argument a default."
                )


def check_row(example: Mapping[str, Any], where: str, column: str | None) -> None:
    """Refuse a row that cannot be trained on as it comes: of a stream, or of a transform.

    `where` names it in an error; `column` is the one that identifies the prompt.
    """
    text = complaint(example["prompt"])
    if text is None and column is not None and example[column] is None:
        text = f"has no {column}, which identifies it across epochs"
    if text is not None:
        raise ValueError(f"{where} {text}. The row is {short(dict(example))}. Filter or correct the data set.")


def check_sampler(sampler: RepeatSampler) -> None:
    """Refuse data that fill no generation step."""
    num_rows, num_prompts = sampler.num_samples, sampler.batch_size
    if num_rows < num_prompts:
        raise ValueError(
            f"The data set has {num_rows} rows, and a generation step takes {num_prompts} prompts: TRL's sampler "
            "drops the last rows that make no whole batch, so there would be no step. Use more rows, or lower "
            "per_device_train_batch_size, gradient_accumulation_steps or generation_batch_size."
        )


def complaint(prompt: Any) -> str | None:
    """Why a prompt cannot be trained on; None: it can."""
    if isinstance(prompt, str):
        return None if prompt else "is empty"
    if not isinstance(prompt, list):
        return f"is {short(prompt)}, neither text nor a list of messages"
    if not prompt:
        return "has no message"
    for message in prompt:
        if not isinstance(message, dict) or message.get("role") is None:
            return f"holds {short(message)}, which is not a message with a 'role' and a 'content'"
        parts = message.get("content")
        if parts is None and not message.get("tool_calls"):
            return f"holds {short(message)}, which has no 'content'"
        foreign = {part["type"] for part in parts} - {"text"} if isinstance(parts, list) else set()
        if foreign:
            return f"holds a message with {sorted(foreign)}; DUET trains on text. Use GRPOTrainer for it"
    return None


def _check_prompts(dataset: Dataset | IterableDataset, which: str, *, needs_prompt: bool) -> None:
    columns = _columns(dataset)
    if "prompt" not in columns:
        if needs_prompt:
            raise ValueError(
                f"{which} has no column 'prompt', only {sorted(columns)}. Rename the column that holds text or "
                "messages: dataset.rename_column(name, 'prompt')."
            )
        return
    # Of a stream only the first row; the others are read as they are trained on.
    found = _values(dataset, "prompt") if _is_table(dataset) else (row["prompt"] for row in dataset.take(1))
    for row, prompt in enumerate(found):
        if (text := complaint(prompt)) is not None:
            raise ValueError(f"{which}: the prompt of row {row} {text}. Filter or correct it.")


def _values(dataset: Dataset, column: str) -> Iterator[Any]:
    """A column of a table, row by row."""
    for table in dataset.select_columns(column).with_format("arrow").iter(_TABLE_ROWS):
        yield from table[column].to_pylist()


def _check_ids(dataset: Dataset, column: str) -> None:
    """Refuse ids that are missing, and one id for all prompts: they would share what is remembered about them."""
    ids = list(_values(dataset, column))
    for row, one in enumerate(ids):
        if one is None or one != one:  # NaN
            raise ValueError(
                f"prompt_id_column={column!r} is {one} in row {row} of the data set. Give every row an id, or leave "
                "prompt_id_column out: a hash of the prompt is used."
            )
    if not _differ(ids) and "prompt" in dataset.column_names and _differ(_values(dataset, "prompt")):
        raise ValueError(
            f"prompt_id_column={column!r} is {ids[0]!r} in all {len(ids)} rows of the data set, so that all prompts "
            "would share one history. Name a column with one value a prompt, or leave it out: a hash of the prompt "
            "is used."
        )


def _differ(values: Iterable[Any]) -> bool:
    values = iter(values)
    first = next(values, None)
    return any(value != first for value in values)


def _columns(dataset: Dataset | IterableDataset) -> list[str]:
    return dataset.column_names or [name for row in dataset.take(1) for name in row]  # a stream may not know yet


def _is_table(dataset: Dataset | IterableDataset) -> bool:
    """Whether all rows can be read now; with a transform they exist only once they are requested."""
    return isinstance(dataset, Dataset) and dataset.format["type"] != "custom"


def _named(dataset: Any) -> list[tuple[str, Any]]:
    """Evaluation sets, each with what names it in an error."""
    if isinstance(dataset, dict):
        return [(f"[{name!r}]", one) for name, one in dataset.items()]
    return [("", dataset)] if isinstance(dataset, Dataset | IterableDataset) else []


def _wanted(function: Any) -> set[str]:
    """Arguments that a reward function cannot do without."""
    if not callable(function) or isinstance(function, torch.nn.Module):  # a model scores texts
        return set()
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a function of C has no signature
        return set()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {one.name for one in parameters if one.default is inspect.Parameter.empty and one.kind in kinds}


def _name(function: Any) -> str:
    return function.__name__ if inspect.isroutine(function) else type(function).__name__


def short(value: Any) -> str:
    """A value as an error shows it."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def data_sample(dataset: Any, column: str | None) -> dict[str, Any] | None:
    """A fingerprint of a data set: its number of rows, and the keys of some; None for a stream."""
    if not isinstance(dataset, Dataset) or "prompt" not in dataset.column_names:
        return None
    rows = sorted({number * (len(dataset) - 1) // _SAMPLED_ROWS for number in range(_SAMPLED_ROWS + 1)})
    return {"rows": len(dataset), "keys": prompt_keys(list(dataset.select(rows)), column)}


def prompt_keys(examples: list[dict], column: str | None) -> list[str]:
    """Identity of each prompt across epochs: a column, or a hash of the prompt."""
    if column is not None:
        return [str(example[column]) for example in examples]
    texts = (json.dumps(example["prompt"], sort_keys=True, ensure_ascii=False) for example in examples)
    return [hashlib.blake2b(text.encode(), digest_size=12).hexdigest() for text in texts]


class PromptSource:
    """Draws further prompts from the training data, at random under the run's seed and the step.

    What it draws depends on nothing else, so that every process and a resumed run draw alike. It does not move TRL's
    own sampler.
    """

    def __init__(self, dataset: Any, column: str | None, seed: int) -> None:
        self.dataset = dataset
        self.column = column
        self.seed = seed

    def prompts(self, examples: Sequence[Mapping[str, Any]], step: int, epoch: int) -> Prompts:
        """The prompts of one generation step, and where it gets more of them, each row once; a stream has no more."""
        for number, example in enumerate(examples):
            check_row(example, f"Prompt {number} of generation step {step}", self.column)
        keys = prompt_keys(list(examples), self.column)
        batch = [Prompt(key, example) for key, example in zip(keys, examples, strict=True)]
        return Prompts(batch, step, epoch, self.of_step(step))

    def of_step(self, step: int) -> Callable[[int, set[str]], list[Prompt]] | None:
        """The source of one generation step, each row once (see `Prompts`); None for a stream."""
        return partial(self._draw, self._rows(step)) if isinstance(self.dataset, Dataset) else None

    def _rows(self, step: int) -> Iterator[int]:
        yield from map(int, np.random.default_rng([self.seed, step]).permutation(len(self.dataset)))

    def _draw(self, rows: Iterator[int], count: int, taken: set[str]) -> list[Prompt]:
        found: dict[str, Prompt] = {}
        while len(found) < count:
            row = next(rows, None)
            if row is None:
                raise NoMorePrompts(
                    f"{count} more prompts were asked for, and only {len(found)} of {len(self.dataset)} rows of the "
                    "data set are not in the step yet. Use more data, or fewer prompts in a step."
                )
            example = self.dataset[row]
            check_row(example, f"The prompt of row {row} of the data set", self.column)
            key = prompt_keys([example], self.column)[0]
            if key not in taken and key not in found:
                found[key] = Prompt(key, example)
        return list(found.values())
