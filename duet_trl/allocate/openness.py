# SPDX-License-Identifier: Apache-2.0
"""What rollouts of a prompt are worth while its success rate is open, and what the next one of a step earns a token.

m rollouts of a prompt are worth x sqrt(m) with x = E p(1 - p) under the Beta posterior of its success rate p: x is the
length of a binary prompt's gradient, and the square root keeps a prompt from taking everything.
"""

from collections.abc import Sequence

import numpy as np

from .greedy import greedy_counts
from .statistics import PromptStatistics, RewardHistory

PRIOR = 0.5
"""Pseudo-successes and pseudo-failures of a prompt without a history (Jeffreys' prior)."""


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
    known = [*(statistics.reward_range or ()), *rewards[~np.isnan(rewards)]]
    seen = statistics.reward_history(keys).after(rewards, group)
    value = openness(*posterior(seen, (min(known), max(known)) if known else None))
    worth = np.sqrt(np.arange(num_max + 1))[:, None] * value  # (num_max + 1, M)
    cost = statistics.expected_tokens(keys, price_aborted=True, default=max(spent / len(group), 1.0))
    first = np.bincount(group, minlength=len(keys))
    budget = rollouts_per_prompt * float(cost.sum())
    # The counts are both rounds', so round 1 is charged at expected lengths and what it really took comes off.
    limit = budget - spent + float(cost @ first)
    counts, _, _ = greedy_counts(worth, cost, np.full(len(keys), num_min), limit, max_rollouts)
    return counts, budget, spent + float(cost @ (counts - first))


def posterior(history: RewardHistory, reward_range: Sequence[float] | None) -> tuple[np.ndarray, np.ndarray]:
    """Both parameters of the Beta posterior of each prompt's success rate, shape (M,) each.

    A reward counts as the share of a success that it is between the lowest and the highest reward of the run
    (`reward_range`; None or equal: one reward so far does not tell what a success is, and none counts).
    """
    low, high = reward_range or (0.0, 0.0)
    count = history.count if low < high else np.zeros(len(history.count))
    share = np.where(count > 0, np.clip((history.mean - low) / max(high - low, 1e-300), 0.0, 1.0), 0.5)
    return PRIOR + count * share, PRIOR + count * (1.0 - share)


def openness(successes: np.ndarray, failures: np.ndarray) -> np.ndarray:
    """x = E p(1 - p) of each prompt's success rate under its posterior, shape (M,), at most 1/4."""
    total = successes + failures
    return successes * failures / (total * (total + 1.0))


def price_of_more(worth: np.ndarray, counts: np.ndarray, cost: np.ndarray) -> float:
    """What one more rollout of each prompt of a step would add to sum x sqrt(n), per token.

    Args:
        worth (np.ndarray): x of each prompt, shape (M,).
        counts (np.ndarray): n, shape (M,).
        cost (np.ndarray): Expected tokens of a rollout, shape (M,), > 0.
    """
    return float((worth * (np.sqrt(counts + 1.0) - np.sqrt(counts))).sum() / cost.sum())
