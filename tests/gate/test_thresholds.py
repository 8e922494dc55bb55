# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.gate.replay import Outcome, Replay
from duet_trl.gate.thresholds import LengthThresholds, reward_bar


def observe(thresholds: LengthThresholds, lengths, step: int = 1) -> None:
    """Kept rollouts of these lengths (K,)."""
    lengths = np.asarray(lengths)
    size = len(lengths)
    unknown = np.full(size, -1)
    replay = Replay(np.full(size, Outcome.NATURAL), unknown, np.zeros(size, bool), lengths, unknown, unknown)
    thresholds.observe(replay, np.zeros(size), step, float("nan"))


def test_cold_start_is_the_papers():
    thresholds = LengthThresholds(3072)
    assert (thresholds.poll_threshold, thresholds.abort_threshold) == (921, 2150)
    assert LengthThresholds(10).abort_threshold == 7  # 0.7 * 10 may come out as 6.999


def test_shares_that_are_met_exactly_take_the_lower_length():
    thresholds = LengthThresholds(1000, min_samples=1, refit_every=1)
    observe(thresholds, np.arange(1, 11))
    assert (thresholds.poll_threshold, thresholds.abort_threshold) == (3, 8)  # 0.3 * 10 = 3.0000000000000004


def test_refit_happens_on_multiples_of_n_once_there_are_enough_samples():
    thresholds = LengthThresholds(1000, refit_every=5, min_samples=10)
    observe(thresholds, np.arange(1, 6) * 10, step=5)  # five samples
    observe(thresholds, np.arange(6, 11) * 10, step=6)
    assert (thresholds.poll_threshold, thresholds.abort_threshold) == (300, 700)
    observe(thresholds, [], step=10)
    assert (thresholds.poll_threshold, thresholds.abort_threshold) == (30, 80)


def test_window_forgets_the_oldest_rollouts():
    thresholds = LengthThresholds(1000, window=4, min_samples=1, refit_every=1)
    observe(thresholds, [900, 900, 900])
    observe(thresholds, [10, 20, 30, 40])
    assert (thresholds.poll_threshold, thresholds.abort_threshold) == (20, 40)


@given(
    st.integers(1, 400),
    st.lists(st.integers(0, 500), min_size=1, max_size=40),
)
def test_thresholds_stay_ordered_positive_and_below_the_cap(max_length, lengths):
    thresholds = LengthThresholds(max_length, min_samples=1, refit_every=1)
    observe(thresholds, lengths)
    assert 1 <= thresholds.poll_threshold <= thresholds.abort_threshold <= max_length
    assert isinstance(thresholds.poll_threshold, int) and isinstance(thresholds.abort_threshold, int)


@given(
    st.lists(st.booleans(), min_size=1, max_size=40),
    st.floats(-1e3, 1e3),
    st.floats(1e-3, 1e3),
)
def test_of_two_values_the_higher_is_rewarded_in_any_unit(right, low, scale):
    rewards = low + scale * np.array(right)
    expected = right if 0 < sum(right) < len(right) else [True] * len(right)  # one value: nothing is told
    assert (rewards >= reward_bar(rewards)).tolist() == expected


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([0.0, 0.1, 1.0, 1.1], "0011"),  # a bonus for the form
        ([0.97, 0.97, 0.97, 0.88, -0.03], "11110"),  # a price on length
        ([1.0] * 40 + [0.0] * 10 + [5.0], "1" * 40 + "0" * 10 + "1"),  # an outlier
        ([-7.0, -7.0, -3.0, -3.0], "0011"),
    ],
)
def test_rewarded_is_told_from_the_rest_by_the_halfway_mark(rewards, expected):
    found = np.array(rewards) >= reward_bar(np.array(rewards))
    assert "".join(str(int(x)) for x in found) == expected


def test_aborted_and_unscored_rollouts_stay_out_of_the_window():
    thresholds = LengthThresholds(1000, min_samples=1, refit_every=1)
    outcome, unknown = np.array([Outcome.NATURAL, Outcome.ABORTED, Outcome.KEPT]), np.full(3, -1)
    replay = Replay(outcome, unknown, np.zeros(3, bool), np.array([10, 20, 30]), unknown, unknown)
    thresholds.observe(replay, np.array([0.0, 0.0, np.nan]), 1, 1.0)
    assert (thresholds.poll_threshold, thresholds.abort_threshold) == (10, 10)


def test_foreign_state_is_an_error():
    thresholds = LengthThresholds(100)
    with pytest.raises(ValueError, match="expected"):
        thresholds.load_state_dict({"poll_threshold": 1})
    with pytest.raises(ValueError, match="length cap of 50"):
        LengthThresholds(50).load_state_dict(thresholds.state_dict())
    with pytest.raises(ValueError, match="expected .*lengths.*Resume from a checkpoint"):
        thresholds.load_state_dict({k: v for k, v in thresholds.state_dict().items() if k != "lengths"})
