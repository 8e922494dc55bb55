# SPDX-License-Identifier: Apache-2.0
"""The sentinel is a token that nothing else uses."""

import pytest

from duet_trl.gate.sentinel import find_sentinel, tokens_with_a_role

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")


def tokenizer_of(*special, words=("a", "b", "c"), **roles):
    """A tokenizer with the words as ids 0.. and the special tokens behind them."""
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, "a"))
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in special])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **roles)


EOS = {"eos_token": "<eos>"}
WORD_AS_EOS = {"eos_token": "a"}


@pytest.mark.parametrize(
    ("special", "roles", "arguments", "sentinel"),
    [
        # The last padded row comes first, unless it ends rollouts or has another role.
        (["<eos>", "<|reserved_special_token_0|>"], EOS, {"vocab_size": 8, "eos_ids": [3]}, 7),
        (["<eos>"], EOS, {"vocab_size": 8, "eos_ids": [3, 7]}, 6),
        ([], WORD_AS_EOS, {"vocab_size": 8, "eos_ids": [0], "taken": {7}}, 6),
        # Without padding and a reserved token the highest special one, which nothing takes or names.
        (["<eos>", "<gh_stars>", "<empty_output>", "<|im_end|>"], EOS, {"vocab_size": 7, "eos_ids": [6]}, 5),
        (
            ["<eos>", "<image>", "<think>", "</think>"],
            EOS,
            {"vocab_size": 7, "eos_ids": [3], "taken": {"<think>", "</think>"}},
            4,
        ),
        (
            ["<eos>", "<image>", "<think>", "</think>"],
            EOS,
            {"vocab_size": 7, "eos_ids": [3], "taken": {4, 5, 6}},
            None,
        ),
        (["<unused0>", "<unused1>"], WORD_AS_EOS, {"vocab_size": 4, "eos_ids": [0]}, 3),  # 4 is beyond the model's
    ],
)
def test_the_sentinel_is_a_row_or_a_special_token_that_nothing_uses(special, roles, arguments, sentinel):
    tokenizer = tokenizer_of(*special, **roles)
    if sentinel is None:
        with pytest.raises(ValueError, match="no token is free"):
            find_sentinel(tokenizer, **arguments)
    else:
        assert find_sentinel(tokenizer, **arguments) == sentinel


def test_a_padded_row_that_the_tokenizer_maps_is_passed_over():
    gap = tokenizer_of()
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


def test_roles_are_found_in_settings_by_their_names():
    settings = {
        "eos_token_id": [1, 2],
        "pad_token_id": 3,
        "image_token_index": 4,
        "suppress_tokens": [5],
        "bos_token_id": None,
    }
    settings |= {"max_new_tokens": 6, "vocab_size": 7, "stop_token_ids": [8]}
    assert sorted(tokens_with_a_role(settings)) == [1, 2, 3, 4, 5, 8]


@pytest.mark.parametrize("token", ["<|im_start|>", "<tool_call>", "reserved_1", "unused1", "<unused>", "<extra>"])
def test_an_ordinary_token_that_only_looks_unused_is_not_taken(token):
    tokenizer = tokenizer_of(words=("a", "b", token), eos_token="a")
    with pytest.raises(ValueError, match="no token is free"):
        find_sentinel(tokenizer, vocab_size=len(tokenizer), eos_ids=[0])


def test_a_vocabulary_without_special_tokens_is_an_error_with_three_remedies():
    with pytest.raises(ValueError) as error:
        find_sentinel(tokenizer_of(eos_token="a"), vocab_size=3, eos_ids=[0])
    for remedy in (
        "add_special_tokens and model.resize_token_embeddings",
        "sentinel_token_id",
        "trim=False, abort=False",
    ):
        assert remedy in str(error.value)
