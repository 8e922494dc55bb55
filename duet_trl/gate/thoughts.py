# SPDX-License-Identifier: Apache-2.0
"""Where a completion of a thinking model may answer: after its thought (Section 3.2; docs/fidelity.md#thoughts).

The answer region is the whole completion for a model without thoughts. For others an opening delimiter ends it and the
next closing one restarts it, as if the text began there; a thought that never closes leaves no answer. Inside an
answer that is open (a box, a fenced block, a tag, a sentence) an opening delimiter is content.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .vocabulary import special_tokens


@dataclass(frozen=True)
class Delimiters:
    """Texts that open and close a thought, as `<think>` and `</think>`; neither is empty or contains the other."""

    opening: str
    closing: str

    def __post_init__(self) -> None:
        if not self.opening or not self.closing or self.opening in self.closing or self.closing in self.opening:
            raise ValueError(
                f"thought delimiters must be two texts, neither containing the other, got {self.opening!r} and "
                f'{self.closing!r}. Write for example ["<think>", "</think>"], or [] for a model without thoughts.'
            )

    @property
    def parts(self) -> tuple[str, str]:
        """Opening and closing delimiter."""
        return self.opening, self.closing


KNOWN_DELIMITERS = (
    Delimiters("<think>", "</think>"),  # DeepSeek-R1, Qwen3, QwQ, most others
    Delimiters("<|begin_of_thought|>", "<|end_of_thought|>"),  # Sky-T1, OpenThinker
    Delimiters("[THINK]", "[/THINK]"),  # Magistral
    Delimiters("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A Reasoning
    Delimiters("<seed:think>", "</seed:think>"),  # Seed-OSS
    Delimiters("<thinking>", "</thinking>"),
    Delimiters("<thought>", "</thought>"),
)
"""Delimiters that are looked for in tokenizers, chat templates, and texts without further information."""

_ANY_KNOWN = re.compile("|".join(re.escape(part) for pair in KNOWN_DELIMITERS for part in pair.parts))


@dataclass(frozen=True)
class Written:
    """A completion as the policy wrote it, thought included."""

    text: str  # with its delimiters, even where they are special tokens that decoding leaves out
    delimiters: Delimiters | None = None  # of its thoughts; None: the whole text is answer region
    opened: bool = False  # whether it begins inside a thought


def parse_delimiters(names: Sequence[str]) -> Delimiters | None:
    """Delimiters as a list of none or two texts; ValueError for anything else."""
    if not isinstance(names, list | tuple) or len(names) not in (0, 2) or not all(isinstance(n, str) for n in names):
        raise ValueError(f"thought delimiters must be a list of two texts, or [] for none, got {names!r}.")
    return Delimiters(*names) if names else None


def find_delimiters(tokenizer: Any) -> Delimiters | None:
    """The first of `KNOWN_DELIMITERS` among a tokenizer's added tokens, else in its chat template; None: neither."""
    for place in (_added_tokens(tokenizer), str(tokenizer.chat_template)):
        for pair in KNOWN_DELIMITERS:
            if pair.opening in place and pair.closing in place:
                return pair
    return None


def ends_in_thought(text: str, delimiters: Delimiters) -> bool:
    """Whether a thought is open at the end of a text: the last opening delimiter is after the last closing one."""
    return text.rfind(delimiters.opening) > text.rfind(delimiters.closing)


def prompt_opens_thought(prompt_ids: Sequence[int], tokenizer: Any, delimiters: Delimiters | None) -> bool:
    """Whether the completion of a prompt begins inside a thought.

    A delimiter that is only mentioned, in a system prompt or a question, is followed by special tokens of the chat
    template: only what follows the last special token that is not a delimiter counts.
    """
    if delimiters is None:
        return False
    breaks = _other_special_ids(tokenizer, delimiters)
    ids = [int(token) for token in prompt_ids]
    begin = next((place for place in range(len(ids), 0, -1) if ids[place - 1] in breaks), 0)
    return ends_in_thought(tokenizer.decode(ids[begin:], skip_special_tokens=False), delimiters)


def recognise(text: str) -> Written:
    """A completion known only by its decoded text.

    The delimiters are the first of `KNOWN_DELIMITERS` in it. If that is a closing one, the thought was opened in the
    prompt, or by a special token that the text does not show.
    """
    match = _ANY_KNOWN.search(text)
    if match is None:
        return Written(text)
    pair = next(pair for pair in KNOWN_DELIMITERS if match[0] in pair.parts)
    return Written(text, pair, opened=match[0] == pair.closing)


def shown_text(token_ids: Sequence[int], tokenizer: Any, delimiters: Delimiters) -> str:
    """Decoded completion without special tokens other than the delimiters."""
    hidden = _other_special_ids(tokenizer, delimiters)
    return tokenizer.decode([token for token in token_ids if token not in hidden], skip_special_tokens=False)


def are_special(delimiters: Delimiters, tokenizer: Any) -> bool:
    """Whether decoding may leave a delimiter out."""
    return any(token in delimiters.parts for token in special_tokens(tokenizer).values())


def _added_tokens(tokenizer: Any) -> dict[str, int]:
    try:
        return tokenizer.get_added_vocab()
    except AttributeError:  # Mistral's own has only special ones
        return {token: number for number, token in special_tokens(tokenizer).items()}


def _other_special_ids(tokenizer: Any, delimiters: Delimiters) -> set[int]:
    added = _added_tokens(tokenizer)
    return {*tokenizer.all_special_ids, *special_tokens(tokenizer)} - {added.get(part) for part in delimiters.parts}
