# SPDX-License-Identifier: Apache-2.0
"""Accuracy against cost: the curve of a run, the mean curve of several, and what it took to reach a target.

A single measurement is noisy, and the first of many noisy points that is high enough comes too early. So the time to
a target is read from the non-decreasing curve that fits the measurements best, by least squares weighted with their
samples (isotonic regression), linear between measurements. Nothing is read beyond the last of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import isotonic_regression

from .records import Run

COSTS = ("generated_tokens", "trained_tokens", "processor_seconds", "seconds", "step")
"""What a run spends, by the names that measurements have for it."""


@dataclass(frozen=True)
class Curve:
    """Accuracy by the last answer at growing cost, the policy before training first.

    Attributes:
        accuracy (np.ndarray): Share of right samples, shape (K,).
        samples (np.ndarray): Samples behind each of them, all problems and runs together, shape (K,).
        costs (dict[str, np.ndarray]): What had been spent, for each of `COSTS`, shape (K,), from 0 on.
    """

    accuracy: np.ndarray
    samples: np.ndarray
    costs: dict[str, np.ndarray]


def curve_of(run: Run, start: Run, problems: int) -> Curve:
    """The curve of a run.

    Args:
        run (Run): The run.
        start (Run): The policy before training, on the same problems.
        problems (int): Problems that all measurements share, from the first of the split.
    """
    points = [start.measurements[0], *run.measurements]
    right = np.array([sum(point.last[:problems]) for point in points])
    samples = np.array([problems * point.samples for point in points])
    return Curve(
        right / samples,
        samples,
        {cost: np.array([0, *(vars(point)[cost] for point in run.measurements)], dtype=float) for cost in COSTS},
    )


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Mean of curves at the measurements that `shared` finds."""
    places = shared(curves)

    def rows(values: Sequence[np.ndarray]) -> np.ndarray:
        return np.array([value[own] for value, own in zip(values, places, strict=True)])

    return Curve(
        rows([curve.accuracy for curve in curves]).mean(axis=0),
        rows([curve.samples for curve in curves]).sum(axis=0),
        {cost: rows([curve.costs[cost] for curve in curves]).mean(axis=0) for cost in COSTS},
    )


def shared(curves: Sequence[Curve]) -> list[list[int]]:
    """Places of the measurements at the steps at which all curves have one, and of their ends, for each curve.

    Runs that end at a budget of tokens do not end at the same step: their last measurements count as one.
    """
    steps = [curve.costs["step"].tolist() for curve in curves]
    first_end = min(own[-1] for own in steps)
    inside = sorted(step for step in set.intersection(*map(set, steps)) if step < first_end)
    return [[*(own.index(step) for step in inside), len(own) - 1] for own in steps]


def fitted(curve: Curve) -> Curve:
    """The curve with its isotonic fit for its accuracies."""
    return replace(curve, accuracy=isotonic_regression(curve.accuracy, weights=curve.samples).x)


def cost_to_reach(fit: Curve, cost: str, target: float) -> float | None:
    """What had been spent when a curve first was at the target.

    Args:
        fit (Curve): What `fitted` returns, of a run or of the mean of several.
        cost (str): One of `COSTS`.
        target (float): Accuracy.

    Returns:
        float | None: None if the target is not reached.
    """
    reached = fit.accuracy >= target
    if not reached[-1]:
        return None
    first = int(np.argmax(reached))
    if first == 0:
        return 0.0
    around = slice(first - 1, first + 1)
    return float(np.interp(target, fit.accuracy[around], fit.costs[cost][around]))


def accuracy_at(curve: Curve, cost: str, amount: float) -> float | None:
    """Measured accuracy when this much had been spent, linear between measurements; None: it was never spent."""
    spent = curve.costs[cost]
    return float(np.interp(amount, spent, curve.accuracy)) if amount <= spent[-1] else None
