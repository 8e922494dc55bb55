# SPDX-License-Identifier: Apache-2.0
"""What the trainer asks of the data set: text prompts with an identity that lasts across epochs."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from datasets import Dataset, IterableDataset

from ..config import DUETGRPOConfig

_SAMPLED_ROWS = 64
"""Spread over the data: a row added, removed or moved before one of them shows."""


def check_data(dataset: Any, args: DUETGRPOConfig, *, needs_prompt: bool) -> None:
    """Refuse images and missing columns before a model is loaded."""
    if dataset is None:  # GRPOTrainer knows when it can do without
        return
    if not isinstance(dataset, Dataset | IterableDataset):
        raise TypeError(
            f"train_dataset must be a Dataset or IterableDataset of `datasets`, got {type(dataset).__name__}. "
            "Dataset.from_list makes one of a list of dictionaries."
        )
    columns = dataset.column_names or [name for row in dataset.take(1) for name in row]  # a stream may not know yet
    for name in ("image", "images"):
        if name in columns:
            raise ValueError(f"The data set has a column {name!r}; DUET trains on text. Use GRPOTrainer for images.")
    if needs_prompt and "prompt" not in columns:
        raise ValueError(
            f"The data set has no column 'prompt', only {sorted(columns)}. Rename the column that holds text or "
            "messages: dataset.rename_column(name, 'prompt')."
        )
    for name in [args.prompt_id_column, *(args.audit_columns or [])]:
        if name is not None and name not in columns:
            raise ValueError(f"The data set has no column {name!r}, only {sorted(columns)}.")
    if "prompt" in columns:
        _check_column(dataset)
    _check_candidates(dataset, args)


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


def _check_column(dataset: Dataset | IterableDataset) -> None:
    first = [row["prompt"] for row in dataset.take(1)]
    check_text(first)
    # Content is a string in all rows of a table or a list in all; a stream is read as it is trained on.
    if isinstance(dataset, Dataset) and any(not isinstance(prompt, str) for prompt in first):
        if any(isinstance(message["content"], list) for prompt in first for message in prompt):
            check_text(dataset["prompt"])


def check_text(prompts: Iterable[Any]) -> None:
    """Refuse messages whose content is more than text."""
    for prompt in prompts:
        for message in [] if isinstance(prompt, str) else prompt:
            parts = message["content"]
            foreign = {part["type"] for part in parts} - {"text"} if isinstance(parts, list) else set()
            if foreign:
                raise ValueError(
                    f"A prompt holds a message with {sorted(foreign)}; DUET trains on text. Use GRPOTrainer for it."
                )


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
