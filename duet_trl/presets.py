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
        "surrogate_unseen": "median",
        "surrogate_shrinkage": 1.0,
        "surrogate_reprobe": 2,
        "marker": "math",
        "marker_window": 0,
        "entropy_threshold": 0.1,
        "threshold_weighting": "propensity",
        "abort_answer_quantile": 0.95,
        "aborted_rollouts": "failure",
        "stratification": "none",
    },
    "paper": {
        "allocation_objective": "variance",
        "allocation_solver": "bisection",
        "price_aborted": False,
        "surrogate_floor": 0.01,
        "surrogate_floor_quantile": 0.05,
        "surrogate_unseen": "floor",
        "surrogate_shrinkage": 0.0,
        "surrogate_reprobe": 0,
        "marker": "math_paragraph",
        "marker_window": 256,
        "entropy_threshold": 0.1,
        "threshold_weighting": "none",
        "abort_answer_quantile": 0.0,
        "aborted_rollouts": "mask",
        "stratification": "clip",
    },
}


def resolve(config: Any) -> None:
    """Fill the fields of a `DUETGRPOConfig` that are `None` from its preset, in place.

    Args:
        config (DUETGRPOConfig): Configuration whose `preset` is valid and whose batch sizes are resolved.

    Raises:
        ValueError: If `drop_zero_advantage` is asked for where such rollouts move the loss.
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
    # No field: a model with an auxiliary loss may take this choice back, but not that of the user.
    config.drops_by_preset = config.drop_zero_advantage is None
    inert = zero_advantage_is_inert(config)
    if config.drops_by_preset:
        config.drop_zero_advantage = config.preset == "duet" and inert
    elif config.drop_zero_advantage and not inert:
        raise ValueError(
            "drop_zero_advantage=True needs beta=0, no entropy bonus, top_entropy_quantile=1 and no "
            "router_aux_loss_coef: rollouts with advantage 0 would move the loss. Set drop_zero_advantage=False."
        )


def settle_router_loss(config: Any, coefficient: float) -> None:
    """Keep rollouts with advantage 0 for a model with an auxiliary loss of its router, which sees all their tokens.

    `router_aux_loss_coef=None` is the model's own coefficient, so this waits for the model.

    Args:
        config (DUETGRPOConfig): Resolved; its `drop_zero_advantage` may become False.
        coefficient (float): Coefficient of that loss, not 0.

    Raises:
        ValueError: If the user asked for `drop_zero_advantage`.
    """
    if config.drop_zero_advantage and not config.drops_by_preset:
        raise ValueError(
            "drop_zero_advantage=True, but this model has an auxiliary loss of its router (coefficient "
            f"{coefficient}), to which rollouts with advantage 0 contribute. Set drop_zero_advantage=False, or "
            "router_aux_loss_coef=0."
        )
    config.drop_zero_advantage = False


def mean_rollouts(config: Any) -> float:
    """Rollouts per prompt that budget and caps allow on average; a budget in tokens is no limit."""
    bought = float("inf") if config.budget_reading == "tokens" else config.budget_fraction * config.num_generations
    return min(bought, config.num_rollouts_max, config.max_rollouts / config.num_prompts)


def refuse_lone_rollouts(config: Any) -> None:
    """Raise ValueError if every prompt has one rollout at most and nothing to compare it with, in every step.

    A reference budget is frozen in tokens and may buy more once rollouts are shorter.
    """
    compares = config.advantage_baseline == "group" and config.budget_reading != "reference"
    if compares and mean_rollouts(config) <= 1:
        raise ValueError(
            f"advantage_baseline='group' compares the rollouts of a prompt, and there is {mean_rollouts(config):g} of "
            "each (the least of budget_fraction x num_generations, num_rollouts_max and max_rollouts per prompt), so "
            "no step has a gradient. Raise it, or set advantage_baseline='history'."
        )


def zero_advantage_is_inert(config: Any) -> bool:
    """Whether a rollout with advantage 0 contributes nothing but its tokens in N_t, as far as the fields tell."""
    return (
        config.beta == 0
        and config.entropy_coef == 0
        and not config.use_adaptive_entropy
        and config.top_entropy_quantile == 1
        and config.router_aux_loss_coef in (None, 0)
    )
