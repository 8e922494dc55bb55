# SPDX-License-Identifier: Apache-2.0
"""Rewards of a finished run: their sum, their spread within groups, and what Theorem 1 could have made of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .logged_completions import Completions, UnreadableRun

STD_QUANTILES = (0.1, 0.5, 0.9)
"""Quantiles over groups that are reported."""

_NOISE = 1e-6
"""Relative spread up to which rewards of a group count as equal: they are float32 sums."""


@dataclass(frozen=True)
class GroupSpread:
    """Measured spread of rewards within groups."""

    num_groups: int  # groups by run, step and prompt
    num_scored: int  # of those, groups with two scored completions or more; the rest of the table is about them
    zero_variance: float | None  # share without any difference in reward: they teach nothing
    mean_std: float | None  # mean within-group standard deviation of the reward (n - 1)
    std_quantiles: dict[str, float]  # its quantiles over groups
    # variance of Theorem 1's optimum, relative to equal counts at equal tokens, if every group's reward spread were
    # known beforehand: Eqs. 1 and 2 without rounding and least counts. 1 means that allocation has nothing to gain.
    neyman_variance: float | None


def total_reward(completions: Completions, columns: Sequence[str], weights: Sequence[float] | None) -> np.ndarray:
    """Weighted sum of the reward columns, as TRL adds them up, shape (N,); nan where no function gave a number.

    One weight per column, None: 1 each. UnreadableRun if a column is not there, not numeric or infinite, or the
    weights do not fit.
    """
    unknown = [name for name in columns if name not in completions.numbers]
    if unknown:
        known = ", ".join(completions.numbers) or "none"
        raise UnreadableRun(f"no numeric column {', '.join(unknown)} in the files. Numeric columns: {known}.")
    if weights is not None and len(weights) != len(columns):
        raise UnreadableRun(f"{len(weights)} reward weights for {len(columns)} reward columns ({', '.join(columns)}).")
    if not columns:
        return np.full(len(completions.texts), np.nan)
    rewards = np.stack([completions.numbers[name] for name in columns])  # (columns, N)
    infinite = [name for name, column in zip(columns, rewards, strict=True) if np.isinf(column).any()]
    if infinite:
        raise UnreadableRun(
            f"infinite rewards in {', '.join(infinite)}. Name the other columns with --reward_columns."
        )
    weighted = rewards * np.asarray([1.0] * len(columns) if weights is None else weights)[:, None]
    return np.where(np.isnan(rewards).all(axis=0), np.nan, np.nansum(weighted, axis=0))


def measure_groups(
    completions: Completions, lengths: np.ndarray, columns: Sequence[str], reward: np.ndarray
) -> GroupSpread:
    """Zero-variance groups, spread of the within-group standard deviation, and Theorem 1's bound (Eqs. 1 and 2).

    A group has zero variance if all of its rewards are equal, or all of its advantages: these know the weights that
    the run gave to its reward functions.
    """
    advantage = _informative(completions.advantage) if columns else completions.advantage
    scored = ~np.isnan(reward) if columns else ~np.isnan(advantage)
    rows_of_group = np.split(np.argsort(completions.group, kind="stable"), np.cumsum(np.bincount(completions.group)))
    groups = [rows[scored[rows]] for rows in rows_of_group[:-1]]
    usable = [rows for rows in groups if len(rows) > 1]
    flat = [_equal(advantage[rows]) or _equal(reward[rows]) for rows in usable]
    std = np.array([0.0 if _equal(reward[rows]) else reward[rows].std(ddof=1) for rows in usable])
    known = bool(columns) and len(std) > 0
    batch = np.array([completions.batch[rows[0]] for rows in usable], dtype=np.int64)
    return GroupSpread(
        num_groups=len(groups),
        num_scored=len(usable),
        zero_variance=float(np.mean(flat)) if usable else None,
        mean_std=float(std.mean()) if known else None,
        std_quantiles={f"p{100 * q:g}": float(np.quantile(std, q)) for q in STD_QUANTILES} if known else {},
        neyman_variance=_neyman_variance(batch, std, [lengths[rows].mean() for rows in usable]) if known else None,
    )


def above_group_mean(completions: Completions, reward: np.ndarray) -> np.ndarray:
    """Whether each completion scored above its group: 1.0, 0.0 or nan (unknown), shape (N,)."""
    advantage = _informative(completions.advantage)
    num_scored = np.bincount(completions.group, weights=~np.isnan(reward))
    total = np.bincount(completions.group, weights=np.nan_to_num(reward))
    mean = np.divide(total, num_scored, out=np.full(len(total), np.nan), where=num_scored > 0)[completions.group]
    by_reward = np.where(np.isnan(reward), np.nan, reward > mean + _NOISE * np.maximum(1.0, np.abs(mean)))
    return np.where(np.isnan(advantage), by_reward, advantage > _NOISE)


def _equal(values: np.ndarray) -> bool:
    """Whether all values are one number up to the rounding of float32; nan is none."""
    if np.isnan(values).any():
        return False
    return bool(np.ptp(values) <= _NOISE * max(1.0, float(np.abs(values).max())))


def _informative(advantage: np.ndarray) -> np.ndarray:
    """The advantages, or nan throughout if all are one number: then nothing was trained on them."""
    known = advantage[~np.isnan(advantage)]
    return np.full_like(advantage, np.nan) if len(known) == 0 or _equal(known) else advantage


def _neyman_variance(batch: np.ndarray, std: np.ndarray, mean_length: Sequence[float]) -> float | None:
    """sum over batches of (sum s sqrt(L))^2 / sum L, relative to that of sum s^2; None without any spread."""
    best = equal = 0.0
    for index in np.unique(batch):
        rows = batch == index
        length = np.maximum(np.asarray(mean_length)[rows], 1.0)
        best += float((std[rows] * np.sqrt(length)).sum() ** 2 / length.sum())
        equal += float((std[rows] ** 2).sum())
    return best / equal if equal > 0 else None
