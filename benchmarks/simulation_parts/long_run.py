# SPDX-License-Identifier: Apache-2.0
"""A run of 10,000 steps over a million prompts, and short ones of every method over a pool that comes round often."""

import math
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from duet_trl.methods import METHODS
from duet_trl.report.simulate import method_of
from duet_trl.simulation.course import Course
from duet_trl.simulation.population import Population

LIMIT, GENERATIONS = 3072, 8


def run(name: str, num_prompts: int, num_steps: int, batch: int, seed: int) -> dict[str, Any]:
    """Figures of a run; JSON types."""
    sizes = SimpleNamespace(
        num_generations=GENERATIONS, batch=batch, max_completion_length=LIMIT, budget_fraction=None, seed=seed
    )
    method = method_of(name, sizes)
    course = Course(method, Population(num_prompts, LIMIT, num_steps, seed=seed), batch, seed)
    began, generated, budget = time.perf_counter(), 0, []
    for step in course.run(num_steps):
        generated += step.generated_tokens
        budget += [] if step.budget is None else [step.budget]
    return {
        "method": name,
        "prompts": num_prompts,
        "steps": num_steps,
        "batch": batch,
        "max_rollouts": method.setting.max_rollouts,
        "most_rollouts": course.most_rollouts,
        "tokens_per_step": generated / num_steps,
        "largest_planned_over_budget": course.over_budget,
        "mean_planned_over_budget": float(np.mean(budget)) if budget else None,
        "coins": course.coins,
        "coin_law": course.coin_law,
        "right_answers": course.right,
        "late_right_answers": course.late_right,
        "longest_wait_visits": course.longest_wait,
        "step_seconds_by_tenth": [float(np.median(tenth)) for tenth in np.array_split(course.seconds, 10)],
        "peak_bytes": course.memory_bytes,
        "wall_seconds": time.perf_counter() - began,
    }


def coin_deviation(coins: list[int], law: list[float]) -> float:
    """Standard deviations by which the rollouts that the coin kept differ from their law (`Course`); 0 without any."""
    mean, variance = law
    return abs(coins[1] - mean) / math.sqrt(variance) if variance else 0.0


def every_method(seed: int) -> list[dict[str, Any]]:
    """Each method over 640 prompts that come round six times."""
    return [run(name, 640, 120, 32, seed) for name in METHODS if name != "own"]
