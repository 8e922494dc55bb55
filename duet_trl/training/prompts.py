# SPDX-License-Identifier: Apache-2.0
"""What the trainer asks of the data set: text prompts with an identity that lasts across epochs."""

import hashlib
import json
from typing import Any

from ..config import DUETGRPOConfig


def check_columns(dataset: Any, args: DUETGRPOConfig) -> None:
    """Refuse images and missing columns before a model is loaded.

    Raises:
        ValueError: If the data set has images, or lacks a column that the configuration names.
    """
    columns = None if dataset is None else dataset.column_names
    if columns is None:  # an iterable data set may not know
        return
    for name in ("image", "images"):
        if name in columns:
            raise ValueError(f"The data set has a column {name!r}; DUET trains on text. Use GRPOTrainer for images.")
    for name in [args.prompt_id_column, *(args.audit_columns or [])]:
        if name is not None and name not in columns:
            raise ValueError(f"The data set has no column {name!r}, only {sorted(columns)}.")


def prompt_keys(examples: list[dict], column: str | None) -> list[str]:
    """Identity of each prompt across epochs: a column, or a hash of the prompt.

    Args:
        examples (list[dict]): Data-set rows, length M.
        column (str | None): Column that identifies a prompt; None hashes `prompt`.

    Returns:
        list[str]: Length M. Equal texts share one key.
    """
    if column is not None:
        return [str(example[column]) for example in examples]
    texts = (json.dumps(example["prompt"], sort_keys=True, ensure_ascii=False) for example in examples)
    return [hashlib.blake2b(text.encode(), digest_size=12).hexdigest() for text in texts]
