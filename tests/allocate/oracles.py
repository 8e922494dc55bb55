# SPDX-License-Identifier: Apache-2.0
"""Slow, obvious solvers of the allocation problem, and batches to try them on."""

import itertools

import numpy as np
from hypothesis import strategies as st

from duet_trl.allocate.neyman import Allocation

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
