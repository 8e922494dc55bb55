# SPDX-License-Identifier: Apache-2.0
"""What is checked before a model is loaded."""

import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer, GenerationConfig, MistralConfig, MistralForCausalLM

from duet_trl import DUETGRPOConfig
from duet_trl.seams.backend import choose_backend
from duet_trl.seams.gate_setup import prepare_gate
from tests.runs import duet_settings, duet_trainer, prompts
from tests.tiny import END_OF_TURN, MODEL_VOCAB


def config(tmp_path, **overrides) -> DUETGRPOConfig:
    return DUETGRPOConfig(**duet_settings(tmp_path, **overrides))


def test_every_declared_eos_is_known_and_the_sentinel_is_none_of_them(tiny_path, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_path)
    setup = prepare_gate(str(tiny_path), tokenizer, config(tmp_path))
    assert set(setup.eos_ids) == {tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(END_OF_TURN)}
    assert len(tokenizer) <= setup.sentinel < MODEL_VOCAB


def test_an_eos_outside_the_vocabulary_of_the_model_is_refused(tiny_path, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text((tiny_path / "config.json").read_text())
    GenerationConfig(eos_token_id=[3, 99_999]).save_pretrained(folder)
    with pytest.raises(ValueError, match=r"eos_token_id \[99999\] is outside the vocabulary of 384"):
        prepare_gate(str(folder), AutoTokenizer.from_pretrained(tiny_path), config(tmp_path))
    tokenizer = AutoTokenizer.from_pretrained(tiny_path)
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|x{i}|>" for i in range(200)]})
    tokenizer.eos_token = "<|x199|>"
    with pytest.raises(ValueError, match="outside the vocabulary of 384"):
        prepare_gate(str(tiny_path), tokenizer, config(tmp_path))


def test_a_full_vocabulary_without_special_tokens_is_refused(tiny_path, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_path)
    tokenizer.add_tokens([f"word{i}" for i in range(MODEL_VOCAB - len(tokenizer))])  # <|im_start|> is in the template
    with pytest.raises(ValueError, match="no special token without a role.*sentinel_token_id"):
        prepare_gate(str(tiny_path), tokenizer, config(tmp_path))


def test_special_tokens_with_a_role_mark_no_forced_stop(tiny_path, tmp_path):
    """Free are <|a|> and six behind it, of which the model's settings and the thoughts name all but one."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_path)
    tokenizer.add_tokens([f"word{i}" for i in range(MODEL_VOCAB - len(tokenizer) - 6)])
    names = ["<|a|>", "<|b|>", "<|image|>", "<|quiet|>", "<think>", "</think>"]
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    number = dict(zip(names, tokenizer.convert_tokens_to_ids(names), strict=True))
    folder = shutil.copytree(tiny_path, tmp_path / "model")
    described = json.loads((folder / "config.json").read_text()) | {"image_token_id": number["<|image|>"]}
    (folder / "config.json").write_text(json.dumps(described))
    generation = GenerationConfig.from_pretrained(folder)
    generation.suppress_tokens = [number["<|quiet|>"]]
    generation.save_pretrained(folder)
    args = config(tmp_path, generation_kwargs={"forced_eos_token_id": number["<|b|>"]})
    assert prepare_gate(str(folder), tokenizer, args).sentinel == number["<|a|>"]


def test_a_turn_that_ends_without_an_eos_is_said_at_the_start(tiny_path, tmp_path, caplog):
    folder = shutil.copytree(tiny_path, tmp_path / "model")
    generation = GenerationConfig.from_pretrained(folder)
    generation.eos_token_id = AutoTokenizer.from_pretrained(folder).eos_token_id
    generation.save_pretrained(folder)
    said = r"ends a turn with '<\|im_end\|>' .*not an EOS .*Set extra_eos_tokens=\['<\|im_end\|>'\]"
    for changes, expected in (
        ({"data": prompts(conversational=True)}, True),
        ({"data": prompts(conversational=True), "method": "grpo"}, True),
        ({"data": prompts(conversational=True), "extra_eos_tokens": [END_OF_TURN]}, False),
        ({"data": prompts()}, False),  # text of one's own ends as one says
    ):
        caplog.clear()
        duet_trainer(folder, tmp_path / "run", **changes)
        assert any(re.search(said, message) for message in caplog.messages) == expected, changes
    caplog.clear()
    duet_trainer(tiny_path, tmp_path / "run", data=prompts(conversational=True))  # which declares both
    assert not any("ends a turn" in message for message in caplog.messages)


@pytest.mark.parametrize(("method", "conversational"), [("grpo", False), ("duet", True)])
def test_a_folder_with_mistrals_own_tokenizer_is_trained(tmp_path, method, conversational):
    mistral = pytest.importorskip("mistral_common")
    folder = tmp_path / "model"
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 32}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "tie_word_embeddings": True}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 11}
    MistralForCausalLM(MistralConfig(vocab_size=131_072, **shape, **heads, **ends)).save_pretrained(folder)
    shutil.copy(Path(mistral.__file__).parent / "data" / "tekken_240911.json", folder / "tekken.json")
    data = prompts(4, conversational=conversational)
    small = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "max_completion_length": 16}
    trainer = duet_trainer(folder, tmp_path / "run", method=method, data=data, max_steps=1, num_generations=2, **small)
    assert type(trainer.processing_class).__name__ == "MistralCommonBackend"
    trainer.train()
    if method == "duet":
        assert trainer.processing_class.convert_ids_to_tokens(trainer.engine.setup.sentinel) == "<SPECIAL_999>"


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_without_its_libraries_vllm_is_refused_with_the_line_that_installs_it(tmp_path, monkeypatch, mode):
    args = config(tmp_path, use_vllm=True, vllm_mode=mode)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=rf"vllm_mode='{mode}' needs vllm.*pip install 'duet-trl\[vllm\]'"):
        choose_backend(args)
