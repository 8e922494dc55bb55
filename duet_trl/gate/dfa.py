# SPDX-License-Identifier: Apache-2.0
"""Byte automata: the common form of every answer marker of Phase 2 (Section 3.2).

Exploring every reachable state of a step function turns it into a table; merging equal states makes the table small
enough for seven bits, which is what one byte per (state, token) leaves beside the completion flag.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

COMPLETED = 0x80
"""Bit 7 of a table entry: a marker was completed on this transition. The low seven bits are the next state."""

MAX_STATES = 127
"""States of a finished automaton: seven bits, the last value left free."""

State = Hashable
Step = Callable[[State, int], tuple[State, bool]]


@dataclass(frozen=True)
class Grammar:
    """What a marker looks for, one byte at a time."""

    start: State  # before the first byte
    step: Step  # pure
    alphabet: Sequence[bytes]  # all 256 bytes, grouped by what the step function does not tell apart
    is_search: Callable[[State], bool]  # whether no answer is open in a state, so that a thought may begin there


def build_dfa(grammar: Grammar) -> np.ndarray:
    """The smallest byte automaton that completes exactly where the grammar does; state 0 is the start.

    Its table has shape (S, 256), uint8: the next state, plus `COMPLETED`. ValueError if more than `MAX_STATES` states
    are needed.
    """
    targets, completes = _explore(grammar)
    block = _merge_equal_states(targets, completes)
    num_states = int(block.max()) + 1
    if num_states > MAX_STATES:
        raise too_many(num_states)
    members = np.unique(block, return_index=True)[1]  # one raw state per merged state
    entries = (block[targets[members]] | np.where(completes[members], COMPLETED, 0)).astype(np.uint8)
    table = np.empty((num_states, 256), np.uint8)
    for column, group in enumerate(grammar.alphabet):
        table[:, np.frombuffer(group, np.uint8)] = entries[:, [column]]
    table.setflags(write=False)
    return table


def too_many(num_states: int | str) -> ValueError:
    """The error of a marker that needs more than `MAX_STATES`."""
    return ValueError(
        f"the marker needs {num_states} automaton states, at most {MAX_STATES} fit. Shorten what it begins with."
    )


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
