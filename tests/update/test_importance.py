# SPDX-License-Identifier: Apache-2.0
"""Weights of Eq. 6 and the surcharge of Theorem 2: closed forms, enumeration and seeded statistics."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.update.advantages import (
    effective_sample_size,
    rollout_weights,
    surcharge,
    surcharge_bound,
)


def weights_of(counts, **arguments):
    """One weight per prompt when nothing was aborted or kept by the coin."""
    counts = np.asarray(counts)
    group = np.arange(len(counts))
    return rollout_weights(counts, group, np.ones(len(counts)), np.zeros(len(counts), bool), **arguments)


def test_floor_bounds_the_weight_of_a_scarce_prompt():
    # Mean 16: 1/16 is above a floor of 0.05 and below one of 0.25.
    assert np.allclose(weights_of([1, 31], floor=0.05), [16.0, 1.0])
    assert np.allclose(weights_of([1, 31], floor=0.25), [4.0, 1.0])


@given(st.lists(st.integers(1, 32), min_size=1, max_size=20))
def test_every_prompt_has_the_same_total_where_neither_clip_binds(counts):
    counts = np.array(counts)
    free = (counts <= counts.mean()) & (counts / counts.mean() >= 0.05)
    assert np.allclose((weights_of(counts) * counts)[free], counts.mean())
    assert (weights_of(counts)[counts >= counts.mean()] == 1).all()


def test_kept_by_the_coin_weighs_the_inverse_propensity_and_aborted_nothing():
    weights = rollout_weights([3], [0, 0, 0], [1.0, 0.05, 0.05], [False, False, True])
    assert np.allclose(weights, [1.0, 20.0, 0.0])
    assert weights.dtype == np.float64


def test_empty_step():
    assert rollout_weights([], [], [], []).shape == (0,)
    assert effective_sample_size([]) == 0.0


def test_effective_sample_size_of_equal_weights_is_their_number():
    assert effective_sample_size([2.0] * 7 + [0.0] * 3) == pytest.approx(7)
    # (1 + 1 + 20)^2 / (1 + 1 + 400)
    assert effective_sample_size([1.0, 1.0, 20.0]) == pytest.approx(484 / 402)


def test_bound_at_the_extremes():
    assert surcharge_bound(0.0, 0.05, 1.0) == 0.0
    assert surcharge_bound(1.0, 1.0, 1.0) == 0.0
    assert surcharge_bound(1.0, 0.01, 1.0) == pytest.approx(99.0)  # the paper's worst case
    with pytest.raises(ValueError, match="keep_probability"):
        surcharge_bound(0.1, 0.0, 1.0)


def factor_of(**columns) -> float:
    return surcharge(
        **{name: np.array(value) if isinstance(value, list) else value for name, value in columns.items()}
    )


def test_tracker_by_hand():
    # Prompt 0: natural (z = -1), kept by the coin (z = -2), aborted. Prompt 1: natural with A = 0, log-prob unknown.
    factor = factor_of(
        advantages=[1.0, -1.0, -1.0, 0.0],
        sum_logps=[-10.0, -60.0, np.nan, np.nan],
        lengths=[10, 30, 50, 20],
        group=[0, 0, 0, 1],
        propensity=[1.0, 0.5, 0.5, 1.0],
        aborted=[False, False, True, False],
        num_prompts=2,
        keep_probability=0.5,
    )
    # N_t = 60; prompt 0: marker-less rate 2/3, odds 1, sigma^2 = 4, weights 1/6 and 1/2. Prompt 1: rate 0.
    added, natural = 2 / 3 * 4 * (1 / 36 + 1 / 4), 1 / 36 * 1 + 1 / 4 * 4 / 0.5
    assert factor == pytest.approx(1 + added / natural)


def test_prompt_without_a_kept_marker_less_rollout_borrows_the_pool():
    arguments = {"keep_probability": 0.5, "num_prompts": 2, "lengths": [10] * 4, "group": [0, 0, 1, 1]}
    arguments |= {"advantages": [1.0] * 4, "sum_logps": [-10.0, -10.0, -30.0, -30.0]}
    # Prompt 0 has an abort and no kept marker-less rollout; prompt 1's has z^2 = 9; N_t = 30; natural: 1, 9, 9 / 0.5.
    pooled = factor_of(**arguments, propensity=[1, 0.5, 1, 0.5], aborted=[False, True, False, False])
    assert pooled == pytest.approx(1 + (0.5 * 9 * 1 / 9 + 0.5 * 9 * 2 / 9) / (28 / 9))
    # Nobody has one: all kept rollouts stand in, mean of 1, 9, 9.
    stand_in = factor_of(**arguments, propensity=[1, 0.5, 1, 1], aborted=[False, True, False, False])
    assert stand_in == pytest.approx(1 + 0.5 * 19 / 3 * 1 / 9 / (19 / 9))


def test_factor_is_one_without_marker_less_rollouts_and_in_an_empty_step():
    arguments = {"propensity": [1.0], "num_prompts": 1, "keep_probability": 0.05, "group": [0], "lengths": [5]}
    assert factor_of(advantages=[1.0], sum_logps=[-3.0], aborted=[False], **arguments) == 1.0
    assert factor_of(advantages=[1.0], sum_logps=[-3.0], aborted=[True], **arguments) == 1.0
