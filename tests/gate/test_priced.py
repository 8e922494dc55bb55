# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from duet_trl.gate.replay import Outcome, Replay
from duet_trl.gate.thresholds import FOLLOWED, KEEP_LEAST, KEEP_MOST, PricedThresholds

CAP, GRACE = 400, 16


def replayed(length: list[int], answered_at: list[int], aborted: int = 0) -> Replay:
    """Rollouts of which the last `aborted` were aborted."""
    size = len(length)
    outcome = np.full(size, Outcome.NATURAL)
    outcome[size - aborted :] = Outcome.ABORTED
    times = np.array(answered_at)
    return Replay(outcome, np.full(size, -1), np.zeros(size, bool), np.array(length), times, times)


def step(unit: PricedThresholds, rewards: list[float], price: float, **rollouts) -> None:
    unit.observe(replayed(**rollouts), np.array(rewards), 1, price)


def early(count: int) -> dict[str, list[int]]:
    return {"length": [60] * count, "answered_at": [48] * count}


def test_nothing_is_aborted_before_prices_and_answers_are_known():
    unit = PricedThresholds(CAP, GRACE)
    assert (unit.poll_threshold, unit.abort_threshold) == (1, CAP - GRACE)
    step(unit, [1.0, 0.0] * 50, float("nan"), **early(100))
    assert unit.abort_threshold == CAP - GRACE
    assert unit.keep_probability == KEEP_MOST


def test_rollouts_that_run_to_the_limit_for_nothing_bring_k2_down_to_the_answers():
    unit = PricedThresholds(CAP, GRACE)
    step(unit, [1.0, 0.0] * 50 + [0.0] * 20, 1e-3, length=[60] * 100 + [CAP] * 20, answered_at=[48] * 100 + [-1] * 20)
    assert unit.abort_threshold + GRACE == 48  # abort comes at K2 + G, behind the answers
    # 20 of 120 would go on, and FOLLOWED of them are to be followed.
    assert unit.keep_probability == min(FOLLOWED / 20, KEEP_MOST)


def test_the_coin_falls_with_the_number_that_it_is_thrown_for():
    unit = PricedThresholds(CAP, GRACE)
    many = {"length": [60] * 1000 + [CAP] * 1000, "answered_at": [48] * 1000 + [-1] * 1000}
    step(unit, [1.0, 0.0] * 500 + [0.0] * 1000, 1e-3, **many)
    assert unit.keep_probability == KEEP_LEAST  # 16 of 1,000 would be less
    small = PricedThresholds(CAP, GRACE)
    some = {"length": [60] * 400 + [CAP] * 200, "answered_at": [48] * 400 + [-1] * 200}
    step(small, [1.0, 0.0] * 200 + [0.0] * 200, 1e-3, **some)
    assert small.keep_probability == pytest.approx(FOLLOWED / 200)


def test_the_price_is_never_above_half_of_what_uncut_rollouts_earn():
    # 1 of 100 is right, at 320; a posterior that expects more would price out every token before it.
    rollouts = {"length": [320] * 100, "answered_at": [320] * 100}
    unit = PricedThresholds(CAP, GRACE)
    step(unit, [1.0] + [0.0] * 99, 0.1, **rollouts)
    assert unit.abort_threshold + GRACE >= 320


def test_the_price_is_averaged_and_unknown_prices_and_unscored_rollouts_change_nothing():
    unit = PricedThresholds(CAP, GRACE)
    for price in (2e-3, 1e-3, float("nan")):
        step(unit, [1.0, 0.0], price, **early(2))
    assert unit.price == pytest.approx(2e-3 + (1e-3 - 2e-3) / 10)
    before = unit.times.counts
    step(unit, [np.nan, np.nan], 1e-3, **early(2))
    assert unit.times.counts is before


def test_an_answer_behind_the_end_counts_at_the_end_and_an_aborted_rollout_earns_nothing():
    unit = PricedThresholds(CAP, GRACE)
    # Polled at 64 if it had gone on; the last was aborted at 80, whatever the reward function gave for its stump.
    step(unit, [1.0, 0.0, 1.0], 1e-3, length=[58, 70, 80], answered_at=[64, -1, -1], aborted=1)
    at_risk, rewarded, other = unit.times.counts
    assert (np.flatnonzero(rewarded).tolist(), np.flatnonzero(other).tolist()) == ([7], [8])  # 57-64, 65-72
    assert at_risk[[7, 8, 9, 10]].tolist() == [3.0, 2.0, 1.0, 0.0]


def test_a_foreign_state_is_refused():
    unit = PricedThresholds(CAP, GRACE)
    with pytest.raises(ValueError, match=r"keys \[\]"):
        unit.load_state_dict({})
    with pytest.raises(ValueError, match="max_completion_length and the poll_interval of the checkpoint"):
        PricedThresholds(2 * CAP, GRACE).load_state_dict(unit.state_dict())
