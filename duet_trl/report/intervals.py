# SPDX-License-Identifier: Apache-2.0
"""Intervals over seeds, which are few: Student's t."""

import math
from collections.abc import Sequence

import numpy as np

T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
T_QUANTILES += (2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093)
"""0.975 quantiles of Student's t with 1 to 19 degrees of freedom: 2 to 20 seeds."""


def t_quantile(degrees: int) -> float:
    """0.975 quantile of Student's t, `degrees` >= 1; beyond 19 that of 19, which is a little wide."""
    return T_QUANTILES[min(degrees, len(T_QUANTILES)) - 1]


def half_width(values: Sequence[float] | np.ndarray) -> float | None:
    """Half of the 95% t-interval of the mean of one value per seed, shape (S,); None for a single seed.

    A bootstrap of three seeds is too narrow: it knows no other than those it drew.
    """
    degrees = len(values) - 1
    if degrees < 1:
        return None
    deviation = float(np.std(values, ddof=1))
    return t_quantile(degrees) * deviation / math.sqrt(degrees + 1)


def t_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float] | None:
    """Both ends of the 95% t-interval of the mean of one value per seed, shape (S,); None for a single seed."""
    half, mean = half_width(values), float(np.mean(values))
    return None if half is None else (mean - half, mean + half)
