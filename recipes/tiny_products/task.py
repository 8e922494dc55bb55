# SPDX-License-Identifier: Apache-2.0
r"""The task: `Multiply 347*26.`, worked digit by digit and answered in a code fence.

What makes it unlike recipes/tiny_math: solutions are long chains of small steps, a third of the rollouts never come to
an answer because their authors check again and again, and hardly anything follows an answer. So there is little to
trim behind an answer and much to abort before one.

A solution multiplies the first factor by each digit of the second, units first, and adds the product to what it has:

    347*6               one row: the first factor times one digit of the second
    7*6+0=42            digit * digit + carry, always two digits
    4*6+4=28
    3*6+2=20
    2082                the tens of the last step, then the units of all steps, read upwards

and then adds the rows, shifted and padded to the same width (`02082+06940`), in the same way. The fence holds the last
sum without leading zeros.

Problems come in five levels and three disjoint splits. The split is a hash of the text with the smaller factor first:
whatever is sampled, warm start, training pool and held-out set never share a product, not even with its factors
exchanged. A re-check restates the problem it belongs to, and no row of a solution is a problem of its own.
"""

import random

from recipes.tiny_math.problems import Problem as AnyProblem
from recipes.tiny_math.problems import distinct_problems
from recipes.tiny_math.problems import split_of as split_of_text

DIGITS = {1: (5, 1), 2: (2, 2), 3: (3, 2), 4: (4, 2), 5: (3, 3)}
"""Digits of the two factors, by level; no row of a solution (first factor times a digit) is a problem of level 1."""
MAX_COMPLETION_LENGTH = 384
"""Tokens at which completions are cut."""


class Problem(AnyProblem):
    """One product, its level and its value."""

    QUESTION = "Multiply {}."


def split_of(expression: str) -> str:
    """Split a product belongs to, by a hash of its text with the smaller factor first."""
    return split_of_text("*".join(sorted(expression.split("*"), key=int)))


def sample_problem(rng: random.Random, level: int, split: str) -> Problem:
    """A random problem of one level and split."""
    while True:
        first, second = (rng.randrange(_least(digits), 10**digits) for digits in DIGITS[level])
        expression = f"{first}*{second}"
        if split_of(expression) == split:
            return Problem(expression, level, first * second)


def sample_problems(split: str, count: int, seed: int) -> list[Problem]:
    """Distinct problems of one split, the levels in turn; level 2 has about 500 in either of the small splits."""
    return distinct_problems(sample_problem, split, count, seed)


def _least(digits: int) -> int:
    # One-digit factors start at 2: nobody multiplies by 0 or 1 in writing.
    return 10 ** (digits - 1) if digits > 1 else 2
