# SPDX-License-Identifier: Apache-2.0
"""The bytes that each token id writes.

Byte-level BPE spells bytes with printable characters (GPT-2, Llama 3, Qwen), sentencepiece writes a blank as U+2581
and rare bytes as `<0x0A>` (Llama 2, Gemma), and without a decoder tokens are joined by blanks. So the tokenizer itself
is asked: it decodes every token twice in a row, between two others. Only where that shows parts of characters, which
decoding cannot resolve, the spelling gives the bytes. A decoder whose text is not what its tokens write one by one is
an error: a marker that reads wrong bytes would be seen late, early or never.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"
_CHECKED_TOGETHER = 4096
"""Tokens that are decoded in one row, to check that none changes what another one writes."""


def vocabulary_bytes(tokenizer: Any, vocab_size: int | None = None, shown: Collection[str] = ()) -> list[bytes | None]:
    """The bytes that each token id appends to the text, length `vocab_size`.

    None marks special tokens and unused ids. Added tokens that are not special are text like any other, since
    decoding shows them. The blank that sentencepiece puts before the first word, and that decoding removes, is kept.

    The tokenizer is a fast one or Mistral's own (`tekken.json`); `vocab_size` are the rows of the model's output
    layer (None: as many as it has ids), `shown` special tokens that are read as text: the delimiters of thoughts.
    ValueError for any other tokenizer, a decoder that is not understood, or ids beyond `vocab_size`.
    """
    tekken = _tekken(tokenizer)
    if tekken is None:
        written = _written(_backend(tokenizer))
    else:
        written = {number: tekken.id_to_byte_piece(number) for number in range(tekken.n_words)}
    for number, token in special_tokens(tokenizer).items():
        written[number] = token.encode() if token in shown else None
    size = max(written, default=-1) + 1
    if vocab_size is not None and size > vocab_size:
        raise ValueError(
            f"the tokenizer has ids up to {size - 1}, the model's vocabulary ends at {vocab_size - 1}. "
            "Resize the model's embeddings to the tokenizer, or load the tokenizer that belongs to it."
        )
    return [written.get(number) for number in range(size if vocab_size is None else vocab_size)]


def special_tokens(tokenizer: Any) -> dict[int, str]:
    """Tokens that decoding leaves out, by id; a fast tokenizer need not have named them as its special tokens."""
    try:
        added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    except AttributeError:
        numbers = tokenizer.all_special_ids
        return dict(zip(numbers, tokenizer.convert_ids_to_tokens(numbers), strict=True))
    return {number: token.content for number, token in added.items() if token.special}


def _tekken(tokenizer: Any) -> Any:
    """Mistral's own tokenizer inside transformers', which knows the bytes of a token; None: it is another one."""
    try:
        inner = tokenizer.tokenizer.instruct_tokenizer.tokenizer
        return inner if inner.id_to_byte_piece else None
    except AttributeError:
        return None


def _backend(tokenizer: Any) -> Any:
    """The `tokenizers.Tokenizer` of a fast tokenizer."""
    try:
        return tokenizer.backend_tokenizer
    except AttributeError as error:
        raise ValueError(
            f"{type(tokenizer).__name__} is not a fast tokenizer. Load it with AutoTokenizer.from_pretrained and a "
            "tokenizer.json."
        ) from error


class _Anchor(NamedTuple):
    """An ordinary token that is placed before and after those that are read."""

    number: int
    front: str  # what it writes at the beginning of a text
    behind: str  # and elsewhere


def _written(backend: Any) -> dict[int, bytes | None]:
    """Bytes by id of all tokens, special ones as their text."""
    tokens = dict(sorted((number, token) for token, number in backend.get_vocab(with_added_tokens=True).items()))
    anchor = _find_anchor(backend, tokens)
    rows = [[anchor.number, number, number, anchor.number] for number in tokens]
    written: dict[int, bytes | None] = {}
    for number, text in zip(tokens, backend.decode_batch(rows, skip_special_tokens=False), strict=True):
        begin, end = len(anchor.front), len(text) - len(anchor.behind)
        twice = text[begin:end]
        once = next((data for data in _readings(tokens[number], twice) if _decoded(2 * data) == twice), None)
        if once is None or not (text.startswith(anchor.front) and text.endswith(anchor.behind)):
            raise _not_understood(f"{tokens[number]!r} twice is decoded as {twice!r}")
        written[number] = once
    whole = [number for number, data in written.items() if _NO_CHARACTER not in _decoded(data)]
    whole = whole[:: len(whole) // _CHECKED_TOGETHER + 1]
    if backend.decode([anchor.number, *whole], skip_special_tokens=False) != anchor.front + "".join(
        _decoded(written[number]) for number in whole
    ):
        raise _not_understood("a row of tokens is decoded to a different text than token by token")
    return written


def _find_anchor(backend: Any, tokens: Mapping[int, str]) -> _Anchor:
    for number, token in tokens.items():
        once, twice = (backend.decode([number] * times, skip_special_tokens=False) for times in (1, 2))
        is_whole = once.strip() == once != "" and _NO_CHARACTER not in twice and not _BYTE_TOKEN.fullmatch(token)
        if is_whole and twice.startswith(once) and twice.endswith(once) and len(twice) >= 2 * len(once):
            return _Anchor(number, once, twice[len(once) :])
    raise _not_understood("no token is decoded twice where it occurs twice")


def _readings(token: str, twice: str) -> Iterator[bytes]:
    """What a token may write that is decoded like this where it occurs twice."""
    if _NO_CHARACTER in twice:
        if match := _BYTE_TOKEN.fullmatch(token):
            yield bytes.fromhex(match[1])
        if all(char in BYTE_OF_CHARACTER for char in token):
            yield bytes(BYTE_OF_CHARACTER[char] for char in token)
    yield twice[: len(twice) // 2].encode()


def _decoded(data: bytes) -> str:
    return data.decode(errors="replace")


def _not_understood(what: str) -> ValueError:
    return ValueError(
        f"the tokenizer's decoder is not understood: {what}. Use a byte-level BPE or a sentencepiece tokenizer, or "
        "train with marker gating off (trim=False, abort=False)."
    )


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's printable character for each byte: Latin-1's visible ones, then U+0100 upwards in order."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + place): byte for place, byte in enumerate(hidden)}


BYTE_OF_CHARACTER = _byte_alphabet()
"""How byte-level BPE spells bytes."""
