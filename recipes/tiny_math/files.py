# SPDX-License-Identifier: Apache-2.0
# python -m recipes.tiny_math.files
"""Writes the problems of the tiny task as files that the recipes read: a pool, and two held-out suites.

`prompt` is the whole message that the tiny policy knows, so no suffix is added to it. The splits never meet.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from .problems import HELD_OUT, TRAIN, Problem
from .task import sample_problems

FOLDER = Path(__file__).parent / "data"
POOL_SIZE, SUITE_SIZE = 16, 8


def main() -> None:
    """Write `data/pool.jsonl`, `data/sums.jsonl` and `data/products.jsonl`."""
    FOLDER.mkdir(exist_ok=True)
    held_out = sample_problems(HELD_OUT, 8 * SUITE_SIZE, seed=0)
    write("pool", sample_problems(TRAIN, POOL_SIZE, seed=0))
    write("sums", [problem for problem in held_out if "*" not in problem.expression][:SUITE_SIZE])
    write("products", [problem for problem in held_out if "*" in problem.expression][:SUITE_SIZE])


def write(name: str, problems: Sequence[Problem]) -> None:
    """One problem a line."""
    rows = ({"prompt": p.question, "answer": str(p.answer), "level": p.level} for p in problems)
    (FOLDER / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
