# SPDX-License-Identifier: Apache-2.0
"""Phase 1 by another objective: as many prompts as possible whose rollouts disagree.

A prompt whose rollouts all succeed, or all fail, has no group-normalised advantage.
docs/fidelity.md#allocation_objective.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from .allocators import UniformAllocator, plan_metrics
from .greedy import greedy_counts
from .neyman import BUDGET_ROUNDING, Allocation, bounds, positive_number, positive_vectors
from .openness import posterior


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


class MixedAllocator(UniformAllocator):
    """Rollouts where they are most likely to make a prompt's rewards differ, from the prompts' reward history.

    A reward counts as the share of a success that it is between the lowest and the highest reward of the run. While
    the reference budget is measured counts are uniform. Arguments as `UniformAllocator`.
    """

    def plan(self, keys: Sequence[str], epoch: int) -> Allocation:
        """Rollouts per prompt of the next step; see `UniformAllocator.plan`."""
        self.budget.advance(epoch)
        cost = self._cost(keys)
        history = self.statistics.reward_history(keys)
        successes, failures = posterior(history, self.statistics.reward_range)
        if self.budget.measuring:
            allocation = self._uniform(cost)
        else:
            allocation = mixed_allocation(successes, failures, cost, self.budget.tokens(cost), **self.bounds)
        self._set_price((successes, failures), allocation, cost)
        self.cold = history.count == 0.0
        counts = allocation.num_rollouts
        table = mixed_probability(successes, failures, int(counts.max()))
        expected = float(table[counts, np.arange(counts.size)].sum())
        self._metrics = plan_metrics(allocation) | {"dual": allocation.dual, "mixed_prompts_expected": expected}
        return allocation
