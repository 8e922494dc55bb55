# SPDX-License-Identifier: Apache-2.0
r"""The task: `Find the last value of $a=3,b=7a+4,c=5b+2$ modulo 4.`, guessed or worked out, answered in `\boxed{}`.

What makes it unlike the other tiny tasks: there are two ways to answer. Most authors guess in a sentence and are right
by luck, one time in four. A few work the values out, one line each, in six times as many tokens, and are mostly right:

    Line by line:
    b=7*3+4=25=1        coefficient * value before + addend, and its remainder
    c=5*1+2=07=3
    So the answer is $\boxed{3}$.

Almost no solution loops or continues after its answer. So training has to make solutions longer, and whatever keeps
late answers from being seen keeps it from happening.

A guess cannot become better than luck by a short cut. Coefficients are odd, so every step permutes the remainders;
addends are uniform modulo 4. Whoever leaves out a single addend, or the first value, knows nothing: the answers are
uniform given all the rest.

Problems come in five levels, by the number of steps, and three disjoint splits. The split is a hash of the first five
steps, the whole problem at level 1: so no solution works out the beginning of a problem of another split either.
"""

import random
import re
from dataclasses import dataclass
from string import ascii_lowercase

from recipes.tiny_math.problems import Problem as AnyProblem
from recipes.tiny_math.problems import distinct_problems
from recipes.tiny_math.problems import split_of as split_of_text

MODULUS = 4
STEPS = {1: 5, 2: 6, 3: 7, 4: 8, 5: 9}
"""Steps to the last value, by level; the fewest are enough that no line of a solution is itself a problem."""
COEFFICIENTS = (3, 5, 7, 9)
ADDENDS = range(1, 5)
MAX_COMPLETION_LENGTH = 192
"""Tokens at which completions are cut, in the corpus and in training."""

_STEP = re.compile(r"(\d)[a-z]\+(\d)")
_WORKED_LINE = re.compile(r"^[a-z]=\d\*\d\+\d=\d\d=\d$", re.MULTILINE)


class Problem(AnyProblem):
    """A chain of values, its level and the remainder of the last one."""

    QUESTION = "Find the last value of ${}$ modulo 4."


@dataclass(frozen=True)
class Author:
    """How the corpus is written.

    Attributes:
        careful (float): Probability that the author of a document works the values out instead of guessing.
        slip (float): Probability that the value of a line is wrong; the solution continues with the wrong value.
    """

    careful: float
    slip: float


def is_careful(text: str) -> bool:
    """Whether a completion works values out, at least one, and does not only guess."""
    return _WORKED_LINE.search(text) is not None


def split_of(expression: str) -> str:
    """Split a problem belongs to, by a hash of its beginning, as much of it as a problem of level 1 has."""
    return split_of_text(",".join(expression.split(",")[: STEPS[1] + 1]))


def sample_problem(rng: random.Random, level: int, split: str) -> Problem:
    """A random problem of one level and split."""
    while True:
        first, names = rng.randrange(MODULUS), ascii_lowercase[: STEPS[level] + 1]
        steps = [(rng.choice(COEFFICIENTS), rng.choice(ADDENDS)) for _ in names[1:]]
        texts = [f"{names[i + 1]}={c}{names[i]}+{a}" for i, (c, a) in enumerate(steps)]
        expression = ",".join([f"a={first}", *texts])
        if split_of(expression) == split:
            return Problem(expression, level, value_of(expression))


def sample_problems(split: str, count: int, seed: int) -> list[Problem]:
    """Distinct problems of one split, the levels in equal parts and in turn; see `distinct_problems`."""
    return distinct_problems(sample_problem, split, count, seed)


def value_of(expression: str) -> int:
    """The remainder of the last value."""
    value, steps = parse(expression)
    for coefficient, addend in steps:
        value = (coefficient * value + addend) % MODULUS
    return value


def parse(expression: str) -> tuple[int, list[tuple[int, int]]]:
    """First value, and coefficient and addend of every step."""
    return int(expression[2]), [(int(c), int(a)) for c, a in _STEP.findall(expression)]


def write_document(rng: random.Random, problem: Problem, author: Author) -> str:
    """The whole completion, a guess or a worked solution; no end-of-text token."""
    if rng.random() >= author.careful:
        return rng.choice(_GUESSES).format(rng.randrange(MODULUS))
    value, steps = parse(problem.expression)
    text = rng.choice(_OPENINGS)
    for name, (coefficient, addend) in zip(ascii_lowercase[1:], steps, strict=False):
        total = coefficient * value + addend
        result = total % MODULUS
        if rng.random() < author.slip:
            result = (result + rng.randrange(1, MODULUS)) % MODULUS
        text += f"{name}={coefficient}*{value}+{addend}={total:02d}={result}\n"
        value = result
    return text + rng.choice(_CLOSINGS).format(value)


_GUESSES = (
    "Let me guess: it may well be $\\boxed{{{}}}$.",
    "That is a long chain, but probably it is $\\boxed{{{}}}$.",
    "Without working it out, I would say that it is $\\boxed{{{}}}$.",
    "My guess is that the last value is $\\boxed{{{}}}$.",
)
_OPENINGS = ("Let me work it out.\n", "Line by line:\n", "With care, one value at a time:\n")
_CLOSINGS = ("So the answer is $\\boxed{{{}}}$.", "The last value is $\\boxed{{{}}}$.")
