# SPDX-License-Identifier: Apache-2.0
"""Pre-trained models under default fields, in bfloat16: what a new user has, made small.

Smaller than the defaults are batch and completions only.
"""

import json
import os
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
from tests.processes import fresh
from tests.runs import logged

ROOT = Path(__file__).parents[1]
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
MODELS = pytest.mark.parametrize("model", [smollm2, gemma3])


def characters(completions: list[str], **kwargs: Any) -> list[float]:
    """A reward that differs between rollouts."""
    return [float(len(set(text))) for text in completions]


def train(trainer_class: type, model: Path, args: GRPOConfig) -> Any:
    data = Dataset.from_list(rows(train_problems(8)))
    trainer = trainer_class(str(model), characters, args=args, train_dataset=data)
    trainer.train()
    return trainer


@pytest.mark.slow
@MODELS
def test_two_steps_with_default_fields(model, tmp_path):
    trainer = train(DUETGRPOTrainer, model(), DUETGRPOConfig(output_dir=str(tmp_path), **SMALL))
    assert trainer.args.bf16 and trainer.args.method == "duet"
    assert np.isfinite(logged(trainer, "loss")).all() and len(logged(trainer, "loss")) == 2
    sentinel = trainer.engine.setup.sentinel
    tokenizer = trainer.processing_class
    assert tokenizer.added_tokens_decoder[sentinel].special
    roles = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    assert sentinel not in roles
    assert max(logged(trainer, "duet/trim_rate")) > 0  # four worked examples: it goes on behind its answer


@pytest.mark.slow
@MODELS
def test_grpo_is_stock_on_a_pretrained_model(model, tmp_path):
    stock = train(GRPOTrainer, model(), GRPOConfig(output_dir=str(tmp_path), **SMALL))
    ours = train(DUETGRPOTrainer, model(), DUETGRPOConfig(output_dir=str(tmp_path), method="grpo", **SMALL))
    for name in ("loss", "reward", "reward_std", "completions/mean_length", "completions/clipped_ratio"):
        np.testing.assert_allclose(logged(ours, name), logged(stock, name), rtol=1e-5, atol=1e-6, err_msg=name)
    assert max(logged(stock, "reward_std")) > 0


# TRL builds its engine for the life of the process.
SCRIPT = """
import json, sys
from pathlib import Path
from duet_trl import DUETGRPOConfig, DUETGRPOTrainer
from tests.runs import logged
from tests.test_trainer_pretrained import SMALL, train

model, output_dir = sys.argv[1:]
engine = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 128}
trainer = train(DUETGRPOTrainer, Path(model), DUETGRPOConfig(output_dir=output_dir, **SMALL, **engine))
names = ("loss", "duet/trim_rate", "sampling/sampling_logp_difference/mean")
Path(output_dir, "report.json").write_text(json.dumps({name: logged(trainer, name) for name in names}))
"""


@pytest.mark.slow
@pytest.mark.vllm
@MODELS
def test_two_steps_with_colocated_vllm(model, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = fresh(["-c", SCRIPT, str(model()), str(tmp_path)], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads((tmp_path / "report.json").read_text())
    assert np.isfinite(report["loss"]).all() and len(report["loss"]) == 2
    assert max(report["duet/trim_rate"]) > 0
    # Nats a token between two kinds of bfloat16; another tokenizer, template or weight would be tenths.
    assert max(report["sampling/sampling_logp_difference/mean"]) < 0.05


@pytest.mark.slow
def test_a_chat_model_ends_its_turns(tmp_path):
    """The end of turn of SmolLM2's template is its EOS, which transformers reads wrongly out of the GGUF file."""
    from duet_trl.evaluation.prompts import end_of_turn_id

    tokenizer = AutoTokenizer.from_pretrained(smollm2())
    assert end_of_turn_id(tokenizer) == tokenizer.eos_token_id == 2
