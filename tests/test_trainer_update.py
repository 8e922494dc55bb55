# SPDX-License-Identifier: Apache-2.0
"""The update of a training step: the baseline that remembers, entropy, and the surcharge of weights."""

import numpy as np
import pytest
import torch

from duet_trl.update.baseline import LeastNoise, history_advantages
from tests.runs import duet_trainer, logged, prompts


def test_a_prompt_that_comes_round_again_is_judged_by_what_it_earned_before(tiny_path, tmp_path):
    trainer = duet_trainer(tiny_path, tmp_path, max_steps=6)  # four steps are an epoch
    histories, weights, lower = [], [], []
    statistics = trainer.method.allocator.statistics
    read = statistics.reward_history
    judge = trainer.loop.judge

    def recorded(step):
        histories.append(read(step.prompts.keys))
        weights.append(trainer.method.weights.best)
        ratio, bounds = trainer.method.noise_ratio.value, statistics.reward_range
        lower.append(LeastNoise(ratio, *bounds) if statistics.rewards_differ else None)
        judge(step)

    trainer.loop.judge = recorded
    trainer.train()
    assert [bool((seen.count > 0).all()) for seen in histories] == [False] * 4 + [True] * 2
    assert np.isnan(histories[0].pool_mean)
    step, seen = trainer._current, histories[-1]
    rewards = step.done.rewards_per_func[:, 0].double().numpy()
    assert lower[0] is None and lower[-1].ratio not in (1.0, lower[-2].ratio)  # it follows the log-probs of the passes
    expected = history_advantages(
        rewards, step.done.prompt, seen.at_present(), weights=weights[-1], least_noise=lower[-1]
    )
    np.testing.assert_allclose(step.judgement.advantages, expected, rtol=1e-5)
    # The judged step has entered the history, each prompt's own rewards only.
    after = read(step.prompts.keys)
    n = np.bincount(step.done.prompt)
    np.testing.assert_allclose(after.count, 0.7 * (seen.count + n))
    means = np.bincount(step.done.prompt, weights=rewards) / n
    np.testing.assert_allclose(after.mean, (seen.count * seen.mean + n * means) / (seen.count + n))


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
