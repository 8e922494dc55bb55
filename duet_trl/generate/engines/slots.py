# SPDX-License-Identifier: Apache-2.0
"""What every engine does with the gate: keep one request per batch slot, and write the decisions into the logits.

A forced stop samples the request's sentinel with probability 1 (log-probability exactly 0), which the engine takes
for a stop token. No other step of a gated rollout can sample it, so the sentinel alone says that the gate stopped it.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ..automaton import TokenAutomaton
from ..parameters import GateRequest
from ..streaming import StreamingGate


class SlotGates:
    """The gated requests of a batch, by slot.

    Args:
        num_slots (int): Slots of the batch.
        automaton (Callable[[str], TokenAutomaton]): Compiles a marker by name; called once per marker.
    """

    def __init__(self, num_slots: int, automaton: Callable[[str], TokenAutomaton]) -> None:
        self._gate = StreamingGate(num_slots)
        self._automaton = automaton
        self._marker_index: dict[str, int] = {}
        self._eos_ids: list[frozenset[int]] = [frozenset()] * num_slots
        self._sentinel = np.zeros(num_slots, dtype=np.int64)
        self._gated = np.zeros(num_slots, dtype=bool)
        self._slots: np.ndarray | None = None

    @property
    def slots(self) -> np.ndarray:
        """Slots with a gated request, ascending, shape (R,), int64."""
        if self._slots is None:
            self._slots = np.flatnonzero(self._gated)
        return self._slots

    def is_gated(self, slots: np.ndarray) -> np.ndarray:
        """Which of the given slots hold a gated request, shape (R,), bool."""
        return self._gated[slots]

    def prepare(self, marker: str) -> int:
        """Compile a marker unless it is already there, and return its index."""
        if marker not in self._marker_index:
            self._marker_index[marker] = self._gate.add_automaton(self._automaton(marker))
        return self._marker_index[marker]

    def admit(self, slot: int, request: GateRequest, prefix: Sequence[int] = ()) -> None:
        """Put a request into a slot, with the tokens it has generated so far."""
        self._gate.admit(slot, request.spec, request.keep, self.prepare(request.marker), prefix)
        self._eos_ids[slot] = request.eos_ids
        self._sentinel[slot] = request.sentinel
        self._gated[slot] = True
        self._slots = None

    def drop(self, slot: int) -> None:
        """Empty a slot."""
        if self._gated[slot]:
            self._gated[slot] = False
            self._slots = None

    def move(self, source: int, target: int) -> None:
        """Move what is in one slot to another and empty the first."""
        self.swap(source, target)
        self.drop(source)

    def swap(self, first: int, second: int) -> None:
        """Exchange two slots."""
        if not (self._gated[first] or self._gated[second]):
            return
        self._gate.swap(first, second)
        self._eos_ids[first], self._eos_ids[second] = self._eos_ids[second], self._eos_ids[first]
        for column in (self._sentinel, self._gated):
            column[[first, second]] = column[[second, first]]
        self._slots = None

    def length(self, slots: np.ndarray) -> np.ndarray:
        """Tokens consumed so far by each of the given slots, shape (R,), int64."""
        return self._gate.length(slots)

    def consume(self, slots: np.ndarray, tokens: np.ndarray) -> None:
        """Advance each of the given slots by the token it has generated, shapes (R,)."""
        self._gate.step(slots, tokens)

    def edit(self, logits: torch.Tensor, slots: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Forbid the sentinel, or force it where the gate stops the rollout, in place.

        Args:
            logits (torch.Tensor): Shape (B, V), raw: before temperature, top-k and top-p, because the entropy of the
                trim is that of the policy itself.
            slots (np.ndarray): Gated slots, shape (R,).
            rows (np.ndarray): Row of the logits that belongs to each, shape (R,).

        Returns:
            np.ndarray: Forced stops, shape (R,), bool.
        """
        stops = self._gate.stops(slots, self._entropy(logits, slots, rows))
        row = torch.from_numpy(rows).to(logits.device)
        sentinel = torch.from_numpy(self._sentinel[slots]).to(logits.device)
        logits[row, sentinel] = -torch.inf
        if stops.any():
            forced = torch.from_numpy(np.flatnonzero(stops)).to(logits.device)
            logits[row[forced]] = -torch.inf
            logits[row[forced], sentinel[forced]] = 0.0
        return stops

    def _entropy(self, logits: torch.Tensor, slots: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
        """Entropy of the next token where the gate asks for it, inf elsewhere; None where nobody asks."""
        armed = np.flatnonzero(self._gate.armed(slots))
        if not len(armed):
            return None
        entropy = np.full(len(slots), np.inf)
        values, likeliest = next_token_entropy(logits[torch.from_numpy(rows[armed]).to(logits.device)])
        for index, value, token in zip(armed, values.tolist(), likeliest.tolist(), strict=True):
            # Where the policy is about to end the rollout by itself, let it: that EOS can be trained on.
            if token not in self._eos_ids[slots[index]]:
                entropy[index] = value
        return entropy


def next_token_entropy(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Shannon entropy of softmax(logits) in nats, at temperature 1.

    Args:
        logits (torch.Tensor): Shape (R, V); -inf where a token is forbidden.

    Returns:
        tuple: Entropy, shape (R,), float32, and likeliest token, shape (R,), int64.
    """
    probabilities = torch.softmax(logits.float(), dim=-1)
    return torch.special.entr(probabilities).sum(dim=-1), logits.argmax(dim=-1)
