# SPDX-License-Identifier: Apache-2.0
"""Exact integer solution of the allocation problem: multipliers, a feasible start, and the search of the core."""

from dataclasses import dataclass

import numpy as np

from .core_search import Prices, reduced_costs, search_core
from .multipliers import split_solution
from .problem import Problem

# Halvings of the exchange rate between tokens and rollouts; far below the step at which a count changes.
_EXCHANGE_STEPS = 30


@dataclass(frozen=True)
class Solution:
    """Counts (M,), the continuous multiplier of the token budget, and a proven bound on the excess variance."""

    counts: np.ndarray
    dual: float
    gap: float


def solve(problem: Problem) -> Solution:
    """Minimise Eq. 1 over the integers of ``problem``.

    The row cap is dropped first, then the token budget; where either relaxed optimum meets the dropped constraint it
    is optimal for both. Only when each violates the other are two multipliers searched.

    Args:
        problem (Problem): Checked problem. Where ``lowest`` alone breaks the budget, ``lowest`` is the answer.

    Returns:
        Solution: Optimal counts, or counts with their proven gap.
    """
    least = problem.tokens(problem.lowest)
    if least >= problem.budget:
        return Solution(problem.lowest, float((problem.squares / (problem.cost * problem.lowest**2)).max()), 0.0)
    by_tokens = _solve_combined(problem, token_share=1.0)
    if by_tokens.counts.sum() <= problem.max_rollouts:
        return by_tokens
    by_rows = _solve_combined(problem, token_share=0.0)
    if problem.tokens(by_rows.counts) <= problem.budget:
        return by_rows
    return _solve_combined(problem, token_share=_balance(problem))


def _solve_combined(problem: Problem, token_share: float) -> Solution:
    """Solve under one constraint that weighs the token budget by ``token_share`` and the row cap by the rest.

    At a share of 1 or 0 the other constraint is dropped.
    """
    # A dropped constraint keeps a limit that no allocation reaches.
    budget = problem.budget if token_share > 0.0 else problem.tokens(problem.highest)
    rows = problem.max_rollouts if token_share < 1.0 else float(problem.highest.sum())
    limits = np.array([budget, rows])
    shares = np.array([token_share, 1.0 - token_share])
    weights = shares / limits
    combined = weights[0] * problem.cost + weights[1]
    base, multiplier, continuous = split_solution(problem.squares, combined, problem.lowest, problem.highest, 1.0)
    prices = Prices(*(multiplier * weights))
    dual = float(weights[0] * continuous)
    counts = _fill(problem, _make_feasible(problem, base, prices, limits), prices, limits)
    if multiplier == 0.0 or (token_share in (0.0, 1.0) and np.ptp(combined) == 0.0):
        # Everything fits, or all rollouts cost the same: taking the best gains first is optimal.
        return Solution(counts, dual, 0.0)
    unused = limits - _spent(problem, base)
    excess = _excess(problem, counts, base, prices, unused)
    counts, gap = search_core(problem, prices, base, unused, counts, excess)
    # Gains below the last bit of the variance are invisible to the search, yet a rollout that fits is free.
    return Solution(_fill(problem, counts, prices, limits), dual, gap)


def _balance(problem: Problem) -> float:
    """Share of the token budget at which the combined constraint overdraws neither limit, or as near as it gets."""
    limits = np.array([problem.budget, problem.max_rollouts])
    low, high = 0.0, 1.0  # all weight on rows overdraws the tokens, all weight on tokens overdraws the rows
    for _ in range(_EXCHANGE_STEPS):
        share = (low + high) / 2.0
        combined = share / limits[0] * problem.cost + (1.0 - share) / limits[1]
        counts, _, _ = split_solution(problem.squares, combined, problem.lowest, problem.highest, 1.0)
        overdrawn = _spent(problem, counts) > limits
        if not overdrawn.any():
            break
        low, high = (share, high) if overdrawn[0] else (low, share)
    return share


def _spent(problem: Problem, counts: np.ndarray) -> np.ndarray:
    """Tokens and rollouts of ``counts``, shape (2,)."""
    return np.array([problem.tokens(counts), counts.sum()])


def _make_feasible(problem: Problem, counts: np.ndarray, prices: Prices, limits: np.ndarray) -> np.ndarray:
    """Remove the cheapest rollouts until neither limit is overdrawn."""
    counts = counts.copy()
    price = prices.token * problem.cost + prices.rollout
    while (_spent(problem, counts) > limits).any():
        _, fewer = reduced_costs(problem, price, counts)
        counts[np.argmin(fewer)] -= 1.0
    return counts


def _fill(problem: Problem, counts: np.ndarray, prices: Prices, limits: np.ndarray) -> np.ndarray:
    """Add the rollout with the least reduced cost among those that fit, until none fits."""
    counts = counts.copy()
    price = prices.token * problem.cost + prices.rollout
    while True:
        tokens, rows = limits - _spent(problem, counts)
        if rows < 1.0:
            return counts
        more, _ = reduced_costs(problem, price, counts)
        more[problem.cost > tokens] = np.inf
        prompt = int(np.argmin(more))
        if more[prompt] == np.inf:
            return counts
        counts[prompt] += 1.0


def _excess(problem: Problem, counts: np.ndarray, base: np.ndarray, prices: Prices, unused: np.ndarray) -> float:
    """Variance of ``counts`` above the Lagrangian bound, summed over departures so that no digits cancel."""
    change = counts - base
    price = prices.token * problem.cost + prices.rollout
    loss = float((change * (price - problem.squares / (counts * base))).sum())
    left = unused - np.array([problem.cost @ change, change.sum()])
    return max(loss + prices.token * float(left[0]) + prices.rollout * float(left[1]), 0.0)
