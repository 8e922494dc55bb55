# SPDX-License-Identifier: Apache-2.0
"""The arena's problems: splits that share nothing, scorers that accept right answers only, and the reward."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.arena.mixed import FRESH, KINDS, POOL, REPORT, SIZES, TUNING, Kind, best_rules, problems
from benchmarks.arena.problem import ArenaReward, Problem
from benchmarks.arena.profiles import PROFILES
from benchmarks.arena.tasks import TASKS

MIXED = TASKS["mixed_135m"]
EACH_TASK = pytest.mark.parametrize("task", [MIXED, TASKS["two_ways"], TASKS["products"]], ids=lambda task: task.name)


@EACH_TASK
def test_splits_share_nothing_and_are_as_large_as_the_profiles_measure(task) -> None:
    keys = [problem.key for split in SIZES for problem in task.problems(split)]
    assert len(set(keys)) == len(keys)
    for profile in PROFILES.values():
        largest = max(size.problems for size in (profile.way, *profile.whole.values(), *profile.start.values()))
        needed = {REPORT: largest, FRESH: largest, TUNING: profile.tuning.problems, POOL: profile.prompts}
        assert all(count <= len(task.problems(split)) for split, count in needed.items())


def test_kinds_and_levels_come_in_turn() -> None:
    turns = [(kind.name, level) for level in (1, 2, 3) for kind in KINDS]
    for split, size in SIZES.items():
        assert [(one.kind, one.level) for one in MIXED.problems(split)] == turns * size
        own = [one for one in MIXED.problems(split) if one.kind == KINDS[1].name]
        assert problems(split, KINDS[1:2]) == tuple(own)  # for chosen kinds only


@pytest.mark.parametrize("split", SIZES)
def test_worked_examples_are_right_and_no_problem_of_any_split(split: str) -> None:
    all_keys = {(one.kind, one.key) for each in SIZES for one in MIXED.problems(each)}
    by_name = {kind.name: kind for kind in KINDS}
    for problem in MIXED.problems(split):
        *worked, last = problem.prompt.split("\n")
        assert last == problem.key and not re.search(r"boxed|\s$", last)  # where the answer belongs
        assert len(worked) == by_name[problem.kind].examples
        for line in worked:
            question, answer = re.fullmatch(r"(.+) \\boxed\{(.+)\}", line).groups()
            assert (problem.kind, question) not in all_keys
            assert solve(problem.kind, question) == answer


def solve(kind: str, question: str) -> str:
    """The answer, from the line alone."""
    if kind == "needle":
        *statements, asked = question.split(". ")
        told = dict(reversed(one.split(" ", 1)) for one in statements)
        return told[asked.removeprefix("Who ").removesuffix("?")]
    if kind == "sum":
        return str(eval(question.removesuffix("=")))
    asked, given = question.removesuffix(" =").split(": ")
    items = given.split(", ")
    if kind == "filter":
        action, _, which, _, than = asked.split()
        beyond = [one for one in items if (int(one) - int(than)) * (1 if which == "larger" else -1) > 0]
        return ", ".join(beyond if action == "keep" else [one for one in items if one not in beyond])
    return ", ".join(sorted(items, key=int if kind == "sort" else None, reverse=asked == "sort descending"))


@pytest.mark.parametrize(("splits", "most"), [*(((split,), 1 / 6) for split in SIZES), (tuple(SIZES), 0.1)])
def test_a_policy_that_always_gives_one_answer_is_seldom_right(splits: tuple[str, ...], most: float) -> None:
    for kind in KINDS:
        own = [problem for split in splits for problem in MIXED.problems(split) if problem.kind == kind.name]
        answers = {solve(kind.name, problem.key) for problem in own}
        best = max(sum(problem.accepts(answer) for problem in own) for answer in answers)
        assert best <= most * len(own), kind.name


def test_the_best_rule_of_position_by_hand() -> None:
    asked = [Problem("", "words", 1, f"sort ascending: {line} =", right.__eq__) for line, right in PAIRS_OF_WORDS]
    asked += [Problem("", "needle", 1, "Al sees. Bo hears. Who hears?", "Bo".__eq__)]
    assert best_rules(asked) == {"words": 2 / 3, "needle": 1.0}  # reversed; the last name


def test_right_answers_are_accepted_and_others_are_not() -> None:
    for problem in MIXED.problems(REPORT):
        right = solve(problem.kind, problem.key)
        wrong = {"sort": right + "0", "sum": right + "1"}.get(problem.kind, right + "x")
        first, second = f" \\boxed{{ {right} }}\n", f" \\boxed{{{wrong}}}"
        for text in (first, second + first):
            assert problem.is_right(text, "math"), (problem.key, text)
        for text in (second, first + second, f" {right}", " \\boxed{}", ""):
            assert not problem.is_right(text, "math"), (problem.key, text)


def _factors(entry: Mapping[str, Any]) -> str:
    return f"factors of {entry['metadata']['number']} ="


PRIMES = Kind("primes", "prime_factorization", ({"min_value": 2, "max_value": 9999},), _factors, 2)


def test_an_answer_at_which_a_scorer_raises_is_wrong() -> None:
    assert not any(problem.accepts("abc") for problem in problems(REPORT, (PRIMES,)))


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ((PRIMES, KINDS[0]), "as many levels as the others: primes 1, needle 3"),
        ((replace(PRIMES, levels=({"min_value": 2, "max_value": 99},)),), "primes, level 1: .* problems of 122"),
        ((replace(PRIMES, listed=True),), "its scorer refuses '.*', its own answer to"),
    ],
)
def test_kinds_that_make_no_task_say_why(kinds: tuple[Kind, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        problems(POOL, kinds)


PAIRS_OF_WORDS = [("b, a", "a, b"), ("d, c", "c, d"), ("e, f", "e, f")]
ANSWERS = {"math": "so \\boxed{%d}.", "code": "\n```\n%d\n```"}
FORMS = {"text": str, "conversation": lambda text: [{"role": "assistant", "content": text}]}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("marker", ANSWERS)
def test_the_reward_is_the_last_answer_of_the_rows_own_problem(marker: str, form: Callable[[str], object]) -> None:
    problems = [Problem("", "sum", 1, str(one), str(one).__eq__) for one in (42, 43)]
    reward, answer = ArenaReward(problems, marker), ANSWERS[marker]
    both = answer % 42 + "\nWait.\n" + answer % 43
    texts = [form(text) for text in (answer % 42, both, both, "42", answer % 42)]
    assert reward(texts, index=[0, 0, 1, 0, 1], prompts=[""] * 5) == [1.0, 0.0, 1.0, 0.0, 0.0]
