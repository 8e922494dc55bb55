# SPDX-License-Identifier: Apache-2.0
"""Vectors of prompts: from a sentence model, from the policy; and what is refused before it is loaded."""

import importlib.util
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from duet_trl import DUETGRPOConfig, DUETGRPOTrainer
from duet_trl.rollouts import Prompt
from duet_trl.seams.data_checks import prompt_keys
from duet_trl.seams.embeddings import prompt_text
from tests.runs import count_fours, duet_trainer, prompts, settings
from tests.tiny import tiny_tokenizer

SENTENCES = ["so it goes", "an answer", "it is", "so so it", "", "goes goes goes goes an answer"]
missing = importlib.util.find_spec("sentence_transformers") is None


def asked(data: Dataset, rows: list[int]) -> list[Prompt]:
    """Prompts as a step has them."""
    examples = [data[row] for row in rows]
    return [Prompt(key, one) for key, one in zip(prompt_keys(examples, None), examples, strict=True)]


def refused(folder: Path, source: Path | str) -> str:
    """The error of a trainer whose policy does not exist."""
    args = DUETGRPOConfig(**settings(folder, method="vip", method_kwargs={"embeddings": str(source)}))
    with pytest.raises((ValueError, ImportError)) as raised:
        DUETGRPOTrainer(
            "no/such-policy", count_fours, args=args, train_dataset=prompts(6), processing_class=tiny_tokenizer()
        )
    return str(raised.value)


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("Say 4", "Say 4"),
        ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say 4"}], "Say 4"),
        (
            [{"role": role, "content": text} for role, text in zip(["user", "assistant", "user"], "abc", strict=True)],
            "a\n\nc",
        ),
        ([{"role": "system", "content": "Say 4"}], "Say 4"),
        ([{"role": "user", "content": [{"type": "text", "text": "Say"}, {"type": "text", "text": "4"}]}], "Say 4"),
    ],
)
def test_what_is_embedded_is_what_the_user_says(prompt, text):
    assert prompt_text(prompt) == text


@pytest.mark.parametrize("conversational", [False, True])
def test_the_policy_embeds_by_the_mean_of_its_input_embeddings_and_says_so(
    tiny_path, tmp_path, caplog, conversational
):
    texts = ["Say 4", "the answer is", "" if conversational else " ", "\\boxed{2} 2"]
    column = [[{"role": "user", "content": text}] for text in texts] if conversational else texts
    data = Dataset.from_dict({"prompt": column * 2})
    with caplog.at_level(logging.INFO, "duet_trl"):
        trainer = duet_trainer(tiny_path, tmp_path, method="vip", data=data)
    assert caplog.text.count("prompts are compared by the mean of the policy's input embeddings") == 1
    found = trainer.method.embed(asked(data, [0, 1, 2, 3]))
    table, tokenizer = trainer.model.get_input_embeddings().weight.detach(), trainer.processing_class
    for text, vector in zip(texts, found, strict=True):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        mean = np.mean([table[token].numpy() for token in ids], axis=0) if ids else np.zeros(64)
        np.testing.assert_allclose(vector, mean, atol=1e-6)
    assert found.dtype == np.float32
    with torch.no_grad():
        table += 1.0  # trained on
    np.testing.assert_allclose(trainer.method.embed(asked(data, [0, 3])), found[[0, 3]] + 1.0, atol=1e-5)


@pytest.mark.skipif(not missing, reason="sentence-transformers is installed")
def test_without_the_library_a_sentence_model_is_an_error_that_names_the_extra(tmp_path):
    message = refused(tmp_path, "all-MiniLM-L6-v2")
    assert "'all-MiniLM-L6-v2' names a sentence-transformers model, and the library is not installed" in message
    assert "pip install 'duet-trl[embeddings]'" in message


def sentence_model(folder: Path) -> Path:
    """A tiny BERT and its tokenizer, from which sentence-transformers makes a model with mean pooling."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted({word for text in SENTENCES for word in text.split()})]
    fast = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    fast.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=fast, model_max_length=16, **special).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=32, **sizes)).save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.skipif(missing, reason="sentence-transformers, of the extra `embeddings`, is not installed")
def test_a_sentence_model_embeds_as_the_library_does(tiny_path, tmp_path):
    folder = sentence_model(tmp_path / "sentences")
    data = Dataset.from_dict({"prompt": SENTENCES})
    trainer = duet_trainer(tiny_path, tmp_path, method="vip", method_kwargs={"embeddings": str(folder)}, data=data)
    found = trainer.method.embed(asked(data, [0, 1, 2, 3]))
    model, tokenizer = BertModel.from_pretrained(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    for text, vector in zip(SENTENCES, found, strict=False):  # by hand: the mean of the last hidden states
        with torch.no_grad():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        np.testing.assert_allclose(vector, hidden.mean(dim=0).numpy(), atol=1e-5)
    assert found.dtype == np.float32
    trainer.train()


@pytest.mark.slow
@pytest.mark.skipif(missing, reason="sentence-transformers, of the extra `embeddings`, is not installed")
def test_a_name_that_is_no_sentence_model_is_an_error_before_the_policy_is_loaded(tmp_path):
    message = refused(tmp_path, tmp_path / "nowhere")
    assert "nowhere' is not a sentence-transformers model that loads: " in message
    assert "Name another model or its folder, or set 'policy'." in message
