# SPDX-License-Identifier: Apache-2.0
"""What the engines that TRL drives have in common: one turn of generation, in which each row has its gate.

TRL synchronises weights, unwraps, pads and gathers; an engine here lets each row of that turn run through a gate and
to a length of its own.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from ..gate.parameters import GateRequest, GateSetup
from ..gate.replay import split_sentinel
from .engine import Completion, Finish, Request, Sampling

Turn = Callable[[list[list[int]]], tuple[list[list[int]], list[list[float]] | None]]
"""Token ids of prompts -> sampled ids of each, and their log-probs in nats (None: not known)."""


class TurnEngine:
    """An engine around one turn of generation.

    Args:
        turn (Turn): Generates `max_tokens` for each prompt, or up to an EOS.
        setup (GateSetup | None): None: no request has a gate.
        eos_ids (Sequence[int]): Ids that end a rollout by themselves.
        max_tokens (int): Tokens.
        sampled (Callable[[Sampling], AbstractContextManager]): While it is entered, `turn` samples so.
    """

    _pads = False
    """Whether padding follows in a row that ended at a limit of its own."""

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
        gates = [self._gate(request) for request in requests]
        limits = [None if request.new_tokens == self._max_tokens else request.new_tokens for request in requests]
        with self._each(gates, limits):
            ids, logprobs = self._turn([request.input_ids for request in requests])
        found = []
        for row, request in enumerate(requests):
            policy, stopped = ids[row][: request.new_tokens] if self._pads else ids[row], False
            if request.gate is not None:
                (policy,), (stopped,) = split_sentinel([policy], self.setup.sentinel)
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

    def close(self) -> None:
        """Nothing to do: the engine ends with the trainer."""

    def _each(self, gates: list[GateRequest | None], limits: list[int | None]) -> AbstractContextManager:
        """While active, a turn gives each prompt its gate and its length limit; None: no gate, that of the turn."""
        raise NotImplementedError

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
