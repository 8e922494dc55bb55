# SPDX-License-Identifier: Apache-2.0
"""Who competes: methods at their recommended budgets, with their authors' settings, and everything they share.

The learning rate is tuned for each entrant and task (`tuning.py`), over the seconds of the reference. Everything else
is the default of the method, or the choice of its authors where it can act. All run through `DUETGRPOTrainer`, and
rollouts with advantage 0 get no forward pass, which changes no gradient. `knapsack` and `spec_rl` do not compete: they
act on prompts that return, and on the tasks with pre-trained models few do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from duet_trl.config import reads

from .tasks import Task

FULL = 8
"""Rollouts per prompt at full budget."""


@dataclass(frozen=True)
class Entrant:
    """A method at a budget.

    Attributes:
        name (str): In records and tables.
        what (str): A few words for tables.
        method (str): Key of `duet_trl.methods.METHODS`.
        budget (float): Share of full GRPO's rollouts.
        stops (bool): Whether rollouts end at the task's stop string.
        settings (Mapping[str, Any]): Fields and options (`method_kwargs`) that are not their defaults.
        factor (float | None): Its learning rate is the reference's times this; None: it is tuned.
    """

    name: str
    what: str
    method: str
    budget: float = 1.0
    stops: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    factor: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))


REFERENCE = "grpo_8_stop"
"""GRPO at full budget with the stop string: the others are compared with it at equal tokens and at equal seconds."""
_ALL = (
    Entrant(REFERENCE, "GRPO, 8 rollouts, stop string", "grpo"),
    Entrant("grpo_8_stop_2x", "GRPO, 8 rollouts, stop string, twice the rate", "grpo", factor=2.0),
    Entrant("grpo_8_stop_half", "GRPO, 8 rollouts, stop string, half of the rate", "grpo", factor=0.5),
    Entrant("grpo_8", "GRPO, 8 rollouts, no stop string", "grpo", stops=False),
    Entrant("grpo_4", "GRPO, 4 rollouts, stop string", "grpo", 0.5),
    Entrant("grpo_4_half", "GRPO, 4 rollouts, stop string, half of the reference's rate", "grpo", 0.5, factor=0.5),
    Entrant("grpo_4_no_stop", "GRPO, 4 rollouts, no stop string", "grpo", 0.5, stops=False),
    Entrant("grpo_2", "GRPO, 2 rollouts, stop string", "grpo", 0.25),
    Entrant("duet", "the two-name swap, as in README", "duet", 0.5, stops=False),
    Entrant("duet_half", "the swap at half of the reference's rate", "duet", 0.5, stops=False, factor=0.5),
    Entrant("duet_stop", "the swap with the stop string", "duet", 0.5),
    Entrant("paper", "Algorithm 1 of DUET, literally", "paper", 0.5),
    Entrant("paper_half", "Algorithm 1 at half of the reference's rate", "paper", 0.5, factor=0.5),
    Entrant("dapo", "DAPO's dynamic sampling", "dapo", settings={"epsilon_high": 0.28}),
    Entrant("greso", "GRESO's skipped prompts", "greso", settings={"method_kwargs": {"oversample": 1.5}}),
    Entrant("vip", "VIP's predicted variance", "vip"),
    Entrant(
        "reinforce_ada",
        "Reinforce-Ada's rounds",
        "reinforce_ada",
        settings={"scale_rewards": "none", "epsilon_high": 0.28},
    ),
    Entrant("arrol", "ARRoL's pruning", "arrol", stops=False),
)
ENTRANTS: dict[str, Entrant] = {entrant.name: entrant for entrant in _ALL}
"""All entrants by name, the reference first, in order of compute."""


def configuration(entrant: Entrant, task: Task, learning_rate: float, seed: int, prompts: int) -> dict[str, Any]:
    """Fields of an entrant's `DUETGRPOConfig`, without its folder and its length.

    Args:
        entrant (Entrant): The entrant.
        task (Task): The task.
        learning_rate (float): Where it starts.
        seed (int): Order of the prompts, and of sampling.
        prompts (int): Of a batch.

    Returns:
        dict[str, Any]: Keyword arguments.
    """
    read = reads(entrant.method)
    if "budget_fraction" in read:
        own = {"num_generations": FULL, "budget_fraction": entrant.budget}
    else:  # its budget is the number of its rollouts
        own = {"num_generations": int(FULL * entrant.budget)}
    rollouts = prompts * own["num_generations"]
    micro_batch = min(task.fields["per_device_train_batch_size"], rollouts)
    if "marker" in read:
        own["marker"] = task.marker
    generation: dict[str, Any] = {}
    if entrant.stops and task.stop:
        generation = {"stop": list(task.stop), "include_stop_str_in_output": True}
    return (
        {
            "method": entrant.method,
            "max_completion_length": task.max_completion_length,
            "lr_scheduler_type": "constant",  # `Watch` lets the rate fall
            "gradient_checkpointing": False,
            "dataloader_pin_memory": False,
            "use_cpu": True,
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": 0.2,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
        }
        | task.fields
        | own
        | dict(entrant.settings)
        | {
            "learning_rate": learning_rate,
            "seed": seed,
            "per_device_train_batch_size": micro_batch,
            "gradient_accumulation_steps": rollouts // micro_batch,
            "steps_per_generation": rollouts // micro_batch,
        }
        | ({"generation_kwargs": generation} if generation else {})
    )
