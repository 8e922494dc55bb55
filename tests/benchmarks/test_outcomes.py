# SPDX-License-Identifier: Apache-2.0
"""Signal and noise of an estimate, where both are known in closed form."""

import numpy as np
import pytest

from benchmarks.outcomes import LEAST, OURS, PER_STEP, REFERENCE, Recording, least_noise, signal_to_noise, summary

WRONG_LENGTH = 3.0


def recording(prompts: int = 30, rollouts: int = 16, dimensions: int = 400, seed: int = 0) -> Recording:
    """Gradients with a common part, pushed by right rollouts and pulled by wrong ones, which are noisier."""
    random = np.random.default_rng(seed)
    right = random.random((prompts, rollouts)) < 0.4
    signal = np.zeros(dimensions)
    signal[0] = 1.0
    noise = random.normal(size=(prompts, rollouts, dimensions)) * np.where(right, 1.0, WRONG_LENGTH)[..., None]
    # p E[g | right] = -(1 - p) E[g | wrong]
    gradients = (noise + np.where(right, 1.0 / 0.4, -1.0 / 0.6)[..., None] * signal).reshape(-1, dimensions)
    surprisal = np.where(right, 1.0, WRONG_LENGTH**2)
    return Recording(right, np.ones_like(right, dtype=int), surprisal, gradients @ gradients.T)


def test_signal_to_noise_is_that_of_the_rollouts_that_are_used():
    pool = recording()
    figures = {name: row["signal_to_noise"][0] for name, row in signal_to_noise(pool, 1).items()}
    # Of one advantage for all right rollouts: (mean)^2 over variance / number, in 400 dimensions.
    number = PER_STEP * len(pool.right) * 0.4
    assert figures["mean, right ones"] == pytest.approx((1.0 / 0.4) ** 2 / (400 / number), rel=0.3)
    assert figures["mean, wrong ones"] < 0.3 * figures["mean, right ones"]
    assert figures[LEAST] > 1.5 * figures["mean"]
    assert figures[OURS] > 1.5 * figures[REFERENCE]


def test_what_is_written_has_ratios_to_the_reference_with_their_intervals():
    pool = recording()
    found = summary(pool, signal_to_noise(pool, 1))
    assert found["squared_gradient_wrong_over_right"] == pytest.approx(WRONG_LENGTH**2, rel=0.1)
    reference = found["estimators"][REFERENCE]
    assert reference["ratio"] == 1.0 and reference["ratio_interval"] == [1.0, 1.0]
    low, high = found["estimators"][OURS]["ratio_interval"]
    assert low < found["estimators"][OURS]["ratio"] < high
    assert found["estimators"][OURS]["trained_tokens"] < reference["trained_tokens"]


def test_the_baseline_of_least_noise_is_the_mean_of_the_others_weighted_by_surprisal():
    pool = Recording(np.array([[True, False]]), np.ones((1, 2)), np.array([[1.0, 3.0]]), np.eye(2))
    # One rollout at the pool's means: weight 2, of which a quarter is right.
    found = least_noise(pool.right.astype(float), pool.surprisal, pool)
    np.testing.assert_allclose(found, [[1 - 0.5 / (2 + 3), 0 - (0.5 + 1) / (2 + 1)]])
