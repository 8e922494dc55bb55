# SPDX-License-Identifier: Apache-2.0
"""Several updates of a batch keep a pre-trained model whole in bf16, at any rate that a user may type."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer

from duet_trl import DUETGRPOConfig, DUETGRPOTrainer
from duet_trl.update.trust_region import DESIRED_KL, LIMIT
from recipes.sums import held_out_problems, last_answer_reward, measure, rows, train_problems
from tests.pretrained import smollm2
from tests.runs import duet_trainer, logged

BATCHES = 3
RATE = 1e-3
"""A hundred times a usual one; lower rates are tried on the tiny policy (tests/test_trainer_several.py)."""
TOKENS = 12
"""An answer and little behind it: one in three is right."""


def greedy_first_answers(weights: dict[str, torch.Tensor]) -> float:
    """Share of 32 held-out problems whose first answer is right, decoded greedily in bf16."""
    # A copy in bf16 is fast, and whatever a trainer has patched is not in it.
    model = AutoModelForCausalLM.from_pretrained(smollm2(), dtype=torch.bfloat16)
    model.load_state_dict(weights)
    return measure(model, AutoTokenizer.from_pretrained(smollm2()), held_out_problems(32), temperature=0.0).first


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_three_batches_leave_the_model_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("recipes.sums.MAX_COMPLETION_LENGTH", TOKENS)
    model = AutoModelForCausalLM.from_pretrained(smollm2(), dtype=torch.float32)
    at_the_start = greedy_first_answers(model.state_dict())
    config = DUETGRPOConfig(
        output_dir=str(tmp_path),
        updates="several",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_steps=4 * BATCHES,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=TOKENS,
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
    )
    trainer.train()
    divergence = logged(trainer, "duet/update_kl")
    assert len(divergence) >= BATCHES - 1  # the other one had nothing to train
    assert max(divergence) <= LIMIT * DESIRED_KL
    assert greedy_first_answers(trainer.model.state_dict()) >= at_the_start - 0.05 > 0


def test_adapters_stay_within_the_limit_at_any_rate(tiny_path, tmp_path):
    adapters = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    options = {"learning_rate": 1e2, "lr_scheduler_type": "constant", "max_steps": 12}
    trainer = duet_trainer(tiny_path, tmp_path, updates="several", peft_config=adapters, **options)
    trainer.train()
    assert max(logged(trainer, "duet/update_kl")) <= LIMIT * DESIRED_KL
    assert logged(trainer, "duet/batches_pulled_back")[-1] > 0
