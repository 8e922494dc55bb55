# SPDX-License-Identifier: Apache-2.0
"""Markers over the tokens of a vocabulary: one table look-up per rollout and decode step (Section 3.2).

Every token is a map from state to state, composed once from the marker's byte automaton. A token that straddles the
end of a marker (`}$.`, `}}`) or splits a UTF-8 character is exact, and no text is decoded to look for a marker.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np

from .dfa import COMPLETED
from .markers import Marker

STATE_BITS = COMPLETED - 1


@dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """A marker compiled for a vocabulary of V tokens."""

    table: np.ndarray
    """Shape (S, V), uint8, read-only, C-contiguous. The entry for (state, token) is the next state in the low seven
    bits, and bit 7 if a marker completed inside the token."""
    start: int  # state before the first token, and after a token without text
    thought: int | None  # the same inside a thought; None: the marker knows no thoughts
    fingerprint: str  # hex digest of the table: two processes that agree on it see markers at the same tokens

    @property
    def num_tokens(self) -> int:
        """Vocabulary size V."""
        return self.table.shape[1]

    def first_state(self, in_thought: bool) -> int:
        """State before the first token of a rollout that begins inside a thought, or outside of one."""
        if not in_thought:
            return self.start
        if self.thought is None:
            raise ValueError("a rollout begins inside a thought, but the marker was compiled without its delimiters.")
        return self.thought

    def advance(self, states: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Next states (N,) uint8 after one token per rollout, and whether a marker completed inside it (N,) bool.

        A token id outside the vocabulary, as the placeholder of an engine that has not sampled yet, is a ValueError.
        """
        tokens = np.asarray(tokens, np.int64)
        self._check(tokens)
        return self._advance(states, tokens)

    def completions(
        self, rows: Sequence[Sequence[int]], in_thought: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Every completion of a marker in N finished rollouts; `in_thought` (N,) marks those that begin in a thought.

        Returns:
            tuple: Row (C,) int64 and 1-based position (C,) int64 of each of the C completions, ordered by row, then
                position: the marker has completed in the first `position` tokens of its row, within the last one.
        """
        ids = [np.asarray(row, np.int64) for row in rows]
        tokens = np.concatenate([np.zeros(0, np.int64), *ids])
        self._check(tokens)
        lengths = np.array([len(row) for row in ids], np.int64)
        order = np.argsort(-lengths, kind="stable")
        begins = (np.cumsum(lengths) - lengths)[order]
        # rows with a token at each position, (T,): a prefix of the order, so finished rows cost nothing
        active = len(ids) - np.cumsum(np.bincount(lengths))[:-1] if ids else []
        states = np.full(len(ids), self.start, np.uint8)
        if in_thought is not None and in_thought.any():
            states[in_thought[order]] = self.first_state(True)
        found: list[tuple[np.ndarray, int]] = []
        for position, count in enumerate(active):
            states, completed = self._advance(states[:count], tokens[begins[:count] + position])
            if completed.any():
                found.append((order[completed.nonzero()[0]], position + 1))
        row = np.concatenate([np.zeros(0, np.int64), *(hits for hits, _ in found)])
        at = np.repeat(np.array([at for _, at in found], np.int64), [len(hits) for hits, _ in found])
        by_row = np.argsort(row, kind="stable")  # positions are ascending already
        return row[by_row], at[by_row]

    def _advance(self, states: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        entries = self.table.reshape(-1).take(states.astype(np.int64) * self.num_tokens + tokens)
        return entries & STATE_BITS, entries >= COMPLETED

    def _check(self, tokens: np.ndarray) -> None:
        # read as unsigned, a negative id is huge: one comparison checks both bounds
        if tokens.size and tokens.view(np.uint64).max() >= self.num_tokens:
            wrong = tokens[(tokens < 0) | (tokens >= self.num_tokens)][0]
            raise ValueError(
                f"token id {wrong} is outside the automaton's vocabulary of {self.num_tokens}. Pass sampled tokens "
                "only, and compile the marker with the vocabulary size of the model."
            )


def compile_automaton(marker: Marker, vocabulary: Sequence[bytes | None]) -> TokenAutomaton:
    """Lift a marker from bytes to the tokens of a vocabulary; S * V bytes, cached for as long as they are in use.

    Args:
        marker (Marker): A marker of `markers.py`.
        vocabulary (Sequence[bytes | None]): Bytes of each token id, length V, as `vocabulary.vocabulary_bytes` gives.
            None is a token without text (special or unused): it completes nothing and restarts the text, without
            leaving a thought.

    Example:
        >>> from duet_trl.gate.markers import get_marker
        >>> automaton = compile_automaton(get_marker("math"), [rb"\\boxed{", b"4", b"2}$.", None])
        >>> automaton.completions([[0, 1, 2], [0, 1, 3, 2]])
        (array([0]), array([3]))
    """
    if not len(vocabulary):
        raise ValueError("the vocabulary is empty. Pass the bytes of each token id.")
    lengths = np.fromiter((-1 if token is None else len(token) for token in vocabulary), np.int64, len(vocabulary))
    text = b"".join(token for token in vocabulary if token)
    key = hashlib.blake2b(b"".join((marker.table.tobytes(), b"|", lengths.tobytes(), text))).hexdigest()
    automaton = _IN_USE.get(key)
    if automaton is None:
        table = _compose(marker.table, lengths, np.frombuffer(text, np.uint8))
        thoughts = marker.thought_states
        for state in thoughts:
            table[state, lengths < 0] = thoughts[0]
        table.setflags(write=False)
        digest = hashlib.blake2b(repr(table.shape).encode(), digest_size=16)
        digest.update(table)
        automaton = TokenAutomaton(table, 0, thoughts[0] if thoughts else None, digest.hexdigest())
        _IN_USE[key] = automaton
    return automaton


_IN_USE: WeakValueDictionary[str, TokenAutomaton] = WeakValueDictionary()


def _compose(dfa: np.ndarray, lengths: np.ndarray, text: np.ndarray) -> np.ndarray:
    """The table (S, V): for each start state, all tokens at once, one byte at a time, longest tokens first."""
    order = np.argsort(-lengths, kind="stable")
    begins = (np.cumsum(np.maximum(lengths, 0)) - np.maximum(lengths, 0))[order]
    longer = [int((lengths > position).sum()) for position in range(lengths.max())]
    columns = [text[begins[:count] + position].astype(np.intp) for position, count in enumerate(longer)]
    table = np.empty((len(dfa), len(lengths)), np.uint8)
    transitions = np.ascontiguousarray(dfa).ravel()  # index state * 256 + byte
    index = np.empty(len(lengths), np.intp)
    for start in range(len(dfa)):
        states = np.full(len(lengths), start, np.uint8)
        completed = np.zeros(len(lengths), np.uint8)
        for count, column in zip(longer, columns, strict=True):
            np.left_shift(states[:count], 8, out=index[:count], dtype=np.intp)
            index[:count] += column
            entries = transitions.take(index[:count], mode="clip")
            completed[:count] |= entries & COMPLETED
            np.bitwise_and(entries, STATE_BITS, out=states[:count])
        table[start, order] = states | completed
    table[:, lengths < 0] = 0
    return table
