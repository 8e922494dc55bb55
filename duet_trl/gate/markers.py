# SPDX-License-Identifier: Apache-2.0
"""Answer markers m of the gate: where in a rollout an answer is complete (Section 3.2, Algorithm 1 phase 2).

A marker is a small byte automaton, so that neither the tokenisation nor a split UTF-8 character matters;
`automaton.py` lifts it to the tokens of a vocabulary. Each has one extractor, shared with the verifiers: a marker that
has completed means an answer that can be read. Where the model has thoughts it completes only after them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .dfa import COMPLETED, MAX_STATES, Grammar, build_dfa, outside_thoughts, too_many
from .extract import FINDERS, between, choose
from .extract import Which as Which
from .extract import extract_boxed as extract_boxed
from .grammars import GRAMMARS, pair_grammar
from .thoughts import Delimiters, Written

CONTENT = "..."
"""Separates the opening and the closing in the name of a custom marker."""


@dataclass(frozen=True, eq=False)
class Marker:
    """A byte automaton that completes where an answer does, and continues the search after it."""

    name: str  # in configs and requests
    table: np.ndarray
    """Shape (S, 256), uint8, read-only. The entry for (state, byte) is the next state in the low seven bits, and bit 7
    if a marker completes at this byte. State 0 is the start of a text."""
    delimiters: Delimiters | None = None  # of the thoughts in which it does not complete

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


@lru_cache(maxsize=64)
def get_marker(name: str, delimiters: Delimiters | None = None) -> Marker:
    """The built-in marker of that name (a key of `MARKERS`), or a custom one from "opening...closing"; cached.

    A custom marker completes at the end of `closing`, the nearest one after `opening`, if there is more than
    whitespace between them. "ANSWER: ..." without a closing ends with the line.

    Raises:
        ValueError: If the name is neither, can never complete, or needs too many states, alone or with the
            delimiters.
    """
    if name in MARKERS and delimiters is None:
        return MARKERS[name]
    return _build(name, GRAMMARS[name] if name in GRAMMARS else pair_grammar(*_ends(name)), delimiters)


def _ends(name: str) -> tuple[str, str]:
    """Opening and closing of a custom marker."""
    opening, found, closing = name.partition(CONTENT)
    if not opening or not found or name.startswith("regex:"):
        raise ValueError(
            f"unknown marker {name!r}. Choose one of {', '.join(MARKERS)}, or write the text before and after an "
            'answer, with three dots between them: "<final>...</final>", or "ANSWER: ..." to the end of the line.'
        )
    closing = closing or "\n"
    num_states = len((opening + closing).encode("utf-8", "surrogatepass"))
    if num_states > MAX_STATES:  # each byte is a state; exploring many takes minutes, and anybody may ask a server
        raise too_many(f"{num_states} or more")
    if opening in closing[:-1]:
        raise ValueError(
            f"marker {name!r} can never complete: its closing {closing!r} contains its opening {opening!r}, which "
            "starts the answer again. Choose a closing without it."
        )
    return opening, closing


def extract_answer(name: str, text: str | Written, which: Which = "first") -> str | None:
    """The answer that the marker of that name detects.

    Args:
        name (str): As in `get_marker`.
        text (str | Written): A completion or a prefix of one. A string is all answer region.
        which (str): "first" is the answer that the marker saw; "last" is the usual choice on a finished text.

    Returns:
        str | None: The answer. Never None on a text in which the marker has completed.

    Raises:
        ValueError: If the name is unknown or `which` is neither "first" nor "last".
    """
    finder = FINDERS[name] if name in FINDERS else between(*_ends(name))
    return choose(finder, text, which)


def first_marker_end(marker: Marker, text: str, opened: bool = False) -> int | None:
    """Number n of characters of the shortest prefix in which the marker has completed, or None.

    `opened`: whether the completion begins inside a thought.
    """
    data = text.encode("utf-8", "surrogatepass")
    end = next(completion_ends(marker, data, opened), None)
    return None if end is None else len(data[:end].decode("utf-8", "surrogatepass"))


def completion_ends(marker: Marker, data: bytes, opened: bool = False) -> Iterator[int]:
    """Number of bytes read at each completion of the marker in the bytes of a completion, in order."""
    state, table = marker.thought_states[0] if opened else 0, marker.table.tobytes()
    for position, byte in enumerate(data, start=1):
        entry = table[256 * state + byte]
        state = entry & ~COMPLETED
        if entry & COMPLETED:
            yield position


def _build(name: str, grammar: Grammar, delimiters: Delimiters | None = None) -> Marker:
    if delimiters is None:
        return Marker(name, build_dfa(grammar))
    opening, closing = delimiters.parts
    try:
        table = build_dfa(outside_thoughts(grammar, opening.encode(), closing.encode()))
    except ValueError as error:
        raise ValueError(f"marker {name!r} with thoughts between {opening!r} and {closing!r}: {error}") from error
    return Marker(name, table, delimiters)


MARKERS: dict[str, Marker] = {name: _build(name, grammar) for name, grammar in GRAMMARS.items()}
"""The built-in markers by name, for a model without thoughts."""
