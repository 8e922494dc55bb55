# SPDX-License-Identifier: Apache-2.0
r"""DUET: how many rollouts each prompt gets, and when each rollout stops, under one token budget (Algorithm 1).

1. **Allocate.** Counts n_q, sum n_q L_q <= B: alike, or (`allocate`) by what is remembered about each prompt, its
   expected tokens L_q and its rewards (or sigma_q, Theorem 1). With `prompt_candidates` prompts compete for the visits
   first (`visits.py`).
2. **Generate.** All rollouts run through one gate: a rollout stops shortly after its answer marker, or, without a
   marker, at K2 + G, unless a coin that lands with probability eps keeps it.
3. **Update.** Advantages over all rollouts of a prompt, aborted ones included; weights
   w = (1 - I_abort) / (s_pre p_abort) (Eq. 6).
4. **Observe.** Lengths, rewards, sigma, and the window from which K1 and K2 follow.

With aborted rollouts masked (`paper`) the weights make the gradient unbiased for that of full rollouts, up to the
clip of s_pre. With aborted rollouts trained as failures (`duet`) its expectation is the gradient of a policy that is
cut at K2 + G. docs/algorithm.md maps every line of the paper to code, docs/fidelity.md lists the differences between
the paper and the default.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..allocate.allocators import UniformAllocator
from ..allocate.state import check_state
from ..allocate.statistics import RewardHistory
from ..allocate.visits import Visits
from ..gate.marker_gate import MarkerGate
from ..gate.replay import Outcome
from ..rollouts import Job, Judgement, NoMorePrompts, Prompts, Rollouts
from ..update.baseline import (
    LeastNoise,
    MeasuredWeights,
    NoiseRatio,
    Weights,
    history_distances,
    scaled_distances,
)
from ..update.importance import rollout_weights, surcharge
from .duet_settings import DuetOptions
from .grouping import group_relative, visit_metrics
from .method import Method, Setting


class Duet(Method):
    """The joint controller of counts and stops."""

    def __init__(self, config: Any, setting: Setting, allocator: UniformAllocator, gate: MarkerGate) -> None:
        self.setting = setting
        self.options: DuetOptions = config.options
        self.allocator = allocator
        self.gate = gate
        self.gated = config.gated
        self.teaches_ending = config.trim and self.options.teach_ending
        self.plain = not config.duet_active
        self.identity = {"method": config.method, "budget_reading": config.budget_reading}
        self.num_candidates = config.num_candidates
        self.visits = Visits(allocator.statistics.reward_decay) if self.num_candidates > config.num_prompts else None
        baseline = self.options.advantage_baseline
        self.weights = MeasuredWeights() if baseline in ("measured", "least_noise") else None
        self.noise_ratio = NoiseRatio() if baseline == "least_noise" else None
        self._metrics: dict[str, float] = {}

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> Sequence[Job]:
        """Lines 1-10 and 22: counts, the gate of the step, a coin for each rollout."""
        if done is not None:
            return []
        visited = self._chosen(prompts)
        keys = prompts.keys
        allocation = self.allocator.plan([keys[q] for q in visited], prompts.epoch)
        group = np.repeat(visited, allocation.num_rollouts)
        # A reference budget is measured on rollouts that no gate stops.
        spec = self.gate.spec(active=not self.allocator.measuring)
        keep = self.gate.coins(prompts.step, [keys[q] for q in group])
        gate = spec if self.gated else None
        return [Job(int(q), gate=gate, keep=bool(coin)) for q, coin in zip(group, keep, strict=True)]

    def judge(self, done: Rollouts) -> Judgement:
        """Lines 29-38: advantages over all rollouts, who is masked, and w = (1 - I) / (s_pre p) for the others."""
        advantages, size = self._advantages(done)
        propensity = self.gate.propensity(done.replay.outcome)
        masked, applied = done.aborted, propensity
        if self._trains_aborted:
            masked, applied = np.zeros_like(masked), np.ones_like(applied)
        _, group, counts = np.unique(done.prompt, return_inverse=True, return_counts=True)
        weight = rollout_weights(counts, group, applied, masked, stratification=self.options.stratification)
        trained = ~masked
        if self.options.drop_zero_advantage:
            trained &= (advantages != 0) & (size >= self.options.advantage_cutoff)
        return Judgement(advantages, weight, trained, ~masked, propensity)

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Lines 41-50: lengths, the window of K1 and K2, rewards, and sigma (Eq. 3)."""
        visited, group = np.unique(done.prompt, return_inverse=True)  # what was planned: each has a rollout
        self._metrics = self._step_metrics(done, judgement, sum_logps, self.allocator.cold[group])
        keys = [done.prompts[q].key for q in visited]
        length, scored = done.replay.length, done.scored
        self.allocator.observe_lengths(keys, group, length, length, scored & ~done.aborted)
        self.gate.observe(done.replay, done.rewards, done.prompts.step, self.allocator.price)
        if self.weights is not None:
            self.weights.observe(done.rewards, done.prompt, self._history(done))
        self.allocator.observe_rewards(keys, group, done.rewards, scored)
        statistics = self.allocator.statistics
        if statistics.rewards_differ:  # one reward so far does not tell what a success is
            shares = statistics.success_share(done.rewards[scored])
            if self.visits is not None:
                self.visits.observe(keys, group[scored], shares, done.prompts.step)
            if self.noise_ratio is not None:
                self.noise_ratio.observe(shares, sum_logps[scored])
        # A rollout with advantage 0 contributes exactly 0 whatever its log-probability, so it needs no forward pass.
        known = np.where((judgement.advantages == 0) & ~np.isinf(sum_logps), 0.0, sum_logps)
        use = judgement.in_divisor & scored & np.isfinite(known)
        self.allocator.observe_sigma(keys, group, judgement.advantages, known, use)

    def state_dict(self) -> dict[str, Any]:
        """What is remembered about prompts, and the window of K1 and K2; what prompts compete by, if they do."""
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`. Raises ValueError if keys are missing or foreign."""
        check_state("method duet", state, self._parts)
        for name, part in self._parts.items():
            part.load_state_dict(state[name])

    def metrics(self) -> dict[str, float]:
        """Dual, budget, calibration, thresholds, and what the abort cost in the last step."""
        return self.allocator.metrics() | self._metrics | self._baseline_metrics

    @property
    def _baseline_metrics(self) -> dict[str, float]:
        if self.weights is None:
            return {}
        pool, history = self.weights.best
        ratio = {} if self.noise_ratio is None else {"noise_ratio": self.noise_ratio.value}
        return {"baseline_pool": pool, "baseline_history": history} | ratio

    @property
    def _parts(self) -> dict[str, Any]:
        names = ("allocator", "gate", "visits", "weights", "noise_ratio")
        return {name: part for name in names if (part := getattr(self, name)) is not None}

    def _chosen(self, prompts: Prompts) -> np.ndarray:
        """Prompts of the step that are visited, ascending, as many as the sampler drew."""
        if self.visits is None:
            return np.arange(len(prompts))
        try:
            prompts.more(self.num_candidates - prompts.num_drawn)
        except NoMorePrompts as error:
            raise NoMorePrompts(f"prompt_candidates={self.options.prompt_candidates:g}: {error}") from error
        return self.visits.choose(prompts.keys, prompts.num_drawn, prompts.step)

    @property
    def _trains_aborted(self) -> bool:
        return self.options.aborted_rollouts == "failure"

    def _advantages(self, done: Rollouts) -> tuple[np.ndarray, np.ndarray]:
        """Advantages and what `advantage_cutoff` is compared with, shape (N,) each.

        That is their size; over the baseline of least noise the distance of a reward from it as a share of the way to
        the nearest other reward: whatever difference a reward function makes, it is not small. Divided by a prompt's
        own spread, the successes of a prompt that is always solved would be as far from it as those of an open one.
        """
        if self.options.advantage_baseline == "group":
            advantages = group_relative(done, self.setting)
            return advantages, np.abs(advantages)
        history, weights = self._history(done), Weights() if self.weights is None else self.weights.best
        lower, of = self._least_noise, (done.rewards, done.prompt, history)
        distances = history_distances(*of, weights, lower)
        # In the precision of the loss, so that what is filtered and remembered is what is trained.
        scaled = scaled_distances(distances, *of, self.setting.scale_rewards, weights)
        advantages = scaled.astype(np.float32).astype(np.float64)
        if self.noise_ratio is None:
            return advantages, np.abs(advantages)
        if lower is None:  # nothing is known yet that could be small
            return advantages, np.where(advantages != 0, np.inf, 0.0)
        gaps = self.allocator.statistics.reward_gaps(np.where(done.scored, done.rewards, 0.0))
        with np.errstate(divide="ignore"):
            return advantages, np.where(advantages != 0, np.abs(distances) / gaps, 0.0)

    @property
    def _least_noise(self) -> LeastNoise | None:
        statistics = self.allocator.statistics
        if self.noise_ratio is None or not statistics.rewards_differ:
            return None
        return LeastNoise(self.noise_ratio.value, *statistics.reward_range)

    def _history(self, done: Rollouts) -> RewardHistory:
        """What the baseline knows of the prompts of a step before it."""
        history = self.allocator.statistics.reward_history(done.prompts.keys)
        return history if self.weights is None else history.at_present()

    def _step_metrics(
        self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray, cold: np.ndarray
    ) -> dict[str, float]:
        advantages, propensity, length = judgement.advantages, judgement.propensity, done.replay.length
        # A rollout that the coin kept stands for 1 / eps - 1 others, on average, that it did not keep.
        late = (done.replay.outcome == Outcome.KEPT) & (done.replay.answered_at >= 0) & (advantages > 0)
        mass = np.abs(judgement.weight * advantages) * length
        return self._visit_metrics(done) | {
            "poll_threshold": float(self.gate.thresholds.poll_threshold),
            "abort_threshold": float(self.gate.thresholds.abort_threshold),
            "keep_probability": self.gate.keep_probability,
            "price": self.allocator.price,
            "late_answers_lost": float((1.0 / propensity[late] - 1.0).sum()),
            "cold_prompts": float(self.allocator.cold.sum()),
            "cold_gradient_share": float(mass[cold].sum()) / max(float(mass.sum()), 1e-12),
            "surcharge": self._surcharge(done, judgement, sum_logps),
        }

    def _visit_metrics(self, done: Rollouts) -> dict[str, float]:
        if self.visits is None:
            return {}
        return visit_metrics(done) | {
            "visited_prompts": float(len(self.visits)),
            "pool_success": self.visits.pool_success(done.prompts.step),
        }

    def _surcharge(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> float:
        """Factor by which the abort raises the second moment of the update (Theorem 2, Eq. 8); 1 is free."""
        if self._trains_aborted:
            return 1.0  # none is masked, so none is weighted for those that are
        known = np.isfinite(sum_logps)
        return surcharge(
            np.where(known, judgement.advantages, 0.0),
            np.where(known, sum_logps, 0.0),
            done.replay.length,
            done.prompt,
            judgement.propensity,
            done.aborted,
            num_prompts=len(done.prompts),
            keep_probability=self.gate.keep_probability,
        )
