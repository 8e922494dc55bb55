# SPDX-License-Identifier: Apache-2.0
"""The sentinel is a token that nothing else uses."""

import pytest

from duet_trl.gate.sentinel import find_sentinel

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")


def tokenizer_of(*special, words=("a", "b", "c"), **roles):
    """A tokenizer with the words as ids 0.. and the special tokens behind them."""
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, "a"))
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in special])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **roles)


def test_the_last_padded_row_of_the_vocabulary_comes_first():
    tokenizer = tokenizer_of("<eos>", "<|reserved_special_token_0|>", eos_token="<eos>")
    assert find_sentinel(tokenizer, vocab_size=8, eos_ids=[3]) == 7


def test_a_padded_row_that_ends_rollouts_or_is_mapped_is_passed_over():
    tokenizer = tokenizer_of("<eos>", eos_token="<eos>")
    assert find_sentinel(tokenizer, vocab_size=8, eos_ids=[3, 7]) == 6
    gap = tokenizer_of(words=("a", "b", "c"))
    gap.get_vocab = lambda: {"a": 0, "b": 1, "c": 2, "far": 5}
    assert find_sentinel(gap, vocab_size=6, eos_ids=[0]) == 4


@pytest.mark.parametrize(
    "reserved",
    ["<|reserved_special_token_{}|>", "[unused{}]", "<unused{}>", "<|extra_{}|>", "<SPECIAL_{}>", "[control_{}]"],
)
def test_without_padding_the_highest_reserved_token_is_taken(reserved):
    tokenizer = tokenizer_of("<eos>", reserved.format(1), reserved.format(7), "<|im_end|>", eos_token="<eos>")
    assert find_sentinel(tokenizer, vocab_size=len(tokenizer), eos_ids=[3]) == 5


def test_a_reserved_token_with_a_role_is_not_free():
    names = [f"<|reserved_special_token_{number}|>" for number in range(6)]  # ids 3 .. 8
    tokenizer = tokenizer_of(*names, bos_token=names[5], eos_token=names[4], pad_token=names[3], unk_token=names[2])
    tokenizer.chat_template = "{{ messages }}" + names[1]
    assert find_sentinel(tokenizer, vocab_size=9, eos_ids=[7]) == 3
    with pytest.raises(ValueError, match="no token is free.*sentinel_token_id"):
        find_sentinel(tokenizer, vocab_size=9, eos_ids=[7, 3])


@pytest.mark.parametrize("token", ["<|im_start|>", "<tool_call>", "reserved_1", "unused1", "<unused>", "<extra>"])
def test_a_token_that_only_looks_unused_is_not_taken(token):
    tokenizer = tokenizer_of(token, eos_token="a")
    with pytest.raises(ValueError, match="no token is free"):
        find_sentinel(tokenizer, vocab_size=len(tokenizer), eos_ids=[0])


def test_a_reserved_token_beyond_the_models_vocabulary_is_not_taken():
    tokenizer = tokenizer_of("<unused0>", "<unused1>", eos_token="a")
    assert find_sentinel(tokenizer, vocab_size=4, eos_ids=[0]) == 3


@pytest.mark.parametrize("eos_ids", [[8], [-1], [3, 99]])
def test_an_end_of_sequence_id_outside_the_vocabulary_is_an_error(eos_ids):
    with pytest.raises(ValueError, match=r"outside the model's vocabulary of 8\. Correct eos_token_id"):
        find_sentinel(tokenizer_of(eos_token="a"), vocab_size=8, eos_ids=eos_ids)
