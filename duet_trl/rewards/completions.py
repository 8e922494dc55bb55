# SPDX-License-Identifier: Apache-2.0
"""The text of a completion in TRL's two forms, and what is known about its thoughts."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..gate.markers import Which
from ..gate.thoughts import Delimiters, Written, are_special, recognise, shown_text

Completion = str | list[dict[str, Any]]

MAX_ANSWER_LENGTH = 2_000
"""Longer answers, in characters, are graded as wrong unread. The longest gold answer of MATH has 159."""
CACHE_SIZE = 65_536
"""Verdicts that a verifier remembers: prompts repeat every epoch, and a policy repeats itself."""
WRITTEN = "duet_written"
"""Column that `DUETGRPOTrainer` and the evaluation add to the rows of reward functions: a `Written` per completion."""


def checked_which(which: str) -> Which:
    """The answer of a completion that a verifier grades, "first" or "last"; ValueError for another word."""
    if which not in ("first", "last"):
        raise ValueError(f"which must be 'first' or 'last', got {which!r}.")
    return which


def gold_text(gold: Any) -> str:
    """A gold answer as text; empty where it is missing, or a float with so many digits that others were lost."""
    is_float = isinstance(gold, float) and len(str(gold).partition("e")[0].strip("-0.").replace(".", "")) > 15
    if gold is None or is_float and abs(gold) >= 2**53:
        return ""
    text = str(gold)
    return "" if text in ("nan", "<NA>", "NaT") and not isinstance(gold, str) else text


def completion_text(completion: Completion | None) -> str:
    """Text of a plain or conversational completion: of the latter, the text parts of the last message."""
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else None
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return str(content or "")


def written_completions(
    completions: Sequence[Completion],
    token_ids: Sequence[Sequence[int]],
    opened: Sequence[bool],
    tokenizer: Any,
    delimiters: Delimiters | None,
) -> list[Written]:
    """Completions with all that token ids tell about their thoughts; `opened`: the prompt of each opens one."""
    if delimiters is None:
        return [Written(completion_text(completion)) for completion in completions]
    special = are_special(delimiters, tokenizer)
    written = []
    for completion, ids, begins_inside in zip(completions, token_ids, opened, strict=True):
        # the text lacks delimiters that are special tokens, and a template may have cut the thought off
        whole = not special and (isinstance(completion, str) or completion[-1].keys() <= {"role", "content"})
        text = completion_text(completion) if whole else shown_text(ids, tokenizer, delimiters)
        written.append(Written(text, delimiters, bool(begins_inside)))
    return written


def read_completions(completions: Sequence[Completion], columns: Mapping[str, Any]) -> list[Written]:
    """Completions of a reward function's call, with where their thoughts are.

    Without the column `WRITTEN`, as under a stock GRPOTrainer, thoughts are recognised by known delimiters.
    """
    written = columns.get(WRITTEN)
    return [recognise(completion_text(c)) for c in completions] if written is None else list(written)
