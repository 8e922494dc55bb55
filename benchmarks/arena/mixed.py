# SPDX-License-Identifier: Apache-2.0
r"""Problems for pre-trained models: five kinds of reasoning-gym, three levels each, graded by its own scorers.

A prompt is plain text, so that base models are asked like instructed ones: worked examples, a line each, then the
problem up to where its answer belongs. The splits of a kind and level never meet, whatever is sampled.

No answer is right often: a policy that gives every problem of a kind the same answer gets a tenth of them at most. An
earlier choice of kinds paid such a policy 80% of one kind and a third of two others, and every method found that. But
rules of position are right about as often as trained policies (`best_rules`).
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from .problem import Problem

POOL, REPORT, FRESH, TUNING = "pool", "report", "fresh", "tuning"
SIZES = {REPORT: 20, FRESH: 20, TUNING: 10, POOL: 70}
"""Problems of a kind and level in each split, in this order."""
DRAWN = 1200
"""Of which distinct ones are kept."""
SAME = 13
"""Most problems of a kind and level with the same answer, of some 120."""


@dataclass(frozen=True, eq=False)
class Kind:
    """A generator of reasoning-gym, and how it is asked here.

    Attributes:
        name (str): In tables.
        generator (str): Its name there.
        levels (tuple[Mapping[str, Any], ...]): Its settings, from easy to hard.
        write (Callable[[Mapping[str, Any]], str]): The line of an entry, up to where its answer belongs.
        examples (int): Worked ones in the prompt.
        listed (bool): Whether the answer is a list of numbers, which generator and scorer write in Python's form.
    """

    name: str
    generator: str
    levels: tuple[Mapping[str, Any], ...]
    write: Callable[[Mapping[str, Any]], str]
    examples: int
    listed: bool = False

    def answer(self, entry: Mapping[str, Any]) -> str:
        """The right answer, as a prompt writes it."""
        return ", ".join(re.findall(r"[-\d]+", entry["answer"].replace(".0", ""))) if self.listed else entry["answer"]


def _needle(entry: Mapping[str, Any]) -> str:
    statements, question = entry["question"].split(" \n", 1)
    return f"{statements} {question.strip().removesuffix(' Reply only with a name.')}"


def _filter(entry: Mapping[str, Any]) -> str:
    found = entry["metadata"]
    keep, than = found["operation"].split("_")
    return f"{keep} numbers {than} than {found['filter_value']}: {', '.join(found['original_numbers'])} ="


def _sort(entry: Mapping[str, Any]) -> str:
    found = entry["metadata"]
    return f"sort {found['direction']}: {', '.join(found['original_numbers'])} =".replace(".0", "")


def _words(entry: Mapping[str, Any]) -> str:
    found = entry["metadata"]
    return f"sort {found['direction']}: {', '.join(found['original_words'])} ="


def _sum(entry: Mapping[str, Any]) -> str:
    return f"{entry['metadata']['expression']} ="


def _range(name: str, *ranges: tuple[int, int]) -> tuple[dict[str, int], ...]:
    return tuple({f"min_{name}": least, f"max_{name}": most} for least, most in ranges)


def _numbers(*sizes: tuple[int, int, int]) -> tuple[dict[str, Any], ...]:
    """How many numbers, the least and the most of them."""
    whole = {"min_decimals": 0, "max_decimals": 0}
    return tuple(
        {"min_numbers": count, "max_numbers": count, "min_value": float(least), "max_value": float(most)} | whole
        for count, least, most in sizes
    )


KINDS = (
    Kind("needle", "needle_haystack", _range("num_statements", (1, 1), (2, 2), (3, 3)), _needle, 2),
    Kind("filter", "number_filtering", _numbers((2, 1, 20), (2, 10, 99), (3, 1, 20)), _filter, 3, listed=True),
    # The scorer accepts numbers that are one off: they are large enough for that to be no help.
    Kind("sort", "number_sorting", _numbers((2, 10, 99), (2, 100, 999), (3, 10, 99)), _sort, 3, listed=True),
    Kind(
        "words",
        "word_sorting",
        tuple({"min_words": 2, "max_words": 2} | size for size in _range("word_length", (3, 4), (3, 5), (3, 6))),
        _words,
        3,
    ),
    Kind(
        "sum",
        "chain_sum",
        (
            {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
            {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1},
            {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
        ),
        _sum,
        4,
    ),
)


RULES: tuple[Callable[[list[str]], list[str]], ...] = (
    lambda parts: parts,
    lambda parts: parts[::-1],
    lambda parts: parts[:1],
    lambda parts: parts[-1:],
)
"""Answers that take no notice of what is asked: the list as it is given, reversed, its first and its last part."""


def best_rules(asked: Sequence[Problem]) -> dict[str, float]:
    """Share of the problems of each kind that the best of `RULES` for that kind gets right."""
    found = {}
    for kind in dict.fromkeys(problem.kind for problem in asked):
        own = [problem for problem in asked if problem.kind == kind]
        right = [sum(problem.accepts(", ".join(rule(_parts(problem)))) for problem in own) for rule in RULES]
        found[kind] = max(right) / len(own)
    return found


def _parts(problem: Problem) -> list[str]:
    """What a line lists: of a needle the names, of others what stands between commas."""
    if problem.kind == "needle":
        return [statement.split(" ", 1)[0] for statement in problem.key.split(". ")[:-1]]
    return problem.key.removesuffix(" =").rpartition(": ")[2].split(", ")


@cache
def problems(split: str, kinds: tuple[Kind, ...] = KINDS) -> tuple[Problem, ...]:
    """All problems of a split, kinds and levels in turn. Every kind has as many levels."""
    if len({len(kind.levels) for kind in kinds}) > 1:
        counts = ", ".join(f"{kind.name} {len(kind.levels)}" for kind in kinds)
        raise ValueError(f"every kind needs as many levels as the others: {counts}")
    names = list(SIZES)
    first = sum(SIZES[name] for name in names[: names.index(split)])
    cells = [cell[first : first + SIZES[split]] for row in zip(*map(_levels, kinds), strict=True) for cell in row]
    return tuple(problem for row in zip(*cells, strict=True) for problem in row)


@cache
def _levels(kind: Kind) -> list[list[Problem]]:
    """Problems of each level of a kind, as many as all splits have; the first of its entries are worked examples."""
    from reasoning_gym import create_dataset  # it imports for seconds

    found, taken, needed = [], set(), kind.examples + sum(SIZES.values())
    for level, settings in enumerate(kind.levels, 1):
        generator = create_dataset(kind.generator, size=DRAWN, seed=level, **settings)
        entries: dict[str, Any] = {}
        answers: Counter[str] = Counter()
        for entry in generator:
            line, answer = kind.write(entry), kind.answer(entry)
            if answer and line not in taken and answers[answer] < SAME and len(entries) < needed:
                if not _accepts(kind, generator, entry, answer):
                    raise ValueError(
                        f"{kind.name}, level {level}: its scorer refuses {answer!r}, its own answer to {line!r}"
                    )
                answers[answer] += 1
                taken.add(line)
                entries[line] = entry
        if len(entries) < needed:
            raise ValueError(
                f"{kind.name}, level {level}: {len(entries)} different problems of {needed}, if at most {SAME} have "
                "the same answer. Widen its settings, or choose a generator with more answers."
            )
        lines = list(entries)
        random.Random(level).shuffle(lines)  # the last ones have the rarer answers
        worked = "".join(f"{line} \\boxed{{{kind.answer(entries[line])}}}\n" for line in lines[: kind.examples])
        found.append(
            [
                Problem(worked + line, kind.name, level, line, partial(_accepts, kind, generator, entries[line]))
                for line in lines[kind.examples :]
            ]
        )
    return found


def _accepts(kind: Kind, generator: Any, entry: Mapping[str, Any], answer: str) -> bool:
    with suppress(Exception):  # some scorers raise what they like at an answer that is none
        return generator.score_answer(str(answer.split(", ")) if kind.listed else answer, entry) >= 1
    return False
