# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/allocation.py [--check]: the greedy allocation against the paper's ten-step bisection.

1,000 random batches of 128 prompts, sigma and length from five kinds of distributions (light and heavy tails, prompts
at the floor, long prompts that disagree more). For each batch the bisection of Eq. 4 runs first, from the dual of the
batch before it as the paper says; the greedy solver then gets the tokens that the bisection spent as its budget, so
that both cost the same, and once more the budget itself, to see how much of it is used. Both are timed on every batch,
alternately. Last, one batch of 100,000 prompts.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import argument_parser, write_result

from duet_trl.allocate.neyman import bisection_allocation, neyman_allocation, variance
from duet_trl.report.environment import hardware, versions
from duet_trl.report.tables import text_table

NUM_BATCHES = 1_000
NUM_PROMPTS = 128
LARGE = 100_000
FRACTIONS = (0.25, 0.5, 1.0)
NUM_GENERATIONS = 8
NUM_MAX = 32
TARGETS = {"median_ms": 2.0, "least_used": 0.999, "median_excess": 0.002, "large_seconds": 2.0}


def batch(kind: int, rng: np.random.Generator, size: int = NUM_PROMPTS) -> tuple[np.ndarray, np.ndarray]:
    """Sigma (advantage x nats) and mean length (tokens) of a batch."""
    length = rng.lognormal(6.2, 0.6, size)
    if kind == 0:
        return rng.uniform(20, 200, size), length
    if kind == 1:
        return rng.lognormal(4, 1.2, size), length
    if kind == 2:  # a third of the prompts never disagreed
        return np.where(rng.random(size) < 0.35, 0.01, rng.gamma(4, 20, size)), length
    if kind == 3:  # spread grows with length, as std(A sum log pi) does
        return 0.25 * length * rng.lognormal(0, 0.3, size), length
    return 50 * (1 + rng.pareto(1.5, size)), 100 * (1 + rng.pareto(1.2, size)).clip(max=30)


def timed(solve: Callable, *args: Any, **kwargs: Any) -> tuple:
    """Result and seconds."""
    begin = time.perf_counter()
    result = solve(*args, **kwargs)
    return result, time.perf_counter() - begin


def compare(rng: np.random.Generator) -> dict[str, list[float]]:
    """Every figure of every batch."""
    figures: dict[str, list[float]] = {
        name: []
        for name in (
            "greedy_s",
            "bisection_s",
            "variance_ratio",
            "variance_ratio_same_budget",
            "bisection_spent",
            "used",
            "unused_rollouts",
            "over",
            "gap",
            "binding",
        )
    }
    dual = None
    for number in range(NUM_BATCHES):
        sigma, length = batch(number % 5, rng)
        budget = FRACTIONS[number % 3] * NUM_GENERATIONS * float(length.sum())
        paper, seconds = timed(bisection_allocation, sigma, length, budget, num_max=NUM_MAX, dual=dual)
        dual = paper.dual
        greedy, greedy_seconds = timed(neyman_allocation, sigma, length, budget, num_max=NUM_MAX)
        same_cost = neyman_allocation(sigma, length, paper.planned_tokens, num_max=NUM_MAX)
        figures["greedy_s"].append(greedy_seconds)
        figures["bisection_s"].append(seconds)
        figures["variance_ratio"].append(variance(sigma, same_cost.num_rollouts) / variance(sigma, paper.num_rollouts))
        figures["variance_ratio_same_budget"].append(
            variance(sigma, greedy.num_rollouts) / variance(sigma, paper.num_rollouts)
        )
        figures["bisection_spent"].append(paper.planned_tokens / budget)
        figures["used"].append(greedy.planned_tokens / budget)
        cheapest = length[greedy.num_rollouts < NUM_MAX].min(initial=np.inf)
        figures["unused_rollouts"].append((budget - greedy.planned_tokens) / cheapest)
        figures["over"].append(
            max(greedy.planned_tokens / budget, same_cost.planned_tokens / paper.planned_tokens) - 1.0
        )
        figures["gap"].append(max(greedy.gap, same_cost.gap) / variance(sigma, greedy.num_rollouts))
        figures["binding"].append(float((greedy.num_rollouts == NUM_MAX).any()))
    return figures


def main() -> int:
    """Measure, print, write; 1 if a target is missed and --check was given."""
    arguments = argument_parser(__doc__.splitlines()[0]).parse_args()
    rng = np.random.default_rng(arguments.seed)
    figures = compare(rng)
    sigma, length = batch(1, rng, LARGE)
    large, large_seconds = timed(neyman_allocation, sigma, length, 4 * float(length.sum()), num_max=NUM_MAX)

    free = [used for used, binding in zip(figures["used"], figures["binding"], strict=True) if not binding]
    result = {
        "greedy_ms": spread(figures["greedy_s"], 1e3),
        "bisection_ms": spread(figures["bisection_s"], 1e3),
        "variance_ratio_at_equal_cost": spread(figures["variance_ratio"]),
        "variance_ratio_at_equal_budget": spread(figures["variance_ratio_same_budget"]),
        "bisection_spent": spread(figures["bisection_spent"]),
        "used_where_num_max_is_free": spread(free),
        "remainder_over_cheapest_rollout": spread(figures["unused_rollouts"]),
        "batches_where_num_max_is_free": len(free),
        "most_relative_excess_over_budget": max(figures["over"]),
        "gap_over_variance": spread(figures["gap"]),
        "large_seconds": large_seconds,
        "large_used": large.planned_tokens / large.budget_tokens,
    }
    # A sum of 128 float64 products may differ in its last bits from the solver's own.
    rounding = 1e-9
    checks = {
        f"median time at M = {NUM_PROMPTS} <= {TARGETS['median_ms']} ms": result["greedy_ms"]["median"]
        <= TARGETS["median_ms"],
        "never above the budget": max(figures["over"]) <= rounding,
        "at least 99.9% of the budget used where num_max is free, in the median": statistics.median(free)
        >= TARGETS["least_used"],
        "no rollout fits into what is left": max(figures["unused_rollouts"]) < 1,
        f"median variance at equal cost within {TARGETS['median_excess']:.1%} of the bisection's": result[
            "variance_ratio_at_equal_cost"
        ]["median"]
        <= 1 + TARGETS["median_excess"],
        f"M = {LARGE:,} within {TARGETS['large_seconds']} s": large_seconds <= TARGETS["large_seconds"],
    }
    print(
        text_table(
            ("figure", "least", "median", "most"),
            [
                (name, *(f"{value[key]:.4f}" for key in ("least", "median", "most")))
                for name, value in result.items()
                if isinstance(value, dict)
            ],
        )
    )
    print()
    print(text_table(("figure", "value"), [(k, f"{v:.6g}") for k, v in result.items() if not isinstance(v, dict)]))
    print()
    print(text_table(("target", "met"), [(name, "yes" if met else "NO") for name, met in checks.items()]))
    payload = {
        "figures": result,
        "targets_met": {name: bool(met) for name, met in checks.items()},
        "settings": {"num_batches": NUM_BATCHES, "num_prompts": NUM_PROMPTS, "num_max": NUM_MAX},
        "seed": arguments.seed,
        "hardware": hardware(),
        "versions": versions("numpy"),
    }
    print(f"\nwritten to {write_result('allocation', payload)}")
    return int(arguments.check and not all(checks.values()))


def spread(values: list[float], scale: float = 1.0) -> dict[str, float]:
    """Least, median and largest value."""
    return {
        "least": min(values) * scale,
        "median": statistics.median(values) * scale,
        "most": max(values) * scale,
    }


if __name__ == "__main__":
    sys.exit(main())
