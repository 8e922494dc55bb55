# SPDX-License-Identifier: Apache-2.0
"""The update of a training step: what a baseline that remembers trains, and the entropy of what is trained."""

import numpy as np
import pytest
import torch

from tests.runs import logged, prompts, trained


def test_a_lone_rollout_moves_the_policy_once_something_is_remembered(tiny_path, tmp_path):
    # One rollout per prompt: nothing to compare it with in the first step, the mean of the pool in the second.
    trainer = trained(tiny_path, tmp_path, num_generations=2, budget_fraction=0.5, max_steps=2)
    assert logged(trainer, "duet/singleton_prompts") == [16.0, 16.0]
    before, after = logged(trainer, "grad_norm")
    assert before == 0.0 < after


def test_the_entropy_is_that_of_the_trained_tokens(tiny_path, tmp_path):
    # Two rollouts in four micro-batches: two hold nothing but padding.
    def by_prompt(prompts, completions, **kwargs):
        return [
            float(len(text)) if prompt == "Say 0 " else 1.0 for prompt, text in zip(prompts, completions, strict=True)
        ]

    trainer = trained(
        tiny_path,
        tmp_path,
        rewards=by_prompt,
        data=prompts(8),
        max_steps=1,
        allocate=False,
        budget_fraction=1.0,
        num_generations=2,
        gradient_accumulation_steps=4,
        per_device_train_batch_size=4,
        trim=False,
        abort=False,
    )
    step = trainer._current
    assert step.judgement.in_gradient.sum() == 2
    entropies = []
    model = type(trainer.model).from_pretrained(tiny_path, dtype=torch.float32)
    for row in np.flatnonzero(step.judgement.in_gradient):
        prompt, ids = step.local[row].prompt_ids, step.local[row].completion_ids
        logps = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        entropies.append(-(logps.exp() * logps).sum(-1).mean().item())
    assert logged(trainer, "entropy") == [pytest.approx(np.mean(entropies), rel=1e-4)]
