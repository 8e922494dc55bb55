# SPDX-License-Identifier: Apache-2.0
"""The record of one generation step on one process, filled phase by phase."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from .gate.replay import Outcome, Replay
from .rollouts import Job, Judgement, Prompts, Rollouts

PHASES = ("plan", "generate", "score", "update", "overhead")


@dataclass(frozen=True)
class LocalRollout:
    """What travels to the process that trains a rollout."""

    prompt_ids: list[int]
    completion_ids: list[int]
    completion: str | list[dict]
    logprobs: list[float | None] | None


@dataclass(frozen=True)
class Generated:
    """What one process generated in one round: the rollouts of its jobs, then repeats as padding, length R each.

    Attributes:
        prompt_ids (list[list[int]]): Tokens of each prompt.
        completion_ids (list[list[int]]): Policy tokens of each rollout, prefix included, the forced stop removed.
        completions (list): Text or messages, as TRL decoded them.
        logprobs (list[list[float]] | None): Log-probs of the policy tokens under the sampling policy, nats.
        gate_stopped (np.ndarray): Whether the gate stopped each, shape (R,), bool.
        in_thought (np.ndarray): Whether its prompt opens a thought, shape (R,), bool.
        terminated (np.ndarray): Whether an EOS ended it, shape (R,), bool.
    """

    prompt_ids: list
    completion_ids: list
    completions: list
    logprobs: list | None
    gate_stopped: np.ndarray
    in_thought: np.ndarray
    terminated: np.ndarray

    def rollouts(self, count: int) -> list[LocalRollout]:
        """The first `count` of them."""
        logprobs = self.logprobs or [None] * count
        return [
            LocalRollout(list(prompt), list(ids), completion, None if logps is None else list(logps))
            for prompt, ids, completion, logps in zip(
                self.prompt_ids[:count], self.completion_ids[:count], self.completions, logprobs, strict=False
            )
        ]


@dataclass
class StepRecord:
    """One generation step on one process. What has shape (N,) is equal on every process.

    Attributes:
        prompts (Prompts): Prompts of the step.
        local (dict[int, LocalRollout]): Rollouts generated here, by global number, in ascending order.
        spare (LocalRollout | None): Something that was generated here, even where no rollout is.
        jobs (list[Job]): What each rollout was asked for as, length N.
        done (Rollouts | None): All rollouts so far; None before the first round.
        rounds (int): Rounds of rollouts.
        judgement (Judgement): Weights and masks of all N rollouts.
        nonfinite (np.ndarray): Without a usable reward or log-probability, shape (N,), bool.
        asked_tokens (int): Tokens of the questions to the model.
        packed_rows (np.ndarray): Global number of each row that each process trains, in micro-batch order, -1 for
            padding, shape (W, rows).
        extra_logs (dict[str, list]): Columns logged by reward functions, all N rollouts.
        train_rows (dict[str, torch.Tensor]): TRL's batch of this process in micro-batch order.
        loss_tokens (np.ndarray): Policy tokens of each rollout that TRL leaves in the loss, shape (N,).
        num_train_tokens (int): Policy tokens that get a forward pass, over all processes.
        num_kept_tokens (int): N_t of Eq. 6, over all processes.
        captured (list[torch.Tensor]): Per micro-batch: row number, sum of log pi, policy tokens, shape (B, 3).
        sum_logps (np.ndarray): Sum of log pi of each rollout, shape (N,), nan where unknown.
        seconds (dict[str, float]): Of each phase.
    """

    prompts: Prompts
    local: dict[int, LocalRollout] = field(default_factory=dict)
    spare: LocalRollout | None = None
    jobs: list[Job] = field(default_factory=list)
    done: Rollouts | None = None
    rounds: int = 0
    judgement: Judgement | None = None
    nonfinite: np.ndarray | None = None
    asked_tokens: int = 0
    packed_rows: np.ndarray | None = None
    extra_logs: dict[str, list] = field(default_factory=dict)
    train_rows: dict[str, torch.Tensor] = field(default_factory=dict)
    loss_tokens: np.ndarray | None = None
    num_train_tokens: int = 0
    num_kept_tokens: int = 0
    captured: list[torch.Tensor] = field(default_factory=list)
    sum_logps: np.ndarray | None = None
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    def capture(self, batch: dict[str, torch.Tensor], logps: torch.Tensor) -> None:
        """Note number, sum log pi and policy tokens of each row of a batch; `logps` has shape (B, C), nats."""
        mask = batch["completion_mask"]
        columns = (batch["duet_row"], (logps * mask).sum(dim=1), mask.sum(dim=1))
        self.captured.append(torch.stack([column.double() for column in columns], dim=1))

    @property
    def replay(self) -> Replay:
        """What the gate did to all N rollouts."""
        return self.done.replay

    @property
    def rows(self) -> np.ndarray:
        """Global numbers of the rollouts generated here, ascending, shape (R,)."""
        return np.fromiter(self.local, dtype=np.int64, count=len(self.local))

    @cached_property
    def num_rollouts(self) -> np.ndarray:
        """Rollouts of each prompt, shape (M,); cached, so only to be asked for after the last round."""
        return np.bincount(self.done.prompt, minlength=len(self.prompts))

    @property
    def stopped(self) -> np.ndarray:
        """Rollouts that the gate stopped, shape (N,), bool."""
        return self.replay.trimmed | (self.replay.outcome == Outcome.ABORTED)

    @property
    def truncated(self) -> np.ndarray:
        """Rollouts that neither an EOS nor the gate ended, at the length limit as a rule, shape (N,), bool."""
        return ~self.done.terminated & ~self.stopped
