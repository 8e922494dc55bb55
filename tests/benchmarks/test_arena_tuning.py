# SPDX-License-Identifier: Apache-2.0
"""Successive halving by hand: all rates to step 32, the better two to step 80, the better one wins, or the lower."""

import itertools
from dataclasses import replace

import pytest

from benchmarks.arena.entrants import BASE_RATE
from benchmarks.arena.profiles import PROFILES
from benchmarks.arena.records import REPORT, Run
from benchmarks.arena.tuning import TOLERANCE, accuracy, choose, wanted
from tests.benchmarks.arena_runs import RATES, measured, tuned, tuning_run

FULL = PROFILES["full"]


def rung(horizon: int, right: dict[float, int]) -> list[Run]:
    return [tuning_run(rate, horizon, count) for rate, count in right.items()]


FIRST = rung(32, dict(zip(RATES, (40, 55, 60, 20), strict=True)))  # 3e-4 and 6e-4 are better


def test_the_rates_are_those_of_the_rule() -> None:
    assert tuple(factor * BASE_RATE for factor in FULL.factors) == RATES
    assert FULL.rungs == ((32, 2), (80, 1))


def test_accuracy_is_the_share_of_right_samples_over_all_measurements() -> None:
    points = [measured(3, of=10), replace(measured(6, of=10), samples=4, last=[4] * 5 + [1] + [0] * 4)]
    # 3 of 10 samples, then 21 of 40
    assert accuracy(replace(FIRST[0], measurements=points)) == pytest.approx((3 + 21) / 50)


def test_every_rate_is_wanted_at_the_first_rung_until_it_has_run() -> None:
    for count in range(len(RATES)):
        assert wanted(FIRST[:count], "sums", "duet", FULL) == [(rate, 32) for rate in RATES[count:]]
        assert choose(FIRST[:count], "sums", "duet", FULL) is None


def test_the_better_half_goes_on_and_the_best_of_it_is_chosen() -> None:
    assert wanted(FIRST, "sums", "duet", FULL) == [(3e-4, 80), (6e-4, 80)]
    assert choose(FIRST, "sums", "duet", FULL) is None
    half = FIRST + rung(80, {6e-4: 70})
    assert wanted(half, "sums", "duet", FULL) == [(3e-4, 80)]
    assert choose(half, "sums", "duet", FULL) is None
    # At the last rung the order may turn; what the first one said no longer counts.
    for right, rate in ((60, 6e-4), (80, 3e-4)):
        done = half + rung(80, {3e-4: right})
        assert wanted(done, "sums", "duet", FULL) == []
        assert choose(done, "sums", "duet", FULL) == rate


def test_of_equal_figures_the_lower_rate_is_better_in_whatever_order_they_finished() -> None:
    equal = rung(32, dict.fromkeys(RATES, 50))
    for order in itertools.permutations(equal):
        assert wanted(order, "sums", "duet", FULL) == [(RATES[0], 80), (RATES[1], 80)]
    done = equal + rung(80, {RATES[1]: 60, RATES[0]: 60})
    assert choose(done, "sums", "duet", FULL) == choose(done[::-1], "sums", "duet", FULL) == RATES[0]


def test_behind_the_last_rung_the_lowest_rate_within_the_tolerance_is_chosen_and_before_it_the_best_go_on() -> None:
    assert TOLERANCE == 0.02
    for lower, rate in ((68, 3e-4), (67, 6e-4), (70, 3e-4), (90, 3e-4)):
        assert choose(FIRST + rung(80, {3e-4: lower, 6e-4: 70}), "sums", "duet", FULL) == rate
    close = rung(32, dict(zip(RATES, (59, 58, 60, 59), strict=True)))
    assert wanted(close, "sums", "duet", FULL) == [(1.5e-4, 80), (6e-4, 80)]


def test_a_rate_that_was_dropped_does_not_come_back() -> None:
    done = FIRST + rung(80, {3e-4: 60, 6e-4: 63, 1.2e-3: 99})
    assert choose(done, "sums", "duet", FULL) == 6e-4
    assert wanted(FIRST + rung(80, {1.2e-3: 99}), "sums", "duet", FULL) == [(3e-4, 80), (6e-4, 80)]


def test_nothing_else_is_looked_at() -> None:
    done = FIRST + rung(80, {3e-4: 60, 6e-4: 70})
    best = tuning_run(3e-4, 80, 99)
    others = [
        replace(best, seed=0),
        replace(best, stage=REPORT),
        replace(best, task="products"),
        replace(best, entrant="grpo_8"),
        replace(best, horizon=40),
        replace(best, learning_rate=2.4e-3),
    ]
    assert choose(others + done, "sums", "duet", FULL) == 6e-4
    assert choose(others, "sums", "duet", FULL) is None
    assert choose(tuned("pods", 1.2e-3), "sums", "pods", FULL) == 1.2e-3
