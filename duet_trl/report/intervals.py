# SPDX-License-Identifier: Apache-2.0
"""Intervals over seeds, which are few, and over prompts of a run: Student's t."""

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


def ratio_interval(top: np.ndarray, bottom: np.ndarray, cluster: np.ndarray) -> tuple[float, float] | None:
    """Both ends of the 95% interval of sum(top) / sum(bottom), were other clusters drawn; None for a single cluster.

    Linearised: with r the ratio and d_c = sum of top - r bottom in cluster c, the variance is
    C / (C - 1) sum_c d_c^2 / (sum bottom)^2.

    Args:
        top (np.ndarray): Shape (N,).
        bottom (np.ndarray): Shape (N,), with a sum above 0.
        cluster (np.ndarray): What was drawn together, such as the prompt of each, shape (N,).
    """
    number = np.unique(cluster, return_inverse=True)[1]
    tops, bottoms = (np.bincount(number, weights=values) for values in (top, bottom))
    clusters, whole = len(tops), float(bottoms.sum())
    if clusters < 2:
        return None
    ratio = float(tops.sum()) / whole
    variance = clusters / (clusters - 1) * float(((tops - ratio * bottoms) ** 2).sum())
    half = t_quantile(clusters - 1) * math.sqrt(variance) / whole
    return ratio - half, ratio + half
