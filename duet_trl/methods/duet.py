# SPDX-License-Identifier: Apache-2.0
r"""DUET: how many rollouts there are, and when each of them stops, under one token budget.

1. **Allocate.** The same number of rollouts for every prompt, as many as the budget B pays for.
2. **Generate.** All rollouts run through one gate: a rollout stops shortly after its answer marker, or, without a
   marker, at K2 + G, where continuing earns less per token than another rollout would. A coin keeps a few of those.
3. **Update.** GRPO's. Aborted rollouts are failures, and nothing is weighted: the gradient is in expectation that of a
   policy that is cut at K2 + G.
4. **Observe.** Lengths, rewards, answer times, and the price of a token.

`paper.py` is Algorithm 1 as printed, docs/fidelity.md lists the differences.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..allocate.allocators import UniformAllocator
from ..field_types import Follows, config_field
from ..gate.replay import keep_coins, propensity
from ..gate.thresholds import PricedThresholds
from ..rollouts import Judgement, Rollouts
from .gated import TRIMS, Gated, GateOptions, bounds_of, budget_of, refuse_lone_rollouts
from .grouping import group_relative
from .method import Setting


@dataclass(frozen=True)
class DuetOptions(GateOptions):
    """`method_kwargs` of `duet`."""

    teach_ending: bool = config_field(
        "Train a trimmed rollout up to its answer, and if that was good an EOS after it, as after one that a stop "
        "string ended. False: to its last token.",
        True,
        acts=TRIMS,
    )
    drop_zero_advantage: bool | None = config_field(
        "Leave rollouts with advantage 0 out of the forward pass; they still count in the divisor. Only where they "
        "cannot move the loss: beta=0, no entropy bonus, no router loss.",
        follows=Follows(lambda c: zero_advantage_is_inert(c), "True there"),
    )


class Duet(Gated):
    """Even counts, and a gate at one price."""

    def __init__(self, config: Any, setting: Setting) -> None:
        thresholds = PricedThresholds(
            config.max_completion_length, config.grace_window, width=config.options.poll_interval
        )
        super().__init__(config, setting, UniformAllocator(budget_of(config), **bounds_of(config)), thresholds)
        self.options: DuetOptions
        self.teaches_ending = config.trim and self.options.teach_ending

    def coins(self, step: int, keys: list[str]) -> np.ndarray:
        """One for all: a step takes as long as its longest rollout, so those that are kept share their steps."""
        same = [""] * len(keys), np.zeros(len(keys), dtype=np.int64)
        return keep_coins(self.setting.seed, step, *same, self.keep_probability)

    def judge(self, done: Rollouts) -> Judgement:
        """Advantages over all rollouts of a prompt; one whose advantage is 0 gets no forward pass."""
        advantages, every = group_relative(done, self.setting), np.ones(len(done), dtype=bool)
        trained = advantages != 0 if self.options.drop_zero_advantage else every
        kept = propensity(done.replay.outcome, self.keep_probability)
        return Judgement(advantages, np.ones(len(done)), trained, every, kept)

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Learn lengths, answer times and rewards."""
        self.learn(done, judgement)
        self._metrics["surcharge"] = 1.0  # nothing is masked, so nothing is reweighted


def check(config: Any) -> None:
    """Raise ValueError for options that contradict each other or fields of the configuration."""
    options = config.options
    if options.drop_zero_advantage and not zero_advantage_is_inert(config):
        raise ValueError(
            "drop_zero_advantage=True needs beta=0, no entropy bonus, top_entropy_quantile=1 and no "
            "router_aux_loss_coef: rollouts with advantage 0 would move the loss. Set drop_zero_advantage=False."
        )
    refuse_lone_rollouts(config)


def settle_router_loss(config: Any, coefficient: float) -> None:
    """Keep rollouts with advantage 0 for a model with an auxiliary loss of its router, which sees all their tokens.

    `router_aux_loss_coef=None` is the model's own coefficient, so this waits for the model.
    """
    if not isinstance(config.options, DuetOptions) or not config.options.drop_zero_advantage:
        return
    if (config.method_kwargs or {}).get("drop_zero_advantage") is not None:
        raise ValueError(
            "drop_zero_advantage=True, but this model has an auxiliary loss of its router (coefficient "
            f"{coefficient}), to which rollouts with advantage 0 contribute. Set drop_zero_advantage=False, or "
            "set router_aux_loss_coef=0."
        )
    config.options = replace(config.options, drop_zero_advantage=False)


def zero_advantage_is_inert(config: Any) -> bool:
    """Whether a rollout with advantage 0 contributes nothing but its tokens in N_t, as far as the fields tell."""
    return (
        config.beta == 0
        and config.entropy_coef == 0
        and not config.use_adaptive_entropy
        and config.top_entropy_quantile == 1
        and config.router_aux_loss_coef in (None, 0)
    )
