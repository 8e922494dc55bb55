# SPDX-License-Identifier: Apache-2.0
"""Vectors of prompts: from a file, from a sentence model, from the policy; and what is refused before it is loaded."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from duet_trl import DUETGRPOConfig, DUETGRPOTrainer
from duet_trl.rollouts import Prompt
from duet_trl.seams.data_checks import prompt_keys
from duet_trl.seams.embeddings import RowVectors, embedder, prompt_text
from tests.runs import count_fours, duet_trainer, prompts, settings
from tests.tiny import tiny_tokenizer

SENTENCES = ["so it goes", "an answer", "it is", "so so it", "", "goes goes goes goes an answer"]
missing = importlib.util.find_spec("sentence_transformers") is None


def asked(data: Dataset, rows: list[int], column: str | None = None) -> list[Prompt]:
    """Prompts as a step has them."""
    examples = [data[row] for row in rows]
    return [Prompt(key, one) for key, one in zip(prompt_keys(examples, column), examples, strict=True)]


def matrix(rows: int = 6, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 3)).astype(dtype)


WRITERS: dict[str, Callable[[Path, np.ndarray], None]] = {
    "v.npy": np.save,
    "v.npz": lambda path, values: np.savez(path, vectors=values),
    "v.safetensors": lambda path, values: save_file({"vectors": values}, path),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("column", [None, "name"])
@pytest.mark.parametrize("conversational", [False, True])
def test_a_file_has_one_row_for_each_row_of_the_data(tmp_path, name, column, conversational):
    data, values = prompts(6, conversational), matrix(dtype=np.float64)
    WRITERS[name](tmp_path / name, values)
    embed = embedder(str(tmp_path / name), data, column, None)
    found = embed(asked(data, [4, 0, 4], column))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, values[[4, 0, 4]].astype(np.float32))


def test_half_precision_and_repeated_prompts(tmp_path):
    data = Dataset.from_dict({"prompt": ["a", "b", "a"]})
    path = str(tmp_path / "v.safetensors")
    save_tensors({"v": torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.bfloat16)}, path)
    assert RowVectors(path, data, None)(asked(data, [2, 1])).tolist() == [[1.0], [2.0]]  # the first row of a prompt


def spoiled(row: int) -> np.ndarray:
    values = matrix()
    values[row, 1] = np.inf
    return values


def refused(folder: Path, source: Path | str, data: Any = None) -> str:
    """The error of a trainer whose policy does not exist."""
    args = DUETGRPOConfig(**settings(folder, method="vip", method_kwargs={"embeddings": str(source)}))
    data = prompts(6) if data is None else data
    with pytest.raises((ValueError, OSError, ImportError)) as raised:
        DUETGRPOTrainer(
            "no/such-policy", count_fours, args=args, train_dataset=data, processing_class=tiny_tokenizer()
        )
    return str(raised.value)


@pytest.mark.parametrize(
    ("name", "values", "named"),
    [
        ("v.npy", matrix(5), "has shape (5, 3) of float32, and the training data set has 6 rows. Write a matrix"),
        ("v.npy", matrix().ravel(), "has shape (18,) of float32"),
        ("v.npy", np.array([["a"]] * 6), "has shape (6, 1) of <U1"),
        ("v.npz", spoiled(4), "has a value that is not finite in row 4. Embed that prompt again"),
        ("v.safetensors", spoiled(0), "has a value that is not finite in row 0"),
        ("v.npy", None, "is no file. Write the vectors there, or set 'policy'"),
        ("v.npy", b"", "cannot be read: "),
        ("v.npz", b"nothing", "cannot be read: "),
        ("v.safetensors", b"nothing", "cannot be read: "),
    ],
)
def test_a_file_that_does_not_fit_is_an_error_before_the_policy_is_loaded(tmp_path, name, values, named):
    path = tmp_path / name
    if isinstance(values, bytes):
        path.write_bytes(values)
    elif values is not None:
        WRITERS[name](path, values)
    assert f"embeddings={str(path)!r} {named}" in refused(tmp_path, path)


def test_a_file_that_fits_is_not_what_is_refused(tmp_path):
    np.save(tmp_path / "v.npy", matrix())
    assert "embeddings=" not in refused(tmp_path, tmp_path / "v.npy")  # there is no such policy


def test_a_stream_two_arrays_and_a_foreign_prompt_are_errors(tmp_path):
    path, data = str(tmp_path / "v.npy"), prompts(6)
    np.save(path, matrix())
    assert "a stream has no rows to count. Train on a Dataset" in refused(tmp_path, path, data.to_iterable_dataset())
    with pytest.raises(ValueError, match="has no row for the prompt 'else', which is not in the training data set"):
        RowVectors(path, data, None)([Prompt("unknown", {"prompt": "else"})])
    np.savez(tmp_path / "v.npz", one=matrix(), two=matrix())
    assert "has the arrays ['one', 'two']. Write a file with one matrix." in refused(tmp_path, tmp_path / "v.npz")


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
def test_the_policy_embeds_by_the_mean_of_its_input_embeddings(tiny_path, tmp_path, conversational):
    texts = ["Say 4", "the answer is", "" if conversational else " ", "\\boxed{2} 2"]
    column = [[{"role": "user", "content": text}] for text in texts] if conversational else texts
    data = Dataset.from_dict({"prompt": column * 2})
    trainer = duet_trainer(tiny_path, tmp_path, method="vip", data=data)
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
    again = asked(data, [5, 2])
    np.testing.assert_array_equal(trainer.method.embed(again)[1], found[2])
    assert len(trainer.method.embed._known) == 5  # each prompt once
    trainer.train()


@pytest.mark.slow
@pytest.mark.skipif(missing, reason="sentence-transformers, of the extra `embeddings`, is not installed")
def test_a_name_that_is_no_sentence_model_is_an_error_before_the_policy_is_loaded(tmp_path):
    message = refused(tmp_path, tmp_path / "nowhere")
    assert "nowhere' is no sentence-transformers model that could be loaded: " in message
    assert "Name another model or its folder, set 'policy', or give a file that ends in .npy" in message
