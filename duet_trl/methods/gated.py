# SPDX-License-Identifier: Apache-2.0
"""The base of `duet` and `paper`: counts under one token budget, a gate for all rollouts, and what both learn."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..allocate.allocators import Budget, UniformAllocator
from ..field_types import Acts, Options, at_least, config_field
from ..gate.replay import GateSpec, Outcome, keep_coins, occurrence
from ..gate.thresholds import LengthThresholds, PricedThresholds
from ..rollouts import Job, Judgement, Prompts, Rollouts
from .method import Method, Setting

GATED = Acts(lambda v: v.trim or v.abort, "trim=True or abort=True")
TRIMS = Acts(lambda v: v.trim, "trim=True")


@dataclass(frozen=True)
class GateOptions(Options):
    """Options of the gate (paper, section 3.2)."""

    poll_interval: int = config_field("Tokens between two marker checks.", 8, rule=at_least(1), acts=GATED)
    entropy_threshold: float = config_field(
        "Entropy of the next token below which an answered rollout stops before its grace window ends. 0: never "
        "by entropy. The paper gives no value.",
        0.1,
        rule=(lambda x: 0 <= x < float("inf"), "at least 0 nats; 0 switches it off; got {}"),
        acts=TRIMS,
    )


class Gated(Method):
    """Counts by an allocator and stops by a gate; the method decides what is trained.

    `thresholds` set K1, K2 and the coin of the gate, whose `window` is that of `GateSpec`.
    """

    remembered = ("allocator", "thresholds")

    def __init__(
        self,
        config: Any,
        setting: Setting,
        allocator: UniformAllocator,
        thresholds: LengthThresholds | PricedThresholds,
        window: int | None = None,
    ) -> None:
        self.setting, self.options = setting, config.options
        self.allocator, self.thresholds = allocator, thresholds
        self.gated = config.gated
        self.plain = not config.duet_active
        self.identity = {"method": config.method, "budget_reading": config.budget_reading}
        self.keep_probability = thresholds.keep_probability  # of the last coins that were flipped
        rule = config.options
        self._gate = GateSpec(
            1, 1, config.grace_window, rule.poll_interval, config.trim, config.abort, rule.entropy_threshold, window
        )
        self._metrics: dict[str, float] = {}

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> Sequence[Job]:
        """One round, lines 1-10 and 22: counts, the gate of the step, a coin for each rollout."""
        if done is not None:
            return []
        keys = prompts.keys
        group = np.repeat(np.arange(len(keys)), self.allocator.plan(keys, prompts.epoch).num_rollouts)
        gate = self.spec() if self.gated else None
        self.keep_probability = self.thresholds.keep_probability
        keep = self.coins(prompts.step, [keys[q] for q in group])
        return [Job(int(q), gate=gate, keep=bool(coin)) for q, coin in zip(group, keep, strict=True)]

    def coins(self, step: int, keys: list[str]) -> np.ndarray:
        """Of the rollouts of a step, given the key of each one's prompt, shape (N,), bool: one for each."""
        return keep_coins(self.setting.seed, step, keys, occurrence(keys), self.keep_probability)

    def spec(self) -> GateSpec:
        """The gate with its current thresholds."""
        unit = self.thresholds
        return replace(self._gate, poll_threshold=unit.poll_threshold, abort_threshold=unit.abort_threshold)

    def learn(self, done: Rollouts, judgement: Judgement) -> None:
        """Lines 45-50: learn lengths, rewards, and what sets the gate."""
        keys, group = done.prompts.keys, done.prompt
        self._metrics = self._step_metrics(done, judgement)
        length, scored = done.replay.length, done.scored
        self.allocator.statistics.observe_lengths(keys, group, length, scored & ~done.aborted)
        self.thresholds.observe(done.replay, done.rewards, done.prompts.step, self.allocator.price)
        self.allocator.statistics.observe_rewards(keys, group, done.rewards, scored)

    def metrics(self) -> dict[str, float]:
        """Dual, budget, calibration, thresholds, and what the abort cost in the last step."""
        return self.allocator.metrics() | self._metrics

    def _step_metrics(self, done: Rollouts, judgement: Judgement) -> dict[str, float]:
        advantages, propensity = judgement.advantages, judgement.propensity
        # A rollout that the coin kept represents 1 / eps - 1 others, on average, that it did not keep.
        late = (done.replay.outcome == Outcome.KEPT) & (done.replay.answered_at >= 0) & (advantages > 0)
        return {
            "poll_threshold": float(self.thresholds.poll_threshold),
            "abort_threshold": float(self.thresholds.abort_threshold),
            "keep_probability": self.keep_probability,
            "price": self.allocator.price,
            "late_answers_lost": float((1.0 / propensity[late] - 1.0).sum()),
        }


def budget_of(config: Any) -> Budget:
    """The budget B of a configuration."""
    return Budget(config.budget_fraction, config.num_generations, config.budget_tokens)


def bounds_of(config: Any) -> dict[str, Any]:
    """Limits on counts, as arguments of an allocator."""
    return {
        "max_length": config.max_completion_length,
        "num_min": config.num_rollouts_min,
        "num_max": config.num_rollouts_max,
        "max_rollouts": config.max_rollouts,
    }


def refuse_lone_rollouts(config: Any) -> None:
    """Raise ValueError if no step can have two rollouts of a prompt."""
    bought = float("inf") if config.budget_reading == "tokens" else config.budget_fraction * config.num_generations
    mean = min(bought, config.num_rollouts_max, config.max_rollouts / config.num_prompts)
    if mean <= 1:
        raise ValueError(
            f"method={config.method!r} compares the rollouts of a prompt, and there is {mean:g} of each (the minimum "
            "of budget_fraction x num_generations, num_rollouts_max and max_rollouts per prompt), so no step has a "
            "gradient. Raise it."
        )
