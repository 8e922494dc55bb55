# SPDX-License-Identifier: Apache-2.0
"""The token that means "the gate stopped this rollout".

A forced stop must not look like a sampled EOS, which is a policy token. So the gate writes an id of the model's
vocabulary that no text uses; the engine stops on it and the trainer cuts it off again.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from .vocabulary import special_tokens

_RESERVED_WORD = r"(?:reserved|unused|extra|dummy|placeholder|special|control)[a-z_]*\d+"
_RESERVED = re.compile(rf"<\|{_RESERVED_WORD}\|>|<{_RESERVED_WORD}>|\[{_RESERVED_WORD}\]", re.IGNORECASE)
_ROLES = ("_token_id", "_token_ids", "_token_index", "suppress_tokens")
"""Endings of settings that give tokens a role; one that is suppressed could not be forced."""


def find_sentinel(
    tokenizer: Any, vocab_size: int, eos_ids: Iterable[int], taken: Collection[int | str] = frozenset()
) -> int:
    """A token id in [0, vocab_size) that the gate can write without ever being mistaken for text.

    The highest row of the model's vocabulary that the tokenizer does not use. Where the vocabulary has no padding, the
    highest token without a role: a reserved one (such as `<|reserved_special_token_7|>`, `<unused7>`), else a special
    one. Tokens with a role: bos, eos, pad and unk, those of the chat template, and `taken`.

    Args:
        tokenizer (PreTrainedTokenizerBase): The policy's.
        vocab_size (int): Rows of the model's output layer.
        eos_ids (Iterable[int]): Tokens that end a rollout, in [0, vocab_size).
        taken (Collection[int | str]): Tokens that have another role, by id or text (`tokens_with_a_role`).

    Raises:
        ValueError: If no token is free.
    """
    taken = {*eos_ids, *taken}
    vocab = tokenizer.get_vocab()
    used = {*vocab.values(), *taken}
    padding = next((number for number in range(vocab_size - 1, len(tokenizer) - 1, -1) if number not in used), None)
    if padding is not None:
        return padding
    roles = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id, *taken}
    template = str(tokenizer.chat_template)

    def is_free(number: int, token: str) -> bool:
        return number < vocab_size and roles.isdisjoint((number, token)) and token not in template

    reserved = {number: token for token, number in vocab.items() if _RESERVED.fullmatch(token)}
    for tokens in (reserved, special_tokens(tokenizer)):
        free = [number for number, token in tokens.items() if is_free(number, token)]
        if free:
            return max(free)
    raise ValueError(
        f"no token is free to mark a forced stop: the tokenizer uses all {vocab_size} rows of the model's vocabulary "
        "and has no special token without a role. Add one (tokenizer.add_special_tokens and "
        "model.resize_token_embeddings), set sentinel_token_id to an id that no text uses, or train without the gate "
        "(trim=False, abort=False)."
    )


def tokens_with_a_role(settings: Mapping[str, Any]) -> Iterator[int]:
    """Token ids that a model's configuration, its generation config or the arguments of generation name."""
    for name, value in settings.items():
        if name.endswith(_ROLES):
            yield from (
                number for number in (value if isinstance(value, list | tuple) else [value]) if number is not None
            )
