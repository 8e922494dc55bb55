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
    content. `which` is as in `extract_answer`; surrounding ASCII whitespace is taken off.

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
    if written.delimiters is None:
        yield from finder(written.text, None)
        return
    opening, closing = written.delimiters.opening, written.delimiters.closing
    thought: int | None = 0 if written.opened else -1  # where one begins; -1: the text begins outside
    region = written.text
    while thought is not None:
        if thought >= 0:
            close = region.find(closing, thought)
            if close < 0:
                return
            region = region[close + len(closing) :]
        thought = yield from finder(region, opening)


def _thought_before(text: str, opening: str | None, begin: int, end: int) -> int | None:
    """Where an opening delimiter ends that begins in a stretch of the text; None without one."""
    place = -1 if opening is None else text.find(opening, begin, end + len(opening) - 1)
    return None if place < 0 else place + len(opening)


def _boxes(text: str, opening: str | None) -> Generator[str, None, int | None]:
    place = 0
    while (start := text.find(BOX_OPEN, place)) >= 0:
        content = start + len(BOX_OPEN)
        thought = _thought_before(text, opening, place, content)
        if thought is not None:
            return thought
        spans, place = _close_box(text, content)
        for begin, end in spans:
            answer = text[begin:end].strip(WHITESPACE)
            if answer and not is_placeholder(answer):
                yield answer
    return _thought_before(text, opening, place, len(text))


_BRACE = re.compile(rf"{re.escape(BOX_OPEN)}|\\.|[{{}}]", re.DOTALL)


def _close_box(text: str, begin: int) -> tuple[list[tuple[int, int]], int]:
    """Span of the box whose content starts at `begin`, and where to go on behind it.

    If it never closes, the outermost closed boxes inside it take its place and the text is used up. One pass with a
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


def _blocks(text: str, opening: str | None) -> Generator[str, None, int | None]:
    body: list[str] | None = None
    begin = 0
    for line in text.split("\n"):
        end = begin + len(line) + 1
        outside = begin  # from here on the line is no part of a block
        # sentencepiece decoders differ in whether they take back the blank before the first word
        fence = line.removeprefix(" ") if begin == 0 else line
        if body is not None and not line.startswith(FENCE):
            body.append(line)
            outside = end
        elif body is not None:
            if any(line.strip(WHITESPACE) for line in body):
                yield "\n".join(body)
            body, outside = None, begin + len(FENCE)
        elif fence.startswith(FENCE) and "`" not in fence[len(FENCE) :]:
            body = []
        thought = _thought_before(text, opening, outside, end)
        if thought is not None:
            return thought
        begin = end
    return None


def _short_answers(text: str, opening: str | None) -> Generator[str, None, int | None]:
    place = 0
    while found := _OPENING.search(text, place):
        thought = _thought_before(text, opening, place, found.end())
        if thought is not None:
            return thought
        if found[0] == TAG_OPEN:
            answer, place = _end_of_pair(text, found.end(), TAG_OPEN, TAG_CLOSE)
        else:
            answer, place = _end_of_sentence(text, found.end())
        if answer:
            yield answer
    return _thought_before(text, opening, place, len(text))


def between(first: str, last: str, text: str, opening: str | None) -> Generator[str, None, int | None]:
    """Answers between two texts (`grammars.step_pair`), up to the opening delimiter of a thought."""
    place = 0
    while (found := text.find(first, place)) >= 0:
        thought = _thought_before(text, opening, place, found + len(first))
        if thought is not None:
            return thought
        answer, place = _end_of_pair(text, found + len(first), first, last)
        if answer:
            yield answer
    return _thought_before(text, opening, place, len(text))


def _end_of_pair(text: str, begin: int, first: str, last: str) -> tuple[str, int]:
    """The answer behind an opening ("": none), and where to go on."""
    again = text.find(first, begin)
    end = text.find(last, begin, len(text) if again < 0 else again + len(first))
    if end >= 0:
        return text[begin:end].strip(WHITESPACE), end + len(last)
    if again >= 0:
        return "", again
    return text[begin:].strip(WHITESPACE) if last.isspace() else "", len(text)  # a finished text ends a line


def _end_of_sentence(text: str, begin: int) -> tuple[str, int]:
    content = _LEAD.match(text, begin).end()
    stop = _SENTENCE_STOP.search(text, content)
    if stop[0] == TAG_OPEN:
        return "", stop.start()
    if stop.start() == content:
        return "", stop.end()
    return text[begin : stop.start()].lstrip(SENTENCE_BLANKS).rstrip(SENTENCE_END + WHITESPACE), stop.end()


def _any_of(characters: str) -> str:
    return f"[{re.escape(characters)}]"


_OPENING = re.compile(f"{TAG_OPEN}|(?:{'|'.join(SENTENCES)}){_any_of(SENTENCE_GAP)}")
_LEAD = re.compile(_any_of(SENTENCE_LEAD) + "*")
_SENTENCE_STOP = re.compile(rf"\n|{_any_of(SENTENCE_END)}{_any_of(WHITESPACE)}|{TAG_OPEN}|\Z")

FINDERS: dict[str, Finder] = {"math": _boxes, "math_paragraph": _boxes, "code": _blocks, "qa": _short_answers}
"""The finder of each built-in marker."""
