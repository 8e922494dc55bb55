# SPDX-License-Identifier: Apache-2.0
"""Answer markers m of the gate: where in a rollout an answer is complete (Section 3.2, Algorithm 1 phase 2).

A marker is a small byte automaton, so that neither the tokenisation nor a split UTF-8 character matters;
`automaton.py` lifts it to the tokens of a vocabulary. Each has one extractor, shared with the verifiers: a marker that
has completed means an answer that can be read. Where the model has thoughts it completes behind them only.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from .dfa import COMPLETED, Grammar, build_dfa
from .extract import FINDERS, Which, choose, extract_boxed, find_matches
from .grammars import GRAMMARS
from .patterns import pattern_grammar
from .thoughts import Delimiters, Written, outside_thoughts

__all__ = [
    "MARKERS",
    "PATTERN_PREFIX",
    "Marker",
    "Which",
    "completion_ends",
    "extract_answer",
    "extract_boxed",
    "first_marker_end",
    "get_marker",
    "pattern_marker",
]

PATTERN_PREFIX = "regex:"
"""`get_marker("regex:<pattern>")` selects a custom marker."""


@dataclass(frozen=True, eq=False)
class Marker:
    """A byte automaton that completes where an answer does, and goes on searching behind it."""

    name: str  # in configs and requests
    table: np.ndarray
    """Shape (S, 256), uint8, read-only. The entry for (state, byte) is the next state in the low seven bits, and bit 7
    if a marker completes at this byte. State 0 is the start of a text."""
    delimiters: Delimiters | None = None  # of the thoughts in which it does not complete

    @property
    def num_states(self) -> int:
        """Number of states S, at most 127."""
        return len(self.table)

    @property
    def thought_states(self) -> tuple[int, ...]:
        """States in which a thought is open; the first is that of a thought that has just begun."""
        if self.delimiters is None:
            return ()
        state, states = self._after(0, self.delimiters.opening.encode()), []
        for byte in self.delimiters.closing.encode():
            states.append(state)
            state = self._after(state, bytes([byte]))
        return tuple(states)

    def _after(self, state: int, data: bytes) -> int:
        for byte in data:
            state = int(self.table[state, byte]) & ~COMPLETED
        return state


def pattern_marker(name: str, pattern: str, delimiters: Delimiters | None = None) -> Marker:
    """A custom marker from a regular expression; `name` is for messages and requests.

    It stands for the match that starts first and, of those, the longest. Python's `re` finds the same start; the end
    is that of greedy repetition, but lazy repetition and the order of alternatives make no difference. The next match
    is looked for behind it. The marker completes as soon as the bytes settle the match: at its last byte if nothing
    can make it longer (`ANSWER: \\d+\\n`), else at the first byte that does not (`ANSWER: \\d+`).

    The pattern may use literals, classes, `.`, groups, alternatives, counted repetition, `^`, `\\A` and the flags i,
    m, s, x. Classes such as `\\d` are ASCII. Text begins where the completion does, and anew behind a thought; a
    thought that begins ends the match. Look-around, back-references, `\\b`, `$`, atomic and possessive parts need more
    than the bytes read so far and are refused.

    Raises:
        ValueError: If the pattern is invalid, matches the empty string or nothing at all, uses an unsupported
            construct, can always grow (`(?s)<answer>.*?</answer>`; write `[^<]*`), or needs more than 127 states.
    """
    if delimiters is not None:
        pattern_marker(name, pattern)  # one that only a thought could end is an error as well
    return _build(name, pattern_grammar(pattern), delimiters)


def get_marker(name_or_pattern: str, delimiters: Delimiters | None = None) -> Marker:
    """The built-in marker of that name (a key of `MARKERS`), or a custom one from "regex:<pattern>"; cached.

    Raises:
        ValueError: If the name is unknown, or pattern and delimiters do not compile to a marker.
    """
    if name_or_pattern.startswith(PATTERN_PREFIX):
        return _cached_pattern_marker(name_or_pattern, delimiters)
    if name_or_pattern not in MARKERS:
        raise ValueError(
            f"unknown marker {name_or_pattern!r}. Choose one of {', '.join(MARKERS)}, "
            f'or write "{PATTERN_PREFIX}<regular expression>".'
        )
    return MARKERS[name_or_pattern] if delimiters is None else _cached_thinking_marker(name_or_pattern, delimiters)


def extract_answer(name_or_pattern: str, text: str | Written, which: Which = "first") -> str | None:
    """The answer that the marker of that name stands for.

    Args:
        name_or_pattern (str): As in `get_marker`.
        text (str | Written): A completion or a prefix of one. A string is answer region throughout.
        which (str): "first" is the answer that the marker saw; "last" is the usual choice on a finished text.

    Returns:
        str | None: The answer. Never None on a text in which the marker has completed.

    Raises:
        ValueError: If the name is unknown or `which` is neither "first" nor "last".
    """
    get_marker(name_or_pattern)
    if name_or_pattern in FINDERS:
        return choose(FINDERS[name_or_pattern], text, which)
    pattern = re.compile(name_or_pattern.removeprefix(PATTERN_PREFIX), re.ASCII)
    return choose(partial(find_matches, pattern), text, which)


def first_marker_end(marker: Marker, text: str, opened: bool = False) -> int | None:
    """Number n of characters of the shortest prefix in which the marker has completed, or None.

    `opened` says whether the completion begins inside a thought.
    """
    data = text.encode("utf-8", "surrogatepass")
    end = next(completion_ends(marker, data, opened), None)
    return None if end is None else count_characters(data[:end])


def count_characters(data: bytes) -> int:
    """Characters that some UTF-8 bytes have begun: a match may be settled by the first byte of the one behind it."""
    return sum(byte & 0xC0 != 0x80 for byte in data)


def completion_ends(marker: Marker, data: bytes, opened: bool = False) -> Iterator[int]:
    """Number of bytes read at each completion of the marker in the bytes of a completion, in order."""
    rows = [row.tobytes() for row in marker.table]
    state = marker.thought_states[0] if opened else 0
    for position, byte in enumerate(data, start=1):
        entry = rows[state][byte]
        state = entry & ~COMPLETED
        if entry & COMPLETED:
            yield position


def _build(name: str, grammar: Grammar, delimiters: Delimiters | None = None) -> Marker:
    try:
        table = build_dfa(outside_thoughts(grammar, delimiters))
    except ValueError as error:
        if delimiters is None:
            raise
        opening, closing = delimiters.parts
        raise ValueError(f"marker {name!r} with thoughts between {opening!r} and {closing!r}: {error}") from error
    return Marker(name, table, delimiters)


@lru_cache(maxsize=64)
def _cached_pattern_marker(name: str, delimiters: Delimiters | None) -> Marker:
    return pattern_marker(name, name.removeprefix(PATTERN_PREFIX), delimiters)


@lru_cache(maxsize=64)
def _cached_thinking_marker(name: str, delimiters: Delimiters) -> Marker:
    return _build(name, GRAMMARS[name], delimiters)


MARKERS: dict[str, Marker] = {name: _build(name, grammar) for name, grammar in GRAMMARS.items()}
"""The built-in markers by name, for a model without thoughts."""
