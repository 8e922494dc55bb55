# SPDX-License-Identifier: Apache-2.0
"""Regular expressions as byte automata, for custom answer markers (Section 3.2).

The standard library parses the pattern, characters become their UTF-8 bytes, Thompson's construction gives a
nondeterministic automaton, and `dfa.py` makes it deterministic. A state is a list of attempts at a match, the one that
starts first in front. The match that is meant is the leftmost one, and of those the longest.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from re import _constants, _parser
from typing import NamedTuple

from .dfa import LAST_CODE_POINT, Grammar, utf8_ranges

MAX_NODES = 20_000
"""Nodes of the nondeterministic automaton; a counted repetition multiplies them. Bounds the compile time."""

_NEWLINE = ord("\n")
_CATEGORIES = {  # ASCII meaning, as under re.ASCII
    _constants.CATEGORY_DIGIT: ((0x30, 0x39),),
    _constants.CATEGORY_SPACE: ((0x09, 0x0D), (0x20, 0x20)),
    _constants.CATEGORY_WORD: ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
}
_NEGATED = {
    _constants.CATEGORY_NOT_DIGIT: _constants.CATEGORY_DIGIT,
    _constants.CATEGORY_NOT_SPACE: _constants.CATEGORY_SPACE,
    _constants.CATEGORY_NOT_WORD: _constants.CATEGORY_WORD,
}
_CONSTRUCTS = {  # by name: the parser's codes are integers, equal across kinds
    "ASSERT": "look-around",
    "ASSERT_NOT": "look-around",
    "GROUPREF": "a back-reference",
    "GROUPREF_EXISTS": "a conditional group",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repetition",
    "AT_END": "the anchor $",
    "AT_END_STRING": r"the anchor \Z",
    "AT_BOUNDARY": r"the word boundary \b",
    "AT_NON_BOUNDARY": r"\B",
}

Ranges = tuple[tuple[int, int], ...]


class Attempt(NamedTuple):
    """A match that may have begun at one place of the text.

    `nodes` may read on; empty: it cannot grow. `matched` once it has reached an end.
    """

    nodes: frozenset[int]
    matched: bool


Attempts = tuple[Attempt, ...]
_SETTLED = Attempt(frozenset(), True)


def pattern_grammar(pattern: str) -> Grammar:
    """What completes once the bytes settle a match: that no match starts before it, and that it cannot grow.

    States are attempts in the order of their starts. Bytes between the end of a match and the byte that settles it may
    belong to the next one. `markers.pattern_marker` says what a pattern may hold; others are a ValueError.
    """
    matcher = _matcher(pattern)

    def step(state: Attempts, byte: int) -> tuple[Attempts, bool]:
        attempts: list[Attempt] = []
        taken: frozenset[int] = frozenset()  # a later attempt at the same node can only end inside an earlier one
        for nodes, matched in state:
            moved, at_end = matcher.read(nodes, byte)
            attempt = Attempt(moved - taken, matched or at_end)
            if attempt.nodes or (attempt.matched and attempts[-1:] != [_SETTLED]):
                attempts.append(attempt)
            taken |= moved
            if at_end:  # the match covers the starts of all that follow
                break
        attempts.append(Attempt(matcher.begin(byte == _NEWLINE) - taken, False))
        settled = attempts[0] == _SETTLED
        return tuple(attempt for attempt in attempts[settled:] if any(attempt)), settled

    return Grammar(
        start=(Attempt(matcher.begin(at_line_start=True, at_text_start=True), False),),
        step=step,
        alphabet=matcher.alphabet,
        is_search=lambda state: True,  # a match never reaches into a thought
        is_complete=lambda state: any(attempt.matched for attempt in state),
    )


def match_end(pattern: str, text: str, begin: int) -> int | None:
    """End, in characters, of the longest match that starts at one place of a text; None if there is none."""
    matcher, end = _matcher(pattern), None
    nodes = matcher.begin(begin == 0 or text[begin - 1] == "\n", at_text_start=begin == 0)
    for place in range(begin, len(text)):
        for byte in text[place].encode("utf-8", "surrogatepass"):
            nodes, at_end = matcher.read(nodes, byte)
        if at_end:
            end = place + 1
        if not nodes:
            break
    return end


@lru_cache(maxsize=64)
def _matcher(pattern: str) -> "_Matcher":
    return _Matcher(pattern)


class _Matcher:
    """One attempt at a match: the sets of nodes that bytes lead to."""

    def __init__(self, pattern: str) -> None:
        try:
            tree = _parser.parse(pattern, re.ASCII)
        except (re.error, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"the marker pattern {pattern!r} is not a regular expression: {error}.") from error
        self._nfa = _Nfa(pattern)
        self._accept = self._nfa.node()
        self._start = self._nfa.sequence(tree, tree.state.flags, self._accept)
        if self._accept in self._nfa.closure([self._start], at_line_start=True, at_text_start=True):
            raise ValueError(
                f"the marker pattern {pattern!r} matches the empty string, so it would be seen at once. "
                "Require at least one character."
            )
        self.alphabet = self._nfa.alphabet()
        self._leading = self._nfa.leading_to(self._accept)
        self._read: dict[tuple[frozenset[int], int], tuple[frozenset[int], bool]] = {}

    def begin(self, at_line_start: bool, at_text_start: bool = False) -> frozenset[int]:
        """The nodes of an attempt that begins at such a place."""
        return self._nfa.closure([self._start], at_line_start, at_text_start) & self._leading

    def read(self, nodes: frozenset[int], byte: int) -> tuple[frozenset[int], bool]:
        """The nodes after one more byte, without those that lead nowhere, and whether a match ends here."""
        found = self._read.get((nodes, byte))
        if found is None:
            targets = [target for low, high, target in self._nfa.edges_of(nodes) if low <= byte <= high]
            moved = self._nfa.closure(targets, byte == _NEWLINE, at_text_start=False)
            found = self._read[nodes, byte] = moved & self._leading, self._accept in moved
        return found


class _Nfa:
    """A nondeterministic byte automaton, built from the end of the pattern to its front.

    Node i reads a byte along `edges[i]` = (low, high, target) or moves freely along `jumps[i]` = (condition, target),
    where the condition is None, "line start" or "text start".
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.edges: list[list[tuple[int, int, int]]] = []
        self.jumps: list[list[tuple[str | None, int]]] = []

    def node(self) -> int:
        """A new node without edges."""
        if len(self.edges) == MAX_NODES:
            raise ValueError(
                f"the marker pattern {self.pattern!r} is too large. Use smaller counts in its repetitions."
            )
        self.edges.append([])
        self.jumps.append([])
        return len(self.edges) - 1

    def jump(self, *targets: int, condition: str | None = None) -> int:
        """A new node that moves freely to the targets."""
        node = self.node()
        self.jumps[node] += [(condition, target) for target in targets]
        return node

    def sequence(self, items: Iterable, flags: int, following: int) -> int:
        """Entry of the items one after the other, leaving to `following`."""
        for code, argument in reversed(list(items)):
            following = self._item(code, argument, flags, following)
        return following

    def _item(self, code: object, argument: object, flags: int, following: int) -> int:
        if code is _constants.BRANCH:
            return self.jump(*(self.sequence(items, flags, following) for items in argument[1]))
        if code is _constants.SUBPATTERN:
            _, added, removed, items = argument
            if added & re.UNICODE:
                raise self._unsupported("the flag u")
            return self.sequence(items, (flags | added) & ~removed, following)
        if code in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            return self._repeat(*argument, flags, following)
        if code is _constants.AT:
            return self._anchor(argument, flags, following)
        return self._characters(_character_ranges(code, argument, flags, self._unsupported), following)

    def _repeat(self, least: int, most: int, items: Iterable, flags: int, following: int) -> int:
        if most is _constants.MAXREPEAT:
            entry = self.jump(following)
            self.jumps[entry].append((None, self.sequence(items, flags, entry)))
        else:
            entry = following
            for _ in range(most - least):
                entry = self.jump(following, self.sequence(items, flags, entry))
        for _ in range(least):
            before = self.sequence(items, flags, entry)
            if before == entry:  # the repeated part is empty
                break
            entry = before
        return entry

    def _anchor(self, kind: object, flags: int, following: int) -> int:
        if kind is _constants.AT_BEGINNING and flags & re.MULTILINE:
            return self.jump(following, condition="line start")
        if kind in (_constants.AT_BEGINNING, _constants.AT_BEGINNING_STRING):
            return self.jump(following, condition="text start")
        raise self._unsupported(_CONSTRUCTS.get(str(kind), str(kind)))

    def _characters(self, ranges: Ranges, following: int) -> int:
        entry = self.node()
        for low, high in ranges:
            for byte_ranges in utf8_ranges(low, high):
                target = following
                for first, last in reversed(byte_ranges[1:]):
                    node = self.node()
                    self.edges[node].append((first, last, target))
                    target = node
                self.edges[entry].append((*byte_ranges[0], target))
        return entry

    def closure(self, nodes: Iterable[int], at_line_start: bool, at_text_start: bool) -> frozenset[int]:
        """The reading nodes and dead ends (the accepting node is one) that free moves lead to."""
        holds = {None: True, "line start": at_line_start, "text start": at_text_start}
        seen = set(nodes)
        queue = list(seen)
        for node in queue:  # grows while it is read
            fresh = {target for condition, target in self.jumps[node] if holds[condition]} - seen
            seen |= fresh
            queue += fresh
        return frozenset(node for node in seen if not self.jumps[node])

    def leading_to(self, accept: int) -> frozenset[int]:
        """The nodes from which some bytes lead to the accepting one."""
        sources: dict[int, list[int]] = {}
        closure: dict[tuple[int, bool], frozenset[int]] = {}
        for node, edges in enumerate(self.edges):
            for low, high, target in edges:
                # a range may hold the newline, other bytes, or both
                for at_line_start in {byte == _NEWLINE for byte in (low, high, min(max(low, _NEWLINE), high))}:
                    key = target, at_line_start
                    if key not in closure:
                        closure[key] = self.closure([target], at_line_start, at_text_start=False)
                    for reached in closure[key]:
                        sources.setdefault(reached, []).append(node)
        seen, queue = set(), [accept]
        for node in queue:  # grows while it is read
            fresh = set(sources.get(node, ())) - seen
            seen |= fresh
            queue += fresh
        return frozenset(seen)

    def edges_of(self, nodes: Iterable[int]) -> Iterator[tuple[int, int, int]]:
        """All byte edges that leave the nodes."""
        return (edge for node in nodes for edge in self.edges[node])

    def alphabet(self) -> list[bytes]:
        """All bytes, grouped by the edges that read them; the newline stands alone because anchors look for it."""
        ranges = {(low, high) for low, high, _ in self.edges_of(range(len(self.edges)))} | {(10, 10)}
        cuts = sorted({0, 256} | {low for low, _ in ranges} | {high + 1 for _, high in ranges})
        return [bytes(range(low, high)) for low, high in zip(cuts, cuts[1:], strict=False)]

    def _unsupported(self, construct: str) -> ValueError:
        return ValueError(
            f"the marker pattern {self.pattern!r} uses {construct}, which needs more than the bytes read so far. "
            "Write what must follow as part of the pattern, for example a newline or [.!?] and a blank."
        )


def _character_ranges(code: object, argument: object, flags: int, unsupported: Callable[[str], ValueError]) -> Ranges:
    """Code points that a one-character item of the parsed pattern reads."""
    if code is _constants.ANY:
        return ((0, LAST_CODE_POINT),) if flags & re.DOTALL else _complement(((10, 10),))
    if code is _constants.LITERAL:
        return _fold(((argument, argument),), flags)
    if code is _constants.NOT_LITERAL:
        return _complement(_fold(((argument, argument),), flags))
    if code is not _constants.IN:
        raise unsupported(_CONSTRUCTS.get(str(code), str(code)))
    ranges: list[tuple[int, int]] = []
    for kind, value in argument:
        if kind is _constants.LITERAL:
            ranges.append((value, value))
        elif kind is _constants.RANGE:
            ranges.append(value)
        elif kind is _constants.CATEGORY:
            ranges += _CATEGORIES[value] if value in _CATEGORIES else _complement(_CATEGORIES[_NEGATED[value]])
    folded = _fold(tuple(ranges), flags)
    return _complement(folded) if argument[0][0] is _constants.NEGATE else folded


def _fold(ranges: Ranges, flags: int) -> Ranges:
    """The ranges and, when case is ignored, the other case of their ASCII letters."""
    if not flags & re.IGNORECASE:
        return ranges
    folded = list(ranges)
    for first, last, shift in ((0x41, 0x5A, 32), (0x61, 0x7A, -32)):
        folded += [
            (max(low, first) + shift, min(high, last) + shift)
            for low, high in ranges
            if max(low, first) <= min(high, last)
        ]
    return tuple(folded)


def _complement(ranges: Ranges) -> Ranges:
    gaps, begin = [], 0
    for low, high in sorted(ranges):
        if low > begin:
            gaps.append((begin, low - 1))
        begin = max(begin, high + 1)
    if begin <= LAST_CODE_POINT:
        gaps.append((begin, LAST_CODE_POINT))
    return tuple(gaps)
