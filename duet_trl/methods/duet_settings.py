# SPDX-License-Identifier: Apache-2.0
"""What the methods `duet` and `paper` are set by: their `method_kwargs`, and all of it resolved in one object.

The two methods are one algorithm with two columns of defaults, compared switch by switch in docs/fidelity.md.
"""

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from ..field_types import Acts, Options, at_least, one_of, option

_SHARE = (lambda x: 0 < x <= 1, "in (0, 1]; got {}")
_COUNTS = Acts(lambda v: v.allocate, "allocate=True")
_VARIANCE = "allocate=True and allocation_objective='variance'"
_BY_VARIANCE = Acts(lambda v: v.allocate and v.allocation_objective == "variance", _VARIANCE)
_ONLINE = Acts(lambda v: _BY_VARIANCE.when(v) and v.surrogate == "online", f"surrogate='online', {_VARIANCE}")
_GATED = Acts(lambda v: v.trim or v.abort, "trim=True or abort=True")
_TRIMS = Acts(lambda v: v.trim, "trim=True")
_ABORTS = Acts(lambda v: v.abort, "abort=True")
_BY_LENGTH = Acts(
    lambda v: _GATED.when(v) and v.abort_rule == "length", "trim=True or abort=True, and abort_rule='length'"
)
_ABORTS_BY_LENGTH = Acts(lambda v: v.abort and v.abort_rule == "length", "abort=True and abort_rule='length'")
_CUTS = Acts(lambda v: v.drop_zero_advantage, "drop_zero_advantage=True")


@dataclass(frozen=True)
class DuetOptions(Options):
    """`method_kwargs` of `duet` and `paper`. None, in three of them, is what follows from other fields (`settle`)."""

    # Allocation (paper, section 3.1)
    allocation_objective: str = option(
        "What the counts optimise: 'variance' (Theorem 1) or 'mixed', the expected number of prompts whose rewards "
        "differ.",
        duet="mixed",
        paper="variance",
        rule=one_of("variance", "mixed"),
        acts=_COUNTS,
    )
    prompt_candidates: float = option(
        "Prompts that compete for each visit: of so many times the prompts of a step, those whose success rate is "
        "most open get rollouts. 1: those that the sampler drew.",
        1.0,
        unit="at least 1",
        rule=(lambda x: 1 <= x < math.inf, "at least 1; 1 visits what the sampler drew; got {}"),
    )
    surrogate: str = option(
        "Where sigma comes from: 'online' (each prompt's visits) or 'constant' (counts follow lengths alone).",
        "online",
        rule=one_of("online", "constant"),
        acts=_BY_VARIANCE,
    )
    surrogate_warmup: int = option(
        "Observations before a prompt's own sigma is used.",
        1,
        unit="observations",
        symbol="k_warmup",
        rule=at_least(1),
        acts=_ONLINE,
    )

    # Gate (paper, section 3.2)
    poll_interval: int = option(
        "Tokens between two marker checks.", 8, unit="tokens", symbol="delta_poll", rule=at_least(1), acts=_GATED
    )
    entropy_threshold: float = option(
        "Entropy of the next token below which an answered rollout stops before its grace window ends. 0: not by "
        "entropy. The paper gives no value.",
        0.1,
        unit="nats",
        symbol='"low-entropy token"',
        rule=(lambda x: 0 <= x < math.inf, "at least 0 nats; 0 switches it off; got {}"),
        acts=_TRIMS,
    )
    abort_rule: str = option(
        "Where K1, K2 and the coin come from: 'price' (polled from the start; a rollout without an answer goes on "
        "while that pays for its tokens) or 'length' (quantiles of lengths, and keep_probability).",
        duet="price",
        paper="length",
        rule=one_of("price", "length"),
        acts=_GATED,
    )
    threshold_window: int = option(
        "Kept rollouts whose lengths K1 and K2 are refitted to.",
        1024,
        unit="rollouts",
        symbol="W",
        rule=at_least(1),
        acts=_BY_LENGTH,
    )
    threshold_interval: int = option(
        "Steps between two refits of K1 and K2.", 10, unit="steps", symbol="N", rule=at_least(1), acts=_BY_LENGTH
    )
    poll_quantile: float = option(
        "Length quantile of K1.", 0.3, unit="(0, 1]", symbol="p30", rule=_SHARE, acts=_BY_LENGTH
    )
    abort_quantile: float = option(
        "Length quantile of K2.", 0.8, unit="(0, 1]", symbol="p80", rule=_SHARE, acts=_ABORTS_BY_LENGTH
    )
    poll_cold_fraction: float = option(
        "K1 before the first refit, share of max_completion_length.",
        0.3,
        unit="(0, 1]",
        symbol="0.3 L_max",
        rule=_SHARE,
        acts=_BY_LENGTH,
    )
    abort_cold_fraction: float = option(
        "K2 before the first refit, share of max_completion_length.",
        0.7,
        unit="(0, 1]",
        symbol="0.7 L_max",
        rule=_SHARE,
        acts=_ABORTS_BY_LENGTH,
    )

    # Update (paper, section 3.3)
    aborted_rollouts: str = option(
        "'mask': aborted rollouts leave the gradient, kept ones weigh 1/eps. 'failure': they are trained as truncated "
        "failures and every propensity is 1 (the gradient of a policy cut at K2 + G).",
        symbol="I_abort",
        duet="failure",
        paper="mask",
        rule=one_of("mask", "failure"),
        acts=_ABORTS,
    )
    teach_ending: bool = option(
        "Train a trimmed rollout as far as its answer goes, and where that was good an EOS behind it. False: with the "
        "tokens that the grace window let through, whatever the policy would have written next.",
        duet=True,
        paper=False,
        acts=_TRIMS,
    )
    stratification: str = option(
        "'clip' of n_q over the mean to [0.05, 1], 'exact' without the clip, 'none': a prompt weighs as much as it "
        "has rollouts.",
        symbol="s_pre",
        duet="none",
        paper="clip",
        rule=one_of("clip", "exact", "none"),
    )
    advantage_baseline: str | None = option(
        "'group': the group's mean. 'history': the mean of the others, shrunk toward the prompt's earlier rewards. "
        "'measured': the same, moved with the pool, in the weights that predicted rewards best so far. "
        "'least_noise': below that mean where failures have the longer gradients. "
        "Default of duet: 'least_noise' where rewards are summed and any part is on, else 'group'.",
        paper="group",
        rule=one_of("group", "history", "measured", "least_noise"),
    )
    advantage_cutoff: float | None = option(
        "Rollouts whose reward is nearer to its baseline get no forward pass. Default of duet with "
        "allocation_objective='mixed': 0.25 over the baseline 'least_noise', 0.5 over 'history' and 'measured' with "
        "scaled rewards; else 0.",
        unit="with 'least_noise' the way to the nearest other reward of the run, else standard deviations",
        paper=0.0,
        rule=(lambda x: 0 <= x < math.inf, "at least 0; 0 drops nothing but zeros; got {}"),
        acts=_CUTS,
    )
    drop_zero_advantage: bool | None = option(
        "Leave rollouts with advantage 0 out of the forward pass; they still count in N_t. Only where they cannot "
        "move the loss: beta=0, no entropy bonus, no router loss. Default of duet: True there.",
        paper=False,
    )


def settle(config: Any, options: DuetOptions) -> DuetOptions:
    """Decide what follows from other fields: three options, and `num_rollouts_min` of the configuration, in place."""
    recommended = config.method != "paper"
    if options.advantage_baseline is None:
        # What is remembered about a prompt is one summed reward. With every part off it is GRPO, loss for loss.
        summed = config.multi_objective_aggregation == "sum_then_normalize"
        options = replace(options, advantage_baseline="least_noise" if config.parts_on and summed else "group")
    if options.advantage_cutoff is None:
        # Over a history hardly any advantage is exactly 0; small ones cost a third of the forward passes.
        # In standard deviations it could drop everything where nothing scales; and the surrogate of the
        # objective "variance" needs the log-probability of every rollout whose advantage is not 0 (Eq. 3).
        scaled = 0.0 if config.scale_rewards == "none" else 0.5
        dropped = {"group": 0.0, "least_noise": 0.25}.get(options.advantage_baseline, scaled)
        options = replace(options, advantage_cutoff=dropped if options.allocation_objective == "mixed" else 0.0)
    if config.num_rollouts_min is None:
        # Two is the least that has an advantage without a history; at an average of two it would be uniform.
        config.num_rollouts_min = 2 if recommended and config.budget_fraction * config.num_generations > 2 else 1
    if options.abort_rule == "price":
        config.keep_probability = None  # the coin follows what is known of late answers
    if options.drop_zero_advantage is None:
        options = replace(options, drop_zero_advantage=zero_advantage_is_inert(config))
    return options


def check_relations(config: Any, options: DuetOptions) -> None:
    """Raise ValueError for settled options that contradict each other or fields of the configuration."""
    resolved = SimpleNamespace(**config.__dict__, **options.__dict__)
    for low, high in (("poll_quantile", "abort_quantile"), ("poll_cold_fraction", "abort_cold_fraction")):
        shares = options.__dict__[low], options.__dict__[high]
        if _ABORTS_BY_LENGTH.when(resolved) and not shares[0] < shares[1]:
            raise ValueError(
                f"0 < {low} < {high} <= 1 must hold, got {shares[0]} and {shares[1]}: a rollout is polled before it "
                "can be aborted."
            )
    if options.advantage_baseline != "group" and config.multi_objective_aggregation != "sum_then_normalize":
        raise ValueError(
            f"multi_objective_aggregation={config.multi_objective_aggregation!r} has no summed reward to remember. "
            "Set advantage_baseline='group', or multi_objective_aggregation='sum_then_normalize'."
        )
    if options.drop_zero_advantage and not zero_advantage_is_inert(config):
        raise ValueError(
            "drop_zero_advantage=True needs beta=0, no entropy bonus, top_entropy_quantile=1 and no "
            "router_aux_loss_coef: rollouts with advantage 0 would move the loss. Set drop_zero_advantage=False."
        )
    if options.advantage_baseline == "least_noise" and options.advantage_cutoff >= 1:
        raise ValueError(
            f"advantage_cutoff={options.advantage_cutoff:g} would drop every rollout: over the baseline 'least_noise' "
            "it is a share of the way to the nearest other reward. Set it below 1; 0.25 is the default."
        )
    refuse_lone_rollouts(config, options)


def settle_router_loss(config: Any, coefficient: float) -> None:
    """Keep rollouts with advantage 0 for a model with an auxiliary loss of its router, which sees all their tokens.

    `router_aux_loss_coef=None` is the model's own coefficient, so this waits for the model.
    """
    if not isinstance(config.options, DuetOptions) or not config.options.drop_zero_advantage:
        return
    for name in ("drop_zero_advantage", "advantage_cutoff"):
        value = (config.method_kwargs or {}).get(name)
        if value is not None:
            remedy = "Set drop_zero_advantage=False" if name == "drop_zero_advantage" else f"Remove {name}"
            raise ValueError(
                f"{name}={value}, but this model has an auxiliary loss of its router (coefficient {coefficient}), to "
                f"which rollouts with advantage 0 contribute. {remedy}, or set router_aux_loss_coef=0."
            )
    config.options = replace(config.options, drop_zero_advantage=False)


def mean_rollouts(config: Any) -> float:
    """Rollouts per prompt that budget and caps allow on average; a budget in tokens is no limit."""
    bought = float("inf") if config.budget_reading == "tokens" else config.budget_fraction * config.num_generations
    return min(bought, config.num_rollouts_max, config.max_rollouts / config.num_prompts)


def refuse_lone_rollouts(config: Any, options: DuetOptions) -> None:
    """Raise ValueError if every prompt has one rollout at most and nothing to compare it with, in every step.

    A reference budget is frozen in tokens and may buy more once rollouts are shorter.
    """
    compares = options.advantage_baseline == "group" and config.budget_reading != "reference"
    if compares and mean_rollouts(config) <= 1:
        raise ValueError(
            f"advantage_baseline='group' compares the rollouts of a prompt, and there is {mean_rollouts(config):g} of "
            "each (the least of budget_fraction x num_generations, num_rollouts_max and max_rollouts per prompt), so "
            "no step has a gradient. Raise it, or set advantage_baseline='least_noise'."
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
