# SPDX-License-Identifier: Apache-2.0
r"""The answer inside a text: the one extractor that markers and verifiers share (Section 3.2, Assumption A3).

If a marker has completed in a prefix of a rollout, its extractor finds a non-empty answer in that prefix, and
`which="first"` finds the same answer in every continuation: stopping the rollout does not change it.
At the end of a finished text the extractors are a little more forgiving than a marker can be: they skip an opening
that is never closed, and a sentence may end with the text.
"""

import re
from collections.abc import Callable, Iterator
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
)

Which = Literal["first", "last"]


def extract_boxed(text: str, which: Which = "first") -> str | None:
    r"""Content of the first or last closed, non-empty, brace-balanced `\boxed{...}`; boxes in boxes are content.

    Args:
        text (str): A completion or a prefix of one.
        which (str): "first" is the answer that the marker saw; "last" is the usual choice on a finished text.

    Returns:
        str | None: The content without surrounding ASCII whitespace, or None without such a box.

    Raises:
        ValueError: If `which` is neither "first" nor "last".

    Example:
        >>> extract_boxed(r"so \boxed{} or rather \boxed{\frac{1}{2}}.")
        '\\frac{1}{2}'
    """
    return _choose(_boxes(text), which)


def extract_code(text: str, which: Which = "first") -> str | None:
    """Body of the first or last closed, non-empty block between fences of three backticks at column 0.

    Args:
        text (str): A completion or a prefix of one.
        which (str): "first" is the block that the marker saw.

    Returns:
        str | None: The lines between the fences, indentation kept, or None without such a block.

    Raises:
        ValueError: If `which` is neither "first" nor "last".
    """
    return _choose(_blocks(text), which)


def extract_qa(text: str, which: Which = "first") -> str | None:
    """X of the first or last `<answer>X</answer>` or `Therefore(,) the answer is X`.

    Args:
        text (str): A completion or a prefix of one.
        which (str): "first" is the answer that the marker saw.

    Returns:
        str | None: X without surrounding ASCII whitespace, or None without one.

    Raises:
        ValueError: If `which` is neither "first" nor "last".
    """
    return _choose(_short_answers(text), which)


def extract_match(pattern: str, text: str, which: Which = "first") -> str | None:
    """Match of a custom marker's regular expression: its first group if that is not empty, else all of it.

    Args:
        pattern (str): The regular expression, with ASCII classes as in `pattern_marker`.
        text (str): A completion or a prefix of one.
        which (str): "first" or "last" match.

    Returns:
        str | None: The text of the match, or None without one.

    Raises:
        ValueError: If `which` is neither "first" nor "last".
    """
    compiled = re.compile(pattern, re.ASCII)
    group = min(1, compiled.groups)
    return _choose((match[group] or match[0] for match in compiled.finditer(text)), which)


EXTRACTORS: dict[str, Callable[[str, Which], str | None]] = {
    "math": extract_boxed,
    "math_paragraph": extract_boxed,
    "code": extract_code,
    "qa": extract_qa,
}
"""The extractor of each built-in marker."""


def _choose(answers: Iterator[str], which: Which) -> str | None:
    if which == "first":
        return next(answers, None)
    if which == "last":
        return next(iter(list(answers)[-1:]), None)
    raise ValueError(f'which must be "first" or "last", got {which!r}.')


def _boxes(text: str) -> Iterator[str]:
    start = text.find(BOX_OPEN)
    while start >= 0:
        spans, resume = _close_box(text, start + len(BOX_OPEN))
        for begin, end in spans:
            if content := text[begin:end].strip(WHITESPACE):
                yield content
        start = text.find(BOX_OPEN, resume)


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


def _blocks(text: str) -> Iterator[str]:
    lines = text.split("\n")
    body: list[str] | None = None
    for number, line in enumerate(lines):
        # sentencepiece decoders differ in whether they take back the blank before the first word
        opening = line.removeprefix(" ") if number == 0 else line
        if body is None:
            if opening.startswith(FENCE) and "`" not in opening[len(FENCE) :]:
                body = []
        elif not line.startswith(FENCE):
            body.append(line)
        else:
            if any(line.strip(WHITESPACE) for line in body):
                yield "\n".join(body)
            body = None


def _short_answers(text: str) -> Iterator[str]:
    opening = _OPENING.search(text)
    while opening:
        find_end = _end_of_tag if opening[0] == TAG_OPEN else _end_of_sentence
        answer, resume = find_end(text, opening.end())
        if answer:
            yield answer
        opening = _OPENING.search(text, resume)


def _end_of_tag(text: str, begin: int) -> tuple[str, int]:
    end = _TAG.search(text, begin)
    if end is None:
        return "", begin
    if end[0] == TAG_OPEN:
        return "", end.start()
    return text[begin : end.start()].strip(WHITESPACE), end.end()


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
_TAG = re.compile(f"{TAG_OPEN}|{TAG_CLOSE}")
_SENTENCE_STOP = re.compile(rf"\n|{_any_of(SENTENCE_END)}{_any_of(WHITESPACE)}|{TAG_OPEN}|\Z")
