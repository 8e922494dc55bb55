# SPDX-License-Identifier: Apache-2.0
"""What counts as an answer, byte by byte: the step functions of the built-in markers (Section 3.2).

Each maps (state, byte) to (next state, marker completed here) and reads left to right without looking ahead. What one
completes, its text-level twin in `extract.py` extracts. All bytes that the grammars tell apart are ASCII.
"""

from collections import namedtuple
from functools import partial

from .dfa import Grammar, State, in_order, tail_that_may_open

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
        f"{_PHANTOM.decode()}}}",  # represents any phantom without braces in it
    )
)
"""Contents of a box that were copied from a prompt and answer nothing, without blanks and in lower case."""
_BEGINNINGS = frozenset(placeholder[:end] for placeholder in PLACEHOLDERS for end in range(1, len(placeholder) + 1))

FENCE = "```"
TAG_OPEN, TAG_CLOSE = "<answer>", "</answer>"
SENTENCES = ("Therefore the answer is", "Therefore, the answer is")
SENTENCE_GAP = ": \t"
"""One of these must follow `SENTENCES`: "the answer isolates" is not an answer."""

SENTENCE_END = ".!?"
SENTENCE_BLANKS = " \t\r\x0b\x0c:"
SENTENCE_LEAD = SENTENCE_BLANKS + SENTENCE_END
"""An answer needs a character other than these; until it comes the sentence has not begun to answer."""

# states in which an answer is open; without one, the state is the longest tail of the text that may open one
Box = namedtuple("Box", "depth escaped read")  # open braces, a backslash came last, see `_read_on`
Between = namedtuple("Between", "tail has_content")  # the tail that may be opening or closing; more than blanks seen
Sentence = namedtuple("Sentence", "tail has_content ended")  # a sentence end came last
Fenced = namedtuple("Fenced", "column has_content")  # 0-2 backticks at column 0, or `_IN_LINE`

_TOO_DEEP = ("too deep",)
_AFTER_BOX, _AFTER_BREAK, _AFTER_COLON = "after box", "after its line break", "after its colon"
_IN_LINE, _INFO_STRING, _START_OF_TEXT = -1, "info string", "start of text"


def step_boxed(state: State, byte: int) -> tuple[State, bool]:
    r"""Completes at the brace that closes a `\boxed{...}` with an answer in it.

    A backslash escapes the next character, so `\{` and `\}` are not braces and `\\` is a backslash; this holds
    inside a box only, outside the seven characters `\boxed{` open one wherever they are. An empty box and one of
    `PLACEHOLDERS` are skipped. A box inside a box is content. A box that never closes, or that nests deeper than
    `MAX_BOX_DEPTH`, hides whatever follows it: no false close.
    """
    if isinstance(state, bytes):
        seen = tail_that_may_open(state + bytes([byte]), BOX_OPEN.encode())
        return (Box(1, False, b"") if seen == BOX_OPEN.encode() else seen), False
    if not isinstance(state, Box):
        return state, False
    char, escaped = chr(byte), state.escaped
    if char == "}" and not escaped and state.depth == 1:
        return b"", state.read != b"" and state.read not in PLACEHOLDERS
    read = _read_on(state.read, byte)
    if escaped or char not in "\\{}":
        return Box(state.depth, False, read), False
    depth = state.depth + {"\\": 0, "{": 1, "}": -1}[char]
    return (Box(depth, char == "\\", read) if depth <= MAX_BOX_DEPTH else _TOO_DEEP), False


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


def step_boxed_paragraph(state: State, byte: int) -> tuple[State, bool]:
    r"""The paper's literal marker: a closed box directly followed by two newlines or by a colon at a line's end.

    Not the default, because real solutions rarely contain it; see docs/fidelity.md#marker.
    """
    if state in (_AFTER_BREAK, _AFTER_COLON) and byte == ord("\n"):
        return b"", True
    if state == _AFTER_BOX and byte in b"\n:":
        return (_AFTER_BREAK if byte == ord("\n") else _AFTER_COLON), False
    following, closed = step_boxed(b"" if isinstance(state, str) else state, byte)
    return (_AFTER_BOX if closed else following), False


def step_fence(state: State, byte: int) -> tuple[State, bool]:
    """Completes at the third backtick of the fence that closes a non-empty fenced block.

    A fence is three backticks at column 0. An opening one is followed by an info string without backticks and the
    end of the line, so neither inline code nor an opening fence alone completes anything; the next fence at column 0
    closes the block whatever follows it. The first line of the text may be indented by one blank, because
    sentencepiece writes a blank before the first word and removes it when decoding.
    """
    char = chr(byte)
    if state == _INFO_STRING:
        return {"\n": Fenced(0, False), "`": _IN_LINE}.get(char, state), False
    if state == _START_OF_TEXT:
        state = 0
        if char == " ":
            return state, False
    in_block = isinstance(state, Fenced)
    column, has_content = state if in_block else (state, False)
    if char == "`" and column == 2:
        return (_IN_LINE, has_content) if in_block else (_INFO_STRING, False)
    if char == "`" and column >= 0:
        column += 1
    else:
        # backticks too few for a fence are content of the block like any other character
        has_content = has_content or column > 0 or char not in WHITESPACE
        column = 0 if char == "\n" else _IN_LINE
    return (Fenced(column, has_content) if in_block else column), False


def step_pair(opening: bytes, closing: bytes, state: State, byte: int) -> tuple[State, bool]:
    """Completes at the end of the closing after an opening with more than whitespace between them.

    An opening is matched by its nearest closing; a second opening before it starts over, so an opening that is only
    mentioned does no harm once a real one follows.
    """
    if not isinstance(state, Between):
        seen = tail_that_may_open(state + bytes([byte]), opening)
        return (Between(b"", False) if seen == opening else seen), False
    text = state.tail + bytes([byte])
    if text.endswith(closing):
        return b"", state.has_content or _has_content(text.removesuffix(closing))
    if text.endswith(opening):
        return Between(b"", False), False
    tail = tail_that_may_open(text, opening, closing)
    return Between(tail, state.has_content or _has_content(text[: len(text) - len(tail)])), False


def _has_content(text: bytes) -> bool:
    return bool(text.strip(WHITESPACE.encode()))


def pair_grammar(opening: str, closing: str) -> Grammar:
    """The content between two texts."""
    ends = opening.encode(), closing.encode()
    return Grammar(b"", partial(step_pair, *ends), in_order(*ends, WHITESPACE.encode()))


_TAG = TAG_OPEN.encode(), TAG_CLOSE.encode()
_QA_OPENINGS = (_TAG[0], *((words + gap).encode() for words in SENTENCES for gap in SENTENCE_GAP))


def step_qa(state: State, byte: int) -> tuple[State, bool]:
    """Completes at the end of `<answer>X</answer>` or at the terminator of `Therefore(,) the answer is X`.

    X holds more than whitespace. Tags are those of `step_pair`. A sentence ends at a newline or at one of `.!?`
    followed by whitespace, so a number that is still being written is not an answer yet. An `<answer>` inside a
    sentence takes over; sentences inside an open tag are content.
    """
    if isinstance(state, Between):
        return step_pair(*_TAG, state, byte)
    in_sentence = isinstance(state, Sentence)
    text = (state.tail if in_sentence else state) + bytes([byte])
    tail = tail_that_may_open(text, *(_TAG[:1] if in_sentence else _QA_OPENINGS))
    if tail == _TAG[0]:
        return Between(b"", False), False
    if not in_sentence:
        return (Sentence(b"", False, False) if tail in _QA_OPENINGS else tail), False
    char = chr(byte)
    if char == "\n" or (state.ended and char in WHITESPACE):
        return b"", state.has_content
    has_content = state.has_content or char not in SENTENCE_LEAD
    return Sentence(tail, has_content, has_content and char in SENTENCE_END), False


_BOX_SYMBOLS = in_order((BOX_OPEN + "}:" + WHITESPACE).encode(), *PLACEHOLDERS, *map(bytes.upper, PLACEHOLDERS))
_QA_SYMBOLS = in_order(*(part.encode() for part in (TAG_OPEN, TAG_CLOSE, *SENTENCES, SENTENCE_LEAD, WHITESPACE)))

GRAMMARS = {
    "math": Grammar(b"", step_boxed, _BOX_SYMBOLS),
    "math_paragraph": Grammar(b"", step_boxed_paragraph, _BOX_SYMBOLS),
    "code": Grammar(_START_OF_TEXT, step_fence, in_order((FENCE + WHITESPACE).encode())),
    "qa": Grammar(b"", step_qa, _QA_SYMBOLS),
}
"""The grammar of each built-in marker."""
