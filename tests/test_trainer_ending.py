# SPDX-License-Identifier: Apache-2.0
"""A trimmed rollout teaches its answer and the end behind it, and not what the gate let through: redone by hand."""

import numpy as np
import pytest
import torch

from tests.runs import duet_trainer, trained, weights

SGD = {"optim": "sgd", "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "max_steps": 1}


@pytest.mark.parametrize("options", [{}, {"num_iterations": 2, "epsilon": 1e-9}], ids=["one pass", "clipped"])
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
