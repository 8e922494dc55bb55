# SPDX-License-Identifier: Apache-2.0
"""Means over seeds with what they are uncertain by: Student's t, and leaving one seed out where no mean is taken."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from duet_trl.report.intervals import t_quantile


@dataclass(frozen=True)
class Estimate:
    """A figure and its standard error over seeds.

    Attributes:
        value (float): The figure.
        error (float | None): Its standard error; None: not known, as with a single seed.
        degrees (float): Of freedom of the error.
    """

    value: float
    error: float | None = None
    degrees: float = 0.0

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the 95% t-interval."""
        if self.error is None:
            return None
        half = t_quantile(int(self.degrees + 1e-9)) * self.error  # the degrees of `mean_of` are no integers
        return self.value - half, self.value + half

    @property
    def resolvable(self) -> float | None:
        """Difference that this many seeds find with 80% power at the 5% level: 2.8 standard errors."""
        return None if self.error is None else 2.8 * self.error


def over_seeds(values: Sequence[float]) -> Estimate:
    """Mean of one value per seed, shape (S,)."""
    count = len(values)
    if count < 2:
        return Estimate(float(np.mean(values)))
    return Estimate(float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(count), count - 1)


def leave_one_out(
    figure: Callable[[frozenset[int]], float | None], seeds: Collection[int], count: int
) -> Estimate | None:
    """A figure of all seeds together, its error from the figures without one seed each (the jackknife).

    With a figure that is a mean over the seeds this is `over_seeds`.

    Args:
        figure (Callable[[frozenset[int]], float | None]): The figure without these seeds; None: there is none.
        seeds (Collection[int]): All seeds.
        count (int): Seeds of the side that has fewer of them.

    Returns:
        Estimate | None: None if there is no figure. Without an error if a figure without one seed is missing.
    """
    value = figure(frozenset())
    if value is None:
        return None
    without = [figure(frozenset({seed})) for seed in seeds] if count > 1 else [None]
    if any(one is None for one in without):
        return Estimate(value)
    squares = sum((one - value) ** 2 for one in without)
    return Estimate(value, math.sqrt((count - 1) / count * squares), count - 1)


def mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """Mean of independent estimates; degrees of freedom by Welch and Satterthwaite."""
    value = float(np.mean([one.value for one in estimates]))
    if any(one.error is None for one in estimates):
        return Estimate(value)
    variances = np.array([one.error**2 for one in estimates])
    total = float(variances.sum())
    inverse = float((variances**2 / [one.degrees for one in estimates]).sum())
    degrees = total**2 / inverse if inverse > 0 else min(one.degrees for one in estimates)
    return Estimate(value, math.sqrt(total) / len(estimates), degrees)
