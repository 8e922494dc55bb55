# SPDX-License-Identifier: Apache-2.0
"""The answer inside a text: the one extractor that markers and verifiers share (Section 3.2, Assumption A3).

If a marker has completed in a prefix of a rollout, its extractor finds a non-empty answer in that prefix, and
`which="first"` finds the same answer in every continuation: stopping the rollout does not change it. At the end of a
finished text the extractors skip an opening that is never closed; a sentence, and an answer that a line break would
close, may end with the text.
Answers are looked for outside of known thoughts (`Written`) only; an opening delimiter inside an answer is content.
"""

import re
from collections.abc import Callable, Generator
from typing import Literal

from .grammars import (
    BOX_OPEN,
    FENCE,
    SENTENCE_BLANKS,
    SENTENCE_END,
    SENTENCE_GAP,
    SENTENCE_LEAD,
    SENTENCES,
    TAG_CLOSE,
    TAG_OPEN,
    WHITESPACE,
    is_placeholder,
)
from .thoughts import Written

Finder = Callable[[str, str | None], Generator[str, None, int | None]]
"""Yields the answers of a text up to the opening delimiter of a thought (None: to its end); returns where the
delimiter ends, or None if there is none."""

Which = Literal["first", "last"]


def extract_boxed(text: str | Written, which: Which = "first") -> str | None:
    r"""Content of the first or last closed, brace-balanced `\boxed{...}` with an answer in it, or None.

    Empty boxes and placeholders such as `\boxed{ANSWER}` (`grammars.PLACEHOLDERS`) hold none. A box in a box is
    content. `which` is as in `extract_answer`; surrounding ASCII whitespace is stripped.

    Example:
        >>> extract_boxed(r"so \boxed{} or rather \boxed{\frac{1}{2}}.")
        '\\frac{1}{2}'
    """
    return choose(_boxes, text, which)


def choose(finder: Finder, text: str | Written, which: Which) -> str | None:
    """The first or last answer that a finder sees outside of thoughts; ValueError if `which` is neither."""
    if which == "first":
        return next(_outside_thoughts(finder, Written(text) if isinstance(text, str) else text), None)
    if which == "last":
        return next(reversed(every_answer(finder, text)), None)
    raise ValueError(f'which must be "first" or "last", got {which!r}.')


def answer_region(text: str | Written) -> str | None:
    """The last stretch of a completion outside of thoughts; None where all of it is thought."""
    return choose(_stretch, text, "last")


def every_answer(finder: Finder, text: str | Written) -> list[str]:
    """All answers that a finder sees outside of thoughts, in order."""
    return list(_outside_thoughts(finder, Written(text) if isinstance(text, str) else text))


def _stretch(text: str, opening: str | None) -> Generator[str, None, int | None]:
    thought = _thought_before(text, opening, 0, len(text))
    yield text if thought is None else text[: thought - len(opening)]
    return thought


def _outside_thoughts(finder: Finder, written: Written) -> Generator[str, None, None]:
    opening, closing = written.delimiters.parts if written.delimiters else (None, "")
    thought: int | None = 0 if written.opened else -1  # where one begins; -1: the text begins outside
    region = written.text
    while thought is not None:
        if thought >= 0:
            _, closed, region = region[thought:].partition(closing)
            if not closed:
                return
        thought = yield from finder(region, opening)


def _thought_before(text: str, opening: str | None, begin: int, end: int) -> int | None:
    """End of an opening delimiter that begins in a stretch of the text; None without one."""
    place = -1 if opening is None else text.find(opening, begin, end + len(opening) - 1)
    return None if place < 0 else place + len(opening)


Found = tuple[int, list[str], int]
"""Where the content of an answer begins, the answers in it (none, or usually one), and where to continue after it."""


def _finder(find: Callable[[str, int], Found | None]) -> Finder:
    """All that `find` finds from left to right, up to a thought that begins while no answer is open."""

    def finder(text: str, opening: str | None) -> Generator[str, None, int | None]:
        place = 0
        while found := find(text, place):
            content, answers, end = found
            thought = _thought_before(text, opening, place, content)
            if thought is not None:
                return thought
            yield from answers
            place = end
        return _thought_before(text, opening, place, len(text))

    return finder


def _box(text: str, place: int) -> Found | None:
    start = text.find(BOX_OPEN, place)
    if start < 0:
        return None
    content = start + len(BOX_OPEN)
    spans, end = _close_box(text, content)
    answers = [text[first:last].strip(WHITESPACE) for first, last in spans]
    return content, [answer for answer in answers if answer and not is_placeholder(answer)], end


_BRACE = re.compile(rf"{re.escape(BOX_OPEN)}|\\.|[{{}}]", re.DOTALL)


def _close_box(text: str, begin: int) -> tuple[list[tuple[int, int]], int]:
    """Span of the box whose content starts at `begin`, and where to continue after it.

    If it never closes, the outermost closed boxes inside it replace it and the text is used up. One pass with a
    stack keeps this linear on degenerate texts that open thousands of boxes.
    """
    open_braces: list[int | None] = [begin]  # start of the content for a box, None for a plain brace
    inner: list[tuple[int, int]] = []
    for match in _BRACE.finditer(text, begin):
        if match[0] in (BOX_OPEN, "{"):
            open_braces.append(match.end() if match[0] == BOX_OPEN else None)
        elif match[0] == "}":
            opened = open_braces.pop()
            if not open_braces:
                return [(begin, match.start())], match.end()
            if opened is not None:
                while inner and inner[-1][0] > opened:
                    inner.pop()
                inner.append((opened, match.start()))
    return inner, len(text)


# sentencepiece decoders differ in whether they remove the blank before the first word
_BLOCK = re.compile(rf"(?:\A ?|(?<=\n)){FENCE}[^`\n]*\n(?P<body>.*?)(?:(?<=\n){FENCE}(?P<closed>)|\Z)", re.DOTALL)


def _block(text: str, place: int) -> Found | None:
    match = _BLOCK.search(text, place)
    if match is None:
        return None
    body = match["body"].removesuffix("\n")
    return match.start("body"), [body] * (match["closed"] is not None and body.strip(WHITESPACE) != ""), match.end()


def _short_answer(text: str, place: int) -> Found | None:
    found = _QA_OPENING.search(text, place)
    if found is None:
        return None
    if found[0] == TAG_OPEN:
        return _end_of_pair(text, found.end(), TAG_OPEN, TAG_CLOSE)
    content = _LEAD.match(text, found.end()).end()
    stop = _SENTENCE_STOP.search(text, content)
    answer = text[found.end() : stop.start()].lstrip(SENTENCE_BLANKS).rstrip(SENTENCE_END + WHITESPACE)
    if stop[0] == TAG_OPEN:
        return found.end(), [], stop.start()
    return found.end(), [answer] * (stop.start() > content), stop.end()


def between(first: str, last: str) -> Finder:
    """Answers between two texts (`grammars.step_pair`)."""

    def find(text: str, place: int) -> Found | None:
        start = text.find(first, place)
        return None if start < 0 else _end_of_pair(text, start + len(first), first, last)

    return _finder(find)


def _end_of_pair(text: str, begin: int, first: str, last: str) -> Found:
    again = text.find(first, begin)
    end = text.find(last, begin, len(text) if again < 0 else again + len(first))
    if end < 0 and again >= 0:
        return begin, [], again
    if end < 0 and not last.isspace():  # a finished text ends a line
        return begin, [], len(text)
    answer = (text[begin:end] if end >= 0 else text[begin:]).strip(WHITESPACE)
    return begin, [answer] * bool(answer), end + len(last) if end >= 0 else len(text)


def _any_of(characters: str) -> str:
    return f"[{re.escape(characters)}]"


_QA_OPENING = re.compile(f"{TAG_OPEN}|(?:{'|'.join(SENTENCES)}){_any_of(SENTENCE_GAP)}")
_LEAD = re.compile(_any_of(SENTENCE_LEAD) + "*")
_SENTENCE_STOP = re.compile(rf"\n|{_any_of(SENTENCE_END)}{_any_of(WHITESPACE)}|{TAG_OPEN}|\Z")

_boxes = _finder(_box)
FINDERS = {"math": _boxes, "math_paragraph": _boxes, "code": _finder(_block), "qa": _finder(_short_answer)}
"""The finder of each built-in marker."""
