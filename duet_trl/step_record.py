# SPDX-License-Identifier: Apache-2.0
"""The record of one generation step on one process, filled phase by phase."""

from dataclasses import dataclass, field

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
    """What one process generated in one round: the rollouts of its jobs, then repeats as padding, length R each."""

    prompt_ids: list  # tokens of each prompt
    completion_ids: list  # policy tokens, prefix included, the forced stop removed
    completions: list  # text or messages, as TRL decoded them
    logprobs: list | None  # of the policy tokens under the sampling policy, nats
    gate_stopped: np.ndarray  # shape (R,), bool
    in_thought: np.ndarray  # its prompt opens a thought, shape (R,), bool
    terminated: np.ndarray  # by an EOS, shape (R,), bool

    def rollouts(self, count: int) -> list[LocalRollout]:
        """The first `count` of them."""
        logprobs = self.logprobs or [None] * count
        return [
            LocalRollout(list(prompt), list(ids), completion, None if logps is None else list(logps))
            for prompt, ids, completion, logps in zip(
                self.prompt_ids[:count], self.completion_ids[:count], self.completions, logprobs, strict=False
            )
        ]


def policy_mask(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Tokens in the loss that the policy drew, shape (B, C): without the EOS that is taught (`duet_end`)."""
    mask, end = batch["completion_mask"], batch["duet_end"]
    return mask * (torch.arange(mask.size(1), device=mask.device) != end[:, None])


@dataclass
class StepRecord:
    """One generation step on one process. What has shape (N,) is equal on every process."""

    prompts: Prompts
    local: dict[int, LocalRollout] = field(default_factory=dict)  # generated here, by global number, ascending
    spare: LocalRollout | None = None  # something generated here, even where no rollout is
    jobs: list[Job] = field(default_factory=list)  # what each rollout was asked for as, length N
    done: Rollouts | None = None  # all rollouts so far
    rounds: int = 0  # of rollouts
    judgement: Judgement | None = None
    nonfinite: np.ndarray | None = None  # no usable reward: lost, (N,)
    asked_tokens: int = 0  # of the questions to the model
    packed_rows: np.ndarray | None = None  # rollout of each row, -1: padding, (W, rows)
    extra_logs: dict[str, list] = field(default_factory=dict)  # columns of reward functions, all N
    train_rows: dict[str, torch.Tensor] = field(default_factory=dict)  # TRL's batch of this process
    row_tokens: np.ndarray | None = None  # policy tokens that stand in a row of the batch, (N,)
    loss_tokens: np.ndarray | None = None  # those of them left in the loss, (N,)
    taught_to_end: np.ndarray | None = None  # an EOS behind these is trained, (N,), bool
    in_divisor: np.ndarray | None = None  # counts in what the loss divides by, (N,), bool
    num_train_tokens: int = 0  # with a forward pass, all processes
    num_kept_tokens: int = 0  # N_t of Eq. 6
    captured: list[torch.Tensor] = field(default_factory=list)  # per micro-batch: row, sum of log pi, tokens
    sum_logps: np.ndarray | None = None  # sum of log pi, nan: unknown, (N,)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    def capture(self, batch: dict[str, torch.Tensor], logps: torch.Tensor) -> None:
        """Note number, sum log pi and policy tokens of each row of a batch; `logps` has shape (B, C), nats."""
        mask = policy_mask(batch)
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

    @property
    def num_rollouts(self) -> np.ndarray:
        """Rollouts of each prompt, shape (M,)."""
        return np.bincount(self.done.prompt[self.counted], minlength=len(self.prompts))

    @property
    def counted(self) -> np.ndarray:
        """Rollouts that no other one continues, shape (N,), bool."""
        return ~self.done.superseded

    @property
    def stopped(self) -> np.ndarray:
        """Rollouts that the gate stopped, shape (N,), bool."""
        return self.replay.trimmed | (self.replay.outcome == Outcome.ABORTED)

    @property
    def truncated(self) -> np.ndarray:
        """Rollouts that neither an EOS nor the gate ended, at the length limit as a rule, shape (N,), bool."""
        return ~self.done.terminated & ~self.stopped
