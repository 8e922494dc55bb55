# SPDX-License-Identifier: Apache-2.0
"""Phase 3: advantages over a baseline that remembers earlier visits of a prompt.

A group of n rollouts estimates its own mean from the n - 1 others of each, which multiplies the variance of the
advantage by n / (n - 1), and a group whose rewards are all the same teaches nothing. A prompt that comes round again
brings a history: with its discounted rewards in the baseline, two rollouts do nearly the work of three
(docs/performance.md), and a lone rollout has an advantage. docs/fidelity.md#advantage_baseline.
"""

import numpy as np

from ..allocate.statistics import RewardHistory
from .advantages import EPSILON

PRIOR_ROLLOUTS = 1.0
"""Pseudo-rollouts at the pool's mean reward in the baseline of every prompt."""


def history_advantages(
    rewards: np.ndarray, group: np.ndarray, history: RewardHistory, scale_rewards: str = "group"
) -> np.ndarray:
    """Advantages over a leave-one-out mean that is shrunk toward the prompt's history.

    A_i = (R_i - b_i) / s with b_i = (m + sum over j != i of R_j) / (k + n - 1), where m and k are the sum and the
    count of the discounted rewards of earlier visits and of one pseudo-rollout at the pool mean. b_i does not depend
    on rollout i, so A_i grad log pi has the expectation of R_i grad log pi, whatever the history is worth, for
    scale_rewards="none" and up to one common factor for "batch".

    Args:
        rewards (np.ndarray): Summed reward of each rollout, shape (N,); nan for one without a reward, which gets
            advantage 0 and is in no baseline.
        group (np.ndarray): Prompt of each rollout, shape (N,), in 0..M-1.
        history (RewardHistory): Of the M prompts.
        scale_rewards (str): s: "group", the standard deviation of the prompt's rewards, this step's and remembered
            ones; "batch", that of the rewards of the step; "none", 1.

    Returns:
        np.ndarray: A, shape (N,), float64; 0 for a lone rollout while nothing at all is remembered.

    Example:
        >>> seen = RewardHistory(*(np.array([x]) for x in (3.0, 1.0, 1.0)), 0.5, 0.5)
        >>> history_advantages(np.array([0.0]), np.array([0]), seen, "none").tolist()
        [-0.875]
    """
    rewards, group = np.asarray(rewards, dtype=np.float64), np.asarray(group, dtype=np.int64)
    scored = ~np.isnan(rewards)
    values = np.where(scored, rewards, 0.0)
    prior = 0.0 if np.isnan(history.pool_mean) else PRIOR_ROLLOUTS
    weight = prior + history.count
    first, second = (
        prior * np.nan_to_num(pool) + history.count * np.nan_to_num(mean)
        for pool, mean in ((history.pool_mean, history.mean), (history.pool_mean_square, history.mean_square))
    )
    size = np.bincount(group[scored], minlength=len(weight))
    total = np.bincount(group, weights=values, minlength=len(weight))
    others = (weight + size - 1.0)[group]
    baseline = np.divide((first + total)[group] - values, others, out=values.copy(), where=others > 0.0)
    advantages = np.where(scored, values - baseline, 0.0)
    if scale_rewards == "batch" and scored.sum() > 1:
        advantages /= rewards[scored].std(ddof=1) + EPSILON
    elif scale_rewards == "group":
        squares = np.bincount(group, weights=values**2, minlength=len(weight))
        count = np.maximum(weight + size, 1.0)
        mean = (first + total) / count
        variance = np.maximum((second + squares) / count - mean**2, 0.0)
        advantages /= (np.sqrt(variance) + EPSILON)[group]
    return advantages
