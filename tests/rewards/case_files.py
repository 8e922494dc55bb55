# SPDX-License-Identifier: Apache-2.0
"""The graders' cases: cases/<grader>.jsonl has one a line, with its kind, and with `why` where that is not obvious."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "cases"


def cases(grader: str) -> dict[str, list[dict[str, Any]]]:
    """The cases of a grader by their kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in (FOLDER / f"{grader}.jsonl").read_text(encoding="utf-8").strip("\n").split("\n"):
        case = json.loads(line)
        found.setdefault(case.pop("kind"), []).append(case)
    return found


def verdict(right: bool | None) -> float | None:
    """What a verifier returns for a right, a wrong and an ungraded answer."""
    return None if right is None else float(right)
