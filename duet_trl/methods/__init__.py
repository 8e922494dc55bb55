# SPDX-License-Identifier: Apache-2.0
"""The methods of the package by name: how each is built, and which fields of the configuration it reads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ..allocate.allocators import NeymanAllocator, UniformAllocator
from ..allocate.budget import Budget
from ..allocate.mixed import MixedAllocator
from ..allocate.statistics import PromptStatistics
from ..allocate.surrogate import Surrogate
from ..controller import Controller
from ..field_types import Acts
from ..gate.automaton import TokenAutomaton
from ..gate.marker_gate import MarkerGate
from ..gate.thresholds import LengthThresholds
from ..update.filters import drop_aborted, drop_zero_advantage
from ..update.importance import rollout_weights
from .duet_settings import ACTS, DuetOptions, DuetSettings, check_relations, duet_settings, settle
from .method import Setting

if TYPE_CHECKING:
    from ..config import DUETGRPOConfig


@dataclass(frozen=True)
class NoOptions:
    """`method_kwargs` of a method that takes none."""


@dataclass(frozen=True)
class Entry:
    """A method as the configuration knows it.

    Attributes:
        build (Callable): (configuration, compiled marker or None where nothing is gated) -> the method.
        options (type): Frozen dataclass of its `method_kwargs`.
        reads (frozenset[str]): Fields of `METHOD_FIELDS` that it reads; setting another one is an error.
        max_batches (int): Default of `max_rollouts`, in generation batches.
        defaults (Mapping[str, Any]): Defaults of fields where the method has its own.
        acts (Mapping[str, Acts]): When its options act, and fields with a rule of their own; without one, always.
        settle (Callable): (configuration, options) -> options with what follows from other fields filled in.
        check (Callable): (configuration, options) -> None; raises ValueError for relations that cannot hold.
    """

    build: Callable[["DUETGRPOConfig", TokenAutomaton | None], Any]
    options: type
    reads: frozenset[str] = frozenset()
    max_batches: int = 1
    defaults: Mapping[str, Any] = field(default_factory=dict)
    acts: Mapping[str, Acts] = field(default_factory=dict)
    settle: Callable[["DUETGRPOConfig", Any], Any] = lambda config, options: options
    check: Callable[["DUETGRPOConfig", Any], None] = lambda config, options: None


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


def setting_of(config: "DUETGRPOConfig") -> Setting:
    """What every method may read of a configuration."""
    return Setting(
        num_prompts=config.num_prompts,
        num_generations=config.num_generations,
        max_completion_length=config.max_completion_length,
        max_rollouts=config.max_rollouts,
        scale_rewards=config.scale_rewards,
        multi_objective_aggregation=config.multi_objective_aggregation,
        reward_weights=None if config.reward_weights is None else tuple(config.reward_weights),
        seed=config.seed,
    )


def settings_of(config: "DUETGRPOConfig") -> DuetSettings:
    """What the controller of `duet`, `paper` or `grpo` is built from; `grpo` has every part off."""
    if isinstance(config.options, DuetOptions):
        return duet_settings(config, setting_of(config))
    return DuetSettings(
        run=setting_of(config),
        method=config.method,
        allocate=False,
        trim=False,
        abort=False,
        budget_fraction=1.0,
        budget_reading="rollouts",
        budget_tokens=None,
        num_rollouts_min=1,
        num_rollouts_max=None,
        marker=None,
        grace_window=0,
        keep_probability=1.0,
        options=_PARTS_OFF,
    )


_PARTS_OFF = DuetOptions(
    allocation_objective="mixed",
    allocation_solver="greedy",
    price_aborted=True,
    surrogate_unseen="floor",
    surrogate_shrinkage=0.0,
    surrogate_reprobe=0,
    marker_window=0,
    threshold_weighting="none",
    abort_answer_quantile=0.0,
    aborted_rollouts="mask",
    stratification="none",
    advantage_baseline="group",
    advantage_cutoff=0.0,
    drop_zero_advantage=False,
)


def build_controller(config: "DUETGRPOConfig", automaton: TokenAutomaton | None) -> Controller:
    """Controller of a configuration (Algorithm 1 with the configured parts).

    Args:
        config (DUETGRPOConfig): Checked configuration.
        automaton (TokenAutomaton | None): Compiled marker; None only where the gate is off.

    Returns:
        Controller: Fresh controller without observations.
    """
    settings = settings_of(config)
    options = settings.options
    return Controller(
        allocator=_allocator(settings),
        gate=_gate(settings, automaton),
        weigher=partial(rollout_weights, stratification=options.stratification, floor=options.stratification_floor),
        train_aborted=options.aborted_rollouts == "failure",
        rollout_filter=(
            partial(drop_zero_advantage, cutoff=options.advantage_cutoff)
            if options.drop_zero_advantage
            else drop_aborted
        ),
        identity={
            "method": settings.method,
            "marker": settings.marker if settings.gated else None,
            "automaton": automaton.fingerprint if automaton is not None else None,
            "max_completion_length": settings.run.max_completion_length,
            "num_generations": settings.run.num_generations,
            "budget_reading": settings.budget_reading,
            "seed": settings.run.seed,
        },
    )


def _allocator(settings: DuetSettings) -> UniformAllocator:
    options, run = settings.options, settings.run
    budget = Budget(
        settings.budget_reading,
        fraction=settings.budget_fraction,
        num_generations=run.num_generations,
        budget_tokens=settings.budget_tokens,
        num_min=settings.num_rollouts_min,
    )
    shared = {
        "max_length": run.max_completion_length,
        "statistics": PromptStatistics(reward_decay=options.reward_decay),
        "price_aborted": options.price_aborted,
        "num_min": settings.num_rollouts_min,
        "num_max": settings.num_rollouts_max,
        "max_rollouts": run.max_rollouts,
    }
    if not settings.allocate:
        return UniformAllocator(budget, **shared)
    if options.allocation_objective == "mixed":
        return MixedAllocator(budget, **shared)
    surrogate = Surrogate(
        floor=options.surrogate_floor,
        floor_quantile=options.surrogate_floor_quantile or None,
        warmup=options.surrogate_warmup,
        unseen=options.surrogate_unseen,
        shrinkage=options.surrogate_shrinkage,
        reprobe_after=options.surrogate_reprobe,
    )
    return NeymanAllocator(surrogate, budget, solver=options.allocation_solver, **shared)


def _gate(settings: DuetSettings, automaton: TokenAutomaton | None) -> MarkerGate:
    options = settings.options
    thresholds = LengthThresholds(
        max_length=settings.run.max_completion_length,
        window=options.threshold_window,
        refit_every=options.threshold_interval,
        # Where K2 is unused or follows the answers, nothing keeps K1's share below K2's.
        quantiles=(options.poll_quantile, max(options.poll_quantile, options.abort_quantile)),
        cold=(options.poll_cold_fraction, max(options.poll_cold_fraction, options.abort_cold_fraction)),
        weighted=options.threshold_weighting == "propensity",
        min_samples=min(32, options.threshold_window),
        answer_quantile=options.abort_answer_quantile,
        answer_slack=options.abort_answer_slack,
    )
    return MarkerGate(
        thresholds=thresholds,
        automaton=automaton,
        trim=settings.trim,
        abort=settings.abort,
        grace_window=settings.grace_window,
        poll_interval=options.poll_interval,
        entropy_threshold=options.entropy_threshold,
        window=options.marker_window or None,
        keep_probability=settings.keep_probability,
        seed=settings.run.seed,
    )


_DUET = Entry(build_controller, DuetOptions, METHOD_FIELDS, acts=ACTS, settle=settle, check=check_relations)
METHODS: dict[str, Entry] = {
    "duet": _DUET,
    "paper": Entry(**{**_DUET.__dict__, "defaults": {"marker": "math_paragraph"}}),
    "grpo": Entry(build_controller, NoOptions),
}
"""Every method; a new one needs its file and a line here."""
