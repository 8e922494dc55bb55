# SPDX-License-Identifier: Apache-2.0
"""What rollouts of a prompt are worth while its success rate is open, and what the next one of a step earns a token.

m rollouts of a prompt are worth x sqrt(m) with x = E p(1 - p) under the Beta posterior of its success rate p: x is the
length of a binary prompt's gradient, and the square root keeps a prompt from taking everything. By another objective
(docs/fidelity.md#allocation_objective) as many prompts as possible have rewards that differ: one whose rollouts all
succeed, or all fail, has no group-normalised advantage.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from .greedy import greedy_counts
from .neyman import BUDGET_ROUNDING, Allocation, bounds, positive_number, positive_vectors
from .statistics import RewardHistory

PRIOR = 0.5
"""Pseudo-successes and pseudo-failures of a prompt without a history (Jeffreys' prior)."""


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

    `worth` is x, `counts` n, `cost` the expected tokens of a rollout, > 0; shape (M,) each.
    """
    return float((worth * (np.sqrt(counts + 1.0) - np.sqrt(counts))).sum() / cost.sum())


def mixed_probability(successes: ArrayLike, failures: ArrayLike, num_max: int) -> np.ndarray:
    """Probability that n rollouts hold a success and a failure, ``1 - E p^n - E (1 - p)^n`` under a Beta posterior.

    Its parameters `successes` and `failures` have shape (M,), > 0. Returns shape (num_max + 1, M), one row per n from
    0; increasing and concave from n = 1 on.
    """
    a, b = np.asarray(successes, dtype=np.float64), np.asarray(failures, dtype=np.float64)
    drawn = np.arange(num_max)[:, None]
    total = a + b + drawn
    start = np.ones((1, a.size))
    all_right = np.concatenate([start, np.cumprod((a + drawn) / total, axis=0)])
    all_wrong = np.concatenate([start, np.cumprod((b + drawn) / total, axis=0)])
    table = 1.0 - all_right - all_wrong
    table[0] = 0.0
    return table


def mixed_allocation(
    successes: ArrayLike,
    failures: ArrayLike,
    mean_length: ArrayLike,
    budget_tokens: float,
    *,
    num_min: int = 1,
    num_max: int = 32,
    max_rollouts: int | None = None,
) -> Allocation:
    """Integer counts that maximise the expected number of mixed prompts under ``sum(n * L) <= B``.

    ``successes`` and ``failures`` (M,) as for `mixed_probability`, the others as for `neyman_allocation`; ``dual`` is
    in expected mixed prompts per token.

    Example:
        >>> mixed_allocation([5.0, 8.0], [5.0, 0.5], [10.0, 10.0], 80.0, num_min=2).num_rollouts.tolist()
        [5, 3]
    """
    a, b, cost = positive_vectors(successes=successes, failures=failures, mean_length=mean_length)
    budget = positive_number("budget_tokens", budget_tokens)
    lowest, cap = bounds(a.size, num_min, num_max, max_rollouts)
    table = mixed_probability(a, b, num_max)
    counts, price = greedy_counts(table, cost, lowest, budget * (1.0 + BUDGET_ROUNDING), cap)
    return Allocation(counts, price, float(cost @ counts), budget)
