# SPDX-License-Identifier: Apache-2.0
"""Eq. 6 from its parts: weights folded into advantages, aborted rows dropped, forced tokens masked, one N_t."""

import numpy as np
import pytest
import torch

from duet_trl.exchange import PADDING_ROW, pack
from duet_trl.update.advantages import group_advantages, rollout_weights

VOCABULARY = 5
COUNTS = np.array([1, 3, 8])  # mean 4: s_pre = 1/4, 3/4, 1


def rollouts(seed):
    """A ragged step on a bigram policy: ids, lengths, groups, rewards, outcomes."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(COUNTS)), COUNTS)
    lengths = rng.integers(2, 9, size=len(group))
    ids = [rng.integers(VOCABULARY, size=length) for length in lengths]
    rewards = rng.integers(0, 2, size=len(group)).astype(np.float32)
    aborted = np.zeros(len(group), bool)
    aborted[[4, 9]] = True
    propensity = np.where(aborted, 0.25, 1.0)
    propensity[6] = 0.25  # kept by the coin
    return ids, lengths, group, rewards, aborted, propensity


def log_policy(theta, ids):
    """log pi of each token of a rollout under a bigram softmax policy that starts from token 0."""
    previous = np.concatenate([[0], ids[:-1]])
    return torch.log_softmax(theta, dim=1)[torch.tensor(previous), torch.tensor(ids)]


def gradient_by_hand(theta, ids, lengths, group, rewards, aborted, propensity):
    """-1/N_t sum w A d log pi / d theta with w, A and the softmax derivative written out, in float64."""
    mean_count = COUNTS.mean()
    probabilities = np.exp(theta) / np.exp(theta).sum(axis=1, keepdims=True)
    num_tokens = lengths[~aborted].sum()
    gradient = np.zeros_like(theta)
    for i, row in enumerate(ids):
        if aborted[i]:
            continue
        members = rewards[group == group[i]].astype(np.float64)
        advantage = 0.0 if len(members) == 1 else (rewards[i] - members.mean()) / (members.std(ddof=1) + 1e-4)
        weight = 1 / (min(max(COUNTS[group[i]] / mean_count, 0.05), 1.0) * propensity[i])
        previous = 0
        for token in row:
            gradient[previous] -= (
                weight * advantage / num_tokens * (np.eye(VOCABULARY)[token] - probabilities[previous])
            )
            previous = token
    return gradient


def composed_loss(theta, step, drops_zeros, num_ranks=1, chunks=1):
    """Loss as a trainer sums it: packed micro-batches on each rank, padding rows and forced tokens masked."""
    ids, lengths, group, rewards, aborted, propensity = step
    advantages = group_advantages(
        torch.tensor(rewards)[:, None], torch.ones(1), torch.tensor(group)
    ).advantages.double()
    weights = torch.tensor(rollout_weights(COUNTS, group, propensity, aborted))
    weighted = weights * advantages
    trained = ~aborted & (advantages.numpy() != 0) if drops_zeros else ~aborted
    kept = np.flatnonzero(trained)
    num_tokens = lengths[~aborted].sum()  # N_t
    rows = pack(lengths[kept], num_ranks, 1, chunks)
    loss = torch.zeros((), dtype=torch.float64)
    for chunk in rows.reshape(-1, rows.shape[2]):
        for place in chunk:
            if place == PADDING_ROW:
                row, advantage, mask = np.array([0]), 0.0, torch.zeros(1)
            else:
                # The gate's forced stop is appended as the engine returns it, and masked.
                row = np.append(ids[kept[place]], VOCABULARY - 1)
                advantage, mask = weighted[kept[place]], torch.ones(len(row))
                mask[-1] = 0.0
            loss = loss - (advantage * log_policy(theta, row) * mask).sum() / num_tokens
    return loss


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("drops_zeros", [False, True])
@pytest.mark.parametrize(("num_ranks", "chunks"), [(1, 1), (2, 3)])
def test_gradient_of_the_composition_is_that_of_equation_6(seed, drops_zeros, num_ranks, chunks):
    step = rollouts(seed)
    theta = torch.tensor(np.random.default_rng(seed).normal(size=(VOCABULARY, VOCABULARY)), requires_grad=True)
    composed_loss(theta, step, drops_zeros, num_ranks, chunks).backward()
    expected = gradient_by_hand(theta.detach().numpy(), *step)
    assert np.abs(expected).max() > 0.01
    assert np.allclose(theta.grad.numpy(), expected, atol=1e-6, rtol=0)
