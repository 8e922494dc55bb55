# SPDX-License-Identifier: Apache-2.0
"""Named compositions: which allocator, gate, filter and weigher make a method.

A method is a set of switches (`METHODS`) plus the parts that `build_controller` puts together from them. A rival of
the paper enters with one entry and one allocator, gate, filter or weigher of the same signature.
"""

from typing import TYPE_CHECKING, Any

from ..allocate.allocators import NeymanAllocator, UniformAllocator
from ..allocate.budget import Budget
from ..allocate.mixed import MixedAllocator
from ..allocate.statistics import PromptStatistics
from ..allocate.surrogate import Surrogate
from ..gate.automaton import TokenAutomaton
from ..gate.marker_gate import MarkerGate
from ..gate.thresholds import LengthThresholds
from .duet import Duet, Update
from .grpo import GRPO, GRPOOptions
from .method import Method, Setting

if TYPE_CHECKING:
    from ..config import DUETGRPOConfig

METHODS: dict[str, dict[str, Any]] = {
    "duet": {},
    "grpo": {
        "allocate": False,
        "trim": False,
        "abort": False,
        "budget_fraction": 1.0,
        "budget_reading": "rollouts",
        "budget_tokens": None,
        "drop_zero_advantage": False,
        "stratification": "none",
        "advantage_baseline": "group",
    },
}


def build_method(config: "DUETGRPOConfig", automaton: TokenAutomaton | None) -> Method:
    """The method of a configuration.

    Args:
        config (DUETGRPOConfig): Checked configuration.
        automaton (TokenAutomaton | None): Compiled marker; None only where the gate is off.

    Returns:
        Method: Fresh, without observations.
    """
    setting = Setting(
        num_prompts=config.num_prompts,
        num_generations=config.num_generations,
        max_completion_length=config.max_completion_length,
        max_rollouts=config.max_rollouts,
        scale_rewards=config.scale_rewards,
        multi_objective_aggregation=config.multi_objective_aggregation,
        seed=config.seed,
    )
    if config.method == "grpo":
        return GRPO(setting, GRPOOptions())
    update = Update(
        baseline=config.advantage_baseline,
        train_aborted=config.aborted_rollouts == "failure",
        stratification=config.stratification,
        stratification_floor=config.stratification_floor,
        drop_zero_advantage=config.drop_zero_advantage,
        cutoff=config.advantage_cutoff,
    )
    return Duet(
        setting,
        _allocator(config),
        _gate(config, automaton),
        update,
        plain=not config.duet_active,
        identity={"method": config.method, "preset": config.preset, "budget_reading": config.budget_reading},
    )


def _allocator(config: "DUETGRPOConfig") -> UniformAllocator:
    budget = Budget(
        config.budget_reading,
        fraction=config.budget_fraction,
        num_generations=config.num_generations,
        budget_tokens=config.budget_tokens,
        num_min=config.num_rollouts_min,
    )
    shared = {
        "max_length": config.max_completion_length,
        "statistics": PromptStatistics(reward_decay=config.reward_decay),
        "price_aborted": config.price_aborted,
        "num_min": config.num_rollouts_min,
        "num_max": config.num_rollouts_max,
        "max_rollouts": config.max_rollouts,
    }
    if not config.allocate:
        return UniformAllocator(budget, **shared)
    if config.allocation_objective == "mixed":
        return MixedAllocator(budget, **shared)
    surrogate = Surrogate(
        floor=config.surrogate_floor,
        floor_quantile=config.surrogate_floor_quantile or None,
        warmup=config.surrogate_warmup,
        unseen=config.surrogate_unseen,
        shrinkage=config.surrogate_shrinkage,
        reprobe_after=config.surrogate_reprobe,
    )
    return NeymanAllocator(surrogate, budget, solver=config.allocation_solver, **shared)


def _gate(config: "DUETGRPOConfig", automaton: TokenAutomaton | None) -> MarkerGate:
    thresholds = LengthThresholds(
        max_length=config.max_completion_length,
        window=config.threshold_window,
        refit_every=config.threshold_interval,
        quantiles=(config.poll_quantile, config.abort_quantile),
        cold=(config.poll_cold_fraction, config.abort_cold_fraction),
        weighted=config.threshold_weighting == "propensity",
        min_samples=min(32, config.threshold_window),
        answer_quantile=config.abort_answer_quantile,
        answer_slack=config.abort_answer_slack,
    )
    return MarkerGate(
        thresholds=thresholds,
        automaton=automaton,
        trim=config.trim,
        abort=config.abort,
        grace_window=config.grace_window,
        poll_interval=config.poll_interval,
        entropy_threshold=config.entropy_threshold,
        window=config.marker_window or None,
        keep_probability=config.keep_probability,
        seed=config.seed,
    )
