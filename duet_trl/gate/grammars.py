# SPDX-License-Identifier: Apache-2.0
"""What counts as an answer, byte by byte: the step functions behind the built-in markers (Section 3.2).

Each maps (state, byte) to (next state, marker completed here) and reads left to right without looking ahead. What one
completes, its text-level twin in `extract.py` extracts. All bytes that the grammars tell apart are ASCII.
"""

from functools import partial
from typing import NamedTuple

from .dfa import Grammar, split_alphabet, tail_that_may_open

WHITESPACE = " \t\n\r\x0b\x0c"
"""Content made of these alone is empty. ASCII only, so that one byte decides; a no-break space is content."""

BOX_OPEN = "\\boxed{"
MAX_BOX_DEPTH = 8
"""Brace levels followed inside a box, its own included. A deeper box is never seen to close."""

_TEMPLATE_WORDS = ("answer", "your answer", "the answer", "final answer", "your final answer")
_PHANTOM = b"\\phantom{"
PLACEHOLDERS = frozenset(
    word.encode().translate(None, WHITESPACE.encode())
    for word in (
        *_TEMPLATE_WORDS,
        *(f"\\text{{{word}}}" for word in _TEMPLATE_WORDS),
        *("...", "\u2026", "\\ldots", "\\dots", "\\cdots", "?"),
        f"{_PHANTOM.decode()}}}",  # stands for any phantom without braces in it
    )
)
"""Contents of a box that were copied from a prompt and answer nothing, without blanks and in lower case."""

FENCE = "```"
TAG_OPEN, TAG_CLOSE = "<answer>", "</answer>"
SENTENCES = ("Therefore the answer is", "Therefore, the answer is")
SENTENCE_GAP = ": \t"
"""One of these must follow `SENTENCES`: "the answer isolates" is not an answer."""

SENTENCE_END = ".!?"
SENTENCE_BLANKS = " \t\r\x0b\x0c:"
SENTENCE_LEAD = SENTENCE_BLANKS + SENTENCE_END
"""An answer needs a character other than these; until it comes the sentence has not begun to answer."""

START_OF_SEARCH = b""
"""Between answers, the state of boxed and short-form search is the longest tail of the text that may open one."""


class Box(NamedTuple):
    """Inside `\\boxed{`: open braces, whether a backslash came last, and what was read so far.

    `read` is that of `_read_on`: None once it can be nothing but an answer.
    """

    depth: int
    escaped: bool
    read: bytes | None


TOO_DEEP = "too deep"
AFTER_BOX, AFTER_BREAK, AFTER_COLON = "after box", "after its line break", "after its colon"


def step_boxed(state: bytes | str | Box, byte: int) -> tuple[bytes | str | Box, bool]:
    r"""Completes at the brace that closes a `\boxed{...}` with an answer in it.

    A backslash escapes the next character, so `\{` and `\}` are not braces and `\\` is a backslash; this holds
    inside a box only, outside the seven characters `\boxed{` open one wherever they stand. An empty box and one of
    `PLACEHOLDERS` are passed over. A box inside a box is content. A box that never closes, or that nests deeper than
    `MAX_BOX_DEPTH`, hides whatever follows it: no false close.
    """
    if isinstance(state, bytes):
        seen = tail_that_may_open(state + bytes([byte]), (BOX_OPEN.encode(),))
        return (Box(1, False, b"") if seen == BOX_OPEN.encode() else seen), False
    if state == TOO_DEEP:
        return state, False
    char, escaped = chr(byte), state.escaped
    if char == "}" and not escaped and state.depth == 1:
        return START_OF_SEARCH, state.read != b"" and state.read not in PLACEHOLDERS
    read = _read_on(state.read, byte)
    if escaped or char not in "\\{}":
        return Box(state.depth, False, read), False
    depth = state.depth + {"\\": 0, "{": 1, "}": -1}[char]
    return (Box(depth, char == "\\", read) if depth <= MAX_BOX_DEPTH else TOO_DEEP), False


def is_placeholder(content: str) -> bool:
    """Whether the content of a box is one of `PLACEHOLDERS`; blanks and letter case do not matter."""
    read: bytes | None = b""
    for byte in content.encode("utf-8", "surrogatepass"):
        read = _read_on(read, byte)
    return read in PLACEHOLDERS


def _read_on(read: bytes | None, byte: int) -> bytes | None:
    """The content of a box that may still become a placeholder, in the form of `PLACEHOLDERS`; None if it cannot."""
    if read is None or chr(byte) in WHITESPACE:
        return read
    if read == _PHANTOM and chr(byte) not in "\\{}":
        return read
    longer = read + bytes([byte]).lower()
    return longer if longer in _BEGINNINGS else None


_BEGINNINGS = frozenset(placeholder[:end] for placeholder in PLACEHOLDERS for end in range(1, len(placeholder) + 1))


def step_boxed_paragraph(state: bytes | str | Box, byte: int) -> tuple[bytes | str | Box, bool]:
    r"""The paper's literal marker: a closed box directly followed by two newlines or by a colon at a line's end.

    Not the default, because real solutions hardly ever write it; see docs/fidelity.md#marker.
    """
    if state in (AFTER_BREAK, AFTER_COLON) and byte == ord("\n"):
        return START_OF_SEARCH, True
    if state == AFTER_BOX and byte == ord("\n"):
        return AFTER_BREAK, False
    if state == AFTER_BOX and byte == ord(":"):
        return AFTER_COLON, False
    following, closed = step_boxed(START_OF_SEARCH if _is_behind_box(state) else state, byte)
    return (AFTER_BOX if closed else following), False


def _is_behind_box(state: bytes | str | Box) -> bool:
    return state in (AFTER_BOX, AFTER_BREAK, AFTER_COLON)


class Fence(NamedTuple):
    """Place in fenced text: 0-2 backticks at column 0, or `IN_LINE`; inside a block or not; block has content."""

    column: int
    in_block: bool
    has_content: bool


IN_LINE = -1
INFO_STRING = "info string"
START_OF_TEXT = "start of text"


def step_fence(state: str | Fence, byte: int) -> tuple[str | Fence, bool]:
    """Completes at the third backtick of the fence that closes a non-empty fenced block.

    A fence is three backticks at column 0. An opening one is followed by an info string without backticks and the
    end of the line, so neither inline code nor an opening fence alone completes anything; the next fence at column 0
    closes the block whatever follows it. The first line of the text may be indented by one blank, because
    sentencepiece writes a blank before the first word and takes it back when decoding.
    """
    char = chr(byte)
    if state == START_OF_TEXT:
        state = Fence(0, False, False)
        if char == " ":
            return state, False
    if state == INFO_STRING:
        if char == "\n":
            return Fence(0, True, False), False
        return (Fence(IN_LINE, False, False) if char == "`" else state), False
    column, in_block, has_content = state
    if char == "`" and column == 2:
        return (Fence(IN_LINE, False, False), has_content) if in_block else (INFO_STRING, False)
    if char == "`" and column >= 0:
        return Fence(column + 1, in_block, has_content), False
    # backticks that came to less than a fence are content of the block like any other character
    has_content = in_block and (has_content or column > 0 or char not in WHITESPACE)
    return Fence(0 if char == "\n" else IN_LINE, in_block, has_content), False


class Between(NamedTuple):
    """Between an opening and a closing: the tail that may be either, and whether anything but whitespace was seen."""

    tail: bytes
    has_content: bool


_BEGUN = Between(b"", False)


def step_pair(opening: bytes, closing: bytes, state: bytes | Between, byte: int) -> tuple[bytes | Between, bool]:
    """Completes at the end of the closing behind an opening with more than whitespace between them.

    An opening is answered by its nearest closing; a second opening before it starts afresh, so an opening that is only
    mentioned does no harm once a real one follows.
    """
    if not isinstance(state, Between):
        seen = tail_that_may_open(state + bytes([byte]), (opening,))
        return (_BEGUN if seen == opening else seen), False
    text = state.tail + bytes([byte])
    if text.endswith(closing):
        return START_OF_SEARCH, state.has_content or bool(text[: -len(closing)].strip(WHITESPACE.encode()))
    if text.endswith(opening):
        return _BEGUN, False
    tail = tail_that_may_open(text, (opening, closing))
    passed = text[: len(text) - len(tail)]
    return Between(tail, state.has_content or bool(passed.strip(WHITESPACE.encode()))), False


def pair_grammar(opening: str, closing: str) -> Grammar:
    """What lies between two texts."""
    ends = opening.encode(), closing.encode()
    alphabet = split_alphabet(b"".join([*ends, WHITESPACE.encode()]))
    return Grammar(START_OF_SEARCH, partial(step_pair, *ends), alphabet, _is_search)


class Sentence(NamedTuple):
    """Behind "Therefore the answer is": the tail that may open a tag, content seen, sentence end came last."""

    tail: bytes
    has_content: bool
    ended: bool


def step_qa(state: bytes | Between | Sentence, byte: int) -> tuple[bytes | Between | Sentence, bool]:
    """Completes at the end of `<answer>X</answer>` or at the terminator of `Therefore(,) the answer is X`.

    X holds more than whitespace. Tags are those of `step_pair`. A sentence ends at a newline or at one of `.!?`
    followed by whitespace, so a number that is still being written is not an answer yet. An `<answer>` inside a
    sentence takes over; sentences inside an open tag are content.
    """
    if isinstance(state, Between):
        return step_pair(TAG_OPEN.encode(), TAG_CLOSE.encode(), state, byte)
    if isinstance(state, Sentence):
        return _step_sentence(state, byte)
    seen = tail_that_may_open(state + bytes([byte]), _QA_OPENINGS)
    if seen == TAG_OPEN.encode():
        return _BEGUN, False
    if seen in _QA_OPENINGS:
        return Sentence(b"", False, False), False
    return seen, False


def _step_sentence(state: Sentence, byte: int) -> tuple[bytes | Between | Sentence, bool]:
    tail = tail_that_may_open(state.tail + bytes([byte]), (TAG_OPEN.encode(),))
    if tail == TAG_OPEN.encode():
        return _BEGUN, False
    char = chr(byte)
    if char == "\n" or (state.ended and char in WHITESPACE):
        return START_OF_SEARCH, state.has_content
    has_content = state.has_content or char not in SENTENCE_LEAD
    return Sentence(tail, has_content, has_content and char in SENTENCE_END), False


_QA_OPENINGS = (TAG_OPEN.encode(), *((words + gap).encode() for words in SENTENCES for gap in SENTENCE_GAP))


def _is_search(state: object) -> bool:
    """Whether no answer is open in a state of the box and short-form grammars."""
    return isinstance(state, bytes | str) and state != TOO_DEEP


def _is_outside_block(state: str | Fence) -> bool:
    return not (isinstance(state, Fence) and state.in_block)


_BOX_ALPHABET = split_alphabet(
    b"".join([(BOX_OPEN + "}:" + WHITESPACE).encode(), *PLACEHOLDERS, *map(bytes.upper, PLACEHOLDERS)])
)
_FENCE_ALPHABET = split_alphabet((FENCE + WHITESPACE).encode())
_QA_ALPHABET = split_alphabet("".join([TAG_OPEN, TAG_CLOSE, *SENTENCES, SENTENCE_LEAD, WHITESPACE]).encode())

GRAMMARS = {
    "math": Grammar(START_OF_SEARCH, step_boxed, _BOX_ALPHABET, _is_search),
    "math_paragraph": Grammar(START_OF_SEARCH, step_boxed_paragraph, _BOX_ALPHABET, _is_search),
    "code": Grammar(START_OF_TEXT, step_fence, _FENCE_ALPHABET, _is_outside_block),
    "qa": Grammar(START_OF_SEARCH, step_qa, _QA_ALPHABET, _is_search),
}
"""The grammar of each built-in marker."""
