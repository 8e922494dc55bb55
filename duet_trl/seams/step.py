# SPDX-License-Identifier: Apache-2.0
"""The record of one generation step, filled phase by phase."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from ..controller import Judgement, StepPlan
from ..gate.replay import Outcome, Replay
from ..update.advantages import GroupAdvantages
from .exchange import Placement


@dataclass
class Step:
    """One generation step on one process.

    Attributes:
        examples (list[dict]): Data-set row of each prompt, length M, the same on every process.
        plan (StepPlan): Decided before generation, the same on every process.
        placement (Placement): Which process generates which rollout.
        rows (np.ndarray): Global numbers of the rollouts generated here, shape (R,).
        prompt_ids, completion_ids, completions, logprobs (list): Local rollouts, length R, without forced stops.
        in_thought (np.ndarray): Whether the prompt of each of these opens a thought, shape (R,), bool.
        gate_stopped (np.ndarray): Local, shape (R,), bool.
        replay (Replay): All N rollouts.
        terminated (np.ndarray): Ended by an EOS, shape (N,), bool.
        nonfinite (np.ndarray): Without a usable reward or log-probability, shape (N,), bool.
        rewards_per_func (torch.Tensor): All N rollouts, shape (N, F).
        advantages (GroupAdvantages): All N rollouts.
        judgement (Judgement): Weights and masks of all N rollouts.
        packed_rows (np.ndarray): Global number of each row that each process trains, in micro-batch order, -1 for
            padding, shape (W, rows).
        extra_logs (dict[str, list]): Columns logged by reward functions, all N rollouts.
        train_rows (dict[str, torch.Tensor]): TRL's batch of this process in micro-batch order.
        loss_tokens (np.ndarray): Policy tokens of each rollout that TRL leaves in the loss, shape (N,).
        num_train_tokens (int): Policy tokens that get a forward pass, over all processes.
        num_kept_tokens (int): N_t of Eq. 6, over all processes.
        captured (list[torch.Tensor]): Per micro-batch: row number, sum of log pi, policy tokens, shape (B, 3).
        sum_logps (np.ndarray): Sum of log pi of each rollout, shape (N,), nan where unknown.
        seconds (dict[str, float]): plan, generate, score, update, overhead.
    """

    examples: list[dict]
    plan: StepPlan
    placement: Placement
    rows: np.ndarray
    prompt_ids: list = field(default_factory=list)
    completion_ids: list = field(default_factory=list)
    completions: list = field(default_factory=list)
    logprobs: list | None = None
    in_thought: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    gate_stopped: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    replay: Replay | None = None
    terminated: np.ndarray | None = None
    nonfinite: np.ndarray | None = None
    rewards_per_func: torch.Tensor | None = None
    advantages: GroupAdvantages | None = None
    judgement: Judgement | None = None
    packed_rows: np.ndarray | None = None
    extra_logs: dict[str, list] = field(default_factory=dict)
    train_rows: dict[str, torch.Tensor] = field(default_factory=dict)
    loss_tokens: np.ndarray | None = None
    num_train_tokens: int = 0
    num_kept_tokens: int = 0
    captured: list[torch.Tensor] = field(default_factory=list)
    sum_logps: np.ndarray | None = None
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("plan", "generate", "score", "update", "overhead"), 0.0)
    )

    def capture(self, batch: dict[str, torch.Tensor], logps: torch.Tensor) -> None:
        """Note number, sum log pi and policy tokens of each row of a batch; `logps` has shape (B, C), nats."""
        mask = batch["completion_mask"]
        columns = (batch["duet_row"], (logps * mask).sum(dim=1), mask.sum(dim=1))
        self.captured.append(torch.stack([column.double() for column in columns], dim=1))

    @cached_property
    def raw_advantages(self) -> np.ndarray:
        """Unweighted advantages on the host, shape (N,), float64; one synchronisation for all who ask."""
        return self.advantages.advantages.double().cpu().numpy()

    @cached_property
    def summed_rewards(self) -> np.ndarray:
        """Weighted sum of the reward functions on the host, shape (N,), float64; nan where all abstained."""
        return self.advantages.rewards.double().cpu().numpy()

    @property
    def generated_rows(self) -> np.ndarray:
        """Rows this process really generates: its own, or rollout 0 where it has none (collectives need one)."""
        return self.rows if len(self.rows) else np.zeros(1, dtype=np.int64)

    @property
    def stopped(self) -> np.ndarray:
        """Rollouts that the gate stopped, shape (N,), bool."""
        return self.replay.trimmed | (self.replay.outcome == Outcome.ABORTED)

    @property
    def truncated(self) -> np.ndarray:
        """Rollouts that neither an EOS nor the gate ended, at the length limit as a rule, shape (N,), bool."""
        return ~self.terminated & ~self.stopped

    @property
    def padded_rows(self) -> np.ndarray:
        """`generated_rows` with the last repeated, so that every process holds as many rows."""
        missing = self.placement.rows_per_process - len(self.generated_rows)
        return np.concatenate([self.generated_rows, np.repeat(self.generated_rows[-1:], missing)])


@dataclass(frozen=True)
class Rollout:
    """What travels to the process that trains a rollout."""

    prompt_ids: list[int]
    completion_ids: list[int]
    completion: str | list[dict]
    logprobs: list[float | None] | None


@dataclass(frozen=True)
class ReplayBatch:
    """Answers TRL's `_generate` and `_calculate_rewards` with rollouts that already exist.

    Attributes:
        generated (tuple): The 8-tuple of `GRPOTrainer._generate`.
        rewards_per_func (torch.Tensor): Rewards of the rows of all processes, shape (W * rows, F).
    """

    generated: tuple
    rewards_per_func: torch.Tensor
