# SPDX-License-Identifier: Apache-2.0
"""The arena's problems: splits that share nothing with each other, the pools or any other benchmark; pools' mix."""

import json
from collections import Counter
from functools import cache

import pytest

from benchmarks.arena.pool import ALWAYS, MIDDLE, NEVER, ROLLOUTS, arrange, kind_of
from benchmarks.arena.profiles import PROFILES
from benchmarks.arena.tasks import RECIPES, REPORT_SIZE, TASKS, TUNING_SIZE, Task
from recipes.tiny_math.problems import HELD_OUT, LEVELS, Problem
from recipes.tiny_math.task import sample_problems

EACH_TASK = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
READ = [task for task in TASKS.values() if task.pool_seed is None]
EACH_POOL_FILE = pytest.mark.parametrize("task", READ, ids=[task.name for task in READ])
DEMO_PROBLEMS = 400
"""Four times what `recipes/math_tiny.py` measures, from the first on; the notebooks take fewer."""


@cache
def pool(task: Task) -> tuple[Problem, ...]:
    return tuple(task.pool())


def questions(problems) -> set[str]:
    return {problem.question for problem in problems}


def used_elsewhere() -> dict[str, set[str]]:
    """Questions that a policy of ours is trained on, or that another benchmark or a demo measures, by their place."""
    found = {f"pool of {task.name}": questions(pool(task)) for task in TASKS.values()}
    found["demo and notebooks"] = questions(sample_problems(HELD_OUT, DEMO_PROBLEMS, 0))
    for path in sorted((RECIPES / "tiny_math" / "data").glob("*.jsonl")):
        found[path.name] = {json.loads(line)["prompt"] for line in path.read_text().splitlines()}
    return found


def test_report_and_tuning_splits_share_nothing_with_anything_else_or_with_each_other() -> None:
    reports = {task.name: questions(task.report_problems()) for task in TASKS.values()}
    tunings = {task.name: questions(task.tuning_problems()) for task in TASKS.values()}
    elsewhere = used_elsewhere()
    assert {"pool.jsonl", "sums.jsonl", "products.jsonl"} <= elsewhere.keys()
    for own in (*reports.values(), *tunings.values()):
        assert {place: own & others for place, others in elsewhere.items() if own & others} == {}
    for own in reports.values():
        assert {name: own & others for name, others in tunings.items() if own & others} == {}


@EACH_TASK
def test_splits_have_their_sizes_and_every_profile_fits_into_them(task: Task) -> None:
    report, tuning = task.report_problems(), task.tuning_problems()
    assert (len(questions(report)), len(questions(tuning))) == (len(report), len(tuning)) == (REPORT_SIZE, TUNING_SIZE)
    assert [p.level for p in report[:10]] == [p.level for p in tuning[:10]] == [*LEVELS, *LEVELS]
    for profile in PROFILES.values():
        assert profile.problems <= profile.problems_end <= REPORT_SIZE
        assert profile.tuning_problems <= TUNING_SIZE


@EACH_TASK
def test_a_pool_has_distinct_prompts_with_answers_that_a_held_out_problem_would_have(task: Task) -> None:
    assert len(questions(pool(task))) == len(pool(task)) == task.pool_size
    assert {type(p) for p in pool(task)} == {type(p) for p in task.report_problems()} == {task.problem}
    if set("".join(p.expression for p in pool(task))) <= set("0123456789+-*"):
        assert all(eval(p.expression) == p.answer for p in pool(task))


def test_a_pool_that_is_seen_once_has_a_prompt_for_every_rollout_group_of_a_run_of_the_reference() -> None:
    # 80 steps of 16 prompts
    assert TASKS["one_epoch"].pool_size >= 80 * 16


@EACH_POOL_FILE
def test_a_pool_that_was_mixed_has_its_mix_in_every_twenty(task: Task) -> None:
    entries = json.loads(task.pool_file.read_text())["problems"][: task.pool_size]
    for first in range(0, task.pool_size, 20):
        kinds = Counter(kind_of(entry["right"]) for entry in entries[first : first + 20])
        assert kinds == {ALWAYS: 3, NEVER: 3, MIDDLE: 14}


def test_the_header_of_a_pool_says_which_answer_was_counted() -> None:
    assert json.loads(TASKS["sums"].pool_file.read_text())["answer"] == "first"


def test_a_pool_that_lacks_a_kind_is_refused() -> None:
    problems = [TASKS["sums"].problem(f"1+1+{i}", 1, 2 + i) for i in range(40)]
    with pytest.raises(ValueError, match="3 problems are to be never solved, 0 are. Draw more --candidates"):
        arrange(problems, [ROLLOUTS, 5] * 20, 20)
