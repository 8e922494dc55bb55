# SPDX-License-Identifier: Apache-2.0
"""The gate with its state on the host, for runners that keep the generated tokens as one list per rollout.

Reading a thousand lists costs more than everything else the gate does in a decode step. So the tokens of a rollout are
read, all that have gathered, when its next poll, abort gate or stop may have come: decisions are those of a gate that
reads each token at once, the lists are read once in eight steps. In between, the decisions that stand are written.
"""

from collections.abc import Sequence

import numpy as np
import torch

from ..gate.parameters import GateRequest
from ..gate.replay import NEVER
from ..gate.streaming import Compile, Decisions, SlotGates


class HostGates(SlotGates):
    """The gated requests of a batch, by slot, which is also their row of the logits. Arguments as `SlotGates`.

    A slot gains one token between two calls of `apply`; several are read where the next one would have been.
    """

    def __init__(self, num_slots: int, automaton: Compile) -> None:
        super().__init__(num_slots, automaton)
        self._requests: list[GateRequest | None] = [None] * num_slots
        self._prefixes: list[Sequence[int]] = [()] * num_slots
        self._outputs: list[list[int]] = [[] for _ in range(num_slots)]
        self._calls = 0
        self._read_at = np.full(num_slots, NEVER)  # the call of `apply` that has to read the slot's tokens
        self._next_read = NEVER  # no slot has to be read before this call
        self._decisions: Decisions | None = None  # while they stand

    def admit(self, slot: int, request: GateRequest, output: list[int], prompt: Sequence[int] = ()) -> None:
        """Put a request into a slot.

        The runner goes on appending to `output`, the tokens generated so far; a placeholder at its end (-1) must be
        filled in before the next `apply`. The tokens that the rollout continues stand at the end of `prompt`.
        """
        prefix = prompt[len(prompt) - request.prefix_length :]
        super().admit(slot, request, [*prefix, *(output[:-1] if output and output[-1] < 0 else output)])
        self._requests[slot], self._prefixes[slot], self._outputs[slot] = request, prefix, output
        self._read_at[slot] = read_at = self._calls + self.quiet_steps(slot)
        self._next_read = min(self._next_read, read_at)
        self._decisions = None

    def refuse(self, slot: int, sentinel: int) -> None:
        """Put a request into a slot that cannot be served as asked: its first token is the forced stop."""
        super().refuse(slot, sentinel)
        self._forget(slot)

    def drop(self, slot: int) -> None:
        """Empty a slot."""
        if self.is_gated(slot):
            super().drop(slot)
            self._forget(slot)

    def _forget(self, slot: int) -> None:
        self._requests[slot], self._outputs[slot] = None, []
        self._read_at[slot] = NEVER
        self._decisions = None

    def swap(self, first: int, second: int) -> None:
        """Exchange two slots."""
        if self.is_gated(first) or self.is_gated(second):
            super().swap(first, second)
            for column in (self._requests, self._prefixes, self._outputs, self._read_at):
                column[first], column[second] = column[second], column[first]
            self._decisions = None

    def apply(self, logits: torch.Tensor) -> None:
        """Consume what was generated and write the decisions into the raw logits (B, V), in place."""
        if not len(self.slots):
            return
        self._calls += 1
        if self._calls >= self._next_read:
            self._read(np.flatnonzero(self._read_at <= self._calls))
        if self._decisions is None:
            self._decisions = self.decide(self.slots, logits.device)
        self._decisions.write(logits)

    def _read(self, slots: np.ndarray) -> None:
        """Consume the tokens that have gathered in some slots, ascending, shape (R,)."""
        outputs = [self._outputs[slot] for slot in slots.tolist()]
        lengths = (len(self._prefixes[slot]) + len(self._outputs[slot]) for slot in slots.tolist())
        behind = np.fromiter(lengths, dtype=np.int64, count=len(outputs)) - self.length(slots)
        # where the runner has thrown tokens away, from the beginning again
        for index in np.flatnonzero(behind < 0).tolist():
            slot = int(slots[index])
            self.admit(slot, self._requests[slot], outputs[index], self._prefixes[slot])
        for count in np.unique(behind[behind > 0]).tolist():
            group = np.flatnonzero(behind == count)
            tokens = _last_tokens([outputs[index] for index in group.tolist()], count)
            if tokens.min() < 0:
                raise RuntimeError(
                    "vLLM showed DUETLogitsProcessor placeholder tokens. Name the class in logits_processors "
                    "(--logits-processors) instead of an entry point, or start the engine with async_scheduling=False."
                )
            self.advance(slots[group], tokens)
        self._read_at[slots] = self._calls + self.quiet_steps(slots)
        self._next_read = int(self._read_at.min())
        self._decisions = None


def _last_tokens(outputs: list[list[int]], count: int) -> np.ndarray:
    """The last tokens of each list, oldest first, shape (T, R), int64."""
    joined: list[int] = []
    for output in outputs:
        joined += output[-count:]
    # numpy takes twice as long over a list of lists
    tokens = np.fromiter(joined, dtype=np.int64, count=len(joined))
    return np.ascontiguousarray(tokens.reshape(len(outputs), count).T)
