# SPDX-License-Identifier: Apache-2.0
"""The methods of the package by name: how each is built, and its options."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from ..field_types import Options
from . import duet, paper
from .arrol import Arrol, ArrolOptions
from .dapo import Dapo, DapoOptions
from .gated import refuse_lone_rollouts
from .greso import Greso
from .grpo import GRPO
from .knapsack import Knapsack
from .method import Method, Setting
from .reinforce_ada import ReinforceAda, ReinforceAdaOptions
from .spec_rl import SpecRL, SpecRLOptions
from .vip import Vip, VipOptions


@dataclass(frozen=True)
class Entry:
    """A method as the configuration knows it; each field declares in `config.py` which methods read it."""

    build: Callable[[Any], Method]  # of a configuration
    options: type  # frozen dataclass of its `method_kwargs`
    check: Callable[[Any], object]  # of a configuration; raises ValueError for relations that cannot hold


def setting_of(config: Any) -> Setting:
    """The settings in a configuration that every method may read."""
    values = {one.name: getattr(config, one.name) for one in fields(Setting)}
    values["num_rollouts_min"] = config.num_rollouts_min or 1
    values["num_rollouts_max"] = config.num_rollouts_max or config.max_rollouts
    return Setting(**values)


def build_method(config: Any) -> Method:
    """The method of a configuration."""
    return METHODS[config.method].build(config)


def _refuse_stop_strings(config: Any) -> None:
    """Raise ValueError if a string ends rollouts: only a token or the limit tells whether one may be continued."""
    if found := {"stop", "stop_strings"} & (config.generation_kwargs or {}).keys():
        raise ValueError(
            f"method={config.method!r} would continue rollouts that a stop string has ended. Remove "
            f"{', '.join(sorted(found))} from generation_kwargs, or choose another method."
        )


def _plain(method: type, options: type = Options, check: Callable[[Any], object] = lambda config: None) -> Entry:
    """Entry of a method that is built from the shared setting and its own options, which it checks itself."""

    def build(config: Any) -> Method:
        return method(setting_of(config), config.options)

    return Entry(build, options, lambda config: (check(config), build(config)))


def _build_own(config: Any) -> Method:
    raise ValueError(
        "method='own' is a method that the trainer receives as an object. Pass it: DUETGRPOTrainer(..., method=...)."
    )


METHODS: dict[str, Entry] = {
    "duet": Entry(lambda c: duet.Duet(c, setting_of(c)), duet.DuetOptions, duet.check),
    "paper": Entry(lambda c: paper.Paper(c, setting_of(c)), paper.PaperOptions, refuse_lone_rollouts),
    "grpo": _plain(GRPO),
    "dapo": _plain(Dapo, DapoOptions),
    "greso": _plain(Greso, DapoOptions),
    "reinforce_ada": _plain(ReinforceAda, ReinforceAdaOptions),
    "knapsack": _plain(Knapsack),
    "vip": _plain(Vip, VipOptions),
    "arrol": _plain(Arrol, ArrolOptions, _refuse_stop_strings),
    "spec_rl": _plain(SpecRL, SpecRLOptions, _refuse_stop_strings),
    "own": Entry(_build_own, Options, lambda config: None),
}
"""Every method by name; "own" is one that the trainer receives as an object."""
