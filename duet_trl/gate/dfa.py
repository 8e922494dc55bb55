# SPDX-License-Identifier: Apache-2.0
"""Byte automata: the common form of every answer marker of Phase 2 (Section 3.2).

A marker is written as a step function from a state and a byte to the next state and whether a marker was completed.
Exploring every reachable state turns it into a table; merging equal states makes the table small enough for seven
bits, which is what one byte per (state, token) leaves beside the completion flag.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

COMPLETED = 0x80
"""Bit 7 of a table entry: a marker was completed on this transition. The low seven bits are the next state."""

MAX_STATES = 127
"""States of a finished automaton: seven bits, the last value left free."""

MAX_RAW_STATES = 4096
"""States explored before merging. A powerset construction can grow exponentially; this bounds its time."""

State = Hashable
Step = Callable[[State, int], tuple[State, bool]]


def _never(state: State) -> bool:
    return False


@dataclass(frozen=True)
class Grammar:
    """What a marker looks for, one byte at a time.

    Attributes:
        start (State): State before the first byte.
        step (Step): Maps (state, byte) to (next state, completed). Must be pure.
        alphabet (Sequence[bytes]): All 256 bytes, grouped by what the step function does not tell apart.
        is_search (Callable[[State], bool]): Whether no answer is open in a state, so that a thought may begin there.
        is_complete (Callable[[State], bool]): Whether an answer would be complete if the text ended in a state.
    """

    start: State
    step: Step
    alphabet: Sequence[bytes]
    is_search: Callable[[State], bool]
    is_complete: Callable[[State], bool] = _never


def build_dfa(grammar: Grammar) -> np.ndarray:
    """The smallest byte automaton that completes exactly where the grammar does; its start becomes state 0.

    Returns:
        np.ndarray: Table of shape (S, 256), uint8, read-only: next state, plus `COMPLETED`.

    Raises:
        ValueError: If more than `MAX_STATES` states are needed, or no sequence of bytes completes a marker.
    """
    targets, completes = _explore(grammar)
    block = _merge_equal_states(targets, completes)
    num_states = int(block.max()) + 1
    if num_states > MAX_STATES:
        raise ValueError(
            f"the marker needs {num_states} automaton states, at most {MAX_STATES} fit. "
            "Shorten it: fewer alternatives, smaller counts such as {0,20}, shorter literals."
        )
    members = np.unique(block, return_index=True)[1]  # one raw state per merged state
    entries = (block[targets[members]] | np.where(completes[members], COMPLETED, 0)).astype(np.uint8)
    table = np.empty((num_states, 256), np.uint8)
    for column, group in enumerate(grammar.alphabet):
        table[:, np.frombuffer(group, np.uint8)] = entries[:, [column]]
    if not _completes_in_text(table):
        raise ValueError(
            "the marker can never complete: no text matches it, or every match can always grow. Check its anchors and "
            "character classes, and say where the answer ends: <answer>[^<]*</answer>, not (?s)<answer>.*</answer>."
        )
    table.setflags(write=False)
    return table


def split_alphabet(symbols: bytes) -> list[bytes]:
    """Groups for `build_dfa`: each byte of `symbols` by itself, all others together."""
    singles = sorted(set(symbols))
    others = bytes(sorted(set(range(256)) - set(singles)))
    return [bytes([byte]) for byte in singles] + [others] * bool(others)


def split_further(alphabet: Sequence[bytes], symbols: bytes) -> list[bytes]:
    """The groups of an alphabet with each byte of `symbols` by itself."""
    parts = (bytes(set(group) & set(part)) for group in alphabet for part in split_alphabet(symbols))
    return [part for part in parts if part]


def tail_that_may_open(text: bytes, openings: tuple[bytes, ...]) -> bytes:
    """The longest tail of the text that is a beginning of one of the openings, possibly all of it."""
    for start in range(len(text)):
        if any(opening.startswith(text[start:]) for opening in openings):
            return text[start:]
    return b""


def _explore(grammar: Grammar) -> tuple[np.ndarray, np.ndarray]:
    """Breadth first over the R reachable states and the A groups: targets (R, A) int64 and completes (R, A) bool."""
    number = {grammar.start: 0}
    queue = [grammar.start]
    targets, completes = [], []
    for state in queue:  # grows while it is read
        row = [grammar.step(state, group[0]) for group in grammar.alphabet]
        for following, _ in row:
            if following not in number:
                number[following] = len(queue)
                queue.append(following)
        targets.append([number[following] for following, _ in row])
        completes.append([completed for _, completed in row])
        if len(queue) > MAX_RAW_STATES:
            raise ValueError(
                f"the marker grows past {MAX_RAW_STATES} automaton states. "
                "Shorten it: avoid counted repetitions of broad classes such as .{20}."
            )
    return np.array(targets), np.array(completes)


def _completes_in_text(table: np.ndarray) -> bool:
    """Whether any valid UTF-8 completes a marker: bytes that break a character off end every match, but no text."""
    reached = np.zeros((len(_UTF8), len(table)), bool)
    reached[0, 0] = True
    before = -1
    while before < (before := int(reached.sum())):
        for inside, moves in enumerate(_UTF8):
            for first, last, following in moves:
                entries = table[reached[inside], first : last + 1]
                if (entries & COMPLETED).any():
                    return True
                reached[following, entries] = True
    return False


_UTF8 = (
    # (first byte, last byte, next place): 0 between characters, 1 to 3 with so many bytes to come, then the lead bytes
    # after which not every continuation is one
    ((0x00, 0x7F, 0), (0xC2, 0xDF, 1), (0xE0, 0xE0, 4), (0xE1, 0xEC, 2), (0xED, 0xED, 5), (0xEE, 0xEF, 2))
    + ((0xF0, 0xF0, 6), (0xF1, 0xF3, 3), (0xF4, 0xF4, 7)),
    ((0x80, 0xBF, 0),),
    ((0x80, 0xBF, 1),),
    ((0x80, 0xBF, 2),),
    ((0xA0, 0xBF, 1),),
    ((0x80, 0x9F, 1),),
    ((0x90, 0xBF, 2),),
    ((0x80, 0x8F, 2),),
)


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
