# SPDX-License-Identifier: Apache-2.0
"""The update of a training step: the baseline that remembers, entropy, and the surcharge of weights."""

import numpy as np
import pytest
import torch

from tests.runs import duet_trainer, logged, prompts


def test_a_lone_rollout_moves_the_policy_once_something_is_remembered(tiny_path, tmp_path):
    # One rollout per prompt: nothing to compare it with in the first step, the mean of the pool in the second.
    trainer = duet_trainer(tiny_path, tmp_path, num_generations=2, budget_fraction=0.5, max_steps=2)
    trainer.train()
    assert logged(trainer, "duet/singleton_prompts") == [16.0, 16.0]
    before, after = logged(trainer, "grad_norm")
    assert before == 0.0 < after


@pytest.mark.parametrize(("teaching", "trained"), [("Say 0 ", 2), ("none", 0)])
def test_the_entropy_is_that_of_the_trained_tokens(tiny_path, tmp_path, teaching, trained):
    # Two rollouts in four micro-batches: two hold nothing but padding.
    def by_prompt(prompts, completions, **kwargs):
        return [
            float(len(text)) if prompt == teaching else 1.0 for prompt, text in zip(prompts, completions, strict=True)
        ]

    trainer = duet_trainer(
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
    trainer.train()
    step = trainer._current
    assert step.judgement.in_gradient.sum() == trained
    if not trained:
        assert logged(trainer, "entropy") == [None]
        return
    entropies = []
    model = type(trainer.model).from_pretrained(tiny_path, dtype=torch.float32)
    for row in np.flatnonzero(step.judgement.in_gradient):
        prompt, ids = step.local[row].prompt_ids, step.local[row].completion_ids
        logps = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        entropies.append(-(logps.exp() * logps).sum(-1).mean().item())
    assert logged(trainer, "entropy") == [pytest.approx(np.mean(entropies), rel=1e-4)]


def test_the_surcharge_is_that_of_the_weights_that_are_used(tiny_path, tmp_path):
    factors = {}
    for method in ("duet", "paper"):
        trainer = duet_trainer(tiny_path, tmp_path, method=method)
        trainer.train()
        assert max(logged(trainer, "duet/keep_rate")) > 0
        factors[method] = logged(trainer, "duet/surcharge")
    assert factors["duet"] == [1.0] * 3  # every rollout is trained, with weight 1
    assert max(factors["paper"]) > 1.0
