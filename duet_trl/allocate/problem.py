# SPDX-License-Identifier: Apache-2.0
"""The allocation problem behind Theorem 1 as checked arrays: who may get how many rollouts at which price."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

# Sums of n * L over a batch carry float64 rounding; without this margin a plan that meets the budget
# exactly (every prompt at b * num_generations) loses one rollout to the last bit.
BUDGET_ROUNDING = 1e-12


@dataclass(frozen=True)
class Problem:
    """Minimise ``sum(squares / n)`` over integers with ``sum(cost * n) <= budget`` and ``sum(n) <= max_rollouts``."""

    squares: np.ndarray
    cost: np.ndarray
    lowest: np.ndarray
    highest: int
    budget: float
    max_rollouts: float

    def tokens(self, counts: np.ndarray) -> float:
        """Expected tokens of ``counts``, shape (M,)."""
        return float(self.cost @ counts)


def positive_vector(name: str, values: ArrayLike, length: int | None = None) -> np.ndarray:
    """``values`` as a float64 vector of positive, finite numbers."""
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or vector.size == 0:
        raise ValueError(f"{name} must be a non-empty vector of shape (M,), got shape {vector.shape}.")
    if length is not None and vector.size != length:
        raise ValueError(f"{name} has {vector.size} entries for {length} prompts. Give one value per prompt.")
    # Two reductions instead of a mask: nan fails the first comparison, inf the second.
    if not (vector.min() > 0.0 and vector.max() < math.inf):
        index = int(np.flatnonzero(~((vector > 0.0) & np.isfinite(vector)))[0])
        raise ValueError(f"{name} must be positive and finite, got {vector[index]} at index {index}.")
    return vector


def positive_number(name: str, value: float) -> float:
    """``value`` as a positive, finite float; ValueError otherwise."""
    number = float(value)
    if not (0.0 < number < math.inf):
        raise ValueError(f"{name} must be positive and finite, got {value}.")
    return number


def count_vector(name: str, values: ArrayLike, length: int) -> np.ndarray:
    """A bound on the counts, one number or one per prompt, as a float64 vector of whole numbers >= 1."""
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim == 0:
        vector = np.full(length, float(vector))
    vector = positive_vector(name, vector, length)
    if vector.min() < 1.0 or np.any(vector != np.floor(vector)):
        raise ValueError(f"{name} must hold whole numbers >= 1, got {values}.")
    return vector


def build_problem(
    sigma: ArrayLike,
    mean_length: ArrayLike,
    budget_tokens: float,
    num_min: ArrayLike,
    num_max: int,
    max_rollouts: int | None,
) -> tuple[Problem, float]:
    """Check the inputs of an allocation rule."""
    spread = positive_vector("sigma", sigma)
    cost = positive_vector("mean_length", mean_length, spread.size)
    lowest = count_vector("num_min", num_min, spread.size)
    if lowest.max() > num_max:
        index = int(lowest.argmax())
        raise ValueError(f"num_min {lowest[index]:g} exceeds num_max {num_max} at index {index}. Raise num_max.")
    rows = float(num_max * spread.size)
    if max_rollouts is not None:
        rows = min(rows, positive_number("max_rollouts", max_rollouts))
        if lowest.sum() > rows:
            raise ValueError(
                f"max_rollouts={max_rollouts} is below the {lowest.sum():g} rollouts that num_min asks for. "
                "Raise max_rollouts or lower num_min."
            )
    scale = float(spread.max())
    budget = positive_number("budget_tokens", budget_tokens) * (1.0 + BUDGET_ROUNDING)
    return Problem(np.square(spread / scale), cost, lowest, num_max, budget, math.floor(rows)), scale
