# SPDX-License-Identifier: Apache-2.0
"""Who competes: methods at their recommended budgets, with their authors' settings, and everything they share.

The learning rate is tuned for each entrant and task (`tuning.py`), but for `duet`, which finds its own. Everything
else is the default of the method, or what its authors use beside it. All run through `DUETGRPOTrainer`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from benchmarks.common import grouped
from duet_trl.config import reads
from duet_trl.update.trust_region import CUTS
from recipes.tiny_math.scaled import GRACE_WINDOW, REFITS, UPDATES, UPDATES_RATE

SETTINGS = Path(__file__).parents[2] / "recipes" / "configs" / "math_tiny.yaml"
PROMPTS_PER_STEP = 16
FULL = 8
"""Rollouts per prompt at full budget."""
BASE_RATE = 3e-4
"""Learning rate of which those that are tried are multiples (`profiles.Profile.factors`)."""
ANSWER, CONSTANT, COIN = "answer", "constant", "coin"
"""Rewards: 1 for a right last answer; 1 for everything; 1 or 0 at random. The last two are controls."""


@dataclass(frozen=True)
class Entrant:
    """A method at a budget.

    Attributes:
        name (str): In records and tables.
        method (str): Key of `duet_trl.methods.METHODS`.
        budget (float): Share of full GRPO's rollouts.
        settings (Mapping[str, Any]): Fields and options (`method_kwargs`) that are not their defaults.
        reward (str): `ANSWER`, or that of a control.
        tuned_as (str): Entrant whose learning rate it takes; its own name: it is tuned itself.
        rate (float | None): Learning rate that it starts from on every task, without tuning; None: it is tuned.
        mini_batches (int): Optimizer steps that a batch of rollouts is split into, each over an equal part of it.
        lean (bool): Rollouts with advantage 0 get no forward pass. That changes no gradient; only a method that
            learns from the log-probs of all rollouts, or of all in the gradient, cannot do without them.
        retired (bool): A setting of it is no longer there: its records are reported, and it is not run.
    """

    name: str
    method: str
    budget: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    reward: str = ANSWER
    tuned_as: str = ""
    rate: float | None = None
    mini_batches: int = 1
    lean: bool = True
    retired: bool = False

    @property
    def updates(self) -> int:
        """Optimizer steps that it makes of a batch of rollouts."""
        if "updates" in self.settings:
            return CUTS[self.settings["updates"]].updates
        return self.settings.get("num_iterations", 1) * self.mini_batches

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))
        object.__setattr__(self, "tuned_as", self.tuned_as or self.name)


# The trim hides from the reward what follows an answer, so whoever trims is paid for ending (docs/recipes.md).
ENDING = {"ending_reward_weight": 0.1}
TWO, FOUR = {"num_iterations": 2}, {"num_iterations": 4}
"""Updates from each batch of rollouts."""
UNEVEN = {"allocate": True}
"""Counts that follow what is known of a prompt."""
UNGATED = {"trim": False, "abort": False}
"""Every rollout runs to its own end."""
_steered = partial(Entrant, rate=UPDATES_RATE)
_retired = partial(Entrant, retired=True)
"""Gradients clipped to their median norm (`clip`), small advantages sampled (`duet_1x4`); the others have baselines
that are gone: the group's mean (`trim`, `trim_abort`), that of a plain history (`duet_history` and what is like it),
and the mean in measured weights (`duet_mean`, `duet_1x1`, `duet_2x2`)."""
_ALL = (
    Entrant("grpo_8", "grpo"),
    _retired("grpo_8_clip", "grpo", tuned_as="grpo_8"),
    Entrant("grpo_4", "grpo", 0.5),
    Entrant("grpo_2", "grpo", 0.25),
    Entrant("grpo_4_x4", "grpo", 0.5, FOUR),
    _retired("trim", "duet", 0.5),
    _retired("trim_abort", "duet", 0.5),
    _steered("duet", "duet", 0.5, {**ENDING, **UPDATES}),
    _steered("duet_quarter", "duet", 0.25, {**ENDING, **UPDATES}),
    _steered("duet_quarter_ungated", "duet", 0.25, {**ENDING, **UPDATES, **UNGATED}),
    _steered("duet_counts", "duet", 0.5, {**ENDING, **UPDATES, **UNEVEN}),
    _steered("duet_mean", "duet", 0.5, UPDATES, retired=True),
    # GRPO updated as these are.
    _steered("grpo_2_steered", "grpo", 0.25, UPDATES),
    _steered("grpo_4_steered", "grpo", 0.5, UPDATES),
    _steered("grpo_8_steered", "grpo", 1.0, UPDATES),
    _retired("duet_1x1", "duet", 0.5, tuned_as="duet_history"),
    _retired("duet_1x4", "duet", 0.5, mini_batches=4),
    _retired("duet_2x2", "duet", 0.5, TWO, mini_batches=2),
    _retired("duet_2x2_clip", "duet", 0.5, TWO, tuned_as="duet_2x2", mini_batches=2),
    _retired("duet_history", "duet", 0.5),
    _retired("duet_history_uniform", "duet", 0.5, tuned_as="duet_history"),
    _retired("duet_choice", "duet", 0.5, tuned_as="duet_history"),
    _retired("duet_quarter_choice", "duet", 0.25),
    _retired("duet_quarter_x2", "duet", 0.25, TWO),
    _retired("duet_x4", "duet", 0.5, FOUR),
    Entrant("paper", "paper", 0.5, lean=False),
    Entrant("pilot", "pilot", 0.5),
    Entrant("dapo", "dapo", 1.0, {"epsilon_high": 0.28}),
    Entrant("greso", "greso"),
    _retired("pods", "grpo"),
    Entrant("vip", "vip"),
    Entrant("knapsack", "knapsack"),
    Entrant("dynamo", "dynamo"),
    Entrant("reinforce_ada", "reinforce_ada", 1.0, {"scale_rewards": "none", "epsilon_high": 0.28}),
    Entrant("arrol", "arrol", lean=False),
    Entrant("seed_grpo", "seed_grpo", 1.0, {"scale_rewards": "none"}),
    Entrant("spec_rl", "spec_rl"),
)
_CONTROLS = (
    Entrant("constant_grpo", "grpo", reward=CONSTANT, tuned_as="grpo_8"),
    _retired("constant_duet", "duet", 0.5, reward=CONSTANT, tuned_as="duet_history"),
    Entrant("coin_grpo", "grpo", reward=COIN, tuned_as="grpo_8"),
)
ENTRANTS: dict[str, Entrant] = {entrant.name: entrant for entrant in (*_ALL, *_CONTROLS)}
"""All entrants by name; the reference first, the controls last."""
REFERENCE = "grpo_8"
"""GRPO at full budget: the others have its accuracy to reach, and its tokens to do it with."""
CONTROLS = tuple(entrant.name for entrant in _CONTROLS)
"""What a reward that says nothing does: the policy moves by drift alone."""


def configuration(entrant: Entrant, learning_rate: float, seed: int, task_fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of an entrant's `DUETGRPOConfig`, without its folder and its length.

    Args:
        entrant (Entrant): The entrant.
        learning_rate (float): Constant.
        seed (int): Order of the prompts, and of sampling.
        task_fields (Mapping[str, Any]): Fields that are the task's: the marker and the lengths.

    Returns:
        dict[str, Any]: Keyword arguments. Micro-batches hold at most 32 rollouts, and no more than a mini-batch has.
    """
    shared = yaml.safe_load(SETTINGS.read_text()) | dict(task_fields)
    read = reads(entrant.method)
    gated = entrant.settings.get("trim", True) or entrant.settings.get("abort", True)
    if gated and "grace_window" in read:
        shared |= {"grace_window": GRACE_WINDOW}
    if entrant.method == "paper":
        shared |= REFITS
    if not gated or "marker" not in read:
        shared.pop("marker")
    if "budget_fraction" in read:
        own = {"num_generations": FULL, "budget_fraction": entrant.budget}
    else:  # its budget is the number of its rollouts
        own = {"num_generations": int(FULL * entrant.budget)}
    rollouts = PROMPTS_PER_STEP * own["num_generations"]
    mini_batch = rollouts // entrant.mini_batches
    micro_batch = min(shared["per_device_train_batch_size"], mini_batch)
    several = "updates" in entrant.settings  # which cuts the batch itself
    return grouped(
        shared
        | {"method": entrant.method}
        | own
        | dict(entrant.settings)
        | {
            "learning_rate": learning_rate,
            "seed": seed,
            "per_device_train_batch_size": micro_batch,
            "gradient_accumulation_steps": mini_batch // micro_batch,
            "steps_per_generation": None if several else rollouts // micro_batch,
            "use_vllm": True,
            "generation_kwargs": {"detokenize": False},  # texts are decoded from the ids
            "report_to": "none",
            "disable_tqdm": True,
        }
    )
