# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.gate.thresholds import OPTIMISM, PRIOR_ROLLOUTS, AnswerTimes

CAP = 40
ROLLOUTS = st.lists(
    st.tuples(st.integers(1, CAP), st.sampled_from(["right", "wrong", "aborted"])), min_size=1, max_size=30
)


def observed(rollouts: list[tuple[int, str]], width: int = 1) -> AnswerTimes:
    times = AnswerTimes(CAP, width=width)
    kind = np.array([kind for _, kind in rollouts])
    times.observe(np.array([time for time, _ in rollouts]), kind != "aborted", kind == "right")
    return times


def redistributed(rollouts: list[tuple[int, str]]) -> tuple[np.ndarray, np.ndarray]:
    """S and F by Efron's algorithm: each aborted rollout hands its mass to those that were followed further.

    Mass of the last ones, if they were aborted, stays behind the limit.
    """
    order = sorted(rollouts, key=lambda one: (one[0], one[1] == "aborted"))
    mass = [1.0 / len(order)] * (len(order) + 1)
    mass[-1] = 0.0  # nobody
    for i, (_, kind) in enumerate(order):
        if kind == "aborted":
            share = mass[i] / max(len(order) - 1 - i, 1)
            for j in range(i + 1, len(order)) or [len(order)]:
                mass[j] += share
            mass[i] = 0.0
    ends = [sum(m for m, (time, _) in zip(mass, order, strict=False) if time <= k) for k in range(CAP + 1)]
    right = [
        sum(m for m, (time, kind) in zip(mass, order, strict=False) if time <= k and kind == "right")
        for k in range(CAP + 1)
    ]
    return 1.0 - np.array(ends), np.array(right)


@given(ROLLOUTS)
def test_the_curves_are_those_of_redistribution_to_the_right(rollouts):
    alive, earned, tokens = observed(rollouts).curves()
    expected_alive, expected_earned = redistributed(rollouts)
    np.testing.assert_allclose(alive, expected_alive, atol=1e-12)
    np.testing.assert_allclose(earned, expected_earned, atol=1e-12)
    np.testing.assert_allclose(np.diff(tokens), (expected_alive[:-1] + expected_alive[1:]) / 2, atol=1e-12)


@given(ROLLOUTS, st.floats(1e-4, 0.5), st.sampled_from([1, 7, 8]))
def test_from_the_cut_on_no_later_one_pays_and_before_it_one_does(rollouts, price, width):
    times = observed(rollouts, width)
    _, earned, tokens = times.curves(price)
    at = -(-times.cut(price) // width)
    gain = earned - price * tokens
    assert (gain[at:] <= gain[at] + 1e-12).all()
    assert all(gain[early] <= gain[early + 1 :].max() + 1e-12 for early in range(at))


def test_a_valley_is_crossed_for_what_pays_behind_it_and_not_for_what_does_not():
    # Of 1,000, 900 answer at 10 and 100 go on to 30. Where these are right they earn 100 for 100 x 20 tokens: 0.05 a
    # token. The prior, 8 of 108 pseudo-rollouts with twice the price, shifts that by a few percent.
    late = [(10, "right")] * 720 + [(10, "wrong")] * 180 + [(30, "right")] * 100
    never = late[:900] + [(CAP, "wrong")] * 100
    assert observed(late).cut(0.045) >= 30  # nobody is left behind it
    assert observed(late).cut(0.055) == 10
    assert observed(never).cut(0.045) == 10


def test_what_few_rollouts_showed_to_be_worthless_is_still_explored():
    early = [(10, "right")] * 500 + [(10, "wrong")] * 500
    for followed, cut in ((0, CAP), (PRIOR_ROLLOUTS - 1, CAP), (PRIOR_ROLLOUTS + 1, 10)):
        # 300 are aborted at 10, behind the answers; the others run to the limit and earn nothing. A token of these is
        # worth 2 x 8 / (8 + n) times its price in the eyes of the estimate: above 1 where n < 8.
        found = observed(early + [(11, "aborted")] * 300 + [(CAP, "wrong")] * int(followed))
        assert found.cut(0.01) == pytest.approx(cut, abs=1)
    assert OPTIMISM == 2.0


def test_counts_fade_with_the_memory():
    times = AnswerTimes(CAP, width=1, memory=4.0)
    times.observe(np.array([3, 5]), np.array([True, False]), np.array([True, False]))
    times.observe(np.array([3]), np.array([True]), np.array([False]))
    assert times.counts[:, 2].tolist() == [0.75 * 2 + 1, 0.75, 1.0]
    assert times.counts[:, 4].tolist() == [0.75, 0.0, 0.0]


def test_productivity_and_reach_of_uncut_rollouts():
    # 4 answer rightly at 8, 6 at 16 wrongly: a bin of 8 tokens each, ends in its middle.
    times = AnswerTimes(64, width=8)
    times.observe(np.array([8] * 4 + [16] * 6), np.ones(10, bool), np.array([True] * 4 + [False] * 6))
    assert times.productivity() == pytest.approx(0.4 / (8 * 0.8 + 8 * 0.3))
    assert [times.reaching(length) for length in (0, 8, 16)] == [10.0, pytest.approx(6.0), pytest.approx(0.0)]
    assert AnswerTimes(64).productivity() == 0.0
