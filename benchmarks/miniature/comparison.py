# SPDX-License-Identifier: Apache-2.0
"""Paired comparison of arms: at equal optimizer steps, equal tokens and equal seconds, with the noise of seeds."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from duet_trl.report.intervals import t_interval

Record = dict[str, Any]
RESAMPLES = 4000
COSTS = ("generated_tokens", "trained_tokens", "processor_seconds")
"""What two arms can have spent alike."""


def accuracy(record: Record, which: str | None = None) -> np.ndarray:
    """Share of right samples of each problem at the end, shape (P,); graded as the arm was trained by default."""
    right = record["evaluations"][-1][f"right_{which or record['reward']}"]
    return np.array(right) / record["size"]["samples"]


def total(record: Record, name: str) -> float:
    """Sum of a metric over all steps, e.g. generated_tokens."""
    return float(sum(record["curves"][name]))


def seconds(record: Record, name: str = "train_seconds") -> float:
    """Seconds of the whole training, measurements left out; name is train_seconds or processor_seconds."""
    return float(record["evaluations"][-1][name])


def interval(table: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """95% bootstrap interval of the mean of a table.

    Args:
        table (np.ndarray): Accuracy, or a paired difference, of each seed and problem, shape (S, P).
        seed (int): Of the draws.

    Returns:
        tuple[float, float]: Both ends; seeds and problems are drawn with replacement, independently of each other.
    """
    rng = np.random.default_rng(seed)
    num_seeds, num_problems = table.shape
    seeds = rng.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), size=RESAMPLES) / num_seeds
    problems = rng.multinomial(num_problems, np.full(num_problems, 1 / num_problems), size=RESAMPLES) / num_problems
    means = np.einsum("rp,rp->r", seeds @ table, problems)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def resolvable(differences: np.ndarray) -> float | None:
    """Difference that this many seeds find with 80% power at the 5% level: 2.8 standard errors.

    Args:
        differences (np.ndarray): Mean difference of each seed, shape (S,).

    Returns:
        float | None: None for a single seed.
    """
    if len(differences) < 2:
        return None
    return float(2.8 * differences.std(ddof=1) / math.sqrt(len(differences)))


def spent(record: Record, cost: str) -> np.ndarray:
    """What a run had spent at each of its measurements, shape (K,).

    Args:
        record (Record): The run.
        cost (str): One of `COSTS`.
    """
    points = record["evaluations"]
    if cost == "processor_seconds":
        return np.array([point[cost] for point in points], dtype=float)
    sums = np.concatenate([[0.0], np.cumsum(record["curves"][cost])])
    return sums[[point["step"] for point in points]]


def curve(record: Record) -> np.ndarray:
    """Accuracy at each measurement on each of the problems that all of them share, shape (K, P)."""
    count, samples = record["size"]["held_out"], record["size"]["samples"]
    right = [point[f"right_{record['reward']}"][:count] for point in record["evaluations"]]
    return np.array(right) / samples


def at_cost(record: Record, amount: float, cost: str = "generated_tokens") -> np.ndarray:
    """Accuracy of a run when it had spent this much, on each of the problems of its curve, shape (P,).

    Interpolated between measurements; beyond the last one its value, so that a run is never credited with more than it
    reached.
    """
    points = spent(record, cost)
    place = np.interp(amount, points, np.arange(len(points)))
    before = int(place)
    values = curve(record)
    return values[before] + (place - before) * (values[min(before + 1, len(points) - 1)] - values[before])


def compare(first: dict[int, Record], second: dict[int, Record]) -> dict[str, Any]:
    """The first arm minus the second, paired by seed and problem.

    Args:
        first (dict[int, Record]): Records by seed.
        second (dict[int, Record]): Those of the other arm, with a seed in common.

    Returns:
        dict[str, Any]: `seeds` in common; `steps`: the difference at equal optimizer steps on all problems; one entry
        for each of `COSTS`: that at the cost of whichever of the two spent less, on the problems of the curve. Each
        has `difference`, `low`, `high` (bootstrap), `t_interval` and `resolvable`. Ratios of the second's cost to
        the first's, medians over seeds: `speed` (training seconds), `processor_speed` and `share` (generated tokens,
        first to second).
    """
    seeds = sorted(first.keys() & second.keys())
    pairs = [(first[seed], second[seed]) for seed in seeds]
    found: dict[str, Any] = {"seeds": len(seeds)}
    found["steps"] = _difference(np.array([accuracy(a) - accuracy(b) for a, b in pairs]))
    for cost in COSTS:
        rows = []
        for a, b in pairs:
            amount = min(spent(a, cost)[-1], spent(b, cost)[-1])
            rows.append(at_cost(a, amount, cost) - at_cost(b, amount, cost))
        found[cost] = _difference(np.array(rows))
    found["speed"] = float(np.median([seconds(b) / seconds(a) for a, b in pairs]))
    found["processor_speed"] = float(
        np.median([seconds(b, "processor_seconds") / seconds(a, "processor_seconds") for a, b in pairs])
    )
    found["share"] = float(np.median([total(a, "generated_tokens") / total(b, "generated_tokens") for a, b in pairs]))
    return found


def _difference(table: np.ndarray) -> dict[str, Any]:
    low, high = interval(table)
    differences = table.mean(axis=1)
    return {
        "difference": float(table.mean()),
        "low": low,
        "high": high,
        "t_interval": t_interval(differences),
        "resolvable": resolvable(differences),
    }


def between_budgets(points: Sequence[tuple[float, float]], speed: float, difference: float) -> dict[str, float | None]:
    """What lies between the budgets that were measured, interpolated over training seconds.

    Args:
        points (Sequence[tuple[float, float]]): Speed-up and difference in accuracy of each budget, to the same arm.
        speed (float): A speed-up whose difference is asked for.
        difference (float): A difference whose speed-up is asked for.

    Returns:
        dict[str, float | None]: `difference` at that speed-up, `speed` at that difference; None outside of what was
        measured, and the speed-up also where accuracy does not grow with the seconds.
    """
    points = sorted((1.0 / s, d) for s, d in points)  # the share of the seconds, ascending
    seconds_share, differences = np.array(points).T
    grows = bool((np.diff(differences) > 0).all())
    at_speed = np.interp(1.0 / speed, seconds_share, differences, left=np.nan, right=np.nan)
    share = np.interp(difference, differences, seconds_share, left=np.nan, right=np.nan) if grows else np.nan
    return {
        "difference": None if np.isnan(at_speed) else float(at_speed),
        "speed": None if np.isnan(share) else float(1.0 / share),
    }
