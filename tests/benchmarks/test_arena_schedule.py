# SPDX-License-Identifier: Apache-2.0
"""What is run when: nothing before what it depends on, nothing twice, seed by seed in turn; and how long it takes."""

from dataclasses import replace

import pytest

from benchmarks.arena.profiles import PROFILES, TUNING_SEED
from benchmarks.arena.records import REPORT, START, TUNE, Run
from benchmarks.arena.schedule import GUESS, Cell, Plan, hours, key_of, ready
from recipes.tiny_math.scaled import UPDATES_RATE
from tests.benchmarks.arena_runs import RATES, made, measured, reported, tuned, tuning_run

FULL = PROFILES["full"]
PLAN = Plan(FULL, ("sums", "products"), ("grpo_8", "duet_history"), (0, 1))
STARTS = [made(task, "", START, 0.0, 0, 0, [measured(40)]) for task in PLAN.tasks]
REPORTS = replace(PLAN, stages=(REPORT,))


def keys(cells: list[Cell]) -> list[tuple]:
    return [cell.key for cell in cells]


def test_an_empty_arena_begins_with_the_policies_and_the_first_rungs() -> None:
    expected = [(task, "", START, 0.0, 0, 0) for task in PLAN.tasks]
    for task in PLAN.tasks:
        for entrant in PLAN.entrants:
            expected += [(task, entrant, TUNE, rate, TUNING_SEED, 32) for rate in RATES]
    assert keys(ready(PLAN, [])) == expected


def test_an_entrant_climbs_while_another_one_is_still_at_its_first_rung() -> None:
    first = [tuning_run(rate, 32, right, "duet_history") for rate, right in zip(RATES, (40, 55, 60, 20), strict=True)]
    found = [cell for cell in ready(PLAN, STARTS + first) if cell.task == "sums"]
    expected = [("sums", "grpo_8", TUNE, rate, TUNING_SEED, 32) for rate in RATES]
    assert keys(found) == expected + [("sums", "duet_history", TUNE, rate, TUNING_SEED, 80) for rate in (3e-4, 6e-4)]


def test_a_report_waits_for_its_rate_and_for_the_tokens_of_the_reference_with_its_seed() -> None:
    runs = tuned("grpo_8", 1.2e-3)
    assert ready(REPORTS, []) == []
    assert ready(REPORTS, tuned("duet_history")) == []  # a rate, but no reference
    assert ready(REPORTS, runs) == [Cell("sums", "grpo_8", REPORT, 1.2e-3, seed, 80) for seed in (0, 1)]
    runs += tuned("duet_history", 6e-4)
    runs.append(reported("grpo_8", 1, rate=1.2e-3, tokens=2001))
    assert ready(REPORTS, runs) == [
        Cell("sums", "grpo_8", REPORT, 1.2e-3, 0, 80),
        Cell("sums", "duet_history", REPORT, 6e-4, 1, 80, tokens=1201),  # 60% of 2,001, rounded
    ]
    runs.append(reported("grpo_8", 0, rate=1.2e-3, tokens=1500))
    assert [(cell.seed, cell.tokens) for cell in ready(REPORTS, runs)] == [(0, 900), (1, 1201)]
    # The reference of another task is no reference.
    elsewhere = [replace(run, task="products") if run.stage == REPORT else run for run in runs]
    assert {cell.entrant for cell in ready(replace(REPORTS, tasks=("sums",)), elsewhere)} == {"grpo_8"}


def test_reports_go_seed_by_seed_through_all_tasks_and_entrants() -> None:
    runs = [run for task in PLAN.tasks for entrant in PLAN.entrants for run in tuned(entrant, task=task)]
    runs += [reported("grpo_8", seed, task) for task in PLAN.tasks for seed in (0, 1)]
    assert [(c.seed, c.task, c.entrant) for c in ready(REPORTS, runs)] == [
        (0, "sums", "duet_history"),
        (0, "products", "duet_history"),
        (1, "sums", "duet_history"),
        (1, "products", "duet_history"),
    ]


def test_a_control_takes_the_rate_of_the_method_that_it_controls_and_is_not_tuned() -> None:
    plan = replace(
        PLAN, tasks=("sums",), entrants=("grpo_8", "duet_history", "constant_duet", "coin_grpo"), seeds=(0,)
    )
    assert {cell.entrant for cell in ready(plan, STARTS)} == {"grpo_8", "duet_history"}
    runs = STARTS + tuned("grpo_8", 1.2e-3) + tuned("duet_history", 3e-4) + [reported("grpo_8", rate=1.2e-3)]
    assert {(cell.entrant, cell.learning_rate) for cell in ready(plan, runs)} == {
        ("duet_history", 3e-4),
        ("constant_duet", 3e-4),
        ("coin_grpo", 1.2e-3),
    }


def test_what_finds_its_own_rate_is_not_tuned_and_waits_for_the_reference_alone() -> None:
    plan = replace(PLAN, tasks=("sums",), entrants=("grpo_8", "duet"), seeds=(0,))
    assert {cell.entrant for cell in ready(plan, STARTS)} == {"grpo_8"}
    runs = STARTS + tuned("grpo_8", 1.2e-3) + [reported("grpo_8", rate=1.2e-3, tokens=1000)]
    assert ready(plan, runs) == [Cell("sums", "duet", REPORT, UPDATES_RATE, 0, 80, tokens=600)]
    assert hours(plan, runs, jobs=1)[0] == 1


def all_runs(plan: Plan) -> list[Run]:
    """An arena played to its end: every cell that is ready becomes a run, until none is."""
    runs: list[Run] = []
    while cells := ready(plan, runs):
        for cell in cells:
            right = round(100 * cell.learning_rate / max(RATES))
            found = made(*cell.key, [measured(right, tokens=1000 + cell.seed)])
            assert key_of(found) == cell.key
            runs.append(found)
    return runs


def test_an_arena_ends_has_every_run_once_and_resumes_where_it_was() -> None:
    runs = all_runs(PLAN)
    # A task: its policy; for each of two entrants 4 + 2 rates; for each of two entrants two seeds.
    assert len(runs) == len({key_of(run) for run in runs}) == 2 * (1 + 2 * (4 + 2) + 2 * 2)
    assert {run.learning_rate for run in runs if run.stage == REPORT} == {1.2e-3}
    left = ready(PLAN, runs[:7] + runs[9:])
    assert keys(left)[:2] == [key_of(run) for run in runs[7:9]]


def test_hours_count_what_is_left_and_guess_by_what_is_most_alike() -> None:
    plan = replace(PLAN, tasks=("sums",), stages=(TUNE, REPORT))
    # 2 entrants x (4 rates x 32 steps + 2 x 80), and 2 entrants x 2 seeds x 80 steps
    count, found = hours(plan, [], jobs=2)
    steps = 2 * (4 * 32 + 2 * 80) + 2 * 2 * 80
    assert (count, found) == (16, pytest.approx(steps * GUESS / 2 / 3600))
    assert hours(plan, [], jobs=1)[1] == pytest.approx(2 * found)

    took = {"grpo_8": (100.0, 300.0, 500.0), "duet_history": (30.0,)}
    first = [tuning_run(rate, 32, 50, name, took=t) for name, ts in took.items() for rate, t in zip(RATES, ts)]  # noqa: B905
    count, found = hours(plan, first, jobs=1)
    # one rate of grpo_8 at its median of 300 s, three of duet at its own 30 s; all else as before
    rest = (2 * 2 * 80 + 2 * 2 * 80) * GUESS
    assert (count, found) == (12, pytest.approx((300 + 3 * 30 + rest) / 3600))
    # Without a run of its own an entrant takes the median of all on this task and stage.
    count, found = hours(replace(plan, stages=(TUNE,), entrants=("pods",)), first, jobs=1)
    assert (count, found) == (6, pytest.approx((4 * (100 + 300) / 2 + 2 * 80 * GUESS) / 3600))
    assert hours(PLAN, all_runs(PLAN), jobs=2) == (0, 0.0)


def test_a_task_takes_the_rates_of_the_task_it_is_tuned_on() -> None:
    plan = replace(PLAN, tasks=("one_epoch",), stages=(TUNE, REPORT))
    assert {(cell.task, cell.stage) for cell in ready(plan, [])} == {("sums", TUNE)}
    assert hours(plan, [], 1)[0] == 2 * (4 + 2) + 2 * 2  # rungs of both entrants, two seeds of each
    both = replace(plan, tasks=("sums", "one_epoch"), stages=(TUNE,))
    assert keys(ready(both, [])) == keys(ready(replace(both, tasks=("sums",)), []))  # no pair is tuned twice
    runs = tuned("grpo_8", 1.2e-3)
    expected = [Cell("one_epoch", "grpo_8", REPORT, 1.2e-3, seed, 80) for seed in (0, 1)]
    assert [cell for cell in ready(plan, runs) if cell.stage == REPORT] == expected
