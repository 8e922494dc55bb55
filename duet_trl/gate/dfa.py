# SPDX-License-Identifier: Apache-2.0
"""Byte automata: the common form of every answer marker of Phase 2 (Section 3.2).

Exploring every reachable state of a step function turns it into a table; merging equal states makes the table small
enough for seven bits, which is what one byte per (state, token) leaves next to the completion flag.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

COMPLETED = 0x80
"""Bit 7 of a table entry: a marker was completed on this transition. The low seven bits are the next state."""

MAX_STATES = 127
"""States of a finished automaton: seven bits, the last value left free."""

State = Any
"""Hashable."""


class Grammar(NamedTuple):
    """The pattern of a marker, one byte at a time."""

    start: State  # before the first byte
    step: Callable[[State, int], tuple[State, bool]]  # pure; a state is a tuple while an answer is open
    symbols: bytes  # that the step function tells apart, `in_order`; it treats all others the same


def build_dfa(grammar: Grammar) -> np.ndarray:
    """The smallest byte automaton that completes exactly where the grammar does; state 0 is the start.

    Its table has shape (S, 256), uint8: the next state, plus `COMPLETED`. ValueError if more than `MAX_STATES` states
    are needed.
    """
    symbols = list(dict.fromkeys(grammar.symbols))
    others = sorted(set(range(256)) - set(symbols))
    targets, completes = _explore(grammar, [*symbols, *others[:1]])
    block = _merge_equal_states(targets, completes)
    num_states = int(block.max()) + 1
    if num_states > MAX_STATES:
        raise too_many(num_states)
    members = np.unique(block, return_index=True)[1]  # one raw state per merged state
    entries = (block[targets[members]] | np.where(completes[members], COMPLETED, 0)).astype(np.uint8)
    column = np.full(256, len(symbols))
    column[symbols] = range(len(symbols))
    table = entries[:, column]
    table.setflags(write=False)
    return table


def in_order(*texts: bytes) -> bytes:
    """The bytes of some texts, each once. The order decides how states are numbered, and so a table's fingerprint."""
    return bytes(sorted(set(b"".join(texts))))


def too_many(num_states: int | str) -> ValueError:
    """The error for a marker that needs more than `MAX_STATES`."""
    return ValueError(
        f"the marker needs {num_states} automaton states, at most {MAX_STATES} fit. Shorten its opening."
    )


def tail_that_may_open(text: bytes, *openings: bytes) -> bytes:
    """The longest tail of the text that is a beginning of one of the openings, possibly all of it."""
    for start in range(len(text)):
        if any(opening.startswith(text[start:]) for opening in openings):
            return text[start:]
    return b""


def outside_thoughts(grammar: Grammar, opening: bytes, closing: bytes) -> Grammar:
    """A grammar that completes outside of thoughts only: the same search, restarted after each.

    Where no answer is open, bytes that may begin an opening delimiter are held back until it is clear whether they do,
    so that none of them becomes part of an answer. A state is the tail in a thought that may be its closing delimiter,
    or the marker's state and the bytes held back.
    """

    def step(state: bytes | tuple[State, bytes], byte: int) -> tuple[bytes | tuple[State, bytes], bool]:
        if isinstance(state, bytes):
            tail = tail_that_may_open(state + bytes([byte]), closing)
            return ((grammar.start, b"") if tail == closing else tail), False
        (inner, held), completed = state, False
        held += bytes([byte])
        while held:
            if not isinstance(inner, tuple):
                if held == opening:
                    return b"", completed
                if opening.startswith(held):
                    break
            inner, done = grammar.step(inner, held[0])
            held, completed = held[1:], completed or done
        return (inner, held), completed

    return Grammar((grammar.start, b""), step, grammar.symbols + in_order(opening, closing))


def _explore(grammar: Grammar, letters: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Breadth first over the R reachable states and A letters: targets (R, A) int64 and completes (R, A) bool."""
    number = {grammar.start: 0}
    queue = [grammar.start]
    targets, completes = [], []
    for state in queue:  # grows while it is read
        row = [grammar.step(state, letter) for letter in letters]
        for following, _ in row:
            if following not in number:
                number[following] = len(queue)
                queue.append(following)
        targets.append([number[following] for following, _ in row])
        completes.append([completed for _, completed in row])
    return np.array(targets), np.array(completes)


def _merge_equal_states(targets: np.ndarray, completes: np.ndarray) -> np.ndarray:
    """Moore's partition refinement: a class per raw state (R,), numbered by first appearance (the start is 0)."""
    block = _number_rows(completes)
    while True:
        refined = _number_rows(np.hstack([block[:, None], block[targets]]))
        if refined.max() == block.max():
            return refined
        block = refined


def _number_rows(rows: np.ndarray) -> np.ndarray:
    """Equal rows get equal numbers, in order of first appearance."""
    seen: dict[bytes, int] = {}
    return np.array([seen.setdefault(row.tobytes(), len(seen)) for row in rows])
