# SPDX-License-Identifier: Apache-2.0
"""Every id that ends a completion is found, also where neither model nor tokenizer declares it."""

import pytest

from duet_trl.evaluation.prompts import end_of_turn_id, eos_token_ids, require_chat_template, until_eos
from tests.tiny import END_OF_TURN, EOS, START_OF_TURN, tiny_tokenizer

HEADERS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n\n{{ message.content | trim }}TURN{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)


@pytest.fixture
def tokenizer():
    return tiny_tokenizer()


def test_base_model_ends_at_its_templates_end_of_turn(tokenizer):
    end_of_text, end_of_turn = map(tokenizer.convert_tokens_to_ids, (EOS, END_OF_TURN))
    assert end_of_turn_id(tokenizer) == end_of_turn
    assert eos_token_ids(tokenizer) == (end_of_text, end_of_turn)
    assert eos_token_ids(tokenizer, end_of_text) == (end_of_text, end_of_turn)


def test_declared_ids_are_all_kept_once_and_the_tokenizers_own_comes_first(tokenizer):
    end_of_text, end_of_turn = map(tokenizer.convert_tokens_to_ids, (EOS, END_OF_TURN))
    assert eos_token_ids(tokenizer, [7, end_of_turn, end_of_text, 7]) == (end_of_text, 7, end_of_turn)


@pytest.mark.parametrize("between", ["", "\n", " \n "])
def test_blanks_before_the_end_of_turn_do_not_hide_it(tokenizer, between):
    tokenizer.chat_template = HEADERS.replace("TURN", between + END_OF_TURN + "\n")
    assert end_of_turn_id(tokenizer) == tokenizer.convert_tokens_to_ids(END_OF_TURN)


def test_an_end_of_turn_that_is_an_added_but_no_special_token_counts(tokenizer):
    tokenizer.add_tokens(["<|eot|>"])
    tokenizer.chat_template = HEADERS.replace("TURN", "<|eot|>")
    assert tokenizer.convert_tokens_to_ids("<|eot|>") not in tokenizer.all_special_ids
    assert end_of_turn_id(tokenizer) == tokenizer.convert_tokens_to_ids("<|eot|>")


@pytest.mark.parametrize("turn", ["\n", "", " -- <|im_start|>"])
def test_a_template_that_ends_turns_in_plain_text_adds_nothing(tokenizer, turn):
    tokenizer.chat_template = HEADERS.replace("TURN", turn)
    assert end_of_turn_id(tokenizer) is None
    assert eos_token_ids(tokenizer) == (tokenizer.convert_tokens_to_ids(EOS),)


def test_no_template_and_no_end_are_errors_with_a_remedy(tokenizer):
    tokenizer.chat_template = HEADERS.replace("TURN", "\n")
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match=r"nothing ends a completion.*Set tokenizer.eos_token"):
        eos_token_ids(tokenizer)
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        require_chat_template(tokenizer)
    with pytest.raises(ValueError, match="no chat template"):
        end_of_turn_id(tokenizer)


def test_a_completion_goes_up_to_its_first_end(tokenizer):
    assert until_eos([5, 6, 1, 7, 2], (2, 1)) == [5, 6, 1]
    assert until_eos([5, 6], (2, 1)) == [5, 6]
    assert until_eos([], (1,)) == []
    assert START_OF_TURN not in tokenizer.decode(
        until_eos(tokenizer(f"a{END_OF_TURN}{START_OF_TURN}b")["input_ids"], eos_token_ids(tokenizer))
    )
