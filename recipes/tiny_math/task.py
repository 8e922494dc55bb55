# SPDX-License-Identifier: Apache-2.0
r"""The task: `Compute $84-7+13*3$.`, solved line by line and answered in `\boxed{}`.

Problems come in five levels of difficulty and three disjoint splits. The split of an expression is a hash of its
text, so no list has to be stored: what the warm start may write about, what reinforcement learning trains on and what
is held out can never meet, whatever is sampled and in whatever order. Every expression has three terms or more, so
none is a single line of another problem's solution either.

The authors who "wrote" the warm-start corpus are deliberately human: they slip, some of them re-check without end, and
some add a made-up next question after the answer. The rates are our own choice; they give a policy that knows how
to solve the task, samples it sloppily, loops, and does not stop: what a base model does on real mathematics.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from .problems import LEVELS, WARM_START, distinct_problems, split_of
from .problems import Problem as AnyProblem

MAX_COMPLETION_LENGTH = 320
"""Tokens at which completions are cut, in the corpus and in training."""


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


@dataclass(frozen=True)
class Author:
    """How the corpus is written.

    Attributes:
        slip (float): Probability that the result of a line is wrong; the solution continues with the wrong value.
        looper (tuple[float, ...]): Probability, by level, that the author of a document is a looper.
        again_looper (float): Probability of one more re-check before the answer, for a looper.
        again (float): The same for everybody else.
        tail (float): Probability of a made-up next question after the answer.
        tail_again (float): Probability of yet another one after that.
    """

    slip: float
    looper: tuple[float, ...]
    again_looper: float
    again: float
    tail: float
    tail_again: float


def sample_problem(rng: random.Random, level: int, split: str) -> Problem:
    """A random problem of one level and split; its running total never goes below zero."""
    while True:
        problem = _sample_expression(rng, level)
        if split_of(problem.expression) == split:
            return problem


def sample_problems(split: str, count: int, seed: int) -> list[Problem]:
    """Distinct problems of one split, the levels in equal parts and in turn; see `distinct_problems`."""
    return distinct_problems(sample_problem, split, count, seed)


def solution_steps(expression: str) -> Iterator[tuple[int, str, int]]:
    """The lines of the left-to-right solution as (left, operator, right).

    Send the result of each line into the generator; later lines use what was sent, right or wrong. The generator's
    return value is the final total.
    """
    signs, terms = _parse(expression)
    total: int | None = None
    for sign, factors in zip(signs, terms, strict=True):
        value = factors[0]
        if len(factors) == 2:
            value = yield factors[0], "*", factors[1]
        total = value if total is None else (yield total, sign, value)
    return total


def write_answer(rng: random.Random, problem: Problem, author: Author) -> str:
    """One assistant turn: restated expression, one line per operation, re-checks, and the boxed answer."""
    looper = rng.random() < author.looper[problem.level - 1]
    again = author.again_looper if looper else author.again
    text, total = _work(rng, problem.expression, author.slip)
    while rng.random() < again and len(text) < _LONGEST_TURN:
        more, total = _work(rng, problem.expression, author.slip)
        text += rng.choice(_RECHECKS) + more
    return text + rng.choice(_CLOSINGS).format(total)


def write_document(rng: random.Random, problem: Problem, author: Author) -> str:
    """The whole completion, with its made-up next turns, without the end-of-text token."""
    text = write_answer(rng, problem, author)
    more = author.tail
    while rng.random() < more and len(text) < _LONGEST_TURN:
        following = sample_problem(rng, rng.choice(LEVELS), WARM_START)
        text += f"<|im_end|>\n<|im_start|>user\n{following.question}<|im_end|>\n<|im_start|>assistant\n"
        text += write_answer(rng, following, author)
        more = author.tail_again
    return text


# Documents are cut at a number of tokens later; a turn longer than this many characters is past any such cut.
_LONGEST_TURN = 2000
_RECHECKS = ("Wait, let me check that again.\n", "Hmm, is that right? Once more.\n", "Let me redo this carefully.\n")
_CLOSINGS = (
    "The answer is $\\boxed{{{}}}$.",
    "So we get \\boxed{{{}}}.",
    "Therefore, the result is $\\boxed{{{}}}$.\n\n",
)


def _work(rng: random.Random, expression: str, slip: float) -> tuple[str, int]:
    lines = [expression]
    steps = solution_steps(expression)
    result: int | None = None
    while True:
        try:
            left, operator, right = steps.send(result)
        except StopIteration as end:
            return "\n".join(lines) + "\n", end.value
        result = _apply(left, operator, right)
        if rng.random() < slip:
            result = _wrong(rng, result)
        lines.append(f"{left}{operator}{right}={result}")


def _wrong(rng: random.Random, result: int) -> int:
    offset = rng.choice((1, 1, 2, 10, 10, 20))
    return result + offset if rng.random() < 0.5 or result < offset else result - offset


def _apply(left: int, operator: str, right: int) -> int:
    return {"+": left + right, "-": left - right, "*": left * right}[operator]


def _parse(expression: str) -> tuple[list[str], list[list[int]]]:
    signs, terms = ["+"], [""]
    for character in expression:
        if character in "+-":
            signs.append(character)
            terms.append("")
        else:
            terms[-1] += character
    return signs, [[int(factor) for factor in term.split("*")] for term in terms]


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
