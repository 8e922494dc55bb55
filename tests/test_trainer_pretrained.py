# SPDX-License-Identifier: Apache-2.0
"""Pre-trained models under default fields, in bfloat16: what a new user has, made small.

Smaller than the defaults are batch and completions only.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from duet_trl import DUETGRPOConfig, DUETGRPOTrainer
from recipes.sums import rows, train_problems
from tests.pretrained import gemma3, smollm2
from tests.processes import forked
from tests.runs import logged

SMALL = {
    "max_steps": 2,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "num_generations": 4,
    "max_completion_length": 16,
    "use_cpu": True,
    "logging_steps": 1,
    "save_strategy": "no",
    "disable_tqdm": True,
}


def characters(completions: list[str], **kwargs: Any) -> list[float]:
    """A reward that differs between rollouts."""
    return [float(len(set(text))) for text in completions]


def train(trainer_class: type, model: Path, args: GRPOConfig) -> Any:
    data = Dataset.from_list(rows(train_problems(8)))
    trainer = trainer_class(str(model), characters, args=args, train_dataset=data)
    trainer.train()
    return trainer


def assert_new_user_trains(trainer: Any) -> None:
    """Two steps under default fields, whose gate stops rollouts by a token that has no other part."""
    assert trainer.args.bf16 and trainer.args.method == "duet"
    assert np.isfinite(logged(trainer, "loss")).all() and len(logged(trainer, "loss")) == 2
    sentinel, tokenizer = trainer.engine.setup.sentinel, trainer.processing_class
    assert tokenizer.added_tokens_decoder[sentinel].special
    roles = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    assert sentinel not in roles
    assert max(logged(trainer, "duet/trim_rate")) > 0  # four worked examples: it goes on behind its answer


@pytest.mark.slow
def test_two_steps_with_default_fields(tmp_path):
    assert_new_user_trains(train(DUETGRPOTrainer, smollm2(), DUETGRPOConfig(output_dir=str(tmp_path), **SMALL)))


@pytest.mark.slow
def test_grpo_is_stock_on_a_pretrained_model(tmp_path):
    stock = train(GRPOTrainer, smollm2(), GRPOConfig(output_dir=str(tmp_path), **SMALL))
    ours = train(DUETGRPOTrainer, smollm2(), DUETGRPOConfig(output_dir=str(tmp_path), method="grpo", **SMALL))
    for name in ("loss", "reward", "reward_std", "completions/mean_length", "completions/clipped_ratio"):
        np.testing.assert_allclose(logged(ours, name), logged(stock, name), rtol=1e-5, atol=1e-6, err_msg=name)
    assert max(logged(stock, "reward_std")) > 0


# TRL builds its engine for the life of the process.
SCRIPT = """
import sys
from pathlib import Path
import torch
from duet_trl import DUETGRPOConfig, DUETGRPOTrainer
from tests.runs import logged
from tests.test_trainer_pretrained import SMALL, assert_new_user_trains, train

model, output_dir, weights = sys.argv[1:]
engine = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 128}
engine["model_init_kwargs"] = {"dtype": weights}
trainer = train(DUETGRPOTrainer, Path(model), DUETGRPOConfig(output_dir=output_dir, **SMALL, **engine))
assert_new_user_trains(trainer)
assert str(trainer.model.dtype) == f"torch.{weights}"
# Both multiply in bfloat16: where only one side rounds, they drift apart as weights move.
assert trainer.vllm_generation.llm.llm_engine.model_config.dtype == torch.bfloat16
# Nats a token between two kinds of bfloat16; another tokenizer, template or weight would be tenths.
assert max(logged(trainer, "sampling/sampling_logp_difference/mean")) < 0.05
"""


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.parametrize(("model", "weights"), [(smollm2, "float32"), (smollm2, "bfloat16"), (gemma3, "bfloat16")])
def test_two_steps_with_colocated_vllm(model, weights, tmp_path):
    """gemma-3 has sliding windows and 262,144 tokens."""
    done = forked(["-c", SCRIPT, str(model()), str(tmp_path), weights], cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_a_chat_model_ends_its_turns(tmp_path):
    """The end of turn of SmolLM2's template is its EOS, which transformers reads wrongly out of the GGUF file."""
    from duet_trl.evaluation.prompts import end_of_turn_id

    tokenizer = AutoTokenizer.from_pretrained(smollm2())
    assert end_of_turn_id(tokenizer) == tokenizer.eos_token_id == 2
