# SPDX-License-Identifier: Apache-2.0
"""The gate while decoding: one state machine per running rollout, and its decisions in the logits of a batch.

The state is a column of numbers per slot of the engine's batch, a function of the rollout's own tokens, so slots can
be swapped and rebuilt from a prefix. A step does only what every token needs, one look-up in the token automaton and a
count. A marker that completes settles tau, the poll that will see it, and with it where the rollout is to stop.

A forced stop samples the request's sentinel with probability 1 (log-probability exactly 0), which the engine takes
for a stop token. No other step of a gated rollout can sample it, so the sentinel alone says that the gate stopped it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from .automaton import STATE_BITS, TokenAutomaton
from .dfa import COMPLETED
from .parameters import MAX_EOS_IDS, GateRequest
from .replay import NEVER, GateSpec, first_poll_that_sees, round_up
from .thoughts import Delimiters

_COLUMNS = (
    # what its tokens did
    "row",  # of the joined table: where the automaton's state begins
    "length",  # t, tokens so far
    "tau",  # length of the poll that sees, or will see, a marker
    "stop_at",  # length at which the next token is a forced stop
    "early_until",  # from tau to this, a nearly certain next token is a forced stop too
    # what is asked for
    "table",  # offset of its automaton in the joined table
    *("poll_threshold", "poll_interval", "abort_at", "window"),  # `GateSpec.polls`
    "grace",  # from tau to `stop_at`
    "early_grace",  # from tau to `early_until`
)
"""Numbers of a slot."""


class StreamingGate:
    """The gate of many running rollouts (Algorithm 1, lines 12-28; semantics in `replay.py`).

    Args:
        num_slots (int): Rollouts that can run at the same time.
        automata (Sequence[TokenAutomaton]): Markers that requests may name by index, over one vocabulary.
    """

    def __init__(self, num_slots: int, automata: Sequence[TokenAutomaton] = ()) -> None:
        self._columns = np.zeros((len(_COLUMNS), num_slots), dtype=np.int64)
        column = dict(zip(_COLUMNS, self._columns, strict=True))  # views
        self._row, self._table_offset, self._length = column["row"], column["table"], column["length"]
        self._tau, self._stop_at, self._early_until = column["tau"], column["stop_at"], column["early_until"]
        self._polls = [column[name] for name in ("poll_threshold", "poll_interval", "abort_at", "window")]
        self._grace, self._early_grace = column["grace"], column["early_grace"]
        self._table = np.zeros(0, dtype=np.uint8)
        self._row_of_entry = np.zeros(0, dtype=np.int64)
        self._automata: list[TokenAutomaton] = []
        self._offsets: list[int] = []
        for automaton in automata:
            self.add_automaton(automaton)

    def add_automaton(self, automaton: TokenAutomaton) -> int:
        """Make a marker available over the same vocabulary as the others; its index for `admit`."""
        if self._automata and automaton.num_tokens != self._automata[0].num_tokens:
            raise ValueError(
                f"all markers need one vocabulary, got {automaton.num_tokens} tokens beside "
                f"{self._automata[0].num_tokens}. Compile them from the same tokenizer."
            )
        flat = automaton.table.reshape(-1)
        self._offsets.append(len(self._table))
        self._table = np.concatenate([self._table, flat]) if self._automata else flat
        self._row_of_entry = (np.arange(256) & STATE_BITS) * automaton.num_tokens
        self._automata.append(automaton)
        return len(self._automata) - 1

    def admit(
        self,
        slot: int,
        spec: GateSpec,
        keep: bool,  # its coin
        automaton: int = 0,  # index of its marker
        prefix: Sequence[int] = (),  # tokens it has generated so far
        in_thought: bool = False,  # whether its first token continues a thought
    ) -> None:
        """Start a rollout in a slot, or resume one whose first tokens exist; what the slot held is forgotten."""
        table, compiled = self._offsets[automaton], self._automata[automaton]
        first = compiled.first_state(in_thought)
        self._columns[:, slot] = _first_column(spec, keep, table, table + first * compiled.num_tokens)
        if len(prefix):
            state, completed = _scan(compiled, first, prefix)
            self._row[slot], self._length[slot] = table + state * compiled.num_tokens, len(prefix)
            self._see(np.full(1, slot), spec.seen_at(completed).min(keepdims=True, initial=NEVER))

    def swap(self, first: int, second: int) -> None:
        """Exchange the rollouts of two slots."""
        column = self._columns[:, first].copy()
        self._columns[:, first] = self._columns[:, second]
        self._columns[:, second] = column

    def length(self, slots: np.ndarray) -> np.ndarray:
        """Tokens that each slot has consumed, shape (R,), int64."""
        return self._length[slots]

    def quiet_steps(self, slots: np.ndarray | int) -> np.ndarray:
        """Tokens (R,) up to and including the one at which `stops` or `armed` can next change for each slot."""
        length, stop_at = self._length[slots], self._stop_at[slots]
        poll_threshold, poll_interval, abort_at, _ = (column[slots] for column in self._polls)
        next_poll = np.minimum(round_up(np.maximum(length + 1, poll_threshold), poll_interval), abort_at)
        undecided = (length < self._tau[slots]) & (length < abort_at)
        next_stop = np.where(stop_at > length, stop_at, NEVER)
        return np.minimum(np.where(undecided, next_poll, NEVER), next_stop) - length

    def refuse(self, slot: int) -> None:
        """Put a rollout into a slot whose very first token is a forced stop, which no gate asks for."""
        self._columns[:, slot] = 0

    def step(self, slots: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Consume one token (R,) of each of distinct slots (R,); the `stops` that result."""
        self.advance(slots, tokens[None])
        return self.stops(slots)

    def advance(self, slots: np.ndarray, tokens: np.ndarray) -> None:
        """Consume T tokens per slot, oldest first, shape (T, R)."""
        row, offset = self._row[slots], self._table_offset[slots]
        for count, newest in enumerate(tokens, start=1):
            entry = self._table.take(row + newest)
            row = offset + self._row_of_entry.take(entry)
            if entry.max(initial=0) >= COMPLETED:
                hit = slots[(entry >= COMPLETED) & (self._tau[slots] == NEVER)]
                self._see(hit, first_poll_that_sees(self._length[hit] + count, *(polls[hit] for polls in self._polls)))
        self._row[slots] = row
        self._length[slots] += len(tokens)

    def _see(self, slots: np.ndarray, tau: np.ndarray) -> None:
        """Settle where rollouts without a marker so far are polled and stop, shapes (R,); `NEVER`: as before."""
        slots, tau = slots[tau < NEVER], tau[tau < NEVER]
        self._tau[slots] = tau
        self._stop_at[slots] = tau + self._grace[slots]
        self._early_until[slots] = tau + self._early_grace[slots]

    def armed(self, slots: np.ndarray) -> np.ndarray:
        """Slots whose next token is a forced stop if it is nearly certain (pass that to `stops`), shape (R,), bool."""
        length = self._length[slots]
        return (self._tau[slots] <= length) & (length < self._early_until[slots])

    def stops(self, slots: np.ndarray, certain: np.ndarray | None = None) -> np.ndarray:
        """Where the next token must be a forced stop, shape (R,), bool; consumes nothing, so it can be asked again.

        `certain` (R,) says whether it is nearly certain, and no EOS, by the thresholds of the rollout's gate; it is
        read where `armed` only. None: nowhere.
        """
        due = self._length[slots] >= self._stop_at[slots]
        return due if certain is None else due | self.armed(slots) & certain


@lru_cache(maxsize=256)  # the rollouts of a training step have two gates, one for each side of the coin
def _first_column(spec: GateSpec, keep: bool, table: int, row: int) -> np.ndarray:
    """The numbers of a slot before its first token, shape (C,), int64, in the order of `_COLUMNS`."""
    grace = spec.grace_window if spec.trim else NEVER
    early_grace = spec.grace_window if spec.trims_early else -NEVER
    tokens = row, 0, NEVER, NEVER if keep else spec.abort_at, -NEVER
    return np.array([*tokens, table, *spec.polls, grace, early_grace])


def _scan(automaton: TokenAutomaton, state: int, tokens: Sequence[int]) -> tuple[int, np.ndarray]:
    """Run one automaton from a state over one prefix: its state, and the lengths at which markers completed, int64."""
    table, num_tokens = memoryview(automaton.table.reshape(-1)), automaton.num_tokens
    completed = []
    for length, token in enumerate(tokens, start=1):
        entry = table[state * num_tokens + token]
        state = entry & STATE_BITS
        if entry & COMPLETED:
            completed.append(length)
    return state, np.array(completed, dtype=np.int64)


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
