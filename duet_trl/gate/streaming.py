# SPDX-License-Identifier: Apache-2.0
"""The gate while decoding: one state machine per running rollout, advanced for all of them at once.

The state is a column of numbers per slot of the engine's batch, a function of the rollout's own tokens, so slots can
be swapped and rebuilt from a prefix. A step does only what every token needs, one look-up in the token automaton and a
count. A marker that completes determines tau, the poll that will see it, and so where the rollout is to stop.

The classes before it hold a run's setup and a rollout's request; `parameters.py` writes the latter for other engines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .automaton import STATE_BITS, TokenAutomaton
from .dfa import COMPLETED
from .replay import NEVER, GateSpec, first_poll_that_sees, round_up
from .thoughts import Delimiters

MAX_EOS_IDS = 32
"""Maximum token ids that may end a rollout: engines keep them in rows of this width."""


@dataclass(frozen=True)
class GateSetup:
    """Shared by all gates of a run: the marker on the vocabulary of one tokenizer."""

    marker: str  # name of the configuration
    automaton: TokenAutomaton
    sentinel: int  # token id the engine samples when the gate stops a rollout
    eos_ids: tuple[int, ...]  # that end a rollout by themselves
    delimiters: Delimiters | None = None  # of the model's thoughts


@dataclass(frozen=True)
class GateRequest:
    """The gate that one request asks for; ValueError if a value has another type or is out of range."""

    spec: GateSpec
    keep: bool  # coin of the rollout
    marker: str
    sentinel: int  # token id that a forced stop generates
    eos_ids: frozenset[int]  # that end a rollout naturally
    fingerprint: str = ""  # of the marker's token automaton as the sender compiled it; empty: not compared
    weights: str = ""  # path that the engine must have loaded its weights from last; empty: not compared
    delimiters: Delimiters | None = None  # of the thoughts in which the marker does not complete
    in_thought: bool = False  # whether the rollout begins inside one
    prefix_length: int = 0  # tokens at the end of the engine's prompt that are the first of the rollout

    def __post_init__(self) -> None:
        for kind, names in _KINDS.items():
            for name in names:
                value = self.__dict__[name]
                if type(value) is not kind or (kind is int and not 0 <= value < 2**31):
                    raise ValueError(f"{name} of a gate must be {_WANTED[kind]}, got {value!r}.")
        if not all(type(token) is int and 0 <= token < 2**31 for token in self.eos_ids):
            raise ValueError(f"eos_ids of a gate must be token ids, got {set(self.eos_ids)}.")
        if not 1 <= len(self.eos_ids) <= MAX_EOS_IDS:
            raise ValueError(f"a gate may have 1 to {MAX_EOS_IDS} eos_ids, got {len(self.eos_ids)}.")
        if self.sentinel in self.eos_ids:
            raise ValueError(f"sentinel {self.sentinel} is also in eos_ids. Choose a token id that no text uses.")
        if self.in_thought and self.delimiters is None:
            raise ValueError("a rollout begins in a thought, but its gate names no delimiters. Give both.")


_KINDS = {bool: ("keep", "in_thought"), str: ("marker", "fingerprint", "weights"), int: ("sentinel", "prefix_length")}
_WANTED = {bool: "true or false", str: "a string", int: "an integer in [0, 2**31)"}


_COLUMNS = (
    # the effect of its tokens
    "row",  # of the joined table: where the automaton's state begins
    "length",  # t, tokens so far
    "tau",  # length of the poll that sees, or will see, a marker
    "stop_at",  # length at which the next token is a forced stop
    "early_until",  # from tau to this, a nearly certain next token is a forced stop too
    # the request
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
        """Make a marker available over the same vocabulary as the others, once; its index for `admit`."""
        if automaton in self._automata:
            return self._automata.index(automaton)
        if self._automata and automaton.num_tokens != self._automata[0].num_tokens:
            raise ValueError(
                f"all markers need one vocabulary, got {automaton.num_tokens} tokens and "
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
        """Start a rollout in a slot, or resume one whose first tokens exist; the slot's previous content is lost."""
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
        """Fill a slot with a rollout whose first token is a forced stop, which no gate asks for."""
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
        """Set where rollouts without a marker so far are polled and stop, shapes (R,); `NEVER`: as before."""
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

        `certain` (R,): whether it is nearly certain, and not an EOS, by the thresholds of the rollout's gate; it is
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
