# SPDX-License-Identifier: Apache-2.0
r"""The task: `Multiply 347*26.`, worked digit by digit and answered in a code fence.

What makes it unlike recipes/tiny_math: solutions are long chains of small steps, a third of the rollouts never come to
an answer because their authors check again and again, and almost nothing follows an answer. So there is little to
trim after an answer and much to abort before one.

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
exchanged. A re-check restates the problem it belongs to, and no row of a solution is itself a problem.
"""

import random
from dataclasses import dataclass

from recipes.tiny_math.problems import Problem as AnyProblem
from recipes.tiny_math.problems import distinct_problems
from recipes.tiny_math.problems import split_of as split_of_text

DIGITS = {1: (5, 1), 2: (2, 2), 3: (3, 2), 4: (4, 2), 5: (3, 3)}
"""Digits of the two factors, by level; no row of a solution (first factor times a digit) is a problem of level 1."""
LARGE_CARRY = 3
"""Carry from which people forget it: none of a sum of two digits, none of a row of 1, 2 or 3."""
MAX_COMPLETION_LENGTH = 384
"""Tokens at which completions are cut, in the corpus and in training."""


class Problem(AnyProblem):
    """One product, its level and its value."""

    QUESTION = "Multiply {}."


@dataclass(frozen=True)
class Author:
    """How the corpus is written.

    Attributes:
        slip (float): Probability that the result of a step is wrong; the solution continues with the wrong digits.
        forget (float): Probability that a step leaves out its carry where that is at least `LARGE_CARRY`; such a step
            has no other slip.
        looper (tuple[float, ...]): Probability, by level, that the author of a document is a looper.
        again_looper (float): Probability of one more re-check before the answer, for a looper.
        again (float): The same for everybody else.
        tail (float): Probability that the author continues after the answer: a re-check and the answer once more.
    """

    slip: float
    forget: float
    looper: tuple[float, ...]
    again_looper: float
    again: float
    tail: float


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


def write_document(rng: random.Random, problem: Problem, author: Author) -> str:
    """The whole completion: restated problem, working, re-checks, the fence, rarely more; no end-of-text token."""
    looper = rng.random() < author.looper[problem.level - 1]
    again = author.again_looper if looper else author.again
    text = _work(rng, problem.expression, author)
    while rng.random() < again and len(text) < _LONGEST:
        text += rng.choice(_RECHECKS) + _work(rng, problem.expression, author)
    text += _fence(text)
    if rng.random() < author.tail:
        text += "\n" + rng.choice(_RECHECKS) + _work(rng, problem.expression, author)
        text += _fence(text)
    return text


# Documents are cut at a number of tokens later; a text longer than this many characters is past any such cut.
_LONGEST = 1000
_RECHECKS = ("Wait, check again.\n", "Hmm, once more.\n", "Let me redo this.\n")


def _work(rng: random.Random, expression: str, author: Author) -> str:
    """Lines of one pass over the problem; the last one is the product."""
    first, second = expression.split("*")
    lines = [expression]
    total = ""
    for shift, digit in enumerate(reversed(second)):
        lines.append(f"{first}*{digit}")
        row = _steps(rng, lines, [(f"{d}*{digit}", int(d) * int(digit)) for d in reversed(first)], author, True)
        if shift == 0:
            total = row
            continue
        left, right = "0" + total, row + "0" * shift
        lines.append(f"{left}+{right}")
        columns = [(f"{a}+{b}", int(a) + int(b)) for a, b in zip(reversed(left), reversed(right), strict=True)]
        total = _steps(rng, lines, columns, author, False)
    return "\n".join(lines) + "\n"


def _steps(rng: random.Random, lines: list[str], steps: list[tuple[str, int]], author: Author, leading: bool) -> str:
    """Append one line a step, with carries, and the digits they give; a row keeps the carry of its last step."""
    carry, digits = 0, ""
    for text, value in steps:
        result = value + carry
        if carry >= LARGE_CARRY:
            result = value if rng.random() < author.forget else result
        elif rng.random() < author.slip:
            result = _wrong(rng, result)
        lines.append(f"{text}+{carry}={result:02d}")
        carry, unit = divmod(result, 10)
        digits = f"{unit}{digits}"
    lines.append(f"{carry}{digits}" if leading else digits)
    return lines[-1]


def _wrong(rng: random.Random, result: int) -> int:
    """Another number of at most two digits: one off, or one off in the tens."""
    return rng.choice([n for n in (result - 10, result - 1, result + 1, result + 10) if 0 <= n <= 99])


def _fence(text: str) -> str:
    answer = text.rstrip().rsplit("\n", 1)[-1]
    return f"```\n{int(answer)}\n```"


def _least(digits: int) -> int:
    # One-digit factors start at 2: nobody multiplies by 0 or 1 in writing.
    return 10 ** (digits - 1) if digits > 1 else 2
