# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/allocation.py [--check]: the greedy allocation against the paper's ten-step bisection.

1,000 random batches of 128 prompts, sigma and length from five kinds of distributions (light and heavy tails, prompts
at the floor, long prompts that disagree more). For each batch the bisection of Eq. 4 runs first, from the dual of the
batch before it as the paper says; the greedy solver then gets the tokens that the bisection spent as its budget, so
that both cost the same, and once more the budget itself, to see how much of it is used. Both are timed on every batch,
alternately. Then one batch of 100,000 prompts. Last, the time that each method with a budget takes to plan a step of
128 prompts: all calls of its `jobs`, once the prompts have a history; rewards and lengths are drawn. The vectors that
`vip` compares have 384 numbers and are given, since what embeds prompts is no part of planning.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common import argument_parser, write_result  # noqa: E402
from duet_trl import DUETGRPOConfig  # noqa: E402
from duet_trl.allocate.neyman import bisection_allocation, neyman_allocation, variance  # noqa: E402
from duet_trl.methods import METHODS, build_method  # noqa: E402
from duet_trl.methods.method import Method  # noqa: E402
from duet_trl.report.environment import hardware, versions  # noqa: E402
from duet_trl.report.tables import text_table  # noqa: E402
from duet_trl.rollouts import Job, Query  # noqa: E402
from tests.methods.simulator import make_prompts, run_step  # noqa: E402

NUM_BATCHES = 1_000
NUM_PROMPTS = 128
LARGE = 100_000
FRACTIONS = (0.25, 0.5, 1.0)
NUM_GENERATIONS = 8
NUM_MAX = 32
STEPS = 20
DIMENSIONS = 384
TARGETS = {"planning_ms": 50.0, "median_ms": 2.0, "least_used": 0.999, "median_excess": 0.002, "large_seconds": 2.0}


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


def planning(rng: np.random.Generator) -> dict[str, list[float]]:
    """Seconds that each method with a budget takes to plan a step, for the later half of the steps."""
    vectors = rng.normal(size=(2 * NUM_PROMPTS, DIMENSIONS)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    rates, lengths = rng.beta(0.5, 0.5, 2 * NUM_PROMPTS), rng.lognormal(6.2, 0.6, 2 * NUM_PROMPTS)
    found = {}
    for name, method in planners().items():
        if method.embeddings is not None:
            method.embed = lambda prompts: vectors[[int(prompt.key) for prompt in prompts]]
        found[name] = seconds = []
        ask = method.jobs

        def jobs(*arguments: Any, ask: Callable = ask, seconds: list[float] = seconds) -> Sequence[Job | Query]:
            wanted, taken = timed(ask, *arguments)
            seconds[-1] += taken
            return wanted

        method.jobs = jobs
        for step in range(STEPS):
            seconds.append(0.0)
            keys = [str(key) for key in rng.permutation(2 * NUM_PROMPTS)]
            run_step(
                method,
                make_prompts(keys[:NUM_PROMPTS], keys, step + 1, epoch=step),
                lambda key, number: float(rng.random() < rates[int(key)]),
                lambda key, number: 1 + int(rng.exponential(lengths[int(key)])),
            )
        del seconds[: STEPS // 2]
    return found


def planners() -> dict[str, Method]:
    """The methods that read `budget_fraction`, each at the full budget, where there is most to plan."""
    size = {
        "num_generations": NUM_GENERATIONS,
        "per_device_train_batch_size": NUM_PROMPTS * NUM_GENERATIONS,
        "max_completion_length": 4096,
    }
    quiet = {"report_to": "none", "use_cpu": True, "bf16": False}
    cases = {name: (name, {}) for name, entry in METHODS.items() if "budget_fraction" in entry.reads}
    cases["paper, greedy"] = ("paper", {"allocation_solver": "greedy"})
    with tempfile.TemporaryDirectory() as folder:
        return {
            case: build_method(
                DUETGRPOConfig(folder, method=name, budget_fraction=1.0, method_kwargs=options, **size, **quiet)
            )
            for case, (name, options) in cases.items()
        }


def main() -> int:
    """Measure, print, write; 1 if a target is missed and --check was given."""
    arguments = argument_parser(__doc__.splitlines()[0]).parse_args()
    rng = np.random.default_rng(arguments.seed)
    figures = compare(rng)
    sigma, length = batch(1, rng, LARGE)
    large, large_seconds = timed(neyman_allocation, sigma, length, 4 * float(length.sum()), num_max=NUM_MAX)

    planned = planning(rng)

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
        **{f"planning_ms {name}": spread(seconds, 1e3) for name, seconds in planned.items()},
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
        **{
            f"{name} plans M = {NUM_PROMPTS} in under {TARGETS['planning_ms']:g} ms, in the median": result[
                f"planning_ms {name}"
            ]["median"]
            < TARGETS["planning_ms"]
            for name in planned
        },
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
        "settings": {"num_batches": NUM_BATCHES, "num_prompts": NUM_PROMPTS, "num_max": NUM_MAX, "steps": STEPS},
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
