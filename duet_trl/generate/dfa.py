# SPDX-License-Identifier: Apache-2.0
"""Byte automata: the common form of every answer marker of Phase 2 (Section 3.2).

A marker is written as a step function from a state and a byte to the next state and whether a marker was completed.
Exploring every reachable state turns it into a table; merging equal states makes the table small enough for seven
bits, which is what one byte per (state, token) leaves beside the completion flag.
"""

from collections.abc import Callable, Hashable, Sequence

import numpy as np

COMPLETED = 0x80
"""Bit 7 of a table entry: a marker was completed on this transition. The low seven bits are the next state."""

MAX_STATES = 127
"""States of a finished automaton: seven bits, the last value left free."""

MAX_RAW_STATES = 2048
"""States explored before merging. A powerset construction can grow exponentially; this bounds its time."""

State = Hashable
Step = Callable[[State, int], tuple[State, bool]]


def build_dfa(start: State, step: Step, alphabet: Sequence[bytes]) -> np.ndarray:
    """The smallest byte automaton that completes exactly where the step function does.

    Args:
        start (State): State before the first byte; becomes state 0.
        step (Step): Maps (state, byte) to (next state, completed). Must be pure.
        alphabet (Sequence[bytes]): All 256 bytes, grouped by what the step function does not tell apart.

    Returns:
        np.ndarray: Table of shape (S, 256), uint8, read-only: next state, plus `COMPLETED`.

    Raises:
        ValueError: If more than `MAX_STATES` states are needed, or no sequence of bytes completes a marker.
    """
    targets, completes = _explore(start, step, alphabet)
    if not completes.any():
        raise ValueError("the marker can never complete: no text matches it. Check its anchors and character classes.")
    block = _merge_equal_states(targets, completes)
    num_states = int(block.max()) + 1
    if num_states > MAX_STATES:
        raise ValueError(
            f"the marker needs {num_states} automaton states, at most {MAX_STATES} fit. "
            "Shorten it: fewer alternatives, smaller counts such as {0,20}, shorter literals."
        )
    members = np.unique(block, return_index=True)[1]  # one raw state per merged state
    table = (block[targets[members]] | np.where(completes[members], COMPLETED, 0)).astype(np.uint8)
    table.setflags(write=False)
    return table


def split_alphabet(symbols: bytes) -> list[bytes]:
    """Groups for `build_dfa`: each byte of `symbols` by itself, all others together."""
    singles = sorted(set(symbols))
    others = bytes(sorted(set(range(256)) - set(singles)))
    return [bytes([byte]) for byte in singles] + [others] * bool(others)


def _explore(start: State, step: Step, alphabet: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Breadth first over the reachable states: targets (R, 256) int64 and completes (R, 256) bool."""
    groups = [(group[0], np.frombuffer(group, np.uint8)) for group in alphabet]
    number = {start: 0}
    queue = [start]
    targets, completes = [], []
    for state in queue:  # grows while it is read
        row = np.empty(256, np.int64)
        flags = np.empty(256, bool)
        for representative, group in groups:
            following, completed = step(state, representative)
            if following not in number:
                number[following] = len(queue)
                queue.append(following)
            row[group], flags[group] = number[following], completed
        targets.append(row)
        completes.append(flags)
        if len(queue) > MAX_RAW_STATES:
            raise ValueError(
                f"the marker grows past {MAX_RAW_STATES} automaton states. "
                "Shorten it: avoid counted repetitions of broad classes such as .{20}."
            )
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
