# SPDX-License-Identifier: Apache-2.0
r"""The task: `Compute $84-7+13*3$.`, solved line by line and answered in `\boxed{}`.

Problems come in five levels of difficulty and three disjoint splits. The split of an expression is a hash of its
text, so no list has to be stored: what the warm start may write about, what reinforcement learning trains on and what
is held out can never meet, whatever is sampled and in whatever order. Every expression has three terms or more, so
none is a single line of another problem's solution either.

"""

import random
from dataclasses import dataclass

from .problems import Problem as AnyProblem
from .problems import distinct_problems, split_of

MAX_COMPLETION_LENGTH = 320
"""Tokens at which completions are cut."""


@dataclass(frozen=True)
class LevelSpec:
    """Size of a level's expressions.

    Attributes:
        terms (tuple[int, int]): Fewest and most terms.
        products (tuple[int, int]): Fewest and most terms that are products.
        largest (int): Largest plain operand.
        two_digit_share (float): Share of products of two two-digit factors (the others have a one-digit factor).
    """

    terms: tuple[int, int]
    products: tuple[int, int]
    largest: int
    two_digit_share: float = 0.0


LEVEL_SPECS = {
    1: LevelSpec((3, 3), (0, 0), 49),
    2: LevelSpec((3, 4), (0, 1), 59),
    3: LevelSpec((4, 5), (1, 1), 79),
    4: LevelSpec((5, 6), (1, 2), 99),
    5: LevelSpec((6, 8), (2, 3), 99, 0.3),
}


class Problem(AnyProblem):
    """One expression, its level and its value."""

    QUESTION = "Compute ${}$."


def sample_problem(rng: random.Random, level: int, split: str) -> Problem:
    """A random problem of one level and split; its running total never goes below zero."""
    while True:
        problem = _sample_expression(rng, level)
        if split_of(problem.expression) == split:
            return problem


def sample_problems(split: str, count: int, seed: int) -> list[Problem]:
    """Distinct problems of one split, the levels in equal parts and in turn; `distinct_problems` says how."""
    return distinct_problems(sample_problem, split, count, seed)


def _sample_expression(rng: random.Random, level: int) -> Problem:
    spec = LEVEL_SPECS[level]
    num_terms = rng.randint(*spec.terms)
    products = set(rng.sample(range(num_terms), rng.randint(*spec.products)))
    text, total = "", 0
    for position in range(num_terms):
        value, term = _sample_term(rng, spec, position in products)
        sign = "-" if value <= total and rng.random() < 0.5 else "+"
        total += value if sign == "+" else -value
        text += term if position == 0 else sign + term
    return Problem(text, level, total)


def _sample_term(rng: random.Random, spec: LevelSpec, product: bool) -> tuple[int, str]:
    if not product:
        value = rng.randint(1, spec.largest)
        return value, str(value)
    first = rng.randint(11, 29)
    second = rng.randint(11, 19) if rng.random() < spec.two_digit_share else rng.randint(2, 9)
    return first * second, f"{first}*{second}"
