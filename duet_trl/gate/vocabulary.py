# SPDX-License-Identifier: Apache-2.0
"""What each token id writes, as bytes.

Byte-level BPE spells bytes with printable characters (GPT-2, Llama 3, Qwen), sentencepiece writes a blank as U+2581
and rare bytes as `<0x0A>` (Llama 2, Mistral, Gemma), and without a decoder tokens stand between blanks. A decoder that
is not understood is an error: a marker that reads wrong bytes would be seen late, early or never.
"""

import json
import re
from collections.abc import Callable, Collection
from typing import Any

TokenBytes = Callable[[str], bytes]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def vocabulary_bytes(tokenizer: Any, vocab_size: int | None = None, shown: Collection[str] = ()) -> list[bytes | None]:
    """The bytes that each token id appends to the text, length `vocab_size`.

    None stands for special tokens and unused ids. Added tokens that are not special are text like any other, since
    decoding shows them. The blank that sentencepiece puts before the first word, and that decoding removes, is kept.

    Args:
        tokenizer (PreTrainedTokenizerFast): A Hugging Face fast tokenizer.
        vocab_size (int | None): Rows of the model's output layer; None: as many as the tokenizer has ids.
        shown (Collection[str]): Special tokens that are read as their text: the delimiters of thoughts.

    Raises:
        ValueError: If the tokenizer is not a fast one, its decoder is not understood, or ids are beyond `vocab_size`.
    """
    try:
        backend = tokenizer.backend_tokenizer
    except AttributeError as error:
        raise ValueError(
            f"{type(tokenizer).__name__} is not a fast tokenizer. Load it with AutoTokenizer.from_pretrained and a "
            "tokenizer.json."
        ) from error
    description = json.loads(backend.to_str())
    to_bytes = _decoder(description["decoder"])
    tokens = _tokens(description["model"]["vocab"])
    added = {entry["id"]: entry["special"] and entry["content"] not in shown for entry in description["added_tokens"]}
    tokens.update({number: backend.id_to_token(number) for number in added})  # as decoding writes it: normalized
    size = max(tokens, default=-1) + 1
    if vocab_size is not None and size > vocab_size:
        raise ValueError(
            f"the tokenizer has ids up to {size - 1}, the model's vocabulary ends at {vocab_size - 1}. "
            "Resize the model's embeddings to the tokenizer, or load the tokenizer that belongs to it."
        )
    table: list[bytes | None] = [None] * (size if vocab_size is None else vocab_size)
    for number, token in tokens.items():
        if not added.get(number, False):
            table[number] = to_bytes(token)
    return table


def _tokens(vocab: dict[str, int] | list) -> dict[int, str]:
    """Token by id, from the two ways in which models write their vocabulary."""
    if isinstance(vocab, dict):
        return {number: token for token, number in vocab.items()}
    return {number: piece for number, (piece, _) in enumerate(vocab)}


def _decoder(description: dict | None) -> TokenBytes:
    """Bytes of one token under a decoder, given as it stands in tokenizer.json."""
    if description is None:
        return _spaced
    steps = description.get("decoders", [description])
    kinds = {step["type"] for step in steps}
    if kinds == {"ByteLevel"}:
        return _byte_level
    blanks = [blank for step in steps if (blank := _blank_of(step))]
    if not blanks or not all(_is_understood(step) for step in steps):
        raise ValueError(
            f"the tokenizer's decoder {json.dumps(description)} is not understood. Use a byte-level BPE or a "
            "sentencepiece tokenizer, or train with marker gating off (trim=False, abort=False)."
        )
    has_byte_tokens = "ByteFallback" in kinds

    def to_bytes(token: str) -> bytes:
        if has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(match[1])
        for blank in blanks:
            token = token.replace(blank, " ")
        return token.encode()

    return to_bytes


def _spaced(token: str) -> bytes:
    """Without a decoder tokens are joined by blanks; the one before the first is kept, as with sentencepiece."""
    return b" " + token.encode()


def _blank_of(step: dict) -> str | None:
    """The character that a decoding step writes as a blank, if it does that."""
    if step["type"] == "Metaspace":
        return step["replacement"]
    return step["pattern"].get("String") if step["type"] == "Replace" and step["content"] == " " else None


def _is_understood(step: dict) -> bool:
    if step["type"] == "Strip":  # the blank before the first word
        return step["content"] == " " and step["start"] <= 1 and step["stop"] == 0
    return step["type"] in ("ByteFallback", "Fuse") or _blank_of(step) is not None


def _byte_level(token: str) -> bytes:
    """Bytes of a token of byte-level BPE; characters outside its alphabet stand for themselves."""
    if all(char in BYTE_OF_CHARACTER for char in token):
        return bytes(BYTE_OF_CHARACTER[char] for char in token)
    return token.encode()


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's printable character for each byte: Latin-1's visible ones, then U+0100 upwards in order."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + place): byte for place, byte in enumerate(hidden)}


BYTE_OF_CHARACTER = _byte_alphabet()
"""How byte-level BPE spells bytes."""
