# SPDX-License-Identifier: Apache-2.0
"""The gate with its state on the host: one request per batch slot, and its decisions written into the logits.

A forced stop samples the request's sentinel with probability 1 (log-probability exactly 0), which the engine takes
for a stop token. No other step of a gated rollout can sample it, so the sentinel alone shows that the gate stopped it.

Runners keep the generated tokens as one list per rollout, and reading a thousand lists costs more than everything else
the gate does in a decode step. So the tokens of a rollout are read together when its next poll, abort gate or stop may
have come: the decisions are those of a gate that reads each token at once, but the lists are read once in eight
steps. In between, the decisions already made are written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from ..gate.automaton import TokenAutomaton
from ..gate.replay import NEVER
from ..gate.streaming import MAX_EOS_IDS, GateRequest, StreamingGate

FORCED = 2.0**66
"""Logit of a forced stop. The softmax is then exactly 1 there and 0 elsewhere, whatever penalties and temperature do
to it, and no other logit of the row has to be written."""


class HostGates:
    """The gated requests of a batch, by slot, which is also their row of the logits.

    A slot gains one token between two calls of `apply`; several are read where the next one would have been.
    """

    def __init__(self, num_slots: int) -> None:
        self._gate = StreamingGate(num_slots)
        self.add_automaton = self._gate.add_automaton
        self._gated = np.zeros(num_slots, dtype=bool)
        self._sentinel = np.zeros(num_slots, dtype=np.int64)
        self._thresholds = np.zeros(num_slots, dtype=np.float32)
        self._eos_ids = np.zeros((num_slots, MAX_EOS_IDS), dtype=np.int64)
        # request, automaton, prefix and output; None where there is nothing to read
        self._rollouts: list[tuple[GateRequest, TokenAutomaton, Sequence[int], list[int]] | None] = [None] * num_slots
        self._calls = 0
        self._read_at = np.full(num_slots, NEVER)  # the call of `apply` that has to read the slot's tokens
        self._next_read = NEVER  # no slot has to be read before this call
        self._decisions: Decisions | None = None  # while they are valid

    def admit(
        self, slot: int, request: GateRequest, automaton: TokenAutomaton, output: list[int], prompt: Sequence[int] = ()
    ) -> None:
        """Put a request, whose marker was compiled to `automaton`, into a slot.

        The runner keeps appending to `output`, the tokens generated so far; a placeholder at its end (-1) must be
        filled in before the next `apply`. The tokens that the rollout continues are at the end of `prompt`.
        """
        prefix = prompt[len(prompt) - request.prefix_length :]
        tokens = [*prefix, *(output[:-1] if output and output[-1] < 0 else output)]
        index = self._gate.add_automaton(automaton)
        self._gate.admit(slot, request.spec, request.keep, index, tokens, request.in_thought)
        self._eos_ids[slot] = padded(request.eos_ids)
        self._thresholds[slot] = request.spec.entropy_threshold
        self._occupy(slot, request.sentinel, (request, automaton, prefix, output))
        self._read_at[slot] = read_at = self._calls + self._gate.quiet_steps(slot)
        self._next_read = min(self._next_read, read_at)

    def refuse(self, slot: int, sentinel: int) -> None:
        """Put a request that cannot be served as asked into a slot: its first token is the forced stop."""
        self._gate.refuse(slot)
        self._occupy(slot, sentinel)

    def drop(self, slot: int) -> None:
        """Empty a slot."""
        if self._gated[slot]:
            self._occupy(slot)

    def _occupy(self, slot: int, sentinel: int | None = None, rollout: tuple | None = None) -> None:
        self._gated[slot], self._sentinel[slot] = sentinel is not None, sentinel or 0
        self._rollouts[slot], self._read_at[slot], self._decisions = rollout, NEVER, None

    def swap(self, first: int, second: int) -> None:
        """Exchange two slots."""
        if self._gated[first] or self._gated[second]:
            self._gate.swap(first, second)
            for column in (self._gated, self._sentinel, self._thresholds, self._rollouts, self._read_at):
                column[first], column[second] = column[second], column[first]
            self._eos_ids[[first, second]] = self._eos_ids[[second, first]]
            self._decisions = None

    def apply(self, logits: torch.Tensor) -> None:
        """Consume what was generated; forbid the sentinels, or force them where the gate stops a rollout, in place.

        The logits (B, V) are raw: before temperature, top-k and top-p, because the certainty that ends a grace window
        is that of the policy itself. Nothing waits for their device.
        """
        if not self._gated.any():
            return
        self._calls += 1
        if self._calls >= self._next_read:
            self._read(np.flatnonzero(self._read_at <= self._calls))
        if self._decisions is None:
            self._decisions = self._decide(logits.device)
        self._decisions.write(logits)

    def _read(self, slots: np.ndarray) -> None:
        """Consume the tokens that have gathered in some slots, ascending, shape (R,)."""
        rollouts = [self._rollouts[slot] for slot in slots.tolist()]
        lengths = (len(prefix) + len(output) for _, _, prefix, output in rollouts)
        behind = np.fromiter(lengths, dtype=np.int64, count=len(rollouts)) - self._gate.length(slots)
        # where the runner has thrown tokens away, from the beginning again
        for index in np.flatnonzero(behind < 0).tolist():
            request, automaton, prefix, output = rollouts[index]
            self.admit(int(slots[index]), request, automaton, output, prefix)
        for count in np.unique(behind[behind > 0]).tolist():
            group = np.flatnonzero(behind == count)
            tokens = _last_tokens([rollouts[index][3] for index in group.tolist()], count)
            if tokens.min() < 0:
                raise RuntimeError(
                    "vLLM showed DUETLogitsProcessor placeholder tokens. Name the class in logits_processors "
                    "(--logits-processors) instead of an entry point, or start the engine with async_scheduling=False."
                )
            self._gate.advance(slots[group], tokens)
        self._read_at[slots] = self._calls + self._gate.quiet_steps(slots)
        self._next_read = int(self._read_at.min())
        self._decisions = None

    def _decide(self, device: torch.device) -> "Decisions":
        slots = np.flatnonzero(self._gated)
        armed = np.flatnonzero(self._gate.armed(slots))
        logit = np.where(self._gate.stops(slots), FORCED, -np.inf).astype(np.float32)
        asked = self._thresholds[slots[armed]], self._eos_ids[slots[armed]]
        columns = slots, self._sentinel[slots], logit, armed, *asked
        return Decisions(*(torch.from_numpy(column).to(device) for column in columns))


@dataclass(frozen=True)
class Decisions:
    """Decisions about the next token of R rollouts, on the device of the logits, until a token changes one."""

    row: torch.Tensor  # of the logits, (R,) int64
    sentinel: torch.Tensor  # column of the logits, (R,) int64
    logit: torch.Tensor  # of the sentinel, as far as it does not depend on the other logits, (R,) float32
    armed: torch.Tensor  # of the R, those that stop as well if the next token is nearly certain, (A,) int64
    thresholds: torch.Tensor  # theirs, (A,) float32; see `nearly_certain`
    eos_ids: torch.Tensor  # theirs, (A, E) int64

    def write(self, logits: torch.Tensor) -> None:
        """Write them into logits of shape (B, V), in place."""
        logit = self.logit
        if len(self.armed):
            certain = nearly_certain(logits[self.row[self.armed]], self.thresholds, self.eos_ids)
            # an armed rollout is one whose stop is not due yet
            logit = logit.index_put((self.armed,), torch.where(certain, FORCED, -torch.inf))
        logits.index_put_((self.row, self.sentinel), logit.to(logits.dtype))


@lru_cache(maxsize=256)
def padded(eos_ids: frozenset[int]) -> np.ndarray:
    """EOS ids, ascending, padded with -1, shape (MAX_EOS_IDS,), int64, read-only."""
    row = np.full(MAX_EOS_IDS, -1, dtype=np.int64)
    row[: len(eos_ids)] = sorted(eos_ids)
    row.setflags(write=False)
    return row


def nearly_certain(logits: torch.Tensor, thresholds: torch.Tensor, eos_ids: torch.Tensor) -> torch.Tensor:
    """Whether the next token is nearly certain, and does not end the rollout by itself, shape (R,), bool.

    A policy that is about to end the rollout by itself may do so: that EOS can be trained on. `thresholds` (R,) are
    nats, 0: never; `eos_ids` (R, E) are padded with -1.
    """
    known = (eos_ids >= 0) & (eos_ids < logits.shape[1])
    likeliest = logits.gather(1, torch.where(known, eos_ids, 0)) >= logits.amax(dim=1, keepdim=True)
    return (next_token_entropy(logits) < thresholds) & ~(known & likeliest).any(dim=1)


def next_token_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Shannon entropy of softmax(logits), shape (R, V) with -inf where a token is forbidden, in nats, shape (R,)."""
    return torch.special.entr(torch.softmax(logits.float(), dim=-1)).sum(dim=-1)


def _last_tokens(outputs: list[list[int]], count: int) -> np.ndarray:
    """The last tokens of each list, oldest first, shape (T, R), int64."""
    joined: list[int] = []
    for output in outputs:
        joined += output[-count:]
    # numpy takes twice as long over a list of lists
    tokens = np.fromiter(joined, dtype=np.int64, count=len(joined))
    return np.ascontiguousarray(tokens.reshape(len(outputs), count).T)
