# SPDX-License-Identifier: Apache-2.0
"""The methods of the package by name: how each is built, and which fields it reads, with which defaults."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..field_types import Options
from . import duet, paper
from .arrol import Arrol, ArrolOptions
from .dapo import Dapo, DapoOptions
from .dynamo import Dynamo
from .greso import Greso
from .grpo import GRPO
from .knapsack import Knapsack
from .method import Method, Setting
from .pilot import Pilot, PilotOptions
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
        defaults (Mapping[str, Any]): The fields of `METHOD_FIELDS` that it reads, each with its default; None: what
            follows from other fields. Setting another one is an error.
        max_batches (int): Default of `max_rollouts`, in generation batches.
        settle (Callable): (configuration, options) -> options with what follows from other fields filled in.
        check (Callable): (configuration, options) -> None; raises ValueError for relations that cannot hold.
    """

    build: Callable[[Any], Method]
    options: type
    defaults: Mapping[str, Any] = field(default_factory=dict)
    max_batches: int = 1
    settle: Callable[[Any, Any], Any] = lambda config, options: options
    check: Callable[[Any, Any], None] = lambda config, options: None

    @property
    def reads(self) -> frozenset[str]:
        """Fields of `METHOD_FIELDS` that it reads."""
        return frozenset(self.defaults)


def setting_of(config: Any) -> Setting:
    """What every method may read of a configuration."""
    values = {one.name: getattr(config, one.name) for one in fields(Setting)}
    values["num_rollouts_min"] = config.num_rollouts_min or 1
    values["num_rollouts_max"] = config.num_rollouts_max or config.max_rollouts
    return Setting(**values)


def build_method(config: Any) -> Method:
    """The method of a configuration."""
    return METHODS[config.method].build(config)


def budget_fields(method: str, fraction: float, num_generations: int) -> dict[str, Any]:
    """Fields that put a method at a share, (0, 1], of the full budget of `num_generations` rollouts per prompt.

    A method that reads `budget_fraction` gets it. The budget of the others is the number of their rollouts: ValueError
    if that is no whole number of at least two.
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


def _plain(method: type, options: type, defaults: Mapping[str, Any], **more: Any) -> Entry:
    """Entry of a method that is built from the shared setting and its own options, which it checks itself."""

    def build(config: Any) -> Method:
        return method(setting_of(config), config.options)

    def check(config: Any, chosen: Any) -> None:
        method(setting_of(config), chosen)

    return Entry(build, options, defaults, check=check, **more)


def _build_own(config: Any) -> Method:
    raise ValueError(
        "method='own' is a method that the trainer is given as an object. Pass it: DUETGRPOTrainer(..., method=...)."
    )


_CAPPED = {"max_rollouts": None}
_DUET = {
    "allocate": False,
    "trim": True,
    "abort": True,
    "budget_fraction": 0.5,
    "budget_reading": "rollouts",
    "budget_tokens": None,
    "num_rollouts_min": None,
    "num_rollouts_max": 32,
    "max_rollouts": None,
    "marker": "math",
    "grace_window": None,
    "sentinel_token_id": None,
}
_PAPER = _DUET | {"allocate": True, "marker": "math_paragraph", "keep_probability": 0.05}
METHODS: dict[str, Entry] = {
    "duet": Entry(lambda c: duet.Duet(c, setting_of(c)), duet.DuetOptions, _DUET, 1, duet.settle, duet.check),
    "paper": Entry(lambda c: paper.Paper(c, setting_of(c)), paper.PaperOptions, _PAPER, 1, paper.settle, paper.check),
    "grpo": _plain(GRPO, Options, {}),
    "dapo": _plain(Dapo, DapoOptions, _CAPPED, max_batches=10),
    "greso": _plain(Greso, DapoOptions, _CAPPED, max_batches=4),
    "pilot": _plain(Pilot, PilotOptions, {"max_rollouts": None, "budget_fraction": 0.5, "num_rollouts_max": 32}),
    "reinforce_ada": _plain(ReinforceAda, ReinforceAdaOptions, _CAPPED, max_batches=4),
    # The next three share out GRPO's rollouts.
    "knapsack": _plain(Knapsack, Options, {"budget_fraction": 1.0, "num_rollouts_min": 2, "num_rollouts_max": 128}),
    "vip": _plain(Vip, VipOptions, {"budget_fraction": 1.0}),
    "dynamo": _plain(Dynamo, Options, {"budget_fraction": 1.0}),
    "seed_grpo": _plain(SeedGRPO, SeedGRPOOptions, {}),
    "arrol": _plain(Arrol, ArrolOptions, _CAPPED, max_batches=2),
    "spec_rl": _plain(SpecRL, SpecRLOptions, {}),
    "own": Entry(_build_own, Options, {"max_rollouts": None, "marker": "math", "sentinel_token_id": None}),
}
"""Every method by name; "own" is one that the trainer is given as an object."""
METHOD_FIELDS = frozenset().union(*(entry.reads for entry in METHODS.values()))
"""Fields of `DUETGRPOConfig` that some methods read and others do not. The other fields are of every method."""
