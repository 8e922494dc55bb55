# SPDX-License-Identifier: Apache-2.0
"""Rows that graders are tested on.

cases/<grader>.jsonl has a case a line, with its kind, and with `why` where that is not obvious. Labelled outputs of
models and data sets lie in ../shared/data.
"""

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "cases"
DATA = Path(__file__).parents[3] / "shared" / "data"


def cases(grader: str) -> dict[str, list[dict[str, Any]]]:
    """The cases of a grader by their kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in (FOLDER / f"{grader}.jsonl").read_text(encoding="utf-8").strip("\n").split("\n"):
        case = json.loads(line)
        found.setdefault(case.pop("kind"), []).append(case)
    return found


def rows_of(name: str) -> list[dict[str, Any]]:
    """Rows of a file of the shared data; the test is skipped where it is not there."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def verdict(right: bool | None) -> float | None:
    """What a verifier returns for a right, a wrong and an ungraded answer."""
    return None if right is None else float(right)
