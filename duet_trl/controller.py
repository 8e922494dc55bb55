# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1 in one class: plan -> gate -> weigh -> observe.

The controller decides and remembers; it neither generates nor trains. Every process of a run holds the same
controller, fed with the rollouts of all processes, so that no state ever needs to be exchanged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .allocate.neyman import Allocation
from .allocate.statistics import PromptStatistics, RewardHistory
from .gate.marker_gate import GatePlan, MarkerGate
from .gate.replay import Outcome, Replay


class Allocator(Protocol):
    """Phase 1. Decides from prompt keys and history alone, never from rewards of the step it plans.

    Attributes:
        statistics (PromptStatistics): What is remembered about each prompt.
        measuring (bool): The next plan is a measurement of ungated lengths.
        cold (np.ndarray): Prompts of the last plan without an observation, shape (M,), bool.
    """

    statistics: PromptStatistics
    measuring: bool
    cold: np.ndarray

    def plan(self, keys: Sequence[str], epoch: int) -> Allocation:
        """Counts for a batch of prompts after `epoch` completed passes."""

    def observe_lengths(
        self, keys: Sequence[str], group: np.ndarray, lengths: np.ndarray, tokens: np.ndarray, kept: np.ndarray
    ) -> None:
        """Policy tokens and generated tokens of each rollout (N,), and whether it was kept."""

    def observe_sigma(
        self, keys: Sequence[str], group: np.ndarray, advantages: np.ndarray, sum_logps: np.ndarray, use: np.ndarray
    ) -> None:
        """Unweighted advantage and sum of log pi of each rollout (N,), where `use` is true."""

    def observe_rewards(self, keys: Sequence[str], group: np.ndarray, rewards: np.ndarray, use: np.ndarray) -> None:
        """Summed reward of each rollout (N,), where `use` is true."""

    def metrics(self) -> dict[str, float]:
        """Plain floats about the last plan."""

    def state_dict(self) -> dict:
        """JSON state."""

    def load_state_dict(self, state: dict) -> None:
        """Restore `state_dict()`."""


@dataclass(frozen=True)
class StepPlan:
    """What is decided before a token is generated.

    Attributes:
        step (int): Generation step, from 1.
        keys (tuple[str, ...]): Prompt keys, length M.
        allocation (Allocation): Rollouts per prompt, dual, planned tokens.
        cold (np.ndarray): Prompts without an observation so far, shape (M,), bool.
        group (np.ndarray): Prompt of each rollout, shape (N,), sorted.
        gate (GatePlan): Thresholds and coins.
    """

    step: int
    keys: tuple[str, ...]
    allocation: Allocation
    cold: np.ndarray
    group: np.ndarray
    gate: GatePlan

    @property
    def num_rollouts(self) -> np.ndarray:
        """Rollouts per prompt, shape (M,)."""
        return self.allocation.num_rollouts


@dataclass(frozen=True)
class Judgement:
    """What the gate and the filters made of the rollouts.

    Attributes:
        propensity (np.ndarray): Probability with which a rollout of this outcome is kept, shape (N,).
        weight (np.ndarray): w of Eq. 6, shape (N,); 0 for masked rollouts.
        kept (np.ndarray): In the gradient and in N_t, shape (N,), bool.
        trained (np.ndarray): Kept and given a forward pass, shape (N,), bool.
    """

    propensity: np.ndarray
    weight: np.ndarray
    kept: np.ndarray
    trained: np.ndarray


class Controller:
    """DUET's joint controller, one training step after the other (Algorithm 1).

    Args:
        allocator (Allocator): Phase 1.
        gate (MarkerGate): Phase 2.
        weigher (Callable): Phase 3: (num_rollouts (M,), group (N,), propensity (N,), aborted (N,)) -> weights (N,).
        train_aborted (bool): Train aborted rollouts as failures with propensity 1 instead of masking them. Biased
            against long answers: its expectation is the gradient of a policy cut at K2 + G.
        rollout_filter (Callable): (advantages (N,), masked (N,)) -> rollouts that get a forward pass (N,), bool.
        identity (dict[str, Any]): JSON values that must agree when a state is restored.
    """

    def __init__(
        self,
        allocator: Allocator,
        gate: MarkerGate,
        weigher: Callable[..., np.ndarray],
        *,
        train_aborted: bool,
        rollout_filter: Callable[[np.ndarray, np.ndarray], np.ndarray],
        identity: dict[str, Any],
    ) -> None:
        self.allocator = allocator
        self.gate = gate
        self.weigher = weigher
        self.train_aborted = train_aborted
        self.rollout_filter = rollout_filter
        self.identity = identity
        self.step = 0

    def plan(self, keys: Sequence[str], epoch: int) -> StepPlan:
        """Phase 1, lines 1-8: how many rollouts each prompt gets, and the gate they run through.

        Args:
            keys (Sequence[str]): Identity of each prompt of the batch across epochs, length M.
            epoch (int): Completed passes over the data.

        Returns:
            StepPlan: Counts, thresholds and coins of this step.
        """
        step = self.step + 1
        allocation = self.allocator.plan(keys, epoch)
        group = np.repeat(np.arange(len(keys)), allocation.num_rollouts)
        gate = self.gate.plan(step, keys, group, active=not self.allocator.measuring)
        return StepPlan(step, tuple(keys), allocation, self.allocator.cold, group, gate)

    def replay(
        self,
        plan: StepPlan,
        rows: np.ndarray,
        completion_ids: Sequence[Sequence[int]],
        gate_stopped: np.ndarray,
        in_thought: np.ndarray | None = None,
    ) -> Replay:
        """Phase 2, lines 9-30, read back from the tokens of some rollouts.

        Args:
            plan (StepPlan): Plan the rollouts were generated under.
            rows (np.ndarray): Index of each rollout in the plan, shape (R,).
            completion_ids (Sequence[Sequence[int]]): Policy tokens of each, without a forced stop.
            gate_stopped (np.ndarray): Whether the gate stopped it, shape (R,), bool.
            in_thought (np.ndarray | None): Whether its prompt opened a thought, shape (R,), bool; None: nowhere.

        Returns:
            Replay: Outcome, marker time, trimmed flag and length of each.

        Raises:
            GateMismatch: If the engine cannot have run this gate.
        """
        return self.gate.replay(plan.gate.spec, plan.gate.keep[rows], completion_ids, gate_stopped, in_thought)

    def reward_history(self, plan: StepPlan) -> RewardHistory:
        """What earlier visits of the prompts of a step say about their rewards, shape (M,) each."""
        return self.allocator.statistics.reward_history(plan.keys)

    def weigh(self, plan: StepPlan, outcome: np.ndarray, advantages: np.ndarray) -> Judgement:
        """Phase 3, lines 35-38: who is masked, and w = (1 - I) / (s_pre p) for the others (Eq. 6).

        Args:
            plan (StepPlan): Plan of the step.
            outcome (np.ndarray): `Outcome` of each rollout, shape (N,).
            advantages (np.ndarray): Group-normalised over all rollouts, aborted ones included, shape (N,).

        Returns:
            Judgement: Weights and masks, shape (N,) each.
        """
        aborted = outcome == Outcome.ABORTED
        propensity = self.gate.propensity(outcome)
        if self.train_aborted:
            masked, applied = np.zeros_like(aborted), np.ones_like(propensity)
        else:
            masked, applied = aborted, propensity
        weight = self.weigher(plan.num_rollouts, plan.group, applied, masked)
        kept = ~masked  # a kept rollout without a forward pass still counts in N_t
        return Judgement(propensity, weight, kept, self.rollout_filter(advantages, masked))

    def observe_rollouts(
        self, plan: StepPlan, replay: Replay, judgement: Judgement, rewards: np.ndarray, use: np.ndarray
    ) -> None:
        """Phase 4, lines 45-50: running mean lengths, the window of K1 and K2, the step counter; reward histories.

        Args:
            plan (StepPlan): Plan of the step.
            replay (Replay): Outcomes of all N rollouts.
            judgement (Judgement): Masks and propensities of all N rollouts.
            rewards (np.ndarray): Summed rewards, shape (N,); the unused may be nan.
            use (np.ndarray): Rollouts that enter the statistics, shape (N,), bool.
        """
        survived = use & (replay.outcome != Outcome.ABORTED)
        self.allocator.observe_lengths(plan.keys, plan.group, replay.length, replay.length, survived)
        self.gate.observe(
            replay.length[survived],
            judgement.propensity[survived],
            replay.answered_at[survived],
            rewards[survived],
            plan.step,
        )
        self.allocator.observe_rewards(plan.keys, plan.group, rewards, use)
        self.step = plan.step

    def observe_sigma(self, plan: StepPlan, advantages: np.ndarray, sum_logps: np.ndarray, use: np.ndarray) -> None:
        """Phase 4, lines 41-44: running mean of std_i(A_i sum log pi) over kept rollouts (Eq. 3).

        Args:
            plan (StepPlan): Plan of the step.
            advantages (np.ndarray): Unweighted, shape (N,).
            sum_logps (np.ndarray): Sum of log pi over policy tokens, nats, shape (N,); nan where unknown.
            use (np.ndarray): Rollouts that enter the statistics, shape (N,), bool.
        """
        # A rollout with advantage 0 contributes exactly 0 whatever its log-probability, so it needs no forward pass.
        known = np.where(advantages == 0, 0.0, sum_logps)
        self.allocator.observe_sigma(plan.keys, plan.group, advantages, known, use & np.isfinite(known))

    def metrics(self) -> dict[str, float]:
        """Dual, budget, calibration of the last step: plain floats."""
        return self.allocator.metrics()

    def state_dict(self) -> dict:
        """Everything a restored run needs to make the same plans: JSON types only."""
        return {
            "identity": self.identity,
            "step": self.step,
            "allocator": self.allocator.state_dict(),
            "gate": self.gate.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore `state_dict()`.

        Args:
            state (dict): State of a controller with the same identity.

        Raises:
            ValueError: If keys are missing or the state belongs to another configuration; names the differences.
        """
        missing = {"identity", "step", "allocator", "gate"} - state.keys()
        if missing:
            raise ValueError(f"The controller state lacks {sorted(missing)}: it was not written by this library.")
        foreign = {
            name: (state["identity"].get(name), value)
            for name, value in self.identity.items()
            if state["identity"].get(name) != value
        }
        if foreign:
            differences = ", ".join(
                f"{name}: {old!r} in the state, {new!r} now" for name, (old, new) in foreign.items()
            )
            raise ValueError(
                f"The controller state belongs to another configuration ({differences}). Resume with the "
                "configuration of the checkpoint, or start a new output_dir."
            )
        self.allocator.load_state_dict(state["allocator"])
        self.gate.load_state_dict(state["gate"])
        self.step = state["step"]
