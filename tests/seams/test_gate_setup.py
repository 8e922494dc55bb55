# SPDX-License-Identifier: Apache-2.0
"""What is checked before a model is loaded."""

import importlib.util
import json
import shutil

import pytest
from transformers import AutoTokenizer, GenerationConfig

from duet_trl import DUETGRPOConfig
from duet_trl.seams.backend import choose_backend
from duet_trl.seams.gate_setup import prepare_gate
from tests.runs import duet_settings, duet_trainer
from tests.tiny import END_OF_TURN, MODEL_VOCAB


def config(tmp_path, **overrides) -> DUETGRPOConfig:
    return DUETGRPOConfig(**duet_settings(tmp_path, **overrides))


def test_every_declared_eos_is_known_and_the_sentinel_is_none_of_them(tiny_path, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_path)
    setup = prepare_gate(str(tiny_path), tokenizer, config(tmp_path))
    assert set(setup.eos_ids) == {tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(END_OF_TURN)}
    assert len(tokenizer) <= setup.sentinel < MODEL_VOCAB


def test_an_eos_that_the_model_declares_outside_its_vocabulary_is_refused(tiny_path, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text((tiny_path / "config.json").read_text())
    GenerationConfig(eos_token_id=[3, 99_999]).save_pretrained(folder)
    with pytest.raises(ValueError, match=r"eos_token_id \[99999\] is outside the vocabulary of 384"):
        prepare_gate(str(folder), AutoTokenizer.from_pretrained(tiny_path), config(tmp_path))


@pytest.mark.usefixtures("code_of_models")
def test_code_of_a_model_is_trusted_as_in_trl(tiny_path, tmp_path):
    folder = shutil.copytree(tiny_path, tmp_path / "model")
    (folder / "configuration_own.py").write_text(
        "from transformers import Qwen3Config\n\nclass OwnConfig(Qwen3Config):\n    model_type = 'own'\n"
    )
    (folder / "modeling_own.py").write_text(
        "from transformers import Qwen3ForCausalLM\nfrom .configuration_own import OwnConfig\n\n"
        "class OwnForCausalLM(Qwen3ForCausalLM):\n    config_class = OwnConfig\n"
    )
    own = {
        "model_type": "own",
        "architectures": ["OwnForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_own.OwnConfig",
            "AutoModelForCausalLM": "modeling_own.OwnForCausalLM",
        },
    }
    (folder / "config.json").write_text(json.dumps(json.loads((tiny_path / "config.json").read_text()) | own))
    trainer = duet_trainer(folder, tmp_path / "run", max_steps=1, model_init_kwargs={"trust_remote_code": True})
    assert type(trainer.model).__name__ == "OwnForCausalLM"
    trainer.train()
    # The field of TRL's configuration does for both, too; without either it is the user's decision.
    assert duet_trainer(folder, tmp_path / "run", trust_remote_code=True).engine.setup is not None
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        duet_trainer(folder, tmp_path / "run")


def test_a_full_vocabulary_without_a_reserved_token_is_refused(tiny_path, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_path)
    tokenizer.add_special_tokens(
        {"additional_special_tokens": [f"<|word{i}|>" for i in range(MODEL_VOCAB - len(tokenizer))]}
    )
    with pytest.raises(ValueError, match="sentinel_token_id"):
        prepare_gate(str(tiny_path), tokenizer, config(tmp_path))


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_without_its_libraries_vllm_is_refused_with_the_line_that_installs_it(tmp_path, monkeypatch, mode):
    args = config(tmp_path, use_vllm=True, vllm_mode=mode)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=rf"vllm_mode='{mode}' needs vllm.*pip install 'duet-trl\[vllm\]'"):
        choose_backend(args)
