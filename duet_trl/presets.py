# SPDX-License-Identifier: Apache-2.0
"""What each preset sets, in one place.

A preset gives the fields of `DUETGRPOConfig` that the user left at `None`. `docs/fidelity.md` has one line per
difference.
"""

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    "duet": {
        "allocation_objective": "mixed",
        "allocation_solver": "greedy",
        "price_aborted": True,
        "surrogate_floor": 0.01,
        "surrogate_floor_quantile": 0.05,
        "surrogate_cold": None,
        "surrogate_unseen": "median",
        "surrogate_shrinkage": 1.0,
        "surrogate_reprobe": 2,
        "surrogate_ddof": 1,
        "marker": "math",
        "marker_window": 0,
        "entropy_threshold": 0.1,
        "margin_threshold": 0.0,
        "threshold_weighting": "propensity",
        "poll_threshold_min": 1,
        "abort_gap_min": 0,
        "abort_answer_quantile": 0.95,
        "aborted_rollouts": "failure",
        "stratification": "none",
        "max_weight": None,
    },
    "paper": {
        "allocation_objective": "variance",
        "allocation_solver": "bisection",
        "price_aborted": False,
        "surrogate_floor": 0.01,
        "surrogate_floor_quantile": 0.05,
        "surrogate_cold": None,
        "surrogate_unseen": "floor",
        "surrogate_shrinkage": 0.0,
        "surrogate_reprobe": 0,
        "surrogate_ddof": 1,
        "marker": "math_paragraph",
        "marker_window": 256,
        "entropy_threshold": 0.1,
        "margin_threshold": 0.0,
        "threshold_weighting": "none",
        "poll_threshold_min": 1,
        "abort_gap_min": 0,
        "abort_answer_quantile": 0.0,
        "aborted_rollouts": "mask",
        "stratification": "clip",
        "max_weight": None,
    },
    "release": {
        "allocation_objective": "variance",
        "allocation_solver": "bisection",
        "price_aborted": False,
        "surrogate_floor": 1e-6,
        "surrogate_floor_quantile": 0.0,
        "surrogate_cold": 1.0,
        "surrogate_unseen": "floor",
        "surrogate_shrinkage": 0.0,
        "surrogate_reprobe": 0,
        "surrogate_ddof": 0,
        "marker": "math",
        "marker_window": 256,
        "entropy_threshold": 0.0,
        "margin_threshold": 0.99,
        "threshold_weighting": "none",
        "poll_threshold_min": 32,
        "abort_gap_min": 50,
        "abort_answer_quantile": 0.0,
        "aborted_rollouts": "mask",
        "stratification": "clip",
        "max_weight": 1000.0,
    },
}


def resolve(config: Any) -> None:
    """Fill the fields of a `DUETGRPOConfig` that are `None` from its preset, in place.

    Args:
        config (DUETGRPOConfig): Configuration whose `preset` is valid and whose batch sizes are resolved.
    """
    for name, value in PRESETS[config.preset].items():
        if config.__dict__[name] is None:
            setattr(config, name, value)
    if config.advantage_baseline is None:
        # Part of the allocator: it too lives on what is remembered about a prompt, which is one summed reward.
        summed = config.multi_objective_aggregation == "sum_then_normalize"
        config.advantage_baseline = "history" if config.preset == "duet" and config.allocate and summed else "group"
    if config.advantage_cutoff is None:
        # Over a history hardly any advantage is exactly 0; those below the cutoff cost a third of the forward passes.
        # It is in standard deviations, so where nothing scales it could drop everything; and the surrogate of the
        # objective "variance" needs the log-probability of every rollout whose advantage is not 0 (Eq. 3).
        fits = config.scale_rewards != "none" and config.allocation_objective == "mixed"
        remembers = config.preset == "duet" and config.advantage_baseline == "history"
        config.advantage_cutoff = 0.5 if remembers and fits else 0.0
    if config.num_rollouts_min is None:
        # Two is the least that has an advantage without a history; at an average of two it would be uniform.
        mean_rollouts = config.budget_fraction * config.num_generations
        config.num_rollouts_min = 2 if config.preset == "duet" and mean_rollouts > 2 else 1
    if config.max_rollouts is None:
        config.max_rollouts = config.generation_batch_size
    if config.drop_zero_advantage is None:
        config.drop_zero_advantage = config.preset == "duet" and zero_advantage_is_inert(config)


def zero_advantage_is_inert(config: Any) -> bool:
    """Whether a rollout with advantage 0 contributes nothing but its tokens in N_t."""
    return (
        config.beta == 0
        and config.entropy_coef == 0
        and not config.use_adaptive_entropy
        and config.top_entropy_quantile == 1
        and config.router_aux_loss_coef in (None, 0)
    )
