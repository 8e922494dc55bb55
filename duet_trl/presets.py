# SPDX-License-Identifier: Apache-2.0
"""What each preset sets, in one place.

A preset gives the fields of `DUETGRPOConfig` that the user left at `None`. `docs/fidelity.md` has one line per
difference.
"""

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    "duet": {
        "allocation_solver": "exact",
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
        "max_weight": None,
    },
    "paper": {
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
        "max_weight": None,
    },
    "release": {
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
    if config.num_rollouts_min is None:
        # A lone rollout has no advantage, so two is the least that teaches; at an average of two it would be uniform.
        mean_rollouts = config.budget_fraction * config.num_generations
        config.num_rollouts_min = 2 if config.preset == "duet" and mean_rollouts > 2 else 1
    if config.max_rollouts is None:
        config.max_rollouts = config.generation_batch_size
    if config.drop_zero_advantage is None:
        config.drop_zero_advantage = config.preset == "duet" and config._zero_advantage_is_inert
