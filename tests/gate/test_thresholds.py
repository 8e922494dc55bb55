# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.gate.thresholds import LengthThresholds, rewarded, weighted_quantile


def test_cold_start_is_the_papers():
    thresholds = LengthThresholds(3072)
    assert (thresholds.poll_threshold, thresholds.abort_threshold) == (921, 2150)


def test_cold_share_that_rounding_would_miss_is_met():
    assert LengthThresholds(100, cold=(0.29, 0.57)).abort_threshold == 57  # 0.57 * 100 = 56.99999999999999


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.floats(0, 1))
def test_equal_weights_are_numpys_inverted_cdf(lengths, quantile):
    ours = weighted_quantile(np.array(lengths), np.full(len(lengths), 0.37), (quantile,))[0]
    exact = np.quantile(lengths, quantile, method="inverted_cdf")
    # where q * n is an integer up to rounding, the two neighbours are both right
    nearby = np.quantile(lengths, np.clip([quantile - 1e-9, quantile + 1e-9], 0, 1), method="inverted_cdf")
    assert ours in {exact, *nearby}


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 20)), min_size=1, max_size=30), st.floats(0, 1))
def test_integer_weights_are_repetitions(pairs, quantile):
    lengths, weights = np.array(pairs).T
    repeated = np.repeat(lengths, weights)
    ours = weighted_quantile(lengths, weights.astype(float), (quantile,))[0]
    assert ours == weighted_quantile(repeated, np.ones(len(repeated)), (quantile,))[0]


def test_shares_that_are_met_exactly_take_the_lower_length():
    assert weighted_quantile(np.arange(1, 11), np.ones(10), (0.3, 0.8)).tolist() == [3, 8]


def test_refit_happens_on_multiples_of_n_once_there_are_enough_samples():
    thresholds = LengthThresholds(1000, refit_every=5, min_samples=10)
    thresholds.observe(np.arange(1, 6) * 10, np.ones(5))
    assert not thresholds.step(5)  # five samples
    thresholds.observe(np.arange(6, 11) * 10, np.ones(5))
    assert not thresholds.step(6)
    assert (thresholds.poll_threshold, thresholds.abort_threshold) == (300, 700)
    assert thresholds.step(10)
    assert (thresholds.poll_threshold, thresholds.abort_threshold) == (30, 80)


def test_window_forgets_the_oldest_rollouts():
    thresholds = LengthThresholds(1000, window=4, min_samples=1, refit_every=1)
    thresholds.observe(np.array([900, 900, 900]), np.ones(3))
    thresholds.observe(np.array([10, 20, 30, 40]), np.ones(4))
    thresholds.step(1)
    assert (thresholds.poll_threshold, thresholds.abort_threshold) == (20, 40)


def test_weighting_counts_a_rollout_kept_by_its_coin_for_those_that_were_not():
    # Nine short ones and one of a hundred kept with probability 0.1, so for nineteen: K2 is the tenth of them.
    lengths, propensity = np.array([10] * 9 + [100]), np.array([1.0] * 9 + [0.1])
    for weighted, expected in ((True, 100), (False, 10)):
        thresholds = LengthThresholds(1000, weighted=weighted, min_samples=1, refit_every=1)
        thresholds.observe(lengths, propensity)
        thresholds.step(1)
        assert thresholds.abort_threshold == expected


@given(
    st.integers(1, 400),
    st.lists(st.integers(0, 500), min_size=1, max_size=40),
    st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted),
)
def test_thresholds_stay_ordered_positive_and_below_the_cap(max_length, lengths, quantiles):
    thresholds = LengthThresholds(max_length, quantiles=quantiles, min_samples=1, refit_every=1)
    thresholds.observe(np.array(lengths), np.ones(len(lengths)))
    thresholds.step(1)
    assert 1 <= thresholds.poll_threshold <= thresholds.abort_threshold <= max_length
    assert isinstance(thresholds.poll_threshold, int) and isinstance(thresholds.abort_threshold, int)


def abort_threshold_after(weighted: bool, seed: int, steps: int = 300) -> float:
    """Mean K2 over the last 100 steps of a frozen policy with lognormal lengths whose true p80 is 946.

    Rollouts answer at their end, so one that is longer than K2 + G has no marker at the gate. Setting of the audit
    of the published code (finding 6): median 505, G = 150, eps = 0.05, 512 rollouts a step.
    """
    random = np.random.default_rng(seed)
    sigma = np.log(946 / 505) / 0.8416  # 0.8416: the standard normal's p80
    thresholds = LengthThresholds(3072, weighted=weighted)
    history = []
    for step in range(1, steps + 1):
        lengths = np.minimum(random.lognormal(np.log(505), sigma, size=512), 3072).astype(int) + 1
        marker_less = lengths > thresholds.abort_threshold + 150
        kept = ~marker_less | (random.random(512) < 0.05)
        thresholds.observe(lengths[kept], np.where(marker_less[kept], 0.05, 1.0))
        thresholds.step(step)
        history.append(thresholds.abort_threshold)
    return float(np.mean(history[-100:]))


@pytest.mark.parametrize("seed", [0, 1])
def test_plain_window_ratchets_down_and_the_weighted_one_stays_at_the_true_quantile(seed):
    assert abort_threshold_after(weighted=False, seed=seed) < 700
    assert abort_threshold_after(weighted=True, seed=seed) == pytest.approx(946, rel=0.1)


# ---- K2 after the answers ---------------------------------------------------------------------------------------


EARLY_IS_RIGHT = np.array([1.0] * 6 + [0.0] * 4)
"""Rewards that leave K2 to the quantile of all answers, where answers are in the order of their times."""


@pytest.mark.parametrize(("slack", "expected"), [(1.0, 110), (1.25, 138), (1.1, 121), (100.0, 1000)])
def test_k2_is_the_slack_times_the_quantile_of_the_answer_times(slack, expected):
    # The 0.9-quantile of 30, 40, ..., 120 is 110. 1.25 * 110 = 137.5 is rounded up; 1.1 * 110 is 121.00000000000001
    # in floats; 11 000 is above the cap of 1 000. The lengths, all 20, make K1 only.
    thresholds = LengthThresholds(1000, refit_every=1, min_samples=1, answer_quantile=0.9, answer_slack=slack)
    thresholds.observe(np.full(10, 20), np.ones(10), np.arange(30, 130, 10), EARLY_IS_RIGHT)
    thresholds.step(1)
    assert (thresholds.poll_threshold, thresholds.abort_threshold) == (20, expected)


def test_rollouts_without_an_answer_do_not_count():
    times = [50, 60, 70, 80, 90, 100, 110, 120, 130, 140] + [-1] * 90
    thresholds = LengthThresholds(1000, refit_every=1, min_samples=10, answer_quantile=0.9, answer_slack=1.0)
    thresholds.observe(np.full(100, 20), np.ones(100), np.array(times), np.append(EARLY_IS_RIGHT, np.zeros(90)))
    thresholds.step(1)
    assert thresholds.abort_threshold == 130


@pytest.mark.parametrize(("weighted", "expected"), [(True, 100), (False, 10)])
def test_answers_weigh_as_their_rollouts_do(weighted, expected):
    # Nine at 10 and one at 100 that stands for ten: of nineteen, the 0.9-quantile is the last; of ten, the ninth.
    thresholds = LengthThresholds(
        1000, refit_every=1, min_samples=1, answer_quantile=0.9, answer_slack=1.0, weighted=weighted
    )
    thresholds.observe(np.full(10, 5), np.array([1.0] * 9 + [0.1]), np.array([10] * 9 + [100]), EARLY_IS_RIGHT)
    thresholds.step(1)
    assert thresholds.abort_threshold == expected


def test_k2_stays_behind_the_latest_rewarded_answers_and_not_behind_those_that_earned_nothing():
    # Of 1,000 answers 990 come at 100 and ten late. 0.95 of all: 100. 0.995 of the rewarded: 600 where all ten late
    # ones are right, and 100 where four of them are (0.995 * 994 = 989.03: the 990th of 994).
    for right, expected in ((10, 750), (4, 125)):
        thresholds = LengthThresholds(1000, refit_every=1, answer_quantile=0.95)
        times, rewards = (
            np.array([100] * 990 + [600] * 10),
            np.array([5.0] * 990 + [5.0] * right + [2.0] * (10 - right)),
        )
        thresholds.observe(np.full(1000, 20), np.ones(1000), times, rewards)
        thresholds.step(1)
        assert thresholds.abort_threshold == expected


@pytest.mark.parametrize(
    ("propensity", "reward", "answered_at", "expected"),
    [(0.05, 1.0, 800, 1000), (0.05, 0.0, 800, 700), (1.0, 1.0, 800, 700), (0.05, 1.0, -1, 700), (0.05, 1.0, 500, 700)],
    ids=["late and right", "wrong", "not behind the gate", "no answer", "below K2 with the slack"],
)
def test_k2_rises_between_refits_for_a_kept_rollout_that_answers_late_and_right(
    propensity, reward, answered_at, expected
):
    thresholds = LengthThresholds(2000, cold=(0.1, 0.35), answer_quantile=0.95)
    thresholds.observe(np.full(2, 50), np.ones(2), np.full(2, 40), np.array([0.0, 1.0]))
    thresholds.observe(np.array([900]), np.array([propensity]), np.array([answered_at]), np.array([reward]))
    assert thresholds.abort_threshold == expected
    assert thresholds.poll_threshold == 200


def test_by_the_papers_rule_no_answer_raises_k2():
    thresholds = LengthThresholds(2000, cold=(0.1, 0.35))
    thresholds.observe(np.array([900]), np.array([0.05]), np.array([800]), np.array([1.0]))
    assert thresholds.abort_threshold == 700


def test_of_a_step_that_is_larger_than_the_window_the_last_rollouts_count():
    whole, last = (LengthThresholds(1000, window=8, min_samples=8, answer_quantile=0.95) for _ in range(2))
    count = 4 * 8 + 5
    columns = np.arange(1, count + 1), np.full(count, 0.1), np.arange(count) + 700, np.arange(count) % 2
    whole.observe(*columns)
    last.observe(*(column[5:] for column in columns))
    assert whole.state_dict() == last.state_dict()
    assert whole.abort_threshold == np.ceil(1.25 * (700 + count - 2))  # the latest rewarded one


def test_answers_are_remembered_for_four_windows_and_lengths_for_one():
    thresholds = LengthThresholds(1000, window=8, min_samples=1, refit_every=1, answer_quantile=0.5, answer_slack=1.0)
    thresholds.observe(np.array([900]), np.ones(1), np.array([700]), np.ones(1))
    for step in range(1, 5):  # after 31 more the late answer is the oldest of 32, then it is gone
        thresholds.observe(np.full(8 - (step == 4), 30), np.ones(8 - (step == 4)), np.full(8 - (step == 4), 50))
        thresholds.step(step)
        assert (thresholds.poll_threshold, thresholds.abort_threshold) == (30, 700)
    thresholds.observe(np.array([30]), np.ones(1), np.array([50]))
    thresholds.step(5)
    assert thresholds.abort_threshold == 50


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0.01, 1.0)), min_size=1, max_size=40),
    st.floats(-1e3, 1e3),
    st.floats(1e-3, 1e3),
)
def test_of_two_values_the_higher_is_rewarded_in_any_unit(rollouts, low, scale):
    right, propensity = np.array([right for right, _ in rollouts]), np.array([p for _, p in rollouts])
    expected = right if 0 < right.sum() < len(right) else np.ones(len(right), dtype=bool)  # one value: nothing is told
    np.testing.assert_array_equal(rewarded(low + scale * right, 1.0 / propensity), expected)


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
    assert "".join(str(int(x)) for x in rewarded(np.array(rewards), np.ones(len(rewards)))) == expected


def test_k2_stays_while_there_are_too_few_answers_and_k1_does_not():
    thresholds = LengthThresholds(1000, refit_every=1, min_samples=10, answer_quantile=0.9, answer_slack=1.0)
    for step, expected in ((1, 700), (2, 700), (3, 60)):  # 4, 8 and 12 answers
        thresholds.observe(np.full(12, 40), np.ones(12), np.array([60] * 4 + [-1] * 8))
        assert thresholds.step(step)
        assert (thresholds.poll_threshold, thresholds.abort_threshold) == (40, expected)


def test_answers_before_k1_lower_k2_no_further_than_k1():
    thresholds = LengthThresholds(1000, refit_every=1, min_samples=1, answer_quantile=0.9, answer_slack=1.0)
    thresholds.observe(np.full(10, 60), np.ones(10), np.full(10, 40))
    thresholds.step(1)
    assert (thresholds.poll_threshold, thresholds.abort_threshold) == (60, 60)


def answer_time_loop(spread: float, seed: int, **options) -> int:
    """K2 after 30 refits of a frozen policy whose answers come after lognormal times with a median of 505 tokens.

    What answers after K2 + G is aborted, or kept with probability 0.05. Rollouts end with their answer, so that
    lengths and answer times are the same before the cap of 3072. No answer is worth more than another.
    """
    random = np.random.default_rng(seed)
    thresholds = LengthThresholds(3072, refit_every=1, **options)
    for step in range(1, 31):
        times = np.minimum(random.lognormal(np.log(505), spread, size=512), 3072).astype(int) + 1
        answered = times <= thresholds.abort_threshold + 150
        kept = answered | (random.random(512) < 0.05)
        thresholds.observe(times[kept], np.where(answered[kept], 1.0, 0.05), times[kept])
        thresholds.step(step)
    return thresholds.abort_threshold


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("spread", [0.3, 0.5, 0.746, 1.0])
@pytest.mark.parametrize("cold", [(0.3, 0.7), (0.1, 0.2)], ids=["cold-above", "cold-within-the-answers"])
def test_k2_does_not_ratchet_into_the_answers_it_follows(spread, seed, cold):
    true_p99 = min(505 * np.exp(2.3263 * spread), 3072)  # 2.3263: the standard normal's p99
    assert answer_time_loop(spread, seed, cold=cold, answer_quantile=0.95, answer_slack=1.25) >= true_p99
    # The plain window of lengths ratchets below the true p80 it aims at.
    true_p80 = 505 * np.exp(0.8416 * spread)
    assert answer_time_loop(spread, seed, cold=cold, weighted=False) < 0.97 * true_p80
    if spread > 0.7:
        assert answer_time_loop(spread, seed, cold=cold, weighted=False) < 0.65 * true_p80


@pytest.mark.parametrize("answer_quantile", [0.0, 0.95])
def test_restored_thresholds_go_on_as_the_uninterrupted_ones(answer_quantile):
    random = np.random.default_rng(0)
    steps = [
        (
            random.integers(1, 500, size=50),
            random.choice([0.05, 1.0], size=50),
            random.integers(-1, 300, size=50),
            random.choice([0.0, 1.0], size=50),
        )
        for _ in range(12)
    ]
    whole, first, second = (
        LengthThresholds(512, window=128, refit_every=3, answer_quantile=answer_quantile) for _ in range(3)
    )
    for step, observed in enumerate(steps, start=1):
        whole.observe(*observed)
        whole.step(step)
        part = first if step <= 7 else second
        if step == 8:
            second.load_state_dict(json.loads(json.dumps(first.state_dict())))
            assert second.state_dict() == first.state_dict()
        part.observe(*observed)
        part.step(step)
        assert (part.poll_threshold, part.abort_threshold) == (whole.poll_threshold, whole.abort_threshold)
    assert second.state_dict() == whole.state_dict()


def test_foreign_state_is_an_error():
    thresholds = LengthThresholds(100)
    with pytest.raises(ValueError, match="expected"):
        thresholds.load_state_dict({"poll_threshold": 1})
    with pytest.raises(ValueError, match="length cap of 50"):
        LengthThresholds(50).load_state_dict(thresholds.state_dict())
    without_rewards = {name: value for name, value in thresholds.state_dict().items() if name != "rewards"}
    with pytest.raises(ValueError, match="expected .*rewards.*resume with that version"):
        thresholds.load_state_dict(without_rewards)
