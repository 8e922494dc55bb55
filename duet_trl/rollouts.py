# SPDX-License-Identifier: Apache-2.0
"""The types that a method and the loop share: prompts, jobs, the rollouts they lead to, and a judgement.

Below them is the record of one generation step on one process, which the loop and the trainer fill phase by phase.

A generation step consists of rounds of jobs. A method sees the prompts and the rollouts of the rounds so far, and asks
for more until it needs none; then it judges all rollouts at once (docs/architecture.md#one-step). Everything here is
equal on every process and independent of TRL.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .gate.replay import GateSpec, Outcome, Replay


@dataclass(frozen=True)
class Prompt:
    """A prompt of the data set."""

    key: str  # its identity across epochs
    example: Mapping[str, Any]  # data-set row: "prompt" (text or messages) and the other columns


class NoMorePrompts(ValueError):
    """A method asked for more prompts than the data set has."""


class Prompts:
    """The prompts of one generation step; a method may add to them.

    Args:
        batch (Sequence[Prompt]): The M prompts that the sampler drew.
        step (int): Generation step, from 1.
        epoch (int): Completed passes over the data.
        source (Callable): (count, keys that are taken) -> that many other prompts, the same on every process and after
            a resume; raises `NoMorePrompts`. None: there are no others.

    Attributes:
        num_drawn (int): M, without those that were added.
    """

    def __init__(
        self,
        batch: Sequence[Prompt],
        step: int = 1,
        epoch: int = 0,
        source: Callable[[int, set[str]], Sequence[Prompt]] | None = None,
    ) -> None:
        self._prompts = list(batch)
        self._source = source
        self.num_drawn = len(self._prompts)
        self.step = step
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._prompts)

    def __getitem__(self, index: int) -> Prompt:
        return self._prompts[index]

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self._prompts)

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of all prompts, including those that were added."""
        return tuple(prompt.key for prompt in self._prompts)

    def more(self, count: int) -> range:
        """Add prompts that the step does not hold yet, drawn at random under the run's seed.

        Args:
            count (int): How many, >= 0.

        Returns:
            range: Their indices.

        Raises:
            NoMorePrompts: If the data set has fewer that the step does not hold.
        """
        if self._source is None:
            raise NoMorePrompts(
                f"this run has no source of more prompts, and {count} were asked for. Train on a Dataset instead of a "
                "stream."
            )
        first = len(self._prompts)
        self._prompts += self._source(count, set(self.keys))
        return range(first, len(self._prompts))


@dataclass(frozen=True)
class Job:
    """One rollout that a method asks for."""

    prompt: int  # index into the prompts of the step
    prefix: tuple[int, ...] = ()
    """Token ids that the rollout begins with; empty: it begins after the prompt. They are not generated again, and
    cost no generated token."""
    prefix_logprobs: tuple[float, ...] | None = None
    """Log-probs of the prefix under the policy that sampled it, nats, one for each token. Needed where the engine
    returns log-probs."""
    max_tokens: int | None = None  # length at which it is cut, prefix included; None: `max_completion_length`
    gate: GateSpec | None = None  # that it runs through, counted from its first token, prefix included; None: none
    keep: bool = False  # its coin: True survives the gate without a marker
    continues: int | None = None
    """Number of the rollout of this step that it continues; the prefix is then all of that rollout's tokens. The
    earlier one is superseded: it has no reward, and only the tokens that were generated for it count.
    None: the prefix, if there is one, is from elsewhere."""
    whole: bool = False
    """The prefix is a rollout that has ended: its last token ends it, or it is at the length limit. No token is
    generated."""


NO_GATE = GateSpec(poll_threshold=1, abort_threshold=1, grace_window=0, trim=False, abort=False)
"""The gate that a job without one is replayed with."""


@dataclass(frozen=True)
class Query:
    """A question to the model in training. It costs a forward pass and no generated token."""

    prompt: int  # index into the prompts of the step
    ids: tuple[int, ...]  # token ids that follow the prompt, length T >= 1
    hidden_at: int | None = None
    """Ask for the last hidden state at this token, 0..T-1, shape (D,); None: ask for the log-prob of each token at the
    sampling temperature, shape (T,), nats."""


@dataclass(frozen=True)
class Rollouts:
    """The N rollouts of a step so far, all rounds and all processes, in the order in which they were asked for."""

    prompts: Prompts  # of the step
    jobs: tuple[Job, ...]  # of each rollout, length N
    prompt: np.ndarray  # of each rollout, shape (N,), int64
    round: np.ndarray  # of each, from 0, shape (N,), int64
    replay: Replay  # outcome, marker time, answer time, trimmed flag and length, prefix included, shape (N,) each
    terminated: np.ndarray  # ended by an EOS, shape (N,), bool
    rewards_per_func: torch.Tensor  # reward functions, shape (N, F); nan where one abstained
    rewards: np.ndarray
    """Their weighted sum, shape (N,), float64; nan where all abstained, and where the rollout is superseded."""
    reward_weights: torch.Tensor | None = None  # of each reward function, shape (F,); None: 1 each
    answers: tuple[np.ndarray, ...] = ()  # to the queries of all rounds, in the order in which they were asked
    tokens: Callable[[Sequence[int]], list[tuple[list[int], list[float] | None]]] = field(
        default=lambda rows: [], repr=False
    )
    """Token ids of some rollouts and their log-probs under the sampling policy (None where the engine has none). The
    processes that generated them hold them, so every process must ask for the same rows."""

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def scored(self) -> np.ndarray:
        """Rollouts with a reward, shape (N,), bool."""
        return ~np.isnan(self.rewards)

    @property
    def superseded(self) -> np.ndarray:
        """Rollouts that another one of the step continues, shape (N,), bool."""
        found = np.zeros(len(self), dtype=bool)
        found[[job.continues for job in self.jobs if job.continues is not None]] = True
        return found

    @property
    def aborted(self) -> np.ndarray:
        """Rollouts that the gate aborted, shape (N,), bool."""
        return self.replay.outcome == Outcome.ABORTED

    @property
    def new_tokens(self) -> np.ndarray:
        """Tokens that were generated for each rollout, without its prefix, shape (N,), int64."""
        return self.replay.length - np.fromiter((len(job.prefix) for job in self.jobs), np.int64, len(self.jobs))


@dataclass(frozen=True)
class Judgement:
    """A method's decision about the rollouts of a step, shape (N,) each."""

    advantages: np.ndarray  # unweighted, finite
    weight: np.ndarray  # of each rollout in the loss, >= 0
    in_gradient: np.ndarray  # gets a forward pass, bool
    in_divisor: (
        np.ndarray
    )  # its tokens count in N_t, by which the loss divides (Eq. 6), bool; true where `in_gradient`
    propensity: np.ndarray  # probability with which a rollout of this outcome enters the gradient, in (0, 1]

    @classmethod
    def of(cls, advantages: np.ndarray, in_gradient: np.ndarray | None = None) -> "Judgement":
        """Every weight and propensity 1; all rollouts in the gradient, and those of the gradient in the divisor."""
        ones = np.ones(len(advantages))
        in_gradient = ones.astype(bool) if in_gradient is None else in_gradient
        return cls(advantages, ones, in_gradient, in_gradient, ones)


# ---- One step on one process --------------------------------------------------------------------------------------

PHASES = ("plan", "generate", "score", "update", "overhead")


@dataclass(frozen=True)
class LocalRollout:
    """A rollout on the process that generated it; it is sent unchanged to the one that trains it."""

    prompt_ids: list[int]
    completion_ids: list[int]  # policy tokens, the prefix included, the forced stop removed
    completion: str | list[dict]  # text or messages, as TRL decoded them
    logprobs: list[float | None] | None  # of the policy tokens under the sampling policy, nats
    gate_stopped: bool = False
    in_thought: bool = False  # its prompt opens a thought
    terminated: bool = False  # it ended with an EOS


def policy_mask(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Tokens in the loss that the policy drew, shape (B, C): without the EOS that is taught (`duet_end`)."""
    mask, end = batch["completion_mask"], batch["duet_end"]
    return mask * (torch.arange(mask.size(1), device=mask.device) != end[:, None])


@dataclass
class StepRecord:
    """One generation step on one process. Everything of shape (N,) is equal on every process."""

    prompts: Prompts
    local: dict[int, LocalRollout] = field(default_factory=dict)  # generated here, by global number, ascending
    spare: LocalRollout | None = None  # one generated here, even where none is needed
    jobs: list[Job] = field(default_factory=list)  # of each rollout, length N
    done: Rollouts | None = None  # all rollouts so far
    rounds: int = 0  # of rollouts
    planned: tuple[list[Job], list[Query]] | None = None  # the next round, if already decided
    judgement: Judgement | None = None
    nonfinite: np.ndarray | None = None  # no usable reward: lost, (N,)
    asked_tokens: int = 0  # of the questions to the model
    keeps_order: bool = False  # rows stay where GRPOTrainer has them
    packed_rows: np.ndarray | None = None  # rollout of each row, -1: padding, (W, rows)
    extra_logs: dict[str, list] = field(default_factory=dict)  # columns of reward functions, all N
    train_rows: dict[str, torch.Tensor] = field(default_factory=dict)  # TRL's batch of this process
    row_tokens: np.ndarray | None = None  # policy tokens in its row of the batch, (N,)
    loss_tokens: np.ndarray | None = None  # those of them left in the loss, (N,)
    taught_to_end: np.ndarray | None = None  # an EOS after these is trained, (N,), bool
    in_divisor: np.ndarray | None = None  # counts in the divisor of the loss, (N,), bool
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
        """Rollouts that neither an EOS nor the gate ended, usually at the length limit, shape (N,), bool."""
        return ~self.done.terminated & ~self.stopped
