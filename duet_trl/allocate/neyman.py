# SPDX-License-Identifier: Apache-2.0
"""Phase 1: rollouts of each prompt under a token budget, by Theorem 1 (Eqs. 1, 2, 4) with its sigma (Eqs. 3, 7)."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

BUDGET_ROUNDING = 1e-12
"""Share of a budget that float64 sums may differ by: without it a plan that meets it exactly loses a rollout."""
_BRACKET_HALF_WIDTH = 2.0
"""Of log(lambda) around the previous dual: counts move by at most a factor e before it must widen."""


@dataclass(frozen=True)
class Allocation:
    """Rollouts per prompt and their expected cost."""

    num_rollouts: np.ndarray  # n_q, shape (M,), int64
    dual: float  # lambda*, sigma squared per token: the value of one more token; 0.0 for rules that set no price
    planned_tokens: float  # sum of n_q * L_q
    budget_tokens: float  # B


def bisection_allocation(
    sigma: ArrayLike,
    mean_length: ArrayLike,
    budget_tokens: float,
    *,
    num_min: int = 1,
    num_max: int = 32,
    max_rollouts: int | None = None,
    dual: float | None = None,
    num_iterations: int = 10,
) -> Allocation:
    """The paper's allocation ``n_q = max(num_min, round(s_q / sqrt(lambda * L_q)))`` (Eq. 4; Algorithm 1, lines 4-6).

    Bisects log(lambda) so that the rounded counts cost B. The bracket is a factor e^2 to either side of the previous
    ``dual`` (None: the closed form ``(sum(sigma * sqrt(L)) / B)^2``), and doubles until it brackets the budget. Of the
    last bracket the end that keeps the budget is taken: its middle would send all equal prompts of a cold start up
    together. docs/fidelity.md#allocation_solver.

    Args:
        sigma (ArrayLike): Within-prompt spread s_q, shape (M,), advantage x nats, > 0; its scale does not matter.
        mean_length (ArrayLike): Expected rollout length L_q, shape (M,), tokens, > 0.
        budget_tokens (float): B, tokens for the whole batch, > 0.
        num_min (int): Minimum rollouts of a prompt, >= 1.
        num_max (int): Maximum rollouts of a prompt, >= num_min.
        max_rollouts (int | None): Cap on the sum of the counts; None: no cap.
        dual (float | None): lambda of the step before.

    Raises:
        ValueError: If shapes differ, a value is not positive and finite, bounds cross, or ``max_rollouts`` is
            below the sum of ``num_min``.
    """
    spread, cost = _positive_vectors(sigma=sigma, mean_length=mean_length)
    budget = _positive_number("budget_tokens", budget_tokens)
    cap = _cap(spread.size, num_min, num_max, max_rollouts)
    scale, limit = float(spread.max()), budget * (1.0 + BUDGET_ROUNDING)
    squares = np.square(spread / scale)
    unit = np.sqrt(squares / cost)

    def counts_at(log_dual: float) -> np.ndarray:
        return np.clip(np.rint(unit * math.exp(-log_dual / 2.0)), num_min, num_max)

    def exceeds(log_dual: float) -> bool:
        counts = counts_at(log_dual)
        return float(cost @ counts) > limit or counts.sum() > cap

    start = 2.0 * math.log(float(np.sqrt(squares * cost).sum()) / limit)
    if dual:
        start = math.log(_positive_number("dual", dual) / scale**2)
    # Beyond these all counts sit at their bounds, one count further so that rounding cannot bring a prompt back.
    log_unit = np.log(squares / cost)
    least = float((log_unit - 2.0 * np.log(num_max + 1.0)).min())
    most = float((log_unit - 2.0 * np.log(num_min / 4.0)).max())
    low, high = start - _BRACKET_HALF_WIDTH, start + _BRACKET_HALF_WIDTH
    width = 2.0 * _BRACKET_HALF_WIDTH
    while low > least and not exceeds(low):
        low, width = low - width, 2.0 * width
    width = 2.0 * _BRACKET_HALF_WIDTH
    while high < most and exceeds(high):
        high, width = high + width, 2.0 * width
    for _ in range(num_iterations):
        middle = (low + high) / 2.0
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    counts = counts_at(high).astype(np.int64)
    return Allocation(counts, math.exp(high) * scale**2, float(cost @ counts), budget)


def sigma_observed(
    advantages: np.ndarray, sum_logps: np.ndarray, group: np.ndarray, use: np.ndarray, num_prompts: int
) -> np.ndarray:
    """Within-prompt spread of a step, ``std_i(A_i * sum_l log pi(y_il))`` over the used rollouts (Eq. 3), over n - 1.

    The advantages are the unweighted ones (docs/fidelity.md#surrogate). Columns have shape (N,); `use` is true for
    kept rollouts with finite values. Returns shape (num_prompts,); nan where fewer than two rollouts are used.
    """
    contribution, prompt = advantages[use] * sum_logps[use], group[use]
    count = np.bincount(prompt, minlength=num_prompts)
    mean = np.bincount(prompt, weights=contribution, minlength=num_prompts) / np.maximum(count, 1)
    squares = np.bincount(prompt, weights=np.square(contribution - mean[prompt]), minlength=num_prompts)
    spread = np.sqrt(squares / np.maximum(count - 1, 1))
    return np.where(count >= 2, spread, np.nan)


def calibration_chi2(surrogate: np.ndarray, sigma: np.ndarray) -> float:
    """Calibration divergence ``mean((s_q / sigma_q - 1)^2)`` of Theorem 4, which bounds the plug-in loss (Eq. 7).

    ``V(n^s) - V* <= K * chi2 / B`` with K from the bounds on sigma and length, the floor and M.
    """
    positive = sigma > 0.0
    return float(np.mean(np.square(surrogate[positive] / sigma[positive] - 1.0)))


def _positive_vectors(**named: ArrayLike) -> list[np.ndarray]:
    """Arguments as float64 vectors of one length; ValueError unless all values are positive and finite."""
    vectors = [np.asarray(values, dtype=np.float64) for values in named.values()]
    for name, vector in zip(named, vectors, strict=True):
        if vector.ndim != 1 or vector.size == 0:
            raise ValueError(f"{name} must be a non-empty vector of shape (M,), got shape {vector.shape}.")
        if vector.size != vectors[0].size:
            raise ValueError(f"{name} has {vector.size} entries for {vectors[0].size} prompts. Give one each.")
        bad = np.flatnonzero(~((vector > 0.0) & np.isfinite(vector)))
        if bad.size:
            raise ValueError(f"{name} must be positive and finite, got {vector[bad[0]]} at index {bad[0]}.")
    return vectors


def _positive_number(name: str, value: float) -> float:
    """``value`` as a positive, finite float; ValueError otherwise."""
    if not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value}.")
    return float(value)


def _cap(num_prompts: int, num_min: int, num_max: int, max_rollouts: int | None) -> int:
    """Maximum sum of the counts; ValueError if the bounds cross."""
    cap = num_max * num_prompts if max_rollouts is None else min(max_rollouts, num_max * num_prompts)
    if not 1 <= num_min <= num_max:
        raise ValueError(f"1 <= num_min <= num_max must hold, got {num_min} and {num_max}.")
    if num_min * num_prompts > cap:
        raise ValueError(
            f"max_rollouts={max_rollouts} is below the {num_min * num_prompts} rollouts that num_min asks for. Raise "
            "it or lower num_min."
        )
    return cap
