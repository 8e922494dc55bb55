# SPDX-License-Identifier: Apache-2.0
"""ARRoL's survival (constraints over random scores, ends, bins by hand) and its head (what it learns, its resume)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.methods.arrol import (
    EXPLORATION,
    LARGEST_SLOPE,
    LEAST_OBSERVATIONS,
    QualityHead,
    survival,
    survival_curve,
)

from .test_every_method import stored


def constraints(quality: np.ndarray, alpha: float, beta: float) -> tuple[float, float]:
    """Mean chance of survival and expected share of successes among survivors, by their definition."""
    chance = np.array([EXPLORATION + (1 - EXPLORATION) / (1 + np.exp(-alpha - beta * q)) for q in quality])
    return chance.mean(), (chance * quality).sum() / chance.sum()


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.floats(0.1, 0.95), st.floats(0.05, 0.95))
def test_both_constraints_hold_or_the_nearest_end_is_taken(counts, keep_rate, ratio) -> None:
    quality = np.array(counts) / 20
    alpha, beta = survival_curve(quality, keep_rate, ratio)
    kept, positive = constraints(quality, alpha, beta)
    assert kept == pytest.approx(keep_rate, abs=1e-9)
    if len(set(counts)) == 1:
        assert beta == 0.0
    elif abs(beta) < LARGEST_SLOPE * (1 - 1e-9):
        assert positive == pytest.approx(ratio, abs=1e-8)
    else:
        assert (positive < ratio + 1e-9) if beta > 0 else (positive > ratio - 1e-9)


def test_two_scores_by_hand() -> None:
    """Half of the rollouts have q = 1, half q = 0; kappa = 0.525, rho = 0.7625 / 1.05: p(1) = 0.05 + 0.95 x 3/4 and
    p(0) = 0.05 + 0.95 x 1/4, so alpha = -ln 3 and beta = 2 ln 3."""
    alpha, beta = survival_curve(np.array([0.0, 1.0]), 0.525, 0.7625 / 1.05)
    assert (alpha, beta) == (pytest.approx(-np.log(3), abs=1e-8), pytest.approx(2 * np.log(3), abs=1e-8))


def test_a_rate_of_one_keeps_every_rollout() -> None:
    for quality in (np.linspace(0, 1, 21), np.array([0.2]), np.zeros(0)):
        curve = survival_curve(quality, 1.0, 0.9)
        assert survival(np.linspace(0, 1, 9), *curve).min() > 1 - 1e-12


def calibrated(score: np.ndarray, past: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """Success posteriors of a head that remembers some scores and how they ended."""
    head = QualityHead(seed=0)
    head.scores, head.rewards, head.reward_range = past, positive.astype(float), [0.0, 1.0]
    return head.quality(score)


def test_bins_by_hand() -> None:
    """Bin 10 holds scores in [0.5, 0.55): 3 of 4 succeeded, (3 + 1) / (4 + 2). Bin 19 holds 1.0. Others: 1/2."""
    past = np.array([0.5, 0.51, 0.549, 0.52, *[0.97] * 12])
    positive = np.array([True, True, False, True, *[False] * 12])
    found = calibrated(np.array([0.53, 1.0, 0.55, 0.0]), past, positive)
    np.testing.assert_allclose(found, [4 / 6, 1 / 14, 0.5, 0.5])


def test_raw_scores_count_below_sixteen_observations() -> None:
    score, past = np.array([0.3, 0.7]), np.full(LEAST_OBSERVATIONS, 0.3)
    assert calibrated(score, past[1:], past[1:] > 0).tolist() == score.tolist()
    assert calibrated(score, past, past > 0).tolist() == [17 / 18, 0.5]


# ---- The head ----------------------------------------------------------------------------------------------------


def pairs(seed: int, count: int, dim: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Hidden states whose first entry says whether the rollout succeeds; rewards 0 and 2."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(count, dim)).astype(np.float32)
    rewards = 2.0 * (random.random(count) < 0.5)
    features[:, 0] = np.where(rewards > 1, 2.0, -2.0)
    return features, rewards


def taught(head: QualityHead, steps: range) -> list[float]:
    shares = []
    for step in steps:
        features, rewards = pairs(step, 64)
        head.see_rewards(rewards)
        shares.append(head.learn(features, rewards, step))
    return shares


def test_a_restored_head_trains_on_bit_for_bit() -> None:
    through, restored = QualityHead(seed=3), QualityHead(seed=3)
    restored.load_state_dict(stored(through.state_dict()))  # before the first hidden state
    for step in range(1, 6):
        assert taught(through, range(step, step + 1)) == taught(restored, range(step, step + 1))
        state = stored(through.state_dict())
        again = restored.state_dict()
        assert all(np.array_equal(state[name], again[name]) for name in state)
        restored = QualityHead(seed=3)
        restored.load_state_dict(state)
    assert through.state_dict()["updates"] == sum(range(1, 6))  # 64 rollouts more a step, 64 to an update


def test_hidden_states_of_another_width_are_refused() -> None:
    head = QualityHead(seed=0)
    head.score(pairs(0, 3)[0])
    with pytest.raises(ValueError, match="hidden states have 8 entries, but the head was trained on 16"):
        head.score(pairs(0, 3, dim=8)[0])
