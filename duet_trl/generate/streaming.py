# SPDX-License-Identifier: Apache-2.0
"""The gate while decoding: one state machine per running rollout, advanced for all of them at once.

The state is a fixed-size record per slot of the engine's batch, a function of the rollout's own tokens. So slots can
be moved, swapped and rebuilt from a prefix (preemption) without a trace, and one step costs one gather in the token
automaton and a dozen vector operations, whatever the number of rollouts.
"""

from collections.abc import Sequence

import numpy as np

from .automaton import STATE_BITS, TokenAutomaton
from .dfa import COMPLETED
from .gate import NEVER, GateSpec

_ROW = np.dtype(
    [
        # what the request asks for
        ("table", np.int64),  # offset of its automaton in the joined table
        ("poll_threshold", np.int64),
        ("poll_interval", np.int64),
        ("abort_at", np.int64),
        ("grace_window", np.int64),
        ("window", np.int64),
        ("trim", np.bool_),
        ("trims_early", np.bool_),
        ("keep", np.bool_),
        # what its tokens did
        ("undecided", np.bool_),  # no marker seen and no coin thrown yet
        ("state", np.int64),  # of the automaton
        ("length", np.int64),  # t, tokens so far
        ("completed_at", np.int64),  # length at which the latest marker completed
        ("marker_at", np.int64),  # tau
        ("stop_at", np.int64),  # length at which the next token is a forced stop
    ],
    align=True,
)


class StreamingGate:
    """The gate of many running rollouts (Algorithm 1, lines 12-28; semantics in `gate.py`).

    Args:
        num_slots (int): Rollouts that can run at the same time.
        automata (Sequence[TokenAutomaton]): Markers that requests may name by index, over one vocabulary.
    """

    def __init__(self, num_slots: int, automata: Sequence[TokenAutomaton] = ()) -> None:
        self._rows = np.zeros(num_slots, dtype=_ROW)
        self._table = np.zeros(0, dtype=np.uint8)
        self._automata: list[TokenAutomaton] = []
        self._offsets: list[int] = []
        for automaton in automata:
            self.add_automaton(automaton)

    def add_automaton(self, automaton: TokenAutomaton) -> int:
        """Make a marker available.

        Args:
            automaton (TokenAutomaton): Its vocabulary must have the size of the others'.

        Returns:
            int: Its index for `admit`.

        Raises:
            ValueError: If the vocabulary sizes differ.
        """
        if self._automata and automaton.num_tokens != self._automata[0].num_tokens:
            raise ValueError(
                f"all markers need one vocabulary, got {automaton.num_tokens} tokens beside "
                f"{self._automata[0].num_tokens}. Compile them from the same tokenizer."
            )
        flat = automaton.table.reshape(-1)
        self._offsets.append(len(self._table))
        self._table = np.concatenate([self._table, flat]) if self._automata else flat
        self._automata.append(automaton)
        return len(self._automata) - 1

    def admit(self, slot: int, spec: GateSpec, keep: bool, automaton: int = 0, prefix: Sequence[int] = ()) -> None:
        """Start a rollout in a slot, or resume one whose first tokens exist already.

        Args:
            slot (int): Slot; what it held before is forgotten.
            spec (GateSpec): Its gate.
            keep (bool): Its coin.
            automaton (int): Index of its marker.
            prefix (Sequence[int]): Tokens it has generated so far.
        """
        row = self._rows[slot]
        row["table"] = self._offsets[automaton]
        row["poll_threshold"], row["poll_interval"] = spec.poll_threshold, spec.poll_interval
        row["abort_at"], row["grace_window"] = spec.abort_at, spec.grace_window
        row["window"] = NEVER if spec.window is None else spec.window
        row["trim"], row["trims_early"], row["keep"] = spec.trim, spec.trims_early, keep
        row["undecided"], row["length"] = True, len(prefix)
        row["marker_at"] = row["stop_at"] = NEVER
        row["state"], completed = _scan(self._automata[automaton], prefix)
        row["completed_at"] = completed[-1] if len(completed) else -NEVER
        tau = int(spec.seen_at(completed).min(initial=NEVER))
        if tau <= len(prefix):
            row["marker_at"], row["undecided"] = tau, False
            row["stop_at"] = tau + spec.grace_window if spec.trim else NEVER
        elif spec.abort_at <= len(prefix):
            row["undecided"] = False
            row["stop_at"] = NEVER if keep else spec.abort_at

    def swap(self, first: int, second: int) -> None:
        """Exchange the rollouts of two slots."""
        self._rows[[first, second]] = self._rows[[second, first]]

    def length(self, slots: np.ndarray) -> np.ndarray:
        """Tokens that each slot has consumed, shape (R,), int64."""
        return self._rows["length"][slots]

    def refuse(self, slot: int) -> None:
        """Put a rollout into a slot whose very first token is a forced stop, which no gate asks for."""
        self._rows[slot] = np.zeros((), dtype=_ROW)
        self._rows[slot]["poll_interval"] = 1  # a divisor, should the slot be stepped before it is emptied

    def step(self, slots: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Consume one token per slot and say where the next one must be a forced stop.

        Args:
            slots (np.ndarray): Distinct slots, shape (R,), integer.
            tokens (np.ndarray): The token each has just generated, shape (R,), integer, within the vocabulary.

        Returns:
            np.ndarray: Forced stops that do not depend on the next token's distribution, shape (R,), bool.
        """
        row = self._rows.take(slots)  # (R,) records
        entry = self._table.take(row["table"] + row["state"] * self._automata[0].num_tokens + tokens)
        length = row["length"] + 1
        completed_at = np.where(entry & COMPLETED, length, row["completed_at"])

        at_gate = row["undecided"] & (length == row["abort_at"])
        on_grid = (length >= row["poll_threshold"]) & (length % row["poll_interval"] == 0)
        seen = (at_gate | row["undecided"] & on_grid) & (length - completed_at < row["window"])
        missed = at_gate & ~seen
        stop_at = np.where(seen & row["trim"], length + row["grace_window"], row["stop_at"])

        for name, column in (
            ("state", entry & STATE_BITS),
            ("length", length),
            ("completed_at", completed_at),
            ("undecided", row["undecided"] & ~(seen | missed)),
            ("marker_at", np.where(seen, length, row["marker_at"])),
            ("stop_at", np.where(missed & ~row["keep"], length, stop_at)),
        ):
            self._rows[name][slots] = column  # by column: assigning whole records is a hundred times slower
        return self.stops(slots)

    def armed(self, slots: np.ndarray) -> np.ndarray:
        """Slots whose next token is a forced stop if it is nearly certain: pass that to `stops`.

        Args:
            slots (np.ndarray): Slots, shape (R,).

        Returns:
            np.ndarray: Shape (R,), bool.
        """
        row = self._rows.take(slots)
        return row["trims_early"] & (row["marker_at"] <= row["length"]) & (row["length"] < row["stop_at"])

    def stops(self, slots: np.ndarray, certain: np.ndarray | None = None) -> np.ndarray:
        """Where the next token must be a forced stop; consumes nothing, so it can be asked again.

        Args:
            slots (np.ndarray): Slots, shape (R,).
            certain (np.ndarray | None): Whether the next token is nearly certain, and no EOS, by the thresholds of the
                rollout's gate, shape (R,), bool; read where `armed` only. None: nowhere.

        Returns:
            np.ndarray: Forced stops, shape (R,), bool.
        """
        due = self._rows["length"][slots] >= self._rows["stop_at"][slots]
        return due if certain is None else due | self.armed(slots) & certain


def _scan(automaton: TokenAutomaton, tokens: Sequence[int]) -> tuple[int, np.ndarray]:
    """Run one automaton over one prefix: its state, and the lengths at which markers completed, int64."""
    table, num_tokens = memoryview(automaton.table.reshape(-1)), automaton.num_tokens
    state, completed = automaton.start, []
    for length, token in enumerate(tokens, start=1):
        entry = table[state * num_tokens + token]
        state = entry & STATE_BITS
        if entry & COMPLETED:
            completed.append(length)
    return state, np.array(completed, dtype=np.int64)
