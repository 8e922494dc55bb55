# SPDX-License-Identifier: Apache-2.0
"""What every engine does with the gate: keep one request per batch slot, and write the decisions into the logits.

A forced stop samples the request's sentinel with probability 1 (log-probability exactly 0), which the engine takes
for a stop token. No other step of a gated rollout can sample it, so the sentinel alone says that the gate stopped it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from ..gate.automaton import TokenAutomaton
from ..gate.parameters import MAX_EOS_IDS, GateRequest
from ..gate.streaming import StreamingGate
from ..gate.thoughts import Delimiters

Compile = Callable[[str, Delimiters | None], TokenAutomaton]
"""Compiles the marker of that name for a model with these thoughts."""

FORCED = 2.0**66
"""Logit of a forced stop. The softmax is then exactly 1 there and 0 elsewhere, whatever penalties and temperature do
to it, and no other logit of the row has to be written."""


class CompiledMarkers:
    """The markers of an engine, each compiled once per delimiters and put `at` a place of the engine's tables."""

    def __init__(self, automaton: Compile, add: Callable[[TokenAutomaton], int]) -> None:
        self._automaton, self._add = automaton, add
        self._compiled: dict[tuple[str, Delimiters | None], tuple[int, TokenAutomaton]] = {}

    def at(self, marker: str, delimiters: Delimiters | None = None) -> tuple[int, TokenAutomaton]:
        """Place and automaton of a marker for a model with such thoughts."""
        key = marker, delimiters
        if key not in self._compiled:
            automaton = self._automaton(marker, delimiters)
            self._compiled[key] = self._add(automaton), automaton
        return self._compiled[key]


class SlotGates(StreamingGate):
    """The gated requests of a batch, by slot."""

    def __init__(self, num_slots: int, automaton: Compile) -> None:
        super().__init__(num_slots)
        self.markers = CompiledMarkers(automaton, self.add_automaton)
        self._eos_ids = np.full((num_slots, MAX_EOS_IDS), -1, dtype=np.int64)
        self._thresholds = np.zeros(num_slots, dtype=np.float32)
        self._sentinel = np.zeros(num_slots, dtype=np.int64)
        self._gated = np.zeros(num_slots, dtype=bool)
        self._slots: np.ndarray | None = None

    @property
    def slots(self) -> np.ndarray:
        """Slots with a gated request, ascending, shape (R,), int64."""
        if self._slots is None:
            self._slots = np.flatnonzero(self._gated)
        return self._slots

    def is_gated(self, slots: np.ndarray | int) -> np.ndarray:
        """Which of the given slots hold a gated request, shape (R,), bool."""
        return self._gated[slots]

    def admit(self, slot: int, request: GateRequest, prefix: Sequence[int] = ()) -> None:
        """Put a request into a slot, with the tokens of its rollout so far, generated or given."""
        index, _ = self.markers.at(request.marker, request.delimiters)
        super().admit(slot, request.spec, request.keep, index, prefix, request.in_thought)
        self._eos_ids[slot] = _padded(request.eos_ids)
        self._thresholds[slot] = request.spec.entropy_threshold
        self._occupy(slot, request.sentinel)

    def refuse(self, slot: int, sentinel: int) -> None:
        """Put a request into a slot that cannot be served as asked: its first token is the forced stop."""
        super().refuse(slot)
        self._occupy(slot, sentinel)

    def _occupy(self, slot: int, sentinel: int) -> None:
        self._sentinel[slot] = sentinel
        self._gated[slot] = True
        self._slots = None

    def drop(self, slot: int) -> None:
        """Empty a slot."""
        self._gated[slot] = False
        self._slots = None

    def swap(self, first: int, second: int) -> None:
        """Exchange two slots."""
        if not (self._gated[first] or self._gated[second]):
            return
        super().swap(first, second)
        for column in (self._sentinel, self._gated, self._thresholds):
            column[first], column[second] = column[second], column[first]
        self._eos_ids[[first, second]] = self._eos_ids[[second, first]]
        self._slots = None

    def edit(self, logits: torch.Tensor, slots: np.ndarray) -> torch.Tensor:
        """Forbid the sentinel, or force it where the gate stops the rollout, in place and without synchronising.

        Args:
            logits (torch.Tensor): Shape (B, V), raw: before temperature, top-k and top-p, because the certainty that
                ends a grace window is that of the policy itself.
            slots (np.ndarray): Gated slots, which are also their rows of the logits, shape (R,), int64.

        Returns:
            torch.Tensor: Forced stops, shape (R,), bool.
        """
        return self.decide(slots, logits.device).write(logits)

    def decide(self, slots: np.ndarray, device: torch.device) -> "Decisions":
        """The decisions about the next token of each of the given slots, as `edit` writes them."""
        armed = np.flatnonzero(self.armed(slots))
        stops = self.stops(slots)
        return Decisions(
            row=torch.from_numpy(slots).to(device),
            sentinel=torch.from_numpy(self._sentinel[slots]).to(device),
            stops=torch.from_numpy(stops).to(device),
            logit=torch.from_numpy(np.where(stops, FORCED, -np.inf).astype(np.float32)).to(device),
            armed=torch.from_numpy(armed).to(device),
            thresholds=torch.from_numpy(self._thresholds[slots[armed]]).to(device),
            eos_ids=torch.from_numpy(self._eos_ids[slots[armed]]).to(device),
        )


@dataclass(frozen=True)
class Decisions:
    """Decisions about the next token of R rollouts, on the device of the logits, until a token changes one."""

    row: torch.Tensor  # of the logits, (R,) int64
    sentinel: torch.Tensor  # column of the logits, (R,) int64
    stops: torch.Tensor  # forced stops that do not depend on the logits, (R,) bool
    logit: torch.Tensor  # what they make of the sentinel's logit, (R,) float32
    armed: torch.Tensor  # of the R, those that stop as well if the next token is nearly certain, (A,) int64
    thresholds: torch.Tensor  # theirs, (A,) float32; see `nearly_certain`
    eos_ids: torch.Tensor  # theirs, (A, E) int64

    def write(self, logits: torch.Tensor) -> torch.Tensor:
        """Write them into logits of shape (B, V), in place; returns all forced stops, shape (R,), bool."""
        stops, logit = self.stops, self.logit
        if len(self.armed):
            stops = stops.clone()
            stops[self.armed] = nearly_certain(logits[self.row[self.armed]], self.thresholds, self.eos_ids)
            logit = torch.where(stops, FORCED, -torch.inf)
        logits.index_put_((self.row, self.sentinel), logit.to(logits.dtype))
        return stops


@lru_cache(maxsize=256)
def _padded(eos_ids: frozenset[int]) -> np.ndarray:
    row = np.full(MAX_EOS_IDS, -1, dtype=np.int64)
    row[: len(eos_ids)] = sorted(eos_ids)
    row.setflags(write=False)
    return row


def nearly_certain(logits: torch.Tensor, thresholds: torch.Tensor, eos_ids: torch.Tensor) -> torch.Tensor:
    """Whether the next token is nearly certain, and does not end the rollout by itself, shape (R,), bool.

    Where the policy is about to end the rollout by itself it is let: that EOS can be trained on. `thresholds` (R,) are
    nats, 0: never; `eos_ids` (R, E) are padded with -1.
    """
    ends = (logits.argmax(dim=-1, keepdim=True) == eos_ids).any(dim=1)
    return (next_token_entropy(logits) < thresholds) & ~ends


def next_token_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Shannon entropy of softmax(logits), shape (R, V) with -inf where a token is forbidden, in nats, shape (R,)."""
    return torch.special.entr(torch.softmax(logits.float(), dim=-1)).sum(dim=-1)
