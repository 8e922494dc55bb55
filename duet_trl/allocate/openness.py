# SPDX-License-Identifier: Apache-2.0
"""Phase 1 in two rounds: after some rollouts of every prompt, more of those whose success rate is still open.

m rollouts of a prompt are worth x sqrt(m) with x = E p(1 - p) under the Beta posterior of its success rate p. What is
left of the budget is spent greedily by gain per token.
"""

from collections.abc import Sequence

import numpy as np

from .greedy import greedy_counts
from .mixed import PRIOR
from .statistics import PromptStatistics


def open_counts(
    statistics: PromptStatistics,
    keys: Sequence[str],
    group: np.ndarray,
    rewards: np.ndarray,
    tokens: np.ndarray,
    *,
    rollouts_per_prompt: float,
    num_min: int,
    num_max: int,
    max_rollouts: int,
) -> tuple[np.ndarray, float, float]:
    """Rollouts of each prompt, those of round 1 included.

    Args:
        statistics (PromptStatistics): What earlier visits showed.
        keys (Sequence[str]): The M prompts.
        group (np.ndarray): Prompt of each rollout of round 1 in 0..M-1, shape (N,), int64.
        rewards (np.ndarray): Their rewards, shape (N,), nan where there is none.
        tokens (np.ndarray): Their generated tokens, shape (N,).
        rollouts_per_prompt (float): Rollouts per prompt that the budget pays for, at expected lengths.
        num_min (int): Minimum rollouts of a prompt, both rounds together.
        num_max (int): Maximum.
        max_rollouts (int): Maximum of the step.

    Returns:
        tuple[np.ndarray, float, float]: Counts, shape (M,), int64; budget, tokens; planned tokens, those of round 1
        as they were.
    """
    spent = float(tokens.sum())
    worth = np.sqrt(np.arange(num_max + 1))[:, None] * _openness(statistics, keys, group, rewards)  # (num_max + 1, M)
    cost = statistics.expected_tokens(keys, price_aborted=True, default=max(spent / len(group), 1.0))
    first = np.bincount(group, minlength=len(keys))
    budget = rollouts_per_prompt * float(cost.sum())
    # The counts are both rounds', so round 1 is charged at expected lengths and what it really took comes off.
    limit = budget - spent + float(cost @ first)
    counts, _, _ = greedy_counts(worth, cost, np.full(len(keys), num_min), limit, max_rollouts)
    return counts, budget, spent + float(cost @ (counts - first))


def _openness(statistics: PromptStatistics, keys: Sequence[str], group: np.ndarray, rewards: np.ndarray) -> np.ndarray:
    """E p(1 - p) of each prompt's success rate after round 1, shape (M,)."""
    known = [*(statistics.reward_range or ()), *rewards[~np.isnan(rewards)]]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    seen = statistics.reward_history(keys).after(rewards, group)
    # One reward so far does not tell what a success is: rollouts that earned it count as none.
    count = seen.count if low < high else np.zeros(len(seen.count))
    share = np.where(count > 0, np.clip((seen.mean - low) / max(high - low, 1e-300), 0.0, 1.0), 0.5)
    a, b = PRIOR + count * share, PRIOR + count * (1.0 - share)
    return a * b / ((a + b) * (a + b + 1.0))
