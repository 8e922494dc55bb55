# SPDX-License-Identifier: Apache-2.0
"""What the trainer asks of the data set: text prompts with an identity that lasts across epochs."""

import hashlib
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset, IterableDataset

from ..config import DUETGRPOConfig

_SAMPLED_ROWS = 64
"""Spread over the data: a row added, removed or moved before one of them shows."""
_TABLE_ROWS = 65_536
"""Rows of a column that are in memory at a time."""
_SHOWN = 120
"""Characters of a value in an error."""
_GIVEN = {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}
"""What TRL passes to a reward function besides the columns of the data set."""
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
    _check_prompts(dataset, "The data set", needs_prompt=needs_prompt)
    if args.prompt_id_column is not None and _is_table(dataset):
        _check_ids(dataset, args.prompt_id_column)
    _check_candidates(dataset, args)


def check_evaluation(dataset: Any, *, needs_prompt: bool) -> None:
    """Likewise for the prompts of an `eval_dataset`: a data set, or several by name."""
    for name, one in _named(dataset):
        _check_prompts(one, f"The evaluation set{name}", needs_prompt=needs_prompt)


def check_reward_columns(reward_funcs: Any, train: Any, evaluation: Any) -> None:
    """Refuse a data set that lacks a column without which a reward function cannot be called."""
    functions = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
    sets = [("train_dataset", train), *((f"eval_dataset{name}", one) for name, one in _named(evaluation))]
    for which, dataset in sets:
        if not isinstance(dataset, Dataset | IterableDataset):
            continue
        columns = set(_columns(dataset))
        for function in functions:
            missing = sorted(_wanted(function) - _GIVEN - (columns - _WITHHELD))
            if missing:
                raise ValueError(
                    f"The reward function {_name(function)} needs the argument {missing[0]!r}, and {which} has no "
                    f"such column, only {sorted(columns)}. Rename the column that holds it: "
                    f"dataset.rename_column(name, {missing[0]!r}); or give the argument a default."
                )


def check_row(example: Mapping[str, Any], where: str, column: str | None) -> None:
    """Refuse a row that cannot be trained on as it comes: of a stream, or of a transform.

    Args:
        example (Mapping[str, Any]): The row.
        where (str): What names it in an error.
        column (str | None): Column that identifies the prompt.
    """
    text = complaint(example["prompt"])
    if text is None and column is not None and example[column] is None:
        text = f"has no {column}, which identifies it across epochs"
    if text is not None:
        raise ValueError(f"{where} {text}. The row is {short(dict(example))}. Filter or correct the data set.")


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
            return f"holds {short(message)}, which is no message with a 'role' and a 'content'"
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
    # Of a stream its first row; it is read as it is trained on.
    found = _suspects(dataset) if _is_table(dataset) else enumerate(row["prompt"] for row in dataset.take(1))
    for row, prompt in found:
        if (text := complaint(prompt)) is not None:
            raise ValueError(f"{which}: the prompt of row {row} {text}. Filter or correct it.")


def _suspects(dataset: Dataset) -> Iterator[tuple[int, Any]]:
    """Number and prompt of each row of a table that may be wrong; the others never become Python objects."""
    # The table has every row of the data set, in an order of its own, which takes no time to read.
    if not any(len(_suspect_rows(chunk)) for chunk in dataset.data.column("prompt").chunks):
        return
    first = 0
    for table in dataset.select_columns("prompt").with_format("arrow").iter(_TABLE_ROWS):
        prompts = table["prompt"].combine_chunks()
        for row in _suspect_rows(prompts).tolist():
            yield first + row, prompts[row].as_py()
        first += len(prompts)


def _suspect_rows(prompts: pa.Array) -> np.ndarray:
    """Numbers of rows that are not plainly text, or plainly messages with text; ascending."""
    if _is_text(prompts.type):
        return _where(pc.fill_null(pc.equal(pc.binary_length(prompts), 0), True))
    messages = pc.list_flatten(prompts) if _is_list(prompts.type) else prompts
    names = {one.name for one in messages.type} if pa.types.is_struct(messages.type) else set()
    if not _is_list(prompts.type) or not {"role", "content"} <= names:
        return np.arange(len(prompts))
    role, content = pc.struct_field(messages, "role"), pc.struct_field(messages, "content")
    wrong = pc.or_(pc.is_null(role), pc.is_null(content))
    owner = pc.list_parent_indices(prompts).to_numpy(zero_copy_only=False)
    rows = [_where(pc.fill_null(pc.equal(pc.list_value_length(prompts), 0), True)), owner[_where(wrong)]]
    if not _is_text(content.type):
        parts = pc.list_flatten(content) if _is_list(content.type) else content
        if not pa.types.is_struct(parts.type) or "type" not in {one.name for one in parts.type}:
            return np.arange(len(prompts))
        other = pc.fill_null(pc.not_equal(pc.struct_field(parts, "type"), "text"), True)
        rows.append(owner[pc.list_parent_indices(content).to_numpy(zero_copy_only=False)[_where(other)]])
    return np.unique(np.concatenate(rows))


def _check_ids(dataset: Dataset, column: str) -> None:
    """Refuse ids that are missing, and one id for all prompts: they would share what is remembered about them."""
    first, seen = 0, set[Any]()
    for table in dataset.select_columns(column).with_format("arrow").iter(_TABLE_ROWS):
        ids = table[column].combine_chunks()
        missing = _where(pc.is_null(ids, nan_is_null=pa.types.is_floating(ids.type)))
        if len(missing):
            raise ValueError(
                f"prompt_id_column={column!r} is {ids[int(missing[0])].as_py()} in row {first + int(missing[0])} of "
                "the data set. Give every row an id, or leave prompt_id_column out: a hash of the prompt stands in."
            )
        if len(seen) < 2 and not pa.types.is_nested(ids.type):
            seen |= set(pc.unique(ids)[:2].to_pylist())
        first += len(ids)
    if len(seen) == 1 and _differ(dataset["prompt"] if "prompt" in dataset.column_names else []):
        raise ValueError(
            f"prompt_id_column={column!r} is {seen.pop()!r} in all {first} rows of the data set, so that all prompts "
            "would share one history. Name a column with one value a prompt, or leave it out: a hash of the prompt "
            "stands in."
        )


def _differ(values: Iterable[Any]) -> bool:
    values = iter(values)
    first = next(values, None)
    return any(value != first for value in values)


def _check_candidates(dataset: Dataset | IterableDataset, args: DUETGRPOConfig) -> None:
    if args.num_candidates == args.num_prompts:
        return
    share = args.options.prompt_candidates
    if not isinstance(dataset, Dataset):
        raise ValueError(
            f"prompt_candidates={share:g} draws from the whole data set, which a stream does not allow. Train on a "
            "Dataset, or set prompt_candidates=1."
        )
    if len(dataset) < args.num_candidates:
        raise ValueError(
            f"prompt_candidates={share:g} needs {args.num_candidates} prompts for a step of {args.num_prompts}, and "
            f"the data set has {len(dataset)}. Lower it, or use more data."
        )


def _columns(dataset: Dataset | IterableDataset) -> list[str]:
    return dataset.column_names or [name for row in dataset.take(1) for name in row]  # a stream may not know yet


def _is_table(dataset: Dataset | IterableDataset) -> bool:
    """Whether all rows can be read now; with a transform they are what they are only once they are asked for."""
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
    except ValueError:  # a function of C says nothing
        return set()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {one.name for one in parameters if one.default is inspect.Parameter.empty and one.kind in kinds}


def _name(function: Any) -> str:
    return function.__name__ if inspect.isroutine(function) else type(function).__name__


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _where(mask: pa.BooleanArray) -> np.ndarray:
    return np.flatnonzero(mask.to_numpy(zero_copy_only=False))


def short(value: Any) -> str:
    """A value as an error shows it."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def data_sample(dataset: Any, column: str | None) -> dict[str, Any] | None:
    """What tells one data set from another: how many rows, and the keys of some; None for a stream."""
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
