# SPDX-License-Identifier: Apache-2.0
"""The bound on what prompt features can save, against cases whose answer is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.prompt_features import Spread, columns, spread_of
from recipes.tiny_math.problems import Problem

SAMPLES, COUNT = 16, 4000


def counts(share: np.ndarray, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).binomial(SAMPLES, share)


def test_nothing_but_the_group() -> None:
    assert Spread(0.2, 0.05, 0.05).variance(5, 0.05, 0.0) == pytest.approx(1 + 1 / 4)


def test_a_guess_without_error_leaves_the_noise_of_the_rollout() -> None:
    assert Spread(0.2, 0.05, 0.0).least(5, 0.0) == pytest.approx(1.0)


def test_equal_errors_are_halved() -> None:
    assert Spread(0.2, 0.05, 0.05).least(5, 0.05) == pytest.approx(1 + 0.025 / 0.2)


@given(st.integers(2, 16), st.floats(0.01, 0.25), st.floats(0.001, 0.25), st.floats(0.0, 100.0))
def test_no_weight_is_better_than_the_best(rollouts: int, noise: float, error: float, weight: float) -> None:
    spread = Spread(noise, error, error)
    assert spread.least(rollouts, error) <= spread.variance(rollouts, error, weight) + 1e-12


def test_the_weight_of_a_rollout_is_a_leave_one_out_mean() -> None:
    """By simulation: prompts of two kinds, and the mean of the others and of one guess at the pool's mean."""
    random = np.random.default_rng(2)
    share = np.where(random.random(100_000) < 0.5, 0.9, 0.3)
    rewards = random.random((len(share), 4)) < share[:, None]
    baseline = (rewards[:, 1:].sum(1) + 0.6) / 4
    noise = ((rewards[:, 0] - baseline) ** 2).mean()
    spread = Spread(0.5 * (0.09 + 0.21), 0.09, 0.09)
    assert noise / spread.noise == pytest.approx(spread.variance(4, 0.09, 1.0), rel=0.01)


def test_features_that_tell_everything_leave_no_error() -> None:
    easy = np.arange(COUNT) % 2
    found = spread_of(counts(np.where(easy, 0.8, 0.2)), SAMPLES, np.stack([np.ones(COUNT), easy], 1), 0)
    assert found.noise == pytest.approx(0.16, rel=0.02)
    assert found.pool == pytest.approx(0.09, rel=0.05)
    assert found.features == pytest.approx(0.0, abs=0.002)


def test_features_that_tell_nothing_leave_the_spread_of_the_pool() -> None:
    share = np.where(np.random.default_rng(1).random(COUNT) < 0.5, 0.8, 0.2)
    found = spread_of(counts(share), SAMPLES, np.stack([np.ones(COUNT), np.arange(COUNT) % 2], 1), 0)
    assert found.features == pytest.approx(found.pool, rel=0.01)


def test_a_pool_without_spread_needs_no_features() -> None:
    found = spread_of(counts(np.full(COUNT, 0.3)), SAMPLES, np.ones((COUNT, 1)), 0)
    assert found.pool == pytest.approx(0.0, abs=0.001)
    assert found.row(4)["saved"] < 0.01


def test_columns_tell_levels_and_symbols_apart() -> None:
    one, other, longer = (Problem(text, level, 3) for text, level in (("1+2", 1), ("1+2", 2), ("1+1+1", 1)))
    found = columns((one, other, longer))
    assert found.shape[0] == 3
    assert not np.allclose(found[0], found[1])
    assert not np.allclose(found[0], found[2])
    assert np.allclose(found[:, 0], 1.0)
