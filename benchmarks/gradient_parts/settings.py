# SPDX-License-Identifier: Apache-2.0
"""Fields of the configuration that all rows of the gradient benchmark share, and the parts in which they differ."""

from collections.abc import Mapping
from typing import Any

import yaml

from benchmarks.arena.entrants import FULL, PROMPTS_PER_STEP, SETTINGS
from benchmarks.common import grouped
from recipes.tiny_math.scaled import GRACE_WINDOW, REFITS

UNIFORM: dict[str, Any] = {"allocate": False, "stratification": "none", "advantage_baseline": "group"}
"""The gate alone, as many rollouts for every prompt."""
TRIM: dict[str, Any] = {**UNIFORM, "abort": False}
GRPO: dict[str, Any] = {**UNIFORM, "trim": False, "abort": False}
"""All three parts of `duet` off, which is `GRPOTrainer` loss for loss."""
DUET: dict[str, Any] = {"allocate": True, "advantage_baseline": "history"}
"""With uneven counts, and the plain history: one earlier visit, of the same policy, leaves no weights to measure."""


def configuration(parts: Mapping[str, Any], num_rollouts: int, seed: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a `DUETGRPOConfig`, without its folder and its length.

    Args:
        parts (Mapping[str, Any]): One of the four above.
        num_rollouts (int): Rollouts per prompt that the budget pays for. Without a gate it is the number of
            generations, else a share of the `FULL` ones.
        seed (int): Order of the prompts, and of the rollouts' random numbers.
        fields (Mapping[str, Any]): Fields of the task, and fields and options of a row; they win over the others.

    Returns:
        dict[str, Any]: Keyword arguments. Micro-batches hold 32 rollouts.
    """
    gated = parts != GRPO
    budget = {"budget_fraction": num_rollouts / FULL if gated else 1.0}
    budget["num_generations"] = FULL if gated else num_rollouts
    chosen = yaml.safe_load(SETTINGS.read_text()) | {"drop_zero_advantage": True} | dict(parts) | budget | dict(fields)
    if gated:
        # One gate for all rows, whose thresholds are settled beforehand.
        chosen = {"grace_window": GRACE_WINDOW, **REFITS, "abort_rule": "length"} | chosen
    else:
        chosen.pop("marker")
    rollouts = PROMPTS_PER_STEP * budget["num_generations"]
    micro_batch = min(chosen["per_device_train_batch_size"], rollouts)
    return grouped(chosen) | {
        "seed": seed,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": rollouts // micro_batch,
        "use_vllm": True,
        "report_to": "none",
        "disable_tqdm": True,
    }
