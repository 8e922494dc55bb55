# SPDX-License-Identifier: Apache-2.0
"""`Duet` from its settings: which allocator, gate and update rule make `duet` and `paper`."""

from typing import Any

from ..allocate.allocators import NeymanAllocator, UniformAllocator
from ..allocate.budget import Budget
from ..allocate.mixed import MixedAllocator
from ..allocate.surrogate import ConstantSurrogate, Surrogate
from ..gate.marker_gate import MarkerGate
from ..gate.priced import PricedThresholds
from ..gate.thresholds import LengthThresholds
from .duet import Duet
from .method import Setting


def build_duet(config: Any, run: Setting) -> Duet:
    """The method of a resolved `DUETGRPOConfig`, without observations."""
    return Duet(config, run, _allocator(config, run), _gate(config, run))


def _allocator(config: Any, run: Setting) -> UniformAllocator:
    options = config.options
    budget = Budget(
        config.budget_reading,
        fraction=config.budget_fraction,
        num_generations=run.num_generations,
        budget_tokens=config.budget_tokens,
    )
    shared = {
        "max_length": run.max_completion_length,
        "price_aborted": config.method != "paper",
        "num_min": config.num_rollouts_min,
        "num_max": config.num_rollouts_max,
        "max_rollouts": run.max_rollouts,
    }
    if not config.allocate:
        return UniformAllocator(budget, **shared)
    if options.allocation_objective == "mixed":
        return MixedAllocator(budget, **shared)
    solver = "bisection" if config.method == "paper" else "greedy"
    return NeymanAllocator(_surrogate(config), budget, solver=solver, **shared)


def _surrogate(config: Any) -> Surrogate:
    options = config.options
    if options.surrogate == "constant":
        return ConstantSurrogate()
    if config.method == "paper":
        return Surrogate(warmup=options.surrogate_warmup)
    return Surrogate(warmup=options.surrogate_warmup, unseen="median", shrinkage=1.0, reprobe_after=2)


def _gate(config: Any, run: Setting) -> MarkerGate:
    options = config.options
    return MarkerGate(
        thresholds=_priced(config, run) if options.abort_rule == "price" else _by_length(config, run),
        trim=config.trim,
        abort=config.abort,
        grace_window=config.grace_window,
        poll_interval=options.poll_interval,
        entropy_threshold=options.entropy_threshold,
        window=256 if config.method == "paper" else None,
        seed=run.seed,
    )


def _priced(config: Any, run: Setting) -> PricedThresholds:
    return PricedThresholds(run.max_completion_length, config.grace_window, width=config.options.poll_interval)


def _by_length(config: Any, run: Setting) -> LengthThresholds:
    options = config.options
    return LengthThresholds(
        run.max_completion_length,
        keep_probability=config.keep_probability,
        window=options.threshold_window,
        refit_every=options.threshold_interval,
        quantiles=(options.poll_quantile, options.abort_quantile),
        cold=(options.poll_cold_fraction, options.abort_cold_fraction),
        weighted=config.method != "paper",
        min_samples=min(32, options.threshold_window),
    )
