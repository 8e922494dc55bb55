# SPDX-License-Identifier: Apache-2.0
"""The token that says "the gate stopped this rollout".

A forced stop must not look like a sampled EOS, which is a policy token. So the gate writes an id of the model's
vocabulary that no text uses; the engine stops on it and the trainer cuts it off again.
"""

import re
from collections.abc import Iterable
from typing import Any

_RESERVED_WORD = r"(?:reserved|unused|extra|dummy|placeholder|special|control)[a-z_]*\d+"
_RESERVED = re.compile(rf"<\|{_RESERVED_WORD}\|>|<{_RESERVED_WORD}>|\[{_RESERVED_WORD}\]", re.IGNORECASE)


def find_sentinel(tokenizer: Any, vocab_size: int, eos_ids: Iterable[int]) -> int:
    """A token id in [0, vocab_size) that the gate can write without ever being mistaken for text.

    The highest row of the model's vocabulary that the tokenizer does not use; where the vocabulary has no padding,
    the highest reserved token (such as `<|reserved_special_token_7|>`, `<unused7>`) that plays no role: not bos,
    eos, pad or unk and not in the chat template. ValueError if there is none, or an id of `eos_ids` is outside.
    """
    eos_ids = set(eos_ids)
    outside = sorted(number for number in eos_ids if not 0 <= number < vocab_size)
    if outside:
        raise ValueError(
            f"end-of-sequence ids {outside} are outside the model's vocabulary of {vocab_size}. "
            "Correct eos_token_id in the generation config."
        )
    vocab = tokenizer.get_vocab()
    used = {*vocab.values(), *eos_ids}
    for number in range(vocab_size - 1, len(tokenizer) - 1, -1):
        if number not in used:
            return number
    roles = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id, *eos_ids}
    template = str(tokenizer.chat_template)
    free = [
        number
        for token, number in vocab.items()
        if _RESERVED.fullmatch(token) and number < vocab_size and number not in roles and token not in template
    ]
    if not free:
        raise ValueError(
            f"no token is free to mark a forced stop: the tokenizer uses all {vocab_size} rows of the model's "
            "vocabulary and has no reserved token. Add one (tokenizer.add_special_tokens and "
            "model.resize_token_embeddings), or set sentinel_token_id to an id that no text uses."
        )
    return max(free)
