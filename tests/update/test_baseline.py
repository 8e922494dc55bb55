# SPDX-License-Identifier: Apache-2.0
"""Advantages over a remembered baseline: by hand, unbiased by enumeration, less noisy where the memory is right."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.allocate.statistics import RewardHistory
from duet_trl.update.advantages import EPSILON
from duet_trl.update.baseline import (
    MEMORY,
    WEIGHTS,
    MeasuredWeights,
    Weights,
    history_advantages,
)

NAN = float("nan")
SCALES = ("group", "batch", "none")


def history(*prompts: tuple[float, float, float], pool: tuple[float, float] = (NAN, NAN)) -> RewardHistory:
    """What is remembered of prompts given as (count, mean, mean square), and of the pool."""
    return RewardHistory(*(np.array(column, dtype=float) for column in zip(*prompts, strict=True)), *pool)


NOTHING = history((0, NAN, NAN))


def advantages(rewards: list[float], seen: RewardHistory, scale: str = "none", group: list[int] | None = None):
    group = [0] * len(rewards) if group is None else group
    return history_advantages(np.array(rewards, dtype=float), np.array(group), seen, scale)


# ---- By hand ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 7])
def test_with_nothing_remembered_the_baseline_is_the_mean_of_the_others(size):
    rewards = np.random.default_rng(size).normal(size=size)
    others = (rewards.sum() - rewards) / (size - 1)
    np.testing.assert_allclose(advantages(rewards, NOTHING), rewards - others, rtol=1e-12)


def test_a_lone_rollout_has_an_advantage_once_anything_is_remembered():
    for scale in SCALES:
        assert advantages([3.0], NOTHING, scale).tolist() == [0.0]
    assert advantages([3.0], history((0, NAN, NAN), pool=(1.0, 1.0))).tolist() == [2.0]  # the pool's only
    assert advantages([3.0], history((3, 3, 9), pool=(1.0, 1.0))).tolist() == [0.5]  # 3 - (9 + 1) / 4


@pytest.mark.parametrize("scale", SCALES)
def test_equal_rewards_that_are_no_surprise_teach_nothing(scale):
    assert advantages([1.0, 1.0], NOTHING, scale).tolist() == [0.0, 0.0]
    np.testing.assert_allclose(advantages([1.0, 1.0], history((4, 1, 1), pool=(1, 1)), scale), 0.0, atol=1e-9)
    # The same rewards are news where the prompt used to fail.
    assert advantages([1.0, 1.0], history((4, 0, 0), pool=(0.5, 0.5)), scale).min() > 0.0


@pytest.mark.parametrize("scale", SCALES)
def test_a_rollout_without_a_reward_gets_nothing_and_is_in_no_baseline(scale):
    seen = history((3, 1, 1), (0, 0.5, 0.5), pool=(0.5, 0.5))
    holed = advantages([1.0, NAN, 0.0, 1.0, NAN], seen, scale, [0, 0, 0, 1, 1])
    whole = advantages([1.0, 0.0, 1.0], seen, scale, [0, 0, 1])
    assert holed[[1, 4]].tolist() == [0.0, 0.0]
    np.testing.assert_array_equal(holed[[0, 2, 3]], whole)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.floats(-3, 3)), min_size=1, max_size=12),
    st.lists(st.tuples(st.floats(0, 9), st.floats(-3, 3), st.floats(0, 4)), min_size=3, max_size=3),
    st.tuples(st.floats(-3, 3), st.floats(0, 4)),
    st.sampled_from(SCALES),
    st.sampled_from(WEIGHTS),
)
def test_any_step_matches_a_loop_over_rollouts(rollouts, prompts, pool, scale, weights):
    group, rewards = [g for g, _ in rollouts], [r for _, r in rollouts]
    # (count, mean, mean square): the square of the mean and a variance.
    prompts = [(count, mean, mean**2 + variance) for count, mean, variance in prompts]
    pool = (pool[0], pool[0] ** 2 + pool[1])
    found = history_advantages(np.array(rewards), np.array(group), history(*prompts, pool=pool), scale, weights)
    for i, (q, reward) in enumerate(rollouts):
        count, mean, square = prompts[q]
        count *= weights.history
        others = [r for j, (g, r) in enumerate(rollouts) if g == q and j != i]
        known = count + weights.pool
        expected = reward - (count * mean + weights.pool * pool[0] + sum(others)) / (known + len(others))
        if scale == "group":
            of = np.array([count, weights.pool] + [1.0] * (len(others) + 1))
            mean_all = of @ np.array([mean, pool[0], reward, *others]) / of.sum()
            square_all = of @ np.array([square, pool[1], reward**2, *(r**2 for r in others)]) / of.sum()
            expected /= math.sqrt(max(square_all - mean_all**2, 0.0)) + EPSILON
        elif scale == "batch" and len(rollouts) > 1:
            expected /= np.std(rewards, ddof=1) + EPSILON
        # A spread of exactly 0 comes out as the root of the rounding of a difference of squares.
        assert found[i] == pytest.approx(expected, rel=1e-3, abs=1e-9)


# ---- Weights that are measured ----------------------------------------------------------------------------------


def squared_error(rewards: np.ndarray, group: np.ndarray, seen: RewardHistory, weights: Weights) -> float:
    return float((history_advantages(rewards, group, seen, "none", weights) ** 2).sum())


def test_before_the_first_step_the_weights_are_the_default():
    unit = MeasuredWeights()
    assert unit.best == Weights(1.0, 1.0)
    unit.observe(np.array([1.0, 0.0]), np.array([0, 0]), NOTHING)  # of nothing remembered nothing is learnt
    unit.observe(np.array([NAN]), np.array([0]), history((1, 1, 1), pool=(1, 1)))
    assert unit.best == Weights(1.0, 1.0)


def test_the_best_weights_have_the_least_discounted_squared_error():
    random, unit, errors = np.random.default_rng(0), MeasuredWeights(), np.zeros(len(WEIGHTS))
    for _ in range(5):
        rewards, group = random.normal(size=12), random.integers(0, 3, size=12)
        seen = history(*random.uniform(0.0, 4.0, size=(3, 3)), pool=(0.5, 1.0))
        unit.observe(rewards, group, seen)
        errors = MEMORY * errors + [squared_error(rewards, group, seen, weights) for weights in WEIGHTS]
        assert unit.best == WEIGHTS[errors.argmin()]


def test_a_foreign_state_is_an_error():
    with pytest.raises(ValueError, match="3 errors, expected 28"):
        MeasuredWeights().load_state_dict({"errors": [1.0, 2.0, 3.0]})


# ---- Against the gradient ---------------------------------------------------------------------------------------

THETA = np.array([0.4, -0.3, 0.1])
ACTION_REWARDS = np.array([1.0, 0.0, 2.5])
POLICY = np.exp(THETA) / np.exp(THETA).sum()
SCORE = np.eye(3) - POLICY  # d log pi(action) / d theta, one row per action
TRUE_MEAN = float(POLICY @ ACTION_REWARDS)
VARIANCE = float(POLICY @ (ACTION_REWARDS - TRUE_MEAN) ** 2)
GRADIENT = POLICY * (ACTION_REWARDS - TRUE_MEAN)  # dJ / d theta of a softmax

RIGHT = history((8, TRUE_MEAN, TRUE_MEAN**2 + VARIANCE), pool=(TRUE_MEAN, TRUE_MEAN**2 + VARIANCE))
WRONG = history((5, -7.0, 60.0), pool=(30.0, 1000.0))
POOL_ONLY = history((0, NAN, NAN), pool=(9.0, 81.0))


def outcomes(num_rollouts: int) -> tuple[np.ndarray, np.ndarray]:
    """Every outcome of the rollouts, as actions (3^n, n), and its probability (3^n,)."""
    actions = np.array(list(itertools.product(range(3), repeat=num_rollouts)))
    return actions, POLICY[actions].prod(axis=1)


@pytest.mark.parametrize("seen", [NOTHING, RIGHT, WRONG, POOL_ONLY], ids=["nothing", "right", "wrong", "pool-only"])
@pytest.mark.parametrize("num_rollouts", [1, 2, 4])
def test_the_expected_update_is_the_gradient_whatever_is_remembered(num_rollouts, seen):
    if num_rollouts == 1 and seen is NOTHING:
        return  # there is nothing to compare it with
    actions, probability = outcomes(num_rollouts)
    group = np.zeros(num_rollouts, dtype=int)
    found = [history_advantages(ACTION_REWARDS[drawn], group, seen, "none") @ SCORE[drawn] for drawn in actions]
    np.testing.assert_allclose(probability @ np.array(found), num_rollouts * GRADIENT, atol=1e-12)


@pytest.mark.parametrize("num_rollouts", [2, 3, 4])
@pytest.mark.parametrize("count", [0.0, 2.0, 8.0])
def test_the_variance_of_an_advantage_falls_with_the_weight_of_a_right_history(num_rollouts, count):
    # R_i and the n - 1 others are independent: V(A) = v + (n - 1) v / (k + n - 1)^2, k = count + 1 of the pool;
    # v n / (n - 1) with nothing remembered.
    actions, probability = outcomes(num_rollouts)

    def variance(seen: RewardHistory) -> float:
        first = np.array([advantages(ACTION_REWARDS[drawn], seen)[0] for drawn in actions])
        return float(probability @ first**2 - (probability @ first) ** 2)

    square = TRUE_MEAN**2 + VARIANCE
    seen = history((count, TRUE_MEAN, square), pool=(TRUE_MEAN, square))
    others = num_rollouts - 1
    assert variance(seen) == pytest.approx(VARIANCE * (1.0 + others / (count + 1.0 + others) ** 2), rel=1e-12)
    assert variance(NOTHING) == pytest.approx(VARIANCE * num_rollouts / others, rel=1e-12)
    assert variance(seen) < variance(NOTHING)
