# SPDX-License-Identifier: Apache-2.0
"""Ragged advantages against a float64 loop over groups; that they are those of TRL is tested on whole runs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from duet_trl.update.advantages import group_advantages

SCALES = ("group", "batch", "none")
AGGREGATIONS = ("sum_then_normalize", "normalize_then_sum")
EPSILON = 1e-4  # TRL's


def loop_form(rewards_per_func, weights, group, scale, aggregation):
    """What GRPOTrainer computes, in float64 with a loop over groups of any size; a lone rollout gets 0."""
    values = rewards_per_func.double().numpy()
    weights, group = weights.double().numpy(), group.numpy()
    scored = ~np.isnan(values).all(axis=1)
    lone = np.bincount(group)[group] == 1

    def spread(x):
        x = x[~np.isnan(x)]
        return x.std(ddof=1) if len(x) > 1 else math.nan

    def centred(x, divide):
        out = np.full_like(x, np.nan)
        for g in np.unique(group):
            member = x[group == g]
            known = member[~np.isnan(member)]
            if len(known):
                out[group == g] = (member - known.mean()) / (spread(member) + EPSILON if divide else 1.0)
        return out

    if aggregation == "sum_then_normalize":
        rewards = np.where(scored, np.nansum(values * weights, axis=1), np.nan)
        advantages = centred(rewards, divide=scale == "group")
        if scale == "batch":
            advantages = advantages / (spread(rewards) + EPSILON)
    else:
        each = np.stack([centred(values[:, f], divide=True) for f in range(values.shape[1])], axis=1)
        rewards = np.where(scored & ~lone, np.nansum(each * weights, axis=1), np.nan)
        known = rewards[~np.isnan(rewards)]
        mean = known.mean() if len(known) else math.nan
        advantages = (rewards - mean) / (spread(rewards) + EPSILON)
    return np.where(lone, 0.0, np.nan_to_num(advantages, nan=0.0))


def random_rewards(rng, num_rows, num_functions, share_missing):
    values = torch.tensor(rng.normal(size=(num_rows, num_functions)), dtype=torch.float32)
    values[torch.tensor(rng.random((num_rows, num_functions)) < share_missing)] = torch.nan
    return values


@st.composite
def ragged_batches(draw):
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=8))
    group = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rewards = random_rewards(rng, len(group), draw(st.integers(1, 3)), draw(st.sampled_from([0.0, 0.2, 0.6])))
    return rewards, torch.tensor(rng.permutation(group)), rng


@settings(max_examples=150)
@given(ragged_batches(), st.sampled_from(SCALES), st.sampled_from(AGGREGATIONS))
def test_ragged_groups_agree_with_a_loop_in_any_order_of_rows(batch, scale, aggregation):
    rewards, group, rng = batch
    weights = torch.tensor(rng.uniform(0.5, 2.0, size=rewards.shape[1]), dtype=torch.float32)
    result = group_advantages(rewards, weights, group, scale_rewards=scale, multi_objective_aggregation=aggregation)
    expected = loop_form(rewards, weights, group, scale, aggregation)
    assert np.allclose(result.advantages.numpy(), expected, rtol=1e-3, atol=1e-3)
    assert torch.isfinite(result.advantages).all()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("scale", SCALES)
def test_lone_rollout_gets_zero_and_counts_as_without_spread(scale, aggregation):
    rewards = torch.tensor([[1.0], [0.0], [5.0], [1.0]])
    group = torch.tensor([0, 0, 1, 0])
    arguments = {"scale_rewards": scale, "multi_objective_aggregation": aggregation}
    found = group_advantages(rewards, torch.ones(1), group, **arguments)
    assert found.advantages[2] == 0 and found.zero_std[2]
    assert found.advantages[[0, 1, 3]].all() and not found.zero_std[[0, 1, 3]].any()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_left_out_rollout_gets_zero_and_the_others_do_not_see_it(aggregation):
    rewards = torch.tensor([[1.0], [0.0], [torch.inf], [1.0], [0.0]])
    group = torch.tensor([0, 0, 0, 0, 1])
    arguments = {"multi_objective_aggregation": aggregation}
    result = group_advantages(rewards, torch.ones(1), group, include=~torch.isinf(rewards[:, 0]), **arguments)
    without = group_advantages(rewards[[0, 1, 3, 4]], torch.ones(1), group[[0, 1, 3, 4]], **arguments)
    assert result.advantages[2] == 0
    assert torch.equal(result.advantages[[0, 1, 3, 4]], without.advantages)
    assert result.rewards[2] == torch.inf  # still visible to whoever logs rewards


def test_summed_rewards_skip_functions_that_abstained():
    rewards = torch.tensor([[1.0, torch.nan], [1.0, 2.0], [torch.nan, torch.nan]])
    result = group_advantages(rewards, torch.tensor([1.0, 10.0]), torch.tensor([0, 0, 0]))
    assert result.rewards[:2].tolist() == [1.0, 21.0] and torch.isnan(result.rewards[2])
    assert result.advantages[2] == 0


def test_empty_step():
    result = group_advantages(torch.empty(0, 2), torch.ones(2), torch.empty(0, dtype=torch.int64))
    assert len(result.advantages) == len(result.rewards) == len(result.zero_std) == 0
