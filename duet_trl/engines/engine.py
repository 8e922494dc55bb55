# SPDX-License-Identifier: Apache-2.0
"""What the loop asks of an inference engine. One class for each engine; one file adds another (docs/engines.md)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from ..gate.parameters import GateSetup
from ..gate.replay import GateSpec


class ServerError(RuntimeError):
    """A vLLM server cannot serve this run; the text says what to change."""


class ServerLost(ServerError):
    """The server does not answer or has dropped requests. It may come back, but with the weights it started with."""


@dataclass(frozen=True)
class Request:
    """One rollout to generate."""

    prompt_ids: list[int]
    prefix: tuple[int, ...] = ()  # tokens of the rollout that exist already; the engine continues them
    max_tokens: int = 0  # length at which the rollout is cut, prefix included
    gate: GateSpec | None = None
    """Gate it runs through, counted from its first token, prefix included; None: none. A rollout whose prefix the gate
    would have stopped is stopped before its first new token."""
    keep: bool = False  # its coin
    in_thought: bool = False  # whether the rollout begins, with its prefix, inside a thought
    number: int = 0  # among the requests of one call

    @property
    def input_ids(self) -> list[int]:
        """What the engine continues: the prompt and the prefix."""
        return [*self.prompt_ids, *self.prefix]

    @property
    def new_tokens(self) -> int:
        """How many tokens it may generate."""
        return self.max_tokens - len(self.prefix)


Finish = Literal["eos", "length", "gate", "other"]


@dataclass(frozen=True)
class Completion:
    """One rollout as the engine generated it."""

    token_ids: list[int]  # after the prefix; a sampled EOS included, the forced stop removed
    finish: Finish  # its last token, an end token; its length limit; the gate; or something else, as a stop string
    logprobs: list[float] | None = None  # of each under the sampling distribution, nats; None: not known
    number: int = 0  # that of its request


@dataclass(frozen=True)
class Sampling:
    """How completions are sampled."""

    temperature: float  # 0 is greedy
    top_p: float  # in (0, 1]
    max_tokens: int  # maximum length


class Engine(Protocol):
    """An inference engine as one training process sees it.

    Every process calls it at the same time, with requests of its own, as many on each process.
    """

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Sample one rollout for each request from the policy in training.

        Args:
            requests (Sequence[Request]): Rollouts of this process, length R.

        Returns:
            list[Completion]: Length R, in the order of the requests.

        Raises:
            ServerError: On every process, if the engine cannot serve the run.
        """

    def sync_weights(self) -> None:
        """Bring the weights of the policy in training into the engine."""

    def sample(self, prompts: Sequence[list[int]], sampling: Sampling) -> list[list[int]]:
        """Ungated completions for evaluation; token ids of this process's prompts, length P."""

    def close(self) -> None:
        """Release what the engine holds."""


@dataclass(frozen=True)
class Policy:
    """What an engine of one's own is built from: the policy that a trainer trains."""

    gate: GateSetup | None  # marker, sentinel and token automaton of the run's gates; None: no request has a gate
    eos_ids: tuple[int, ...]  # that end a rollout by themselves
    sampling: Sampling  # how its rollouts are sampled; a request has a length limit of its own
    weights: Callable[[], Iterator[tuple[str, torch.Tensor]]]
    """Name and full tensor of each parameter. Every process must iterate to the end: gathering a parameter is a
    collective."""
