# SPDX-License-Identifier: Apache-2.0
"""What is compared: methods at budgets, and everything that they have in common.

Every arm is `DUETGRPOTrainer`, with rows without advantage left out of the backward pass; an arm called GRPO has all
three parts of DUET off, which is `GRPOTrainer` loss for loss (tests/test_trainer.py).
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common import grouped
from recipes.tiny_math.scaled import GRACE_WINDOW, REFITS

SETTINGS = Path(__file__).parents[2] / "recipes" / "configs" / "math_tiny.yaml"
PROMPTS_PER_STEP = 16
FULL = 8
"""Rollouts per prompt at full budget."""
UNIFORM = {"allocate": False, "stratification": "none"}
UNGATED = {"trim": False, "abort": False}
# Theorem 1 on the surrogate of Eq. 3 with its weights, and the gate that masks: the rules of the paper, repaired.
THEOREM_1 = {"allocation_objective": "variance", "stratification": "clip", "advantage_baseline": "group"}
MASKED = {"aborted_rollouts": "mask", "abort_answer_quantile": 0.0}


@dataclass(frozen=True)
class Arm:
    """One method at one budget.

    Attributes:
        method (str): Its name in tables.
        budget (float): Share of the full budget.
        settings (dict[str, Any]): Fields and options (`method_kwargs`) in which it differs from the others.
        reward (str): "first" or "last": the box that is graded while training.
    """

    method: str
    budget: float
    settings: dict[str, Any] = field(default_factory=dict)
    reward: str = "first"

    @property
    def name(self) -> str:
        """Identifies the arm in records, e.g. duet_50 or grpo_100_last."""
        suffix = "" if self.reward == "first" else f"_{self.reward}"
        return f"{self.method}_{round(100 * self.budget)}{suffix}"


def _grpo(budget: float, reward: str = "first") -> Arm:
    settings = {**UNIFORM, **UNGATED, "budget_fraction": 1.0, "num_generations": round(FULL * budget)}
    return Arm("grpo", budget, settings, reward)


def _duet(name: str, budget: float, reward: str = "first", /, **settings: Any) -> Arm:
    return Arm(name, budget, {"budget_fraction": budget, **settings}, reward)


METHODS: dict[str, dict[str, Any]] = {
    "trim": {**UNIFORM, "abort": False},
    "allocator": UNGATED,
    "abort": UNIFORM,
    "paper": {"method": "paper"},
    "duet": {},
}
"""Settings of the methods beside GRPO: the tail trim alone, the allocator alone, the gate alone (trim and abort), the
text of Algorithm 1 but for its marker, which is the task's, and the recommended settings."""
SWITCHES: dict[str, dict[str, Any]] = {
    "masked": {**UNIFORM, **MASKED},
    "theorem1": {**THEOREM_1, "abort": False},
    "mixed": {"advantage_baseline": "group", "abort": False},
    "history": {**UNIFORM, "abort": False, "advantage_baseline": "history"},
}
"""Single switches, at half the budget: the gate as the paper trains it; on top of the trim Theorem 1's counts and
weights, the recommended counts, and the baseline that remembers."""
BUDGETS = (1.0, 0.5, 0.25)
ARMS: dict[str, Arm] = {
    arm.name: arm
    for arm in (
        *(_grpo(budget) for budget in BUDGETS),
        *(_duet(method, budget, **settings) for method, settings in METHODS.items() for budget in BUDGETS),
        *(_duet(method, 0.5, **settings) for method, settings in SWITCHES.items()),
        _grpo(1.0, "last"),
        _grpo(0.5, "last"),
        _duet("trim", 0.5, "last", **METHODS["trim"]),
        _duet("duet", 0.5, "last"),
        _duet("ending", 0.5, "last", ending_reward_weight=0.1),
        _duet("untrimmed", 0.5, "last", trim=False),
    )
}
"""All arms by name."""
HEADLINE = ("grpo_100", "duet_50")
TARGETED = ("duet_100", "duet_25")
"""Arms that are compared with full GRPO beside the headline."""
SECOND_TASK = ("grpo_100", "grpo_50", "grpo_25", "trim_50", "paper_50", "duet_100", "duet_50", "duet_25")
"""Arms that are run on the other task."""


def seeds_of(arm: str, main_task: bool) -> range:
    """Seeds of an arm in the whole benchmark: three, on the main task twenty for `HEADLINE` and ten for `TARGETED`.

    Args:
        arm (str): Key of `ARMS`.
        main_task (bool): Whether it is run on the task of the headline.

    Returns:
        range: Empty if the arm is not run on this task.
    """
    if main_task:
        return range(20 if arm in HEADLINE else 10 if arm in TARGETED else 3)
    return range(3 if arm in SECOND_TASK else 0)


def configuration(arm: Arm, output_dir: Path, steps: int, seed: int, overrides: dict[str, Any]) -> dict[str, Any]:
    """Fields of an arm's `DUETGRPOConfig`. The marker and the gate's constants are left out where no gate is.

    Args:
        arm (Arm): The arm.
        output_dir (Path): Folder of the run.
        steps (int): Optimizer steps.
        seed (int): Order of the prompts, and of the rollouts' random numbers.
        overrides (dict[str, Any]): Fields of the task, fields and options that an experiment changes, and
            `prompts_per_step`; the arm's own do not win over them.

    Returns:
        dict[str, Any]: Keyword arguments. Micro-batches hold 32 rollouts in every arm.
    """
    fields = yaml.safe_load(SETTINGS.read_text()) | {"drop_zero_advantage": True} | arm.settings | overrides
    if fields.get("trim", True) or fields.get("abort", True):
        fields = {"grace_window": GRACE_WINDOW, **REFITS} | fields
    else:
        fields.pop("marker", None)
    fields = grouped(fields)
    rollouts = fields.pop("prompts_per_step", PROMPTS_PER_STEP) * fields["num_generations"]
    micro_batch = min(fields["per_device_train_batch_size"], rollouts)
    return fields | {
        "output_dir": str(output_dir),
        "max_steps": steps,
        "seed": seed,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": rollouts // micro_batch,
        "use_vllm": True,
        "report_to": "none",
        "disable_tqdm": True,
    }
