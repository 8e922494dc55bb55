# SPDX-License-Identifier: Apache-2.0
"""Several updates of a batch keep a pre-trained model whole in bf16, at any rate that a user may type."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from duet_trl import DUETGRPOConfig, DUETGRPOTrainer
from duet_trl.update.trust_region import LIMIT
from recipes.sums import held_out_problems, last_answer_reward, measure, rows, train_problems
from tests.pretrained import smollm2
from tests.runs import logged

BATCHES = 8
RATE = 1e-3
"""A hundred times a usual one; lower rates are tried on the tiny policy (tests/test_trainer_several.py)."""


def greedy_first_answers(model) -> float:
    """Share of 64 held-out problems whose first answer is right, decoded greedily in bf16."""
    if not isinstance(model, PeftModel):  # a copy in bf16 is fast, and whatever a trainer has patched is not in it
        trained = model.state_dict()
        model = AutoModelForCausalLM.from_pretrained(smollm2(), dtype=torch.bfloat16)
        model.load_state_dict(trained)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return measure(model, AutoTokenizer.from_pretrained(smollm2()), held_out_problems(64), temperature=0.0).first


@pytest.fixture(scope="module")
def at_the_start() -> float:
    return greedy_first_answers(AutoModelForCausalLM.from_pretrained(smollm2(), dtype=torch.float32))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("lora", [False, True])
def test_eight_batches_leave_the_model_whole(tmp_path, at_the_start, lora):
    model = AutoModelForCausalLM.from_pretrained(smollm2(), dtype=torch.bfloat16 if lora else torch.float32)
    config = DUETGRPOConfig(
        output_dir=str(tmp_path),
        updates="several",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_steps=4 * BATCHES,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=12,  # an answer and little behind it: one in three is right
        gradient_checkpointing=False,  # the recomputing costs a quarter of the time
        bf16=True,
        use_cpu=True,
        seed=1,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    easiest = sorted(train_problems(), key=lambda problem: problem.answer)[:64]  # some are right in most batches
    trainer = DUETGRPOTrainer(
        model,
        last_answer_reward,
        config,
        Dataset.from_list(rows(easiest)),
        processing_class=AutoTokenizer.from_pretrained(smollm2()),
        peft_config=LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM") if lora else None,
    )
    trainer.train()
    divergence = logged(trainer, "duet/update_kl")
    assert len(divergence) >= BATCHES // 2  # the others had nothing to train
    assert max(divergence) <= LIMIT * config.desired_kl
    assert greedy_first_answers(trainer.model) >= at_the_start - 0.05
