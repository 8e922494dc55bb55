# SPDX-License-Identifier: Apache-2.0
"""The arena from end to end, for real."""

from pathlib import Path

import pytest

from benchmarks.arena.entrants import REFERENCE
from benchmarks.arena.profiles import PROFILES, TUNING_SEED
from benchmarks.arena.records import FREE, REPORT, START, TUNE, Run, read
from benchmarks.arena.report import tables
from benchmarks.arena.running import run_all
from benchmarks.arena.schedule import Asked, frozen, ready
from benchmarks.arena.tasks import TASKS
from tests.benchmarks.arena_runs import made, measured, serving

TASK = "two_ways"
SMOKE = PROFILES["smoke"]
ASKED = Asked(SMOKE, (TASK,), (REFERENCE, "duet_stop"), SMOKE.seeds, (START, TUNE, REPORT))


def known() -> list[Run]:
    """Tuning but for one rate of each entrant, which is left to the test: a run takes half a minute."""
    low, high = (measured(2, 100, 1.0, **{FREE: serving(accuracy, 2)}) for accuracy in (0.1, 0.9))
    points = zip(TASKS[TASK].rates[1:3], (low, high), strict=True)
    return [made(TASK, name, TUNE, rate, TUNING_SEED, [point]) for rate, point in points for name in ASKED.entrants]


@pytest.mark.vllm
@pytest.mark.slow
def test_the_smallest_arena_makes_every_run_once_and_reports_it(tmp_path: Path) -> None:
    path, runs = tmp_path / "arena.jsonl", known()
    assert run_all(ASKED, runs, {}, "smoke", path, None) == []
    plan = frozen(runs, ASKED)
    assert run_all(ASKED, runs, plan, "smoke", path, None) == []
    assert read(path) == runs[len(known()) :] and ready(ASKED, runs, plan) == []
    before, *tuned, reference, duet = read(path)
    assert (before.entrant, before.stage) == ("", START)
    for stage, each in ((TUNE, tuned), (REPORT, (reference, duet))):
        assert [(one.entrant, one.stage) for one in each] == [(name, stage) for name in ASKED.entrants]

    (first,) = before.measurements
    assert [point.batch for point in reference.measurements] == [1, 2]
    for one in (reference, duet):
        assert one.plan == plan[TASK][one.entrant]["hash"]
        end = one.measurements[-1]
        found = end.servings[FREE]
        assert len(found.greedy) == len(found.right) == len(first.servings[FREE].right)
        assert max(found.right) <= found.samples and 0 < found.ended <= 1
        assert end.batch == len(one.curves["reward"])
        assert end.generated_tokens == pytest.approx(sum(one.curves["duet/generated_tokens"]), rel=1e-3)
        assert one.curves["learning_rate"][0] == one.learning_rate > one.curves["learning_rate"][-1] > 0
        assert 0 < end.trained_tokens and 0 < sum(end.phases.values()) < end.seconds < one.took
    limit, end = reference.measurements[-1], duet.measurements[-1]
    assert end.seconds >= limit.seconds * (SMOKE.patience if end.generated_tokens < limit.generated_tokens else 1.0)
    assert {f"tokens {TASK}", f"free {TASK}", f"targets {TASK}"} <= tables(runs).keys()
