# SPDX-License-Identifier: Apache-2.0
"""What is run when, by which plan, until when; and how long it all takes."""

import sys
from dataclasses import replace
from operator import itemgetter

import pytest

from benchmarks.arena.__main__ import arguments, main
from benchmarks.arena.cell import _limits
from benchmarks.arena.entrants import ENTRANTS, REFERENCE
from benchmarks.arena.measuring import Limits
from benchmarks.arena.mixed import Kind
from benchmarks.arena.profiles import PROFILES, TUNING_SEED
from benchmarks.arena.records import CONFIRM, REPORT, START, STOPPED, TUNE, Run, append
from benchmarks.arena.schedule import GUESS, Asked, Cell, Plan, frozen, hash_of, hours, ready
from benchmarks.arena.tasks import TASKS, pretrained
from duet_trl.report.environment import hardware
from tests.benchmarks.arena_runs import TASK, made, measured, run, serving, start, tuning_run

FULL = PROFILES["full"]
ASKED = Asked(FULL, (TASK, "two_ways"), (REFERENCE, "duet_stop"), (0, 1))
ONE = replace(ASKED, tasks=(TASK,))
RATES = TASKS[TASK].rates
PLAN: Plan = {TASK: {name: {"rate": RATES[1], "hash": f"hash of {name}"} for name in ASKED.entrants}}


def played(asked: Asked, plan: Plan, runs: list[Run] | None = None) -> list[Run]:
    """An arena to its end: every cell that can start becomes a run; the lower the rate the better."""
    runs = list(runs or [])
    while cells := ready(asked, runs, plan):
        for cell in cells:
            if cell.stage == TUNE:
                runs.append(tuning_run(cell.learning_rate, 0.5 - cell.learning_rate, cell.entrant, cell.task))
            else:
                points = run().measurements if cell.stage != START else start().measurements
                runs.append(made(*cell.key, points, plan=cell.plan))
            assert runs[-1].key == cell.key
    return runs


def test_others_are_tuned_over_what_the_reference_spent_there() -> None:
    middle = [Cell(TASK, REFERENCE, TUNE, rate, TUNING_SEED) for rate in RATES[1:3]]
    assert ready(ONE, [], {}) == [Cell(TASK, "", START, 0.0, 0), *middle]
    runs = [start(), tuning_run(RATES[1], 0.5), tuning_run(RATES[2], 0.4)]
    assert ready(ONE, runs, {}) == [Cell(TASK, REFERENCE, TUNE, RATES[0], TUNING_SEED)]
    end = measured(32, 501, 3.0, **{STOPPED: serving(0.6, 2)})
    runs.append(replace(tuning_run(RATES[0], 0.6), measurements=[end]))
    spent = (16_032, 96.0)  # by its best rate
    assert ready(ONE, runs, {}) == [Cell(TASK, "duet_stop", TUNE, rate, TUNING_SEED, *spent) for rate in RATES[1:3]]


def test_a_reported_run_needs_its_entry_of_the_plan_and_the_reference_of_its_seed() -> None:
    asked = replace(ONE, stages=(REPORT, CONFIRM))
    assert ready(asked, [], {}) == []
    assert ready(asked, [], {TASK: {"duet_stop": PLAN[TASK]["duet_stop"]}}) == []
    first = Cell(TASK, REFERENCE, REPORT, RATES[1], 0, plan=f"hash of {REFERENCE}")
    confirming = [replace(first, stage=CONFIRM, seed=seed) for seed in FULL.fresh_seeds]
    assert ready(asked, [], PLAN) == [first, replace(first, seed=1), *confirming]
    found = ready(asked, [run(seed=1, tokens=700, seconds=1.5, rate=RATES[1])], PLAN)
    own = Cell(TASK, "duet_stop", REPORT, RATES[1], 1, 48 * 700, 48 * 1.5, "hash of duet_stop")
    assert found == [first, own, *confirming]


def test_an_arena_ends_has_every_run_once_and_resumes_where_it_was() -> None:
    tuned = played(replace(ASKED, stages=(START, TUNE)), {})
    plan = frozen(tuned, ASKED)
    assert frozen(tuned[:-1], ASKED) != plan
    rates = {task: TASKS[task].rates[0] for task in ASKED.tasks}
    assert plan == {
        task: {name: {"rate": rate, "hash": hash_of(task, name, rate, FULL)} for name in ASKED.entrants}
        for task, rate in rates.items()
    }
    elsewhere = frozen(tuned, replace(ASKED, tasks=("two_ways",)), like=TASK)
    assert {name: one["rate"] for name, one in elsewhere["two_ways"].items()} == dict.fromkeys(
        ASKED.entrants, rates[TASK]
    )
    assert elsewhere["two_ways"]["duet_stop"]["hash"] == hash_of("two_ways", "duet_stop", rates[TASK], FULL)
    runs = played(ASKED, plan, tuned)
    assert len({one.key for one in runs}) == len(runs) == len(tuned) + 2 * 2 * (2 + 3)
    assert all(one.plan == plan[one.task][one.entrant]["hash"] for one in runs if one.stage in (REPORT, CONFIRM))
    assert hours(ASKED, runs) == (0, 0.0)
    kept = [one for one in runs if one.entrant != "duet_stop" or one.stage != REPORT]
    assert {(cell.entrant, cell.stage) for cell in ready(ASKED, kept, plan)} == {("duet_stop", REPORT)}


def test_rates_are_taken_from_a_task_of_the_same_model_only(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["arena", "freeze", "--tasks", "mixed_270m", "--like", "mixed_135m"])
    with pytest.raises(SystemExit):
        arguments()
    assert "mixed_270m have not all the model of --like mixed_135m: tune them." in capsys.readouterr().err


def test_the_hash_changes_with_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def now(task=TASK, entrant="duet_stop", rate=3e-5, profile=FULL) -> str:
        return hash_of(task, entrant, rate, profile)

    found = [now(), now(task="mixed_270m"), now(entrant="duet"), now(rate=1e-5)]
    odd = {int: 7, float: 7.0, tuple: (0.3, 1.0)}
    for name, value in vars(FULL).items():
        found.append(now(profile=replace(FULL, **{name: odd.get(type(value), {})})))
    assert now() == found[0]
    entrant, task = ENTRANTS["duet_stop"], TASKS[TASK]
    entrants = ({"budget": 0.25}, {"stops": False}, {"settings": {"trim": False}})
    tasks = [{"max_completion_length": 49}, {"marker": "code"}, {"fields": task.fields | {"bf16": False}}]
    tasks.append({"kinds": task.kinds[1:]})
    changes = [(ENTRANTS, "duet_stop", replace(entrant, **change)) for change in entrants]
    changes += [(TASKS, TASK, replace(task, **change)) for change in tasks]
    for change in changes:
        with monkeypatch.context() as patch:
            patch.setitem(*change)
            found.append(now())
    assert len(set(found)) == len(found)


def test_hours_count_what_is_left_and_guess_by_what_is_most_alike() -> None:
    # The start; for two entrants three rates, two seeds and three fresh ones.
    assert hours(ONE, []) == (17, pytest.approx(17 * GUESS / 3600))
    runs = [tuning_run(rate, 0.5, took=took) for rate, took in zip(RATES[1:3], (100.0, 300.0), strict=True)]
    # A third rate of the reference at its median of 200 s, and three of duet_stop at that of the task and stage
    assert hours(replace(ONE, stages=(TUNE,)), runs) == (4, pytest.approx(4 * 200 / 3600))
    runs.append(tuning_run(RATES[1], 0.5, "duet_stop", took=20.0))
    assert hours(replace(ONE, stages=(TUNE,)), runs) == (3, pytest.approx((200 + 2 * 20) / 3600))


def test_the_reference_ends_by_batches() -> None:
    limits = _limits(Cell(TASK, REFERENCE, REPORT, 1e-5, 0), replace(FULL, shares=(0.25, 0.5, 1.0), batches=16), 0.5)
    assert [limits.passed(batch, 10**9, 1e9) for batch in (1, 2, 3, 4, 7, 8)] == [0, 1, 1, 2, 2, 3]
    assert [limits.progress(batch, 10**9, 1e9) for batch in (0, 2, 7, 8, 9)] == [0, 0.25, 0.875, 1, 1]
    assert _limits(Cell(TASK, REFERENCE, TUNE, 1e-5, 0), FULL, 1.0) == Limits((1.0,), FULL.tuning_batches)
    tuned = _limits(Cell(TASK, "duet", TUNE, 1e-5, 0, 1000, 100.0), FULL, 1.0)
    assert [tuned.progress(9, 10, seconds) for seconds in (50.0, 99.0, 100.0)] == [0.5, 0.99, 1]


def test_others_end_when_they_spent_tokens_and_seconds_or_patience_ends() -> None:
    profile = replace(FULL, shares=(0.5, 1.0), patience=1.5)
    limits = _limits(Cell(TASK, "duet", REPORT, 1e-5, 0, 1000, 100.0), profile, 0.5)
    progress = {(0, 0.0): 0, (500, 60.0): 0.5, (1000, 90.0): 0.9, (5000, 99.0): 0.99, (1000, 100.0): 1}
    progress |= {(300, 60.0): 0.4, (999, 135.0): 0.999, (900, 147.0): 0.98, (999, 150.0): 1}  # or patience does
    assert {spent: limits.progress(10**6, *spent) for spent in progress} == pytest.approx(progress)
    passed = {(499, 49): 0, (500, 49): 1, (499, 50): 1, (500, 50): 2, (1000, 60): 3, (1000, 100): 4}
    assert {spent: limits.passed(1, *spent) for spent in passed} == passed


def test_runs_that_wait_for_the_reference_say_so(monkeypatch, tmp_path) -> None:
    asked = ["--stages", "report", "--entrants", "grpo_4", "--seeds", "999", "--records", str(tmp_path / "none.jsonl")]
    monkeypatch.setattr("sys.argv", ["arena", "run", *asked])
    with pytest.raises(SystemExit, match=f"1 runs were not made. They wait for {REFERENCE}"):
        main()


@pytest.mark.parametrize(
    ("task", "what", "fits"),
    [
        (TASK, {}, True),
        (TASK, {"processor": "8086"}, False),
        (TASK, {"cores": 999}, False),
        (TASK, {"bf16": "maybe"}, False),
        ("two_ways", {"cores": 999}, True),
    ],
)
def test_runs_of_another_machine_get_no_company(monkeypatch, tmp_path, task: str, what: dict, fits: bool) -> None:
    records, made_here = tmp_path / "runs.jsonl", []
    append(records, replace(start(task), environment={"hardware": hardware() | what}))
    monkeypatch.setattr(
        "sys.argv",
        ["arena", "run", "--stages", "report", "--entrants", REFERENCE, "--seeds", "0", "--records", str(records)],
    )
    monkeypatch.setattr("benchmarks.arena.running.run_cell", lambda cell, profile: made_here.append(cell))
    with pytest.raises(SystemExit) as end:
        main()
    assert ("another file as --records" not in str(end.value)) is fits
    assert len(made_here) == fits


def test_a_family_that_makes_no_task_is_named_before_any_run(monkeypatch, tmp_path) -> None:
    kind = Kind("primes", "prime_factorization", ({"min_value": 2, "max_value": 99},), itemgetter("question"), 2)
    monkeypatch.setitem(TASKS, "few", pretrained("few", "smollm2_135m", 1e-5, kinds=(kind,)))
    monkeypatch.setattr("sys.argv", ["arena", "run", "--plan", "--tasks", "few", "--records", str(tmp_path / "none")])
    with pytest.raises(SystemExit, match="few: primes, level 1: .* different problems of 122"):
        main()
