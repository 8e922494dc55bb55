# SPDX-License-Identifier: Apache-2.0
"""Answer markers m of the gate: where in a rollout an answer is complete (Section 3.2, Algorithm 1 phase 2).

A marker is a small byte automaton. Bytes rather than tokens or text, so that neither the tokenisation nor a split
UTF-8 character matters; `automaton.py` lifts it to the tokens of a vocabulary. Each marker has one extractor, shared
with the verifiers: a marker that has completed means an answer that can be read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .dfa import COMPLETED, build_dfa
from .extract import (
    EXTRACTORS,
    Which,
    extract_boxed,
    extract_code,
    extract_match,
    extract_qa,
)
from .grammars import (
    BOX_ALPHABET,
    FENCE_ALPHABET,
    QA_ALPHABET,
    START_OF_SEARCH,
    START_OF_TEXT,
    step_boxed,
    step_boxed_paragraph,
    step_fence,
    step_qa,
)
from .patterns import compile_pattern

__all__ = [
    "MARKERS",
    "PATTERN_PREFIX",
    "Marker",
    "completion_ends",
    "extract_answer",
    "extract_boxed",
    "extract_code",
    "extract_match",
    "extract_qa",
    "first_marker_end",
    "get_marker",
    "pattern_marker",
]

PATTERN_PREFIX = "regex:"
"""`get_marker("regex:<pattern>")` selects a custom marker."""


@dataclass(frozen=True, eq=False)
class Marker:
    """A byte automaton that completes where an answer does, and goes on searching behind it.

    Attributes:
        name (str): Name under which the marker is known in configs and requests.
        description (str): One line for people: what completes it.
        table (np.ndarray): Shape (S, 256), uint8, read-only. The entry for (state, byte) is the next state in the low
            seven bits, and bit 7 if a marker completes at this byte. State 0 is the start of a text.
    """

    name: str
    description: str
    table: np.ndarray

    @property
    def num_states(self) -> int:
        """Number of states S, at most 127."""
        return len(self.table)


def pattern_marker(name: str, pattern: str) -> Marker:
    """A custom marker from a regular expression.

    The marker completes at the earliest end of a match, and the search for the next one starts there: matches do not
    overlap, and greedy or lazy repetition makes no difference. The pattern may use literals, classes, `.`, groups,
    alternatives, counted repetition, `^`, `\\A` and the flags i, m, s, x. Classes such as `\\d` are ASCII. Text begins
    where the completion does. Look-around, back-references, `\\b`, `$`, atomic and possessive parts need more than
    the bytes read so far and are refused.

    Args:
        name (str): Name for messages and requests.
        pattern (str): Regular expression in Python's syntax. Must not match the empty string.

    Returns:
        Marker: The compiled marker.

    Raises:
        ValueError: If the pattern is invalid, matches the empty string or nothing at all, uses an unsupported
            construct, or needs more than 127 states.
    """
    return Marker(name, f"a match of the regular expression {pattern!r}", compile_pattern(pattern))


def get_marker(name_or_pattern: str) -> Marker:
    """The built-in marker of that name, or a custom one from "regex:<pattern>".

    Args:
        name_or_pattern (str): A key of `MARKERS`, or "regex:" followed by a regular expression.

    Returns:
        Marker: The marker; the same object for the same argument.

    Raises:
        ValueError: If the name is unknown or the pattern does not compile to a marker.
    """
    if name_or_pattern.startswith(PATTERN_PREFIX):
        return _cached_pattern_marker(name_or_pattern)
    if name_or_pattern not in MARKERS:
        raise ValueError(
            f"unknown marker {name_or_pattern!r}. Choose one of {', '.join(MARKERS)}, "
            f'or write "{PATTERN_PREFIX}<regular expression>".'
        )
    return MARKERS[name_or_pattern]


def extract_answer(name_or_pattern: str, text: str, which: Which = "first") -> str | None:
    """The answer that the marker of that name stands for.

    Args:
        name_or_pattern (str): As in `get_marker`.
        text (str): A completion or a prefix of one.
        which (str): "first" is the answer that the marker saw; "last" is the usual choice on a finished text.

    Returns:
        str | None: The answer. Never None on a text in which the marker has completed.

    Raises:
        ValueError: If the name is unknown or `which` is neither "first" nor "last".
    """
    if get_marker(name_or_pattern).name in EXTRACTORS:
        return EXTRACTORS[name_or_pattern](text, which)
    return extract_match(name_or_pattern.removeprefix(PATTERN_PREFIX), text, which)


def first_marker_end(marker: Marker, text: str) -> int | None:
    """Number of characters of the shortest prefix in which the marker has completed, or None.

    Args:
        marker (Marker): The marker.
        text (str): A completion.

    Returns:
        int | None: n such that `text[:n]` holds the marker and `text[:n - 1]` does not.
    """
    data = text.encode("utf-8", "surrogatepass")
    end = next(completion_ends(marker, data), None)
    return None if end is None else len(data[:end].decode("utf-8", "surrogatepass"))


def completion_ends(marker: Marker, data: bytes) -> Iterator[int]:
    """Number of bytes read at each completion of the marker, in order.

    Args:
        marker (Marker): The marker.
        data (bytes): The bytes of a completion, from its start.

    Yields:
        int: Position behind the completing byte, 1-based.
    """
    rows = [row.tobytes() for row in marker.table]
    state = 0
    for position, byte in enumerate(data, start=1):
        entry = rows[state][byte]
        state = entry & ~COMPLETED
        if entry & COMPLETED:
            yield position


@lru_cache(maxsize=64)
def _cached_pattern_marker(name: str) -> Marker:
    return pattern_marker(name, name.removeprefix(PATTERN_PREFIX))


MARKERS: dict[str, Marker] = {
    marker.name: marker
    for marker in (
        Marker(
            "math",
            r"a closed, non-empty, brace-balanced \boxed{...}; also for multiple choice",
            build_dfa(START_OF_SEARCH, step_boxed, BOX_ALPHABET),
        ),
        Marker(
            "math_paragraph",
            r"the paper's literal form: a closed \boxed{...}, then two newlines or a colon at the end of the line",
            build_dfa(START_OF_SEARCH, step_boxed_paragraph, BOX_ALPHABET),
        ),
        Marker(
            "code",
            "the fence of three backticks at column 0 that closes a non-empty block",
            build_dfa(START_OF_TEXT, step_fence, FENCE_ALPHABET),
        ),
        Marker(
            "qa",
            "<answer>X</answer>, or 'Therefore(,) the answer is X' up to its newline or sentence end",
            build_dfa(START_OF_SEARCH, step_qa, QA_ALPHABET),
        ),
    )
}
"""The built-in markers by name."""
