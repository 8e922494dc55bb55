# SPDX-License-Identifier: Apache-2.0
"""Rows of a data set, from the Hub or from a local file, with errors that say what to do."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from datasets import concatenate_datasets, get_dataset_config_names, load_dataset

FILE_READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
"""Suffixes of local files and the reader of each."""
ALL_CONFIGS = "*"
"""As `config`: every configuration of a data set, one after another (the subjects of MATH)."""


def read_rows(source: str, *, config: str | None = None, split: str = "train") -> list[dict[str, Any]]:
    """All rows of a data set in their order.

    Args:
        source (str): A local .jsonl, .json, .parquet or .csv file, a local folder in a layout that `datasets` knows,
            or a name on the Hub.
        config (str | None): Configuration of a data set on the Hub; `ALL_CONFIGS` joins all of them.
        split (str): Split of a data set on the Hub or in a folder; a file is one split.

    Returns:
        list[dict]: One dictionary of columns per row.

    Raises:
        ValueError: If there is no such file or data set, or a file is not what its name says.
        PermissionError: If the data set is gated and the machine's token has no access.
        ConnectionError: If the Hub cannot be reached and the data set is not in the cache.
    """
    path = Path(source)
    if path.suffix in FILE_READERS:
        if not path.is_file():
            raise ValueError(f"there is no file {source!r}. Give an existing file or a data-set name on the Hub.")
        return _read_file(path)
    try:
        if config == ALL_CONFIGS:
            names = get_dataset_config_names(source)
            # These hold the whole; "main" has GSM8K, whose other configuration repeats it in other words.
            names = next(([name] for name in ("default", "main") if name in names), names)
            return concatenate_datasets([load_dataset(source, name, split=split) for name in names]).to_list()
        return load_dataset(source, config, split=split).to_list()
    except OSError as error:  # also the base of the Hub's own errors
        raise _explained(source, error) from error


def first_column(row: dict[str, Any], columns: Sequence[str]) -> Any:
    """Value of the first of these columns that the row has, None if it has none."""
    return next((row[column] for column in columns if row.get(column) is not None), None)


def check_columns(rows: list[dict[str, Any]], source: str, *needed: Sequence[str]) -> None:
    """Check that there are rows, and that of each group of alternative names the data set has at least one.

    Args:
        rows (list[dict]): Rows of the data set.
        source (str): Its name, for the message.
        *needed (Sequence[str]): Alternative names of one column each.

    Raises:
        ValueError: If a group is missing; names the group and the columns that are there.
    """
    if not rows:
        raise ValueError(f"{source!r} has no rows.")
    columns = sorted({column for row in rows for column in row})
    for names in needed:
        if not set(names) & set(columns):
            raise ValueError(f"{source!r} has no column {' or '.join(names)}; its columns are {columns}.")


def content_checksum(pairs: Iterable[tuple[str, str]]) -> str:
    """SHA-256 over (prompt, gold) pairs, independent of file format, of other columns and of the order of rows.

    Args:
        pairs (Iterable[tuple[str, str]]): Text of the user message and gold answer of each row.

    Returns:
        str: 64 hexadecimal digits.
    """
    lines = sorted(json.dumps(pair, ensure_ascii=True) for pair in pairs)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _read_file(path: Path) -> list[dict[str, Any]]:
    if FILE_READERS[path.suffix] != "json":
        return load_dataset(FILE_READERS[path.suffix], data_files=str(path), split="train").to_list()
    # Not through Arrow: it refuses a column such as `level` that holds numbers and words.
    try:
        text = path.read_text(encoding="utf-8-sig")  # programs on Windows begin UTF-8 with a mark
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(path)!r} is not in UTF-8: {error}. Save it as UTF-8.") from error
    if text.lstrip().startswith("["):
        rows = _parsed(text, path)
    else:  # one row per line, which `Dataset.to_json` writes to a .json too
        lines = enumerate(text.split("\n"), start=1)  # str.splitlines would also split at U+2028 in a string
        rows = [_parsed(line, path, number) for number, line in lines if line.strip()]
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(
                f"{str(path)!r} must hold objects with columns, got {type(row).__name__} as row {number}."
            )
    return rows


def _parsed(text: str, path: Path, line: int = 1) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{str(path)!r} is no JSON in line {line + error.lineno - 1}, column {error.colno}: {error.msg}. It must "
            "hold one object per line, or a list of objects."
        ) from error


def _explained(source: str, error: OSError) -> OSError | ValueError:
    """The error to raise instead: what is wrong and what to do about it."""
    if "gated" in str(error).lower():
        return PermissionError(
            f"{source!r} is gated: accept its terms on https://huggingface.co/datasets/{source} while logged in, then "
            f"run `hf auth login` or set HF_TOKEN, or give the path of a local file instead. ({error})"
        )
    if isinstance(error, FileNotFoundError):
        return ValueError(
            f"there is no data set {source!r}, neither as a folder nor on the Hub, or the token of this machine may "
            f"not see it. Check the name, or give the path of a local file. ({error})"
        )
    return ConnectionError(
        f"{source!r} cannot be read from the Hub, and it is not in the cache. Connect this machine, unset "
        f"HF_HUB_OFFLINE, or give the path of a local .jsonl or .parquet file instead. ({error})"
    )
