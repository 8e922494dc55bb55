# SPDX-License-Identifier: Apache-2.0
"""Who of ARRoL's rollouts goes on: raw scores become success posteriors, and these a chance of survival."""

from collections.abc import Callable

import numpy as np

NUM_BINS = 20
LEAST_OBSERVATIONS = 16
"""Scores whose end is known from which the bins are used; with fewer, the raw score is."""
LARGEST_SLOPE = 20.0
_LARGEST_SHIFT = 60.0
"""|alpha|: beyond 40 + |beta| the sigmoid is 0 or 1 in double precision."""


def calibrated(score: np.ndarray, past_score: np.ndarray, past_positive: np.ndarray) -> np.ndarray:
    """Success posterior of raw scores: (k_pos + 1) / (k + 2) over the past scores of their bin.

    Args:
        score (np.ndarray): Raw scores, shape (K,), in [0, 1].
        past_score (np.ndarray): Raw scores of rollouts whose end is known, shape (H,).
        past_positive (np.ndarray): Whether each of them succeeded, shape (H,), bool.

    Returns:
        np.ndarray: q, shape (K,); the raw scores while H is below `LEAST_OBSERVATIONS`.
    """
    if len(past_score) < LEAST_OBSERVATIONS:
        return score
    past = _bin(past_score)
    count, positive = (np.bincount(past[rows], minlength=NUM_BINS) for rows in (slice(None), past_positive))
    return ((positive + 1.0) / (count + 2.0))[_bin(score)]


def survival(quality: np.ndarray, alpha: float, beta: float, exploration: float) -> np.ndarray:
    """p(q) = eps + (1 - eps) sigmoid(alpha + beta q), the probability with which a rollout goes on."""
    return exploration + (1.0 - exploration) / (1.0 + np.exp(-(alpha + beta * quality)))


def survival_curve(
    quality: np.ndarray, keep_rate: float, positive_ratio: float, exploration: float, one_class: bool = False
) -> tuple[float, float]:
    """alpha and beta of `survival`, so that both constraints hold over some rollouts.

        mean of p(q_i) = kappa          sum of p(q_i) q_i / sum of p(q_i) = rho

    The first has one alpha for each beta; with it, the left side of the second rises in beta. Both are bisected, beta
    within [-20, 20]: where rho is out of reach, the end that comes closest is taken.

    Args:
        quality (np.ndarray): q of each rollout, shape (H,); empty: nothing is known, and every rollout is alike.
        keep_rate (float): kappa, in (eps, 1].
        positive_ratio (float): rho, in (0, 1).
        exploration (float): eps, in [0, 1).
        one_class (bool): All labels so far are the same, so that q means nothing: beta = 0.
    """
    values, counts = np.unique(quality, return_counts=True) if len(quality) else (np.zeros(1), np.ones(1))

    def shift(beta: float) -> float:
        return _bisected(
            lambda alpha: np.average(survival(values, alpha, beta, exploration), weights=counts) - keep_rate,
            _LARGEST_SHIFT,
        )

    def excess(beta: float) -> float:
        kept = counts * survival(values, shift(beta), beta, exploration)
        return float(kept @ values / kept.sum()) - positive_ratio

    beta = 0.0 if one_class or len(values) == 1 else _bisected(excess, LARGEST_SLOPE)
    return shift(beta), beta


def _bisected(rising: Callable[[float], float], bound: float) -> float:
    """Root of a rising function within [-bound, bound], or the end nearest to it."""
    low, high = -bound, bound
    while (middle := (low + high) / 2.0) not in (low, high) and high - low > 1e-12 * bound:
        low, high = (middle, high) if rising(middle) < 0.0 else (low, middle)
    return high


def _bin(score: np.ndarray) -> np.ndarray:
    return np.minimum((score * NUM_BINS).astype(np.int64), NUM_BINS - 1)
