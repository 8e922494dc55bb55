# SPDX-License-Identifier: Apache-2.0
"""The interface of an inference engine. One class for each engine; one file adds another (docs/extending.md)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from ..gate.replay import GateSpec, split_sentinel
from ..gate.streaming import GateRequest, GateSetup


class ServerError(RuntimeError):
    """A vLLM server cannot serve this run; the message states the remedy."""


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
        """The prompt and the prefix, which the engine continues."""
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
    finish: Finish  # its last token, an end token; its length limit; the gate; or something else, e.g. a stop string
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

    Every process calls it at the same time, each with its own requests, the same number on each.
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


@dataclass(frozen=True)
class Policy:
    """The policy in training, from which a custom engine is built."""

    gate: GateSetup | None  # marker, sentinel and token automaton of the run's gates; None: no request has a gate
    eos_ids: tuple[int, ...]  # that end a rollout by themselves
    sampling: Sampling  # how its rollouts are sampled; a request has its own length limit
    weights: Callable[[], Iterator[tuple[str, torch.Tensor]]]
    """Name and full tensor of each parameter. Every process must iterate to the end: gathering a parameter is a
    collective."""


Turn = Callable[[list[list[int]]], tuple[list[list[int]], list[list[float]] | None]]
"""Token ids of prompts -> sampled ids of each, and their log-probs in nats (None: not known)."""


class TurnEngine:
    """An engine around one turn of TRL's generation, in which each row has its own gate and length.

    TRL synchronises weights, unwraps, pads and gathers.

    Args:
        turn (Turn): Generates `max_tokens` for each prompt, or up to an EOS.
        setup (GateSetup | None): None: no request has a gate.
        eos_ids (Sequence[int]): Ids that end a rollout by themselves.
        max_tokens (int): Tokens.
        sampled (Callable[[Sampling], AbstractContextManager]): While it is entered, `turn` samples with it.
    """

    _pads = False
    """Whether padding follows in a row that ended at its own limit."""

    def __init__(
        self,
        turn: Turn,
        setup: GateSetup | None,
        eos_ids: Sequence[int],
        max_tokens: int,
        sampled: Callable[[Sampling], AbstractContextManager],
    ) -> None:
        self._turn = turn
        self.setup = setup
        self._eos_ids = list(eos_ids)
        self._max_tokens = max_tokens
        self._sampled = sampled

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """See [`Engine.generate`]. ValueError for a length out of range, or a gate in a run without a marker."""
        with self._each(*self._gates_and_limits(requests)):
            ids, logprobs = self._turn([request.input_ids for request in requests])
        found = []
        for row, request in enumerate(requests):
            policy, stopped = ids[row][: request.new_tokens] if self._pads else ids[row], False
            if request.gate is not None:
                policy, stopped = self._split(row, policy)
            finish: Finish = "length" if len(policy) == request.new_tokens else "other"
            if stopped or not {*policy[-1:]}.isdisjoint(self._eos_ids):
                finish = "gate" if stopped else "eos"
            known = None if logprobs is None else logprobs[row][: len(policy)]
            found.append(Completion(policy, finish, known, request.number))
        return found

    def sync_weights(self) -> None:
        """Nothing to do where the engine samples from the model in training."""

    def sample(self, prompts: Sequence[list[int]], sampling: Sampling) -> list[list[int]]:
        """See [`Engine.sample`]."""
        with self._sampled(sampling):
            return self._turn(list(prompts))[0]

    def _each(self, gates: list[GateRequest | None], limits: list[int | None]) -> AbstractContextManager:
        """While active, a turn gives each prompt its gate and its length limit; None: no gate, that of the turn."""
        raise NotImplementedError

    def _gates_and_limits(self, requests: Sequence[Request]) -> tuple[list[GateRequest | None], list[int | None]]:
        limits = [None if request.new_tokens == self._max_tokens else request.new_tokens for request in requests]
        return [self._gate(request) for request in requests], limits

    def _split(self, row: int, ids: list[int]) -> tuple[list[int], bool]:
        """The policy's tokens of a gated row of the turn, and whether the gate stopped it."""
        (policy,), (stopped,) = split_sentinel([ids], self.setup.sentinel)
        return policy, bool(stopped)

    def _gate(self, request: Request) -> GateRequest | None:
        if not 1 <= request.new_tokens <= self._max_tokens:
            raise ValueError(
                f"a request with a prefix of {len(request.prefix)} tokens and max_tokens={request.max_tokens} has "
                f"{request.new_tokens} tokens to generate; this engine generates 1 to {self._max_tokens}. Correct "
                "max_tokens of the job, or raise max_completion_length."
            )
        if request.gate is None:
            return None
        if self.setup is None:
            raise ValueError("a request has a gate, but the run has no marker. Use a method that is gated.")
        return GateRequest(
            request.gate,
            request.keep,
            self.setup.marker,
            self.setup.sentinel,
            frozenset(self._eos_ids),
            fingerprint=self.setup.automaton.fingerprint,
            delimiters=self.setup.delimiters,
            in_thought=request.in_thought,
            prefix_length=len(request.prefix),
        )
