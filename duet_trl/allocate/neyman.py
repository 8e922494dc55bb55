# SPDX-License-Identifier: Apache-2.0
"""Phase 1, Theorem 1: how many rollouts each prompt of a batch gets under a token budget (Eqs. 1, 2 and 4).

Three rules: integers by gain per token, the ten-step bisection of the paper's text, and uniform counts.
docs/fidelity.md#allocation_solver says where they differ.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .greedy import greedy_counts
from .problem import BUDGET_ROUNDING, Problem, build_problem, positive_number, positive_vector

# Bisection bracket of log(lambda) around the previous dual: counts move by at most a factor e before it must widen.
_BRACKET_HALF_WIDTH = 2.0


@dataclass(frozen=True)
class Allocation:
    """Rollouts per prompt and what they are expected to cost.

    Attributes:
        num_rollouts (np.ndarray): n_q, shape (M,), int64.
        dual (float): lambda*, sigma squared per token: what one more token of budget is worth. 0.0 where the budget
            pays for everything, and for rules that set no price.
        planned_tokens (float): sum of n_q * L_q, tokens.
        budget_tokens (float): B, tokens.
        gap (float): Proven bound on the objective's distance from the integer optimum; 0.0 is proven optimal, inf
            says that nothing is proven.
    """

    num_rollouts: np.ndarray
    dual: float
    planned_tokens: float
    budget_tokens: float
    gap: float

    @property
    def over_budget(self) -> bool:
        """Whether the plan costs more than the budget, beyond the rounding of a float64 sum."""
        return self.planned_tokens > self.budget_tokens * (1.0 + 2.0 * BUDGET_ROUNDING)


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

    Theorem 1's closed form ``n_q = sigma_q / sqrt(lambda * L_q)`` (Eq. 2) is fractional. In integers rollouts are
    taken in the order of their marginal gain per token, ``sigma^2 / (n (n + 1) L)``: optimal up to what the last
    rollout leaves of the budget. The budget is never exceeded unless ``num_min`` alone does; then every prompt gets
    ``num_min`` and `Allocation.over_budget` says so. Among identical prompts the earlier gets the odd rollout.

    Args:
        sigma (ArrayLike): Within-prompt spread s_q, shape (M,), advantage x nats, > 0; its scale does not matter.
        mean_length (ArrayLike): Expected rollout length L_q, shape (M,), tokens, > 0.
        budget_tokens (float): B, tokens for the whole batch, > 0.
        num_min (ArrayLike): Fewest rollouts, one number or shape (M,), >= 1.
        num_max (int): Most rollouts of a prompt, >= num_min; memory grows with num_max x M.
        max_rollouts (int | None): Cap on the sum of the counts; None is no cap.

    Returns:
        Allocation: Counts. ``dual`` is the gain per token of the first rollout that did not fit; ``gap`` bounds the
        variance above the integer optimum, inf where ``max_rollouts`` binds.

    Raises:
        ValueError: If shapes differ, a value is not positive and finite, bounds cross, or ``max_rollouts`` is
            below the sum of ``num_min``.

    Example:
        >>> neyman_allocation([4.0, 1.0, 1.0], [100.0, 100.0, 400.0], 1200.0).num_rollouts
        array([6, 2, 1])
    """
    problem, scale = build_problem(sigma, mean_length, budget_tokens, num_min, num_max, max_rollouts)
    # A variance that falls is a value that grows. Row 0 stands for no rollouts, which nobody may have.
    value = -problem.squares / np.maximum(np.arange(num_max + 1), 1)[:, None]
    counts, price, gap = greedy_counts(
        value, problem.cost, problem.lowest.astype(np.int64), problem.budget, int(problem.max_rollouts)
    )
    return _allocation(problem, counts, budget_tokens, price * scale**2, gap * scale**2)


def bisection_allocation(
    sigma: ArrayLike,
    mean_length: ArrayLike,
    budget_tokens: float,
    *,
    num_min: ArrayLike = 1,
    num_max: int = 32,
    max_rollouts: int | None = None,
    dual: float | None = None,
    num_iterations: int = 10,
) -> Allocation:
    """The paper's allocation ``n_q = max(num_min, round(s_q / sqrt(lambda * L_q)))`` (Eq. 4; Algorithm 1, lines 4-6).

    Bisects log(lambda) so that the rounded counts cost B. The paper says "initialised at" the previous dual: here
    the bracket is a factor e^2 to either side of it, and doubles away from it until it brackets the budget, before
    the ``num_iterations`` halvings. Of the last bracket the end that keeps the budget is taken: its middle would send
    all equal prompts of a cold start up together, to 5 rollouts instead of 4. Without a previous dual the search
    starts at the closed form ``(sum(sigma * sqrt(L)) / B)^2`` of Theorem 1. The plan falls short of B by what rounding
    and the last bracket leave.
    """
    problem, scale = build_problem(sigma, mean_length, budget_tokens, num_min, num_max, max_rollouts)
    if dual:
        start = math.log(positive_number("dual", dual) / scale**2)
    else:
        start = 2.0 * math.log(float(np.sqrt(problem.squares * problem.cost).sum()) / problem.budget)
    low, high = _widen(problem, start)
    for _ in range(num_iterations):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _exceeds(problem, _rounded(problem, middle)) else (low, middle)
    return _allocation(problem, _rounded(problem, high), budget_tokens, math.exp(high) * scale**2, math.inf)


def uniform_allocation(
    num_prompts: int, total_rollouts: int, mean_length: ArrayLike, budget_tokens: float
) -> Allocation:
    """Counts as equal as possible: GRPO's allocation, which Theorem 1's corollary compares with."""
    cost = positive_vector("mean_length", mean_length, num_prompts)
    if total_rollouts < num_prompts:
        raise ValueError(
            f"total_rollouts={total_rollouts} leaves some of {num_prompts} prompts without a rollout. "
            "Raise the budget or lower the number of prompts per step."
        )
    each, extra = divmod(int(total_rollouts), num_prompts)
    counts = np.full(num_prompts, each, dtype=np.int64)
    counts[:extra] += 1
    return Allocation(counts, 0.0, float(cost @ counts), float(budget_tokens), math.inf)


def _allocation(problem: Problem, counts: np.ndarray, budget_tokens: float, dual: float, gap: float) -> Allocation:
    return Allocation(counts.astype(np.int64), float(dual), problem.tokens(counts), float(budget_tokens), float(gap))


def _rounded(problem: Problem, log_multiplier: float) -> np.ndarray:
    """Eq. 4 at one multiplier, with the upper bound."""
    counts = np.rint(np.sqrt(problem.squares / problem.cost) * math.exp(-log_multiplier / 2.0))
    return np.clip(counts, problem.lowest, problem.highest)


def _exceeds(problem: Problem, counts: np.ndarray) -> bool:
    return problem.tokens(counts) > problem.budget or counts.sum() > problem.max_rollouts


def _widen(problem: Problem, start: float) -> tuple[float, float]:
    """Bracket of log(lambda) around ``start``; an end stops where all counts sit at their bounds."""
    log_unit = np.log(problem.squares / problem.cost)
    # One count beyond the bounds, so that rounding cannot bring a prompt back inside.
    least = float((log_unit - 2.0 * np.log(problem.highest + 1.0)).min())
    most = float((log_unit - 2.0 * np.log(problem.lowest / 4.0)).max())
    low, high, width = start - _BRACKET_HALF_WIDTH, start + _BRACKET_HALF_WIDTH, 2.0 * _BRACKET_HALF_WIDTH
    while low > least and not _exceeds(problem, _rounded(problem, low)):
        low, width = low - width, 2.0 * width
    width = 2.0 * _BRACKET_HALF_WIDTH
    while high < most and _exceeds(problem, _rounded(problem, high)):
        high, width = high + width, 2.0 * width
    return low, high
