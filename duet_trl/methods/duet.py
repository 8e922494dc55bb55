# SPDX-License-Identifier: Apache-2.0
r"""DUET: how many rollouts each prompt gets, and when each rollout stops, under one token budget.

1. **Allocate.** Counts n_q, sum n_q L_q <= B: equal, or (`allocate`) such that the rewards of as many prompts as
   possible differ. With `prompt_candidates` prompts compete for the visits first (`visits.py`).
2. **Generate.** All rollouts run through one gate: a rollout stops shortly after its answer marker, or, without a
   marker, at K2 + G, where continuing earns less per token than another rollout would. A coin keeps a few of those.
3. **Update.** GRPO's. Aborted rollouts are failures, and nothing is weighted: the gradient is in expectation that of a
   policy that is cut at K2 + G.
4. **Observe.** Lengths, rewards, answer times, and the price of a token.

`paper.py` is Algorithm 1 as printed, docs/fidelity.md lists the differences.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..allocate.allocators import MixedAllocator, UniformAllocator
from ..allocate.visits import Visits
from ..field_types import Follows, config_field
from ..gate.replay import keep_coins, propensity
from ..gate.thresholds import PricedThresholds
from ..rollouts import Job, Judgement, NoMorePrompts, Prompts, Rollouts
from .gated import TRIMS, Gated, GateOptions, bounds_of, budget_of, refuse_lone_rollouts
from .grouping import group_relative, visit_metrics
from .method import Setting


@dataclass(frozen=True)
class DuetOptions(GateOptions):
    """`method_kwargs` of `duet`."""

    prompt_candidates: float = config_field(
        "Prompts that compete for each visit: of this many times the prompts of a step, those with the most "
        "uncertain success rate get rollouts. 1: those that the sampler drew.",
        1.0,
        rule=(lambda x: 1 <= x < math.inf, "at least 1; 1 visits what the sampler drew; got {}"),
    )
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
    """The joint controller of counts and stops."""

    def __init__(self, config: Any, setting: Setting) -> None:
        thresholds = PricedThresholds(
            config.max_completion_length, config.grace_window, width=config.options.poll_interval
        )
        allocator = MixedAllocator if config.allocate else UniformAllocator
        super().__init__(config, setting, allocator(budget_of(config), **bounds_of(config)), thresholds)
        self.options: DuetOptions
        self.teaches_ending = config.trim and self.options.teach_ending
        self.num_candidates = config.num_candidates
        decay = self.allocator.statistics.reward_decay
        self.visits = Visits(decay) if self.num_candidates > config.num_prompts else None
        if self.visits is not None:
            self.parts["visits"] = self.visits

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> Sequence[Job]:
        """One round: which prompts are visited, counts, the gate of the step, a coin for each rollout."""
        return self.planned(prompts, self._chosen(prompts)) if done is None else []

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
        """Learn lengths, answer times, rewards, and what the prompt selection depends on."""
        keys, group = self.learn(done, judgement)
        self._metrics |= self._visit_metrics(done) | {"surcharge": 1.0}  # nothing is masked, so nothing is reweighted
        statistics, scored = self.allocator.statistics, done.scored
        if self.visits is not None and statistics.rewards_differ:  # a single reward value does not define success
            shares = statistics.success_share(done.rewards[scored])
            self.visits.observe(keys, group[scored], shares, done.prompts.step)

    def _visit_metrics(self, done: Rollouts) -> dict[str, float]:
        if self.visits is None:
            return {}
        return visit_metrics(done) | {
            "visited_prompts": float(len(self.visits)),
            "pool_success": self.visits.pool_success(done.prompts.step),
        }

    def _chosen(self, prompts: Prompts) -> Sequence[int] | np.ndarray:
        """Prompts of the step that are visited, ascending, as many as the sampler drew."""
        if self.visits is None:
            return range(len(prompts))
        try:
            prompts.more(self.num_candidates - prompts.num_drawn)
        except NoMorePrompts as error:
            raise NoMorePrompts(f"prompt_candidates={self.options.prompt_candidates:g}: {error}") from error
        return self.visits.choose(prompts.keys, prompts.num_drawn, prompts.step)


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
