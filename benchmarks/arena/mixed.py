# SPDX-License-Identifier: Apache-2.0
r"""Problems for pre-trained models: five kinds of reasoning-gym, three levels each, graded by its own scorers.

A prompt is plain text, so that base models are asked like instructed ones: worked examples, a line each, then the
problem up to where its answer belongs. At the start a few are solved every time and a third never: there is something
to learn. The splits of a kind and level never meet, whatever is sampled.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from .problem import Problem

POOL, REPORT, FRESH, TUNING = "pool", "report", "fresh", "tuning"
SIZES = {REPORT: 20, FRESH: 20, TUNING: 10, POOL: 70}
"""Problems of a kind and level in each split, in this order."""
DRAWN = 1200
"""Of which the distinct ones are kept."""


@dataclass(frozen=True, eq=False)
class Kind:
    """A generator of reasoning-gym, and how it is asked here.

    Attributes:
        name (str): In tables.
        generator (str): Its name there.
        levels (tuple[Mapping[str, Any], ...]): Its settings, from easy to hard.
        write (Callable[[Mapping[str, Any]], str]): The line of an entry, up to where its answer belongs.
        examples (int): Worked ones in the prompt.
    """

    name: str
    generator: str
    levels: tuple[Mapping[str, Any], ...]
    write: Callable[[Mapping[str, Any]], str]
    examples: int


def _letters(entry: Mapping[str, Any]) -> str:
    found = entry["metadata"]
    return f"How many {found['target_letter']} in {' '.join(found['span'])}?"


def _needle(entry: Mapping[str, Any]) -> str:
    statements, question = entry["question"].split(" \n", 1)
    return f"{statements} {question.strip().removesuffix(' Reply only with a name.')}"


def _bits(entry: Mapping[str, Any]) -> str:
    return f"How many 1 in {entry['metadata']['binary']}?"


def _gcd(entry: Mapping[str, Any]) -> str:
    return "gcd({}, {}) =".format(*entry["metadata"]["numbers"])


def _sum(entry: Mapping[str, Any]) -> str:
    return f"{entry['metadata']['expression']} ="


def _range(name: str, *ranges: tuple[int, int]) -> tuple[dict[str, int], ...]:
    return tuple({f"min_{name}": least, f"max_{name}": most} for least, most in ranges)


KINDS = (
    Kind("letters", "letter_counting", _range("words", (1, 1), (2, 2), (4, 4)), _letters, 3),
    Kind("needle", "needle_haystack", _range("num_statements", (1, 1), (2, 2), (3, 3)), _needle, 1),
    Kind("bits", "count_bits", _range("n", (1, 127), (128, 511), (512, 2047)), _bits, 2),
    Kind("gcd", "gcd", _range("value", (2, 20), (2, 50), (10, 100)), _gcd, 3),
    Kind(
        "sum",
        "chain_sum",
        (
            {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
            {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
            {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1},
        ),
        _sum,
        4,
    ),
)


@cache
def problems(split: str) -> tuple[Problem, ...]:
    """All problems of a split, kinds and levels in turn."""
    names = list(SIZES)
    first = sum(SIZES[name] for name in names[: names.index(split)])
    cells = [cell[first : first + SIZES[split]] for row in zip(*map(_levels, KINDS), strict=True) for cell in row]
    return tuple(problem for row in zip(*cells, strict=True) for problem in row)


@cache
def _levels(kind: Kind) -> list[list[Problem]]:
    """Problems of each level of a kind, as many as all splits have; the first of its entries are worked examples."""
    from reasoning_gym import create_dataset  # it imports for seconds

    found, taken = [], set()
    for level, settings in enumerate(kind.levels, 1):
        generator = create_dataset(kind.generator, size=DRAWN, seed=level, **settings)
        entries: dict[str, Any] = {}
        for entry in generator:
            if (line := kind.write(entry)) not in taken:
                entries.setdefault(line, entry)
        lines = list(entries)[: kind.examples + sum(SIZES.values())]
        if len(lines) < kind.examples + sum(SIZES.values()):
            raise ValueError(f"{kind.name} {level}: only {len(lines)} distinct problems. Widen its range.")
        taken |= set(lines)
        worked = "".join(f"{line} \\boxed{{{entries[line]['answer']}}}\n" for line in lines[: kind.examples])
        found.append(
            [
                Problem(
                    worked + line, kind.name, level, line, partial(_accepts, generator.score_answer, entries[line])
                )
                for line in lines[kind.examples :]
            ]
        )
    return found


def _accepts(score: Callable[..., float], entry: Mapping[str, Any], answer: str) -> bool:
    return score(answer, entry) >= 1
