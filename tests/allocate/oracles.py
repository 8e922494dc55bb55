# SPDX-License-Identifier: Apache-2.0
"""Slow, obvious solvers of the allocation problem, the greedy order on Theorem 1, and batches to try them on."""

import itertools

import numpy as np
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from duet_trl.allocate.greedy import greedy_counts
from duet_trl.allocate.neyman import BUDGET_ROUNDING, Allocation, bounds, positive_number, positive_vectors

# The share of the budget that float64 sums may differ by; what the solver grants itself.
ROUNDING = 1e-12


def over_budget(plan: Allocation) -> bool:
    """Whether a plan costs more than its budget, beyond the rounding of a float64 sum."""
    return plan.planned_tokens > plan.budget_tokens * (1.0 + 2.0 * ROUNDING)


def enumerate_optimum(
    sigma: np.ndarray,
    length: np.ndarray,
    budget: float,
    num_min: np.ndarray,
    num_max: np.ndarray,
    max_rollouts: int | None = None,
) -> float:
    """Least sum of sigma^2 / n over every integer allocation, tried one by one; inf if none is feasible."""
    counts = np.array(list(itertools.product(*(range(a, b + 1) for a, b in zip(num_min, num_max, strict=True)))))
    feasible = counts @ length <= budget * (1.0 + ROUNDING)
    if max_rollouts is not None:
        feasible &= counts.sum(axis=1) <= max_rollouts
    return float((sigma**2 / counts[feasible]).sum(axis=1).min(initial=np.inf))


def tabulate_optimum(
    sigma: np.ndarray, length: np.ndarray, budget: int, num_min: int, num_max: int, max_rollouts: int
) -> float:
    """The same for whole lengths and any number of prompts: best variance for every (tokens, rollouts), prompt by
    prompt."""
    best = np.full((budget + 1, max_rollouts + 1), np.inf)
    best[0, 0] = 0.0
    for spread, cost in zip(sigma, length.astype(int), strict=True):
        extended = np.full_like(best, np.inf)
        for count in range(num_min, num_max + 1):
            tokens = count * cost
            if tokens <= budget and count <= max_rollouts:
                candidate = best[: budget + 1 - tokens, : max_rollouts + 1 - count] + spread**2 / count
                np.minimum(extended[tokens:, count:], candidate, out=extended[tokens:, count:])
        best = extended
    return float(best.min())


def variance(sigma: ArrayLike, num_rollouts: ArrayLike) -> float:
    """Variance of the batch gradient under an allocation, V(n) = sum of sigma^2 / n (Eq. 1)."""
    return float(np.sum(np.square(np.asarray(sigma, dtype=np.float64)) / np.asarray(num_rollouts)))


def neyman_allocation(
    sigma: ArrayLike,
    mean_length: ArrayLike,
    budget_tokens: float,
    *,
    num_min: ArrayLike = 1,
    num_max: int = 32,
    max_rollouts: int | None = None,
) -> Allocation:
    """Rollouts per prompt that minimise the gradient variance under a token budget (Theorem 1, in integers).

    The greedy order on an objective whose optimum is known: gains per token are ``sigma^2 / (n (n + 1) L)``.
    """
    spread, cost = positive_vectors(sigma=sigma, mean_length=mean_length)
    budget = positive_number("budget_tokens", budget_tokens)
    lowest, cap = bounds(spread.size, num_min, num_max, max_rollouts)
    scale = float(spread.max())  # squares of a maximum of one neither overflow nor vanish
    # A variance that falls is a value that grows. Row 0 stands for no rollouts, which nobody may have.
    value = -np.square(spread / scale) / np.maximum(np.arange(num_max + 1), 1)[:, None]
    counts, price = greedy_counts(value, cost, lowest, budget * (1.0 + BUDGET_ROUNDING), cap)
    return Allocation(counts, price * scale**2, float(cost @ counts), budget)


@st.composite
def batches(draw: st.DrawFn, max_prompts: int = 24) -> tuple[np.ndarray, np.ndarray, float]:
    """sigma (M,) over twelve orders of magnitude, lengths (M,) with ties, and a budget above one rollout each."""
    num_prompts = draw(st.integers(1, max_prompts))
    exponents = draw(st.lists(st.floats(-6.0, 6.0), min_size=num_prompts, max_size=num_prompts))
    length = draw(st.lists(st.integers(1, 3000), min_size=num_prompts, max_size=num_prompts))
    mean_count = draw(st.floats(1.0, 34.0))
    length = np.array(length, dtype=np.float64)
    return 10.0 ** np.array(exponents), length, mean_count * float(length.sum())


def lognormal_batch(rng: np.random.Generator, num_prompts: int) -> tuple[np.ndarray, np.ndarray]:
    """sigma (M,), a third of it at the floor, and lengths (M,), as training produces them."""
    sigma = rng.lognormal(4.0, 1.0, num_prompts)
    sigma[rng.random(num_prompts) < 0.3] = 0.01
    return sigma, rng.lognormal(6.0, 0.6, num_prompts)
