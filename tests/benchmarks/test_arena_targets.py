# SPDX-License-Identifier: Apache-2.0
"""The targets of the arena: met by records that meet all, and each of them missed by what breaks it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.arena.contest import contests
from benchmarks.arena.entrants import REFERENCE
from benchmarks.arena.records import STOPPED, Run
from benchmarks.arena.targets import FEWER, PLAIN, SUBJECT, SWAP, SWAP_UNGATED, TARGETS, UNGATED, Verdict, verdicts
from tests.benchmarks.arena_runs import run, start

TOKENS, SECONDS, GREEDY, PASS, FEWER_TOKENS, FEWER_SECONDS, GATE_TOKENS, GATE_SECONDS = range(8)
SWAP_TOKENS, SWAP_SECONDS, SWAP_GATE_TOKENS, SWAP_GATE_SECONDS = range(8, 12)
LATER = (12, 24, 36, 48, 96)


def risen(end: float, batch: int) -> Callable[[int], float]:
    """Accuracy from 0.4 at the start to this at a batch, and no further."""
    return lambda now: 0.4 + (end - 0.4) * min(1.0, now / batch)


def records(seeds: int = 3, others: float = 0.55, swap: float = 0.5, **subject) -> list[Run]:
    """The reference is at 0.6 after 48 batches; the others have 96 at half of its costs, and end within 24."""
    ends = {UNGATED: subject.pop("ungated", 0.58), SWAP: swap, PLAIN: 0.45, SWAP_UNGATED: 0.47}
    own = {"end": (0.62, 0.62, 0.62), "tokens": 500.0, "seconds": 1.0, "greedy": (0.5, 0.5, 0.5)} | subject
    runs = [start()]
    for seed in range(seeds):
        costs = {"batches": LATER, "tokens": 500.0, "seconds": 1.0}
        runs.append(run(accuracy=risen(0.6, 48), seed=seed))
        runs.append(run(FEWER, risen(others, 24), seed, **costs))
        runs += [run(name, risen(end, 24), seed, **costs) for name, end in ends.items()]
        costs |= {"tokens": own["tokens"], "seconds": own["seconds"], "greedy": own["greedy"][seed]}
        runs.append(run(SUBJECT, risen(own["end"][seed], 24), seed, **costs))
    return runs


def missed(runs: list[Run]) -> list[int]:
    return [place for place, verdict in enumerate(judged(runs)) if not verdict.met]


def judged(runs: list[Run]) -> list[Verdict]:
    (contest,) = contests(runs).values()
    return verdicts(contest)


def test_records_that_meet_all() -> None:
    found = judged(records())
    assert len(found) == len(TARGETS) == 12 and all(one.met for one in found)
    assert found[TOKENS].text == found[SECONDS].text == "22%; 22%; 22%"
    assert found[GREEDY].text == "+0.000 [+0.000, +0.000]"
    assert found[FEWER_TOKENS].text == f"+0.070 [+0.070, +0.070] over {FEWER}"


# Greedy decoding: 0.495 against 0.5; half of the interval is 2.48 standard deviations, of 0.004 or 0.01.
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"tokens": 900.0}, [TOKENS]),  # 39%
        ({"seconds": 2.0}, [SECONDS]),  # 43%
        ({"greedy": (0.499, 0.495, 0.491)}, []),
        ({"greedy": (0.505, 0.495, 0.485)}, [GREEDY]),
        ({"others": 0.63}, [FEWER_TOKENS, FEWER_SECONDS]),
        ({"ungated": 0.63}, [GATE_TOKENS, GATE_SECONDS]),
        ({"swap": 0.46}, [SWAP_GATE_TOKENS, SWAP_GATE_SECONDS]),
        ({"swap": 0.44}, [*range(SWAP_TOKENS, SWAP_GATE_SECONDS + 1)]),
        ({"end": (0.62, 0.62, 0.585)}, [TOKENS, SECONDS, GATE_TOKENS, GATE_SECONDS]),  # one seed never gets there
        ({"end": (0.5, 0.5, 0.5)}, [TOKENS, SECONDS, FEWER_TOKENS, FEWER_SECONDS, GATE_TOKENS, GATE_SECONDS]),
        ({"seeds": 1}, [*range(GREEDY, SWAP_GATE_SECONDS + 1)]),
    ],
    ids=str,
)
def test_each_target_is_missed_by_what_breaks_it(change: dict, expected: list[int]) -> None:
    assert missed(records(**change)) == expected


def test_all_right_or_all_wrong_is_worse_at_pass_8_than_some_of_each() -> None:
    runs = records()
    for one in runs:
        if one.entrant == SUBJECT:
            one.measurements[-1].servings[STOPPED].right[:] = [8] * 620 + [0] * 380
    assert missed(runs) == [PASS]


def test_a_rival_that_has_not_run_or_has_not_spent_as_much_is_not_beaten() -> None:
    runs = [one for one in records() if one.entrant != FEWER]
    short = [replace(one, measurements=one.measurements[:1]) for one in records() if one.entrant == FEWER]
    for rival, said in (([], "not run"), (short, f"not measured over {FEWER}")):
        assert missed([*runs, *rival]) == [FEWER_TOKENS, FEWER_SECONDS]
        found = judged([*runs, *rival])[FEWER_TOKENS]
        assert str(found) == (f"not met: {said}" if rival else said)
    alone = judged([one for one in runs if one.entrant in ("", REFERENCE)])
    assert [str(verdict) for verdict in alone] == ["not run"] * len(TARGETS)
