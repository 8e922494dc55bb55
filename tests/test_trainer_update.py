# SPDX-License-Identifier: Apache-2.0
"""The update of a training step: what is trained of trimmed and truncated rollouts, and the entropy of it."""

import logging

import numpy as np
import pytest
import torch

from duet_trl.methods.duet import Duet
from tests.runs import duet_trainer, logged, prompts, trained, weights


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


# ---- Trimmed: the answer and the end behind it, redone by hand ------------------------------------------------------

SGD = {"optim": "sgd", "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "max_steps": 1}


@pytest.mark.parametrize("options", [{}, {"num_iterations": 2, "epsilon": 1e-4}], ids=["one pass", "clipped"])
def test_the_gradient_is_that_of_answers_and_of_ends_behind_good_ones(tiny_path, tmp_path, options):
    trainer = duet_trainer(tiny_path, tmp_path, **SGD, **options)
    if options:  # the second pass is what the clip would silence
        trainer.args.max_steps = 2
    start = weights(trainer).clone()
    first: list[torch.Tensor] = []
    step_once = trainer.training_step

    def recorded(*args, **kwargs):
        if trainer._step == trainer.args.steps_per_generation and not first:
            first.append(weights(trainer).clone())
        return step_once(*args, **kwargs)

    trainer.training_step = recorded
    trainer.train()
    step = trainer._current
    cut = step.replay.trimmed
    taught = cut & step.judgement.in_gradient & (step.judgement.advantages > 0)
    assert taught.any() and (cut & step.judgement.in_gradient & (step.judgement.advantages < 0)).any()
    np.testing.assert_array_equal(step.taught_to_end, taught)
    assert (step.row_tokens[cut] < step.replay.length[cut]).any()
    model = type(trainer.model).from_pretrained(tiny_path, dtype=torch.float32)
    loss, ends, num_tokens = torch.zeros(()), torch.zeros(()), 0
    for row, rollout in step.local.items():
        ids = rollout.completion_ids[: step.replay.completed_at[row]] if cut[row] else rollout.completion_ids
        num_tokens += len(ids)
        if not step.judgement.in_gradient[row]:
            continue
        text = trainer.processing_class.decode(ids)
        assert not cut[row] or ("boxed{" in text and text.rstrip().rstrip("$.").endswith("}"))
        ids = ids + [trainer.eos_token_ids[0]] * bool(taught[row])
        logits = model(torch.tensor([rollout.prompt_ids + ids])).logits[0, len(rollout.prompt_ids) - 1 : -1]
        logps = logits.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)]
        part = -step.judgement.advantages[row] * logps
        loss, ends = loss + part.sum(), ends + part[-1] * bool(taught[row])
    (loss / num_tokens).backward(retain_graph=True)
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    moved = start - (first[0] if options else weights(trainer))
    assert (moved - gradient).norm() < 1e-4 * gradient.norm()
    if options:  # of the second pass nothing but the ends is left: their ratio is always 1
        assert (weights(trainer) - first[0]).norm() > 0.0


def test_the_answer_alone_is_what_it_was_where_no_ending_is_taught(tiny_path, tmp_path):
    trainer = trained(tiny_path, tmp_path, **SGD, teach_ending=False)
    step = trainer._current
    assert step.replay.trimmed.any() and not step.taught_to_end.any()
    np.testing.assert_array_equal(step.row_tokens, step.replay.length)


# ---- Truncated: `mask_truncated_completions` leaves out what is healthy, and counts as such -------------------------


@pytest.fixture(params=["duet", "paper", "grpo"])
def choice(request):
    return {"method": request.param}


def assert_healthy(trainer, caplog):
    assert logged(trainer, "duet/nonfinite_rollouts") == [0.0] * 3
    assert "finite" not in caplog.text


def test_it_trains_where_some_completions_are_truncated(tiny_path, tmp_path, choice, caplog):
    # With this seed the coin of `duet` keeps the rollouts of the last step, and lets those of the second be aborted.
    trainer = duet_trainer(tiny_path, tmp_path, mask_truncated_completions=True, seed=3, **choice)
    start = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    with caplog.at_level(logging.WARNING, logger="duet_trl"):
        trainer.train()
    step = trainer._current
    assert 0 < step.truncated.sum() < len(step.truncated)
    assert all((p != start[name]).any() for name, p in trainer.model.named_parameters())
    assert_healthy(trainer, caplog)
    # Truncated or not, the last step is in the statistics of lengths and rewards; sigma needs a log-probability.
    masked = step.truncated & step.judgement.in_gradient
    assert np.isnan(step.sum_logps[masked]).all()
    assert np.isfinite(step.sum_logps[step.judgement.in_gradient & ~masked]).all()
    if isinstance(trainer.method, Duet):
        history = trainer.method.allocator.statistics.reward_history(step.prompts.keys)
        assert (history.count > 0).all()


def test_it_leaves_the_policy_alone_where_all_completions_are_truncated(tiny_path, tmp_path, choice, caplog):
    never_ending = {"generation_kwargs": {"min_new_tokens": 8}, "max_completion_length": 8}
    trainer = duet_trainer(tiny_path, tmp_path, mask_truncated_completions=True, **never_ending, **choice)
    start = weights(trainer).clone()
    with caplog.at_level(logging.WARNING, logger="duet_trl"):
        trainer.train()
    assert trainer._current.truncated.all()
    assert logged(trainer, "loss") == [0.0] * 3
    assert logged(trainer, "entropy") == [None] * 3  # TRL's word for a metric that nothing was measured of
    assert (weights(trainer) == start).all()
    assert_healthy(trainer, caplog)
