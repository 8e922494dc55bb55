# SPDX-License-Identifier: Apache-2.0
"""The targets of `duet`: met by records that meet all, and each of them missed by what breaks it."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from benchmarks.arena.__main__ import main
from benchmarks.arena.records import Run, pack
from benchmarks.arena.report_tables import findings_of, tables
from benchmarks.arena.targets import TARGETS, missed, verdicts
from tests.benchmarks.arena_records import run, start

TASKS = ("sums", "two_ways", "products", "one_epoch")
CHEAP, FINAL, QUICK, TWO_WAYS, ONE_EPOCH, RIVALS = range(6)


def risen(end: float, steps: int) -> Callable[[int], float]:
    """Accuracy from 0.4 at the start to `end` in so many steps, and no further."""
    return lambda step: 0.4 + (end - 0.4) * min(1.0, step / steps)


GOOD = {"end": 0.62, "steps": 20, "tokens": 500.0, "seconds": 0.7, "seeds": 3}
"""At 0.59, the target, after 17 of 80 steps: 11% of GRPO's tokens, and 8% of its seconds."""


def records(entrant: str = "duet_quarter", rival: float = 0.55, **tasks: Mapping[str, float]) -> list[Run]:
    """GRPO rises to 0.6 in 80 steps on every task, and `entrant` as in `GOOD` but for what is given for a task."""
    runs = []
    for task in TASKS:
        own = GOOD | tasks.get(task, {})
        runs.append(start(task, 0.4))
        for seed in range(3):
            shift = 0.005 * (seed - 1)
            runs.append(run("grpo_8", risen(0.6 + shift, 80), seed, task))
            if task in ("sums", "two_ways"):
                runs.append(run("pods", risen(rival + shift, 20), seed, task, tokens_per_step=500.0))
            if seed < own["seeds"]:
                costs = {"tokens_per_step": own["tokens"], "seconds_per_step": own["seconds"]}
                runs.append(run(entrant, risen(own["end"] + shift, own["steps"]), seed, task, **costs))
    return runs


def misses(runs: list[Run]) -> list[int]:
    """Targets that nobody meets, by their places."""
    findings = findings_of(runs)
    lines = missed(verdicts(findings.contests, findings.figures))
    return [place for place, target in enumerate(TARGETS) if any(target.claim in line for line in lines)]


def test_records_that_meet_all():
    findings = findings_of(records())
    found = verdicts(findings.contests, findings.figures)
    assert list(found) == ["duet_quarter"] and all(one.met for one in found["duet_quarter"])
    assert found["duet_quarter"][CHEAP].text == ", ".join(TASKS)
    assert missed(found) == []
    rows = tables(findings)["targets"].rows
    assert [row[0] for row in rows] == [target.claim for target in TARGETS]
    assert rows[RIVALS][1] == "met: +0.070 over pods on sums, +0.070 over pods on two_ways"


SLOW, WORDY = {"seconds": 8.0}, {"tokens": 1700.0}
"""At the target after 91% of GRPO's seconds; after 39% of its tokens."""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sums": WORDY, "products": WORDY}, []),  # two are left
        ({"sums": WORDY, "two_ways": WORDY, "products": WORDY}, [CHEAP]),
        ({"sums": WORDY, "two_ways": WORDY, "products": {"seeds": 1}}, [CHEAP]),  # one seed has no interval
        ({"sums": SLOW, "two_ways": SLOW, "products": SLOW}, [CHEAP, QUICK]),
        ({"products": {"end": 0.585}}, [FINAL, QUICK]),
        ({"products": {"end": 0.6, "steps": 80, "seconds": 1.2}}, [QUICK]),  # 0.1 below, after half of the steps
        ({"products": {"seeds": 0}}, [FINAL, QUICK]),
        ({"two_ways": {"tokens": 2700.0}}, [FINAL, TWO_WAYS]),  # 61%
        ({"one_epoch": {"tokens": 3000.0}}, [FINAL, ONE_EPOCH]),  # 68%
        ({"rival": 0.63}, [RIVALS]),
        ({"two_ways": {"end": 0.4}}, [FINAL, QUICK, TWO_WAYS, RIVALS]),
    ],
)
def test_each_target_is_missed_by_what_breaks_it(changes: dict, expected: list[int]):
    assert misses(records(**changes)) == expected


def test_one_entrant_has_to_meet_them_all():
    good = records()
    half = [one for one in records("duet", products={"end": 0.5}) if one.entrant == "duet"]
    assert misses(good + half) == []
    bad = [one for one in good if (one.entrant, one.task) != ("duet_quarter", "two_ways")]
    assert misses(bad + half) == [FINAL, QUICK]  # of duet, which is nearer to all of them


def test_check_names_what_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # figures and result file are written there
    monkeypatch.setattr(sys, "argv", ["arena", "report", "--check", "--records", "records.jsonl.xz"])
    lines = []
    for runs in (records(), records(products={"end": 0.5})):
        pack(runs, Path("records.jsonl.xz"))
        with pytest.raises(SystemExit) as ended:  # the documents quote other records
            main()
        lines.append([line for line in str(ended.value).splitlines() if line.startswith("duet_quarter misses")])
    assert [len(found) for found in lines] == [0, 2]
    assert all(line.endswith("(-0.100 on products)") for line in lines[1])
