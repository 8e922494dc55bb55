# SPDX-License-Identifier: Apache-2.0
"""Counts that minimise the summed variance of the gradient where rewards are 0 or 1, under a budget of rollouts (VIP).

With p the success rate of a prompt, the variance of its part of the gradient is, up to one factor for all prompts,

    rloo     p (1 - p) / (n - 1)            grpo     p (1 - p) (n - 1) / n^2

Both are sums over prompts, and convex in n from 2 and from 3 on: taking the largest fall first is optimal.
"""

import numpy as np
from numpy.typing import ArrayLike

from .greedy import greedy_counts

LEAST = {"rloo": 2, "grpo": 3}
"""Smallest n from which each variance falls by less with every rollout. That of grpo rises from 1 to 2."""
_EDGE = 1e-6
"""Distance that a success rate keeps from 0 and 1; the code of VIP has the same."""


def bernoulli_counts(
    success: ArrayLike,
    total: int,
    lower: int,
    upper: int,
    variance: str = "rloo",
    bias: float = 0.0,
    skip: bool = False,
) -> np.ndarray:
    """Integer counts that minimise the summed variance, ``lower <= n <= upper``, ``sum(n) == total``.

    Args:
        success (ArrayLike): Predicted success rate p of each prompt, shape (M,), [0, 1].
        total (int): C, rollouts of all prompts, ``lower * M <= C <= upper * M``.
        lower, upper (int): Bounds of a count, ``LEAST[variance] <= lower <= upper``; a smaller ``lower`` only where
            it is the whole budget, ``lower * M == C``.
        variance (str): "rloo" or "grpo".
        bias (float): gamma >= 0: adds ``gamma ln(p) n`` to the sum, which draws rollouts to small p.
        skip (bool): A prompt whose share is below ``lower`` gets none, and its budget goes to the others. The share is
            its count under the smallest bound that the variance allows. While the others cannot take the whole
            budget, the prompts with the largest shares come back.

    Returns:
        np.ndarray: Shape (M,), int64.

    Raises:
        ValueError: If no counts keep to the bounds.

    Example:
        >>> bernoulli_counts([0.5, 0.1, 0.0], 12, 2, 8).tolist()
        [6, 4, 2]
        >>> bernoulli_counts([0.5, 0.1, 0.0], 12, 4, 8, skip=True).tolist()
        [7, 5, 0]
    """
    p = np.clip(np.asarray(success, dtype=np.float64), _EDGE, 1.0 - _EDGE)  # (M,)
    least = LEAST[variance]
    if not lower * p.size <= total <= upper * p.size:
        raise ValueError(
            f"{total} rollouts for {p.size} prompts cannot be {lower} to {upper} each. Change bounds or budget."
        )
    if lower * p.size == total and not skip:
        return np.full(p.size, lower)
    if lower < least:
        raise ValueError(
            f"lower must be at least {least} with variance={variance!r}, whose fall is steady from there on only; got "
            f"{lower}. Raise it."
        )
    value = _values(p, upper, variance, bias)

    def solve(members: np.ndarray, lowest: int) -> np.ndarray:
        counts = np.zeros(p.size, dtype=np.int64)
        bounds = np.full(members.size, lowest)
        counts[members], _, _ = greedy_counts(value[:, members], np.ones(members.size), bounds, total, total + 1)
        return counts

    everyone = np.arange(p.size)
    if not skip:
        return solve(everyone, lower)
    shares = solve(everyone, least)
    kept = max(int((shares >= lower).sum()), -(-total // upper))
    order = np.lexsort((-p * (1.0 - p), -shares))  # largest share first
    return solve(np.sort(order[:kept]), lower)


def _values(p: np.ndarray, upper: int, variance: str, bias: float) -> np.ndarray:
    """What 0..upper rollouts of each prompt are worth: minus their variance, minus the bias; (upper + 1, M)."""
    n = np.maximum(np.arange(upper + 1), LEAST[variance])[:, None]  # rows below are never read
    shape = 1.0 / (n - 1) if variance == "rloo" else (n - 1) / n**2
    return -p * (1.0 - p) * shape - bias * np.log(p) * n
