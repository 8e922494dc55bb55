# SPDX-License-Identifier: Apache-2.0
"""The common part of the tiny tasks' problems: questions, five levels, and three splits that never meet."""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

LEVELS = (1, 2, 3, 4, 5)
WARM_START, TRAIN, HELD_OUT = "warm_start", "train", "held_out"

# Of 16 equal hash buckets the last two are kept away from the warm-start corpus.
_BUCKETS = 16
_TRAIN_BUCKET, _HELD_OUT_BUCKET = 14, 15


@dataclass(frozen=True)
class Problem:
    """An expression, its level and its value; a task defines how it is asked for.

    Attributes:
        expression (str): What is to be worked out.
        level (int): Of `LEVELS`.
        answer (int): The right one.
    """

    QUESTION: ClassVar[str]
    expression: str
    level: int
    answer: int

    @property
    def question(self) -> str:
        """The user's message."""
        return self.QUESTION.format(self.expression)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The question as a conversation."""
        return [{"role": "user", "content": self.question}]


P = TypeVar("P", bound=Problem)


def split_of(text: str) -> str:
    """Split that a text belongs to: `WARM_START`, `TRAIN` or `HELD_OUT`, by its hash."""
    bucket = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") % _BUCKETS
    return {_TRAIN_BUCKET: TRAIN, _HELD_OUT_BUCKET: HELD_OUT}.get(bucket, WARM_START)


def distinct_problems(
    sample_problem: Callable[[random.Random, int, str], P], split: str, count: int, seed: int
) -> list[P]:
    """Distinct problems of one split, the levels in equal parts and in turn.

    Args:
        sample_problem (Callable): (generator, level, split) -> problem.
        split (str): `TRAIN` or `HELD_OUT` (or `WARM_START`).
        count (int): Number of problems.
        seed (int): Seed of the sampling. The splits are disjoint for any pair of seeds.

    Returns:
        list[P]: `count` problems, level 1, 2, 3, 4, 5, 1, 2, ...
    """
    rng = random.Random(f"{split}-{seed}")
    found: dict[str, P] = {}
    while len(found) < count:
        problem = sample_problem(rng, LEVELS[len(found) % len(LEVELS)], split)
        found.setdefault(problem.expression, problem)
    return list(found.values())
