# SPDX-License-Identifier: Apache-2.0
"""The methods of the package by name: how each is built, and which fields of the configuration it reads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..field_types import Options
from .arrol import Arrol, ArrolOptions
from .dapo import Dapo, DapoOptions, ResamplingOptions
from .duet_parts import build_duet
from .duet_settings import DuetOptions, check_relations, settle
from .dynamo import Dynamo
from .greso import Greso
from .grpo import GRPO, GRPOOptions
from .knapsack import Knapsack
from .method import Method, Setting
from .pilot import Pilot, PilotOptions
from .pods import Pods, PodsOptions
from .reinforce_ada import ReinforceAda, ReinforceAdaOptions
from .seed_grpo import SeedGRPO, SeedGRPOOptions
from .spec_rl import SpecRL, SpecRLOptions
from .vip import Vip, VipOptions


@dataclass(frozen=True)
class Entry:
    """A method as the configuration knows it.

    Attributes:
        build (Callable): Configuration -> the method.
        options (type): Frozen dataclass of its `method_kwargs`.
        reads (frozenset[str]): Fields of `METHOD_FIELDS` that it reads; setting another one is an error.
        max_batches (int): Default of `max_rollouts`, in generation batches.
        defaults (Mapping[str, Any]): Defaults of fields where the method has its own.
        settle (Callable): (configuration, options) -> options with what follows from other fields filled in.
        check (Callable): (configuration, options) -> None; raises ValueError for relations that cannot hold.
    """

    build: Callable[[Any], Method]
    options: type
    reads: frozenset[str] = frozenset()
    max_batches: int = 1
    defaults: Mapping[str, Any] = field(default_factory=dict)
    settle: Callable[[Any, Any], Any] = lambda config, options: options
    check: Callable[[Any, Any], None] = lambda config, options: None


METHOD_FIELDS = frozenset(
    {
        "allocate",
        "trim",
        "abort",
        "budget_fraction",
        "budget_reading",
        "budget_tokens",
        "num_rollouts_min",
        "num_rollouts_max",
        "max_rollouts",
        "marker",
        "grace_window",
        "keep_probability",
        "sentinel_token_id",
    }
)
"""Fields of `DUETGRPOConfig` that some methods read and others do not. The other fields are of every method."""


def setting_of(config: Any) -> Setting:
    """What every method may read of a configuration."""
    return Setting(
        num_prompts=config.num_prompts,
        num_generations=config.num_generations,
        max_completion_length=config.max_completion_length,
        max_rollouts=config.max_rollouts,
        budget_fraction=config.budget_fraction,
        num_rollouts_min=config.num_rollouts_min or 1,
        num_rollouts_max=config.num_rollouts_max or config.max_rollouts,
        scale_rewards=config.scale_rewards,
        multi_objective_aggregation=config.multi_objective_aggregation,
        seed=config.seed,
    )


def build_method(config: Any) -> Method:
    """The method of a configuration."""
    return METHODS[config.method].build(config)


def budget_fields(method: str, fraction: float, num_generations: int) -> dict[str, Any]:
    """Fields of the configuration that put a method at a share of the full budget.

    A method that reads `budget_fraction` gets it. The budget of the others is the number of their rollouts.

    Args:
        method (str): Name of the method.
        fraction (float): Share of the full budget, (0, 1].
        num_generations (int): Rollouts per prompt of the full budget.

    Raises:
        ValueError: If the share is no whole number of at least two rollouts, for a method that counts them.
    """
    if "budget_fraction" in METHODS[method].reads:
        return {"num_generations": num_generations, "budget_fraction": fraction}
    count = fraction * num_generations
    if count < 2 or count != int(count):
        raise ValueError(
            f"{fraction:g} x num_generations={num_generations} is {count:g} rollouts per prompt, and the budget of "
            f"method={method!r} is a whole number of at least 2. Choose another share or num_generations."
        )
    return {"num_generations": int(count)}


def _ungated(method: type, options: type, reads: frozenset[str] = frozenset({"max_rollouts"}), **more: Any) -> Entry:
    """Entry of a method without a gate, built from the shared setting and its own options, which it checks itself."""

    def build(config: Any) -> Method:
        return method(setting_of(config), config.options)

    def check(config: Any, chosen: Any) -> None:
        method(setting_of(config), chosen)

    return Entry(build, options, reads, check=check, **more)


def _build_duet(config: Any) -> Method:
    return build_duet(config, setting_of(config))


def _build_own(config: Any) -> Method:
    raise ValueError(
        "method='own' is a method that the trainer is given as an object. Pass it: DUETGRPOTrainer(..., method=...)."
    )


_ALL = {"budget_fraction": 1.0}  # of methods that share out GRPO's rollouts, not fewer
_DUET = Entry(_build_duet, DuetOptions, METHOD_FIELDS, settle=settle, check=check_relations)
METHODS: dict[str, Entry] = {
    "duet": _DUET,
    "paper": replace(_DUET, defaults={"allocate": True, "marker": "math_paragraph"}),
    "grpo": _ungated(GRPO, GRPOOptions, frozenset()),
    "dapo": _ungated(Dapo, DapoOptions, max_batches=10),
    "greso": _ungated(Greso, ResamplingOptions, max_batches=4),
    "pods": _ungated(Pods, PodsOptions, frozenset()),
    "pilot": _ungated(Pilot, PilotOptions, frozenset({"max_rollouts", "budget_fraction", "num_rollouts_max"})),
    "reinforce_ada": _ungated(ReinforceAda, ReinforceAdaOptions, max_batches=4),
    "knapsack": _ungated(
        Knapsack,
        Options,
        frozenset({"budget_fraction", "num_rollouts_min", "num_rollouts_max"}),
        defaults={"num_rollouts_min": 2, "num_rollouts_max": 128, **_ALL},
    ),
    "vip": _ungated(Vip, VipOptions, frozenset({"max_rollouts", "budget_fraction"}), defaults=_ALL),
    "dynamo": _ungated(Dynamo, Options, frozenset({"budget_fraction"}), defaults=_ALL),
    "seed_grpo": _ungated(SeedGRPO, SeedGRPOOptions, frozenset()),
    "arrol": _ungated(Arrol, ArrolOptions, max_batches=2),
    "spec_rl": _ungated(SpecRL, SpecRLOptions, frozenset()),
    "own": Entry(_build_own, GRPOOptions, frozenset({"max_rollouts", "marker", "sentinel_token_id"})),
}
"""Every method by name; "own" is one that the trainer is given as an object."""
