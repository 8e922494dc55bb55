# SPDX-License-Identifier: Apache-2.0
"""`Duet` from its settings: which allocator, gate and update rule make `duet` and `paper`."""

from ..allocate.allocators import NeymanAllocator, UniformAllocator
from ..allocate.budget import Budget
from ..allocate.mixed import MixedAllocator
from ..allocate.statistics import PromptStatistics
from ..allocate.surrogate import Surrogate
from ..gate.automaton import TokenAutomaton
from ..gate.marker_gate import MarkerGate
from ..gate.thresholds import LengthThresholds
from .duet import Duet
from .duet_settings import DuetSettings


def build_duet(settings: DuetSettings, automaton: TokenAutomaton | None) -> Duet:
    """The method of some settings, without observations."""
    return Duet(settings, _allocator(settings), _gate(settings, automaton))


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
