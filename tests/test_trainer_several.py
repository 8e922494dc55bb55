# SPDX-License-Identifier: Apache-2.0
"""Several updates of a batch in training: what is measured, skipped and pulled back, against the weights."""

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from duet_trl.seams.several_updates import SFPO_SHARE
from duet_trl.update.trust_region import DESIRED_KL, LIMIT
from tests.runs import duet_trainer, logged, prompts, trained, weights

CONSTANT = {"lr_scheduler_type": "constant"}


class Recorder(TrainerCallback):
    """The weights before and after every optimizer step, and the rollouts of its batch."""

    def __init__(self) -> None:
        self.before: list[torch.Tensor] = []
        self.after: list[torch.Tensor] = []
        self.gradients: list[torch.Tensor | None] = []
        self.rollouts: list[list] = []
        self.trainer = None

    def on_pre_optimizer_step(self, *args, **kwargs) -> None:
        gradients = [one.grad for one in self.trainer.model.parameters() if one.grad is not None]
        self.gradients.append(torch.cat([one.flatten().clone() for one in gradients]) if gradients else None)
        self.before.append(weights(self.trainer).clone())

    def on_optimizer_step(self, *args, **kwargs) -> None:
        self.after.append(weights(self.trainer).clone())
        self.rollouts.append(list(self.trainer._current.local.values()))


def recorded(tiny_path, tmp_path, **overrides):
    """A run, and what it did to the weights."""
    trainer = duet_trainer(tiny_path, tmp_path, **{"updates": "several", **CONSTANT, **overrides})
    recorder = Recorder()
    recorder.trainer = trainer
    trainer.add_callback(recorder)  # behind the trainer's own
    model = type(trainer.model).from_pretrained(tiny_path, dtype=torch.float32)  # a copy would call the trainer's
    trainer.train()
    return trainer, recorder, model


@torch.no_grad()
def divergence(model, start: torch.Tensor, end: torch.Tensor, rollouts: list) -> float:
    """Of one policy from another in nats per token, over the whole vocabulary at every token of the rollouts."""

    def logps(vector: torch.Tensor) -> list[torch.Tensor]:
        torch.nn.utils.vector_to_parameters(vector, model.parameters())
        found = []
        for rollout in rollouts:
            ids = torch.tensor([rollout.prompt_ids + rollout.completion_ids])
            found.append(model(ids).logits[0, len(rollout.prompt_ids) - 1 : -1].double().log_softmax(-1))
        return found

    pairs = zip(logps(start), logps(end), strict=True)
    return torch.cat([(p.exp() * (p - q)).sum(-1) for p, q in pairs]).mean().item()


@pytest.mark.parametrize(("method", "rate"), [("duet", 1e-4), ("duet", 1e-1), ("duet", 1e2), ("grpo", 1e-1)])
def test_no_batch_goes_beyond_the_limit_whatever_the_rate(tiny_path, tmp_path, method, rate):
    trainer, recorder, model = recorded(tiny_path, tmp_path, method=method, learning_rate=rate, max_steps=12)
    found = [
        divergence(model, recorder.before[first], recorder.after[first + 3], recorder.rollouts[first])
        for first in (0, 4, 8)
    ]
    logs = logged(trainer, "duet/update_kl")
    assert len(logs) == 3 and max(found) < 1.2 * LIMIT * DESIRED_KL
    # A quarter of the rollouts was measured, and one token of each distribution.
    assert logs == pytest.approx(found, rel=0.6, abs=DESIRED_KL / 10)
    assert logged(trainer, "duet/desired_kl") == [DESIRED_KL] * 3
    assert (logged(trainer, "duet/batches_pulled_back")[-1] > 0) == (rate > 1e-3)


def test_skipped_updates_leave_the_weights_and_what_the_optimizer_remembers(tiny_path, tmp_path):
    trainer, recorder, _ = recorded(tiny_path, tmp_path, learning_rate=1e-1, max_steps=4, weight_decay=0.1)
    made = int(logged(trainer, "duet/updates")[0])
    assert made < 4 and logged(trainer, "duet/updates_skipped") == [4.0 - made]
    assert all(one is None for one in recorder.gradients[made:])
    for before, after in zip(recorder.before[made:], recorder.after[made:], strict=True):
        assert torch.equal(before, after)
    assert {int(state["step"]) for state in trainer.optimizer.state.values()} == {made}


def test_a_batch_with_nothing_to_train_moves_nothing(tiny_path, tmp_path):
    def alike(prompts, **kwargs):
        return [1.0] * len(prompts)

    trainer, recorder, _ = recorded(tiny_path, tmp_path, rewards=alike)
    assert torch.equal(recorder.before[0], recorder.after[-1])
    assert logged(trainer, "duet/update_kl") == [] and logged(trainer, "duet/trained_tokens")[0] == 0.0


def test_sfpo_steps_back_before_its_last_update(tiny_path, tmp_path):
    _, recorder, _ = recorded(
        tiny_path, tmp_path, updates="sfpo", optim="sgd", learning_rate=0.05, max_grad_norm=0.0, max_steps=4
    )
    start, raw = recorder.before[0], recorder.before[2] - 0.05 * recorder.gradients[2]
    torch.testing.assert_close(recorder.after[2], start + SFPO_SHARE * (raw - start), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(
        recorder.after[3], recorder.after[2] - 0.05 * recorder.gradients[3], atol=1e-6, rtol=1e-6
    )


def test_with_every_part_off_and_within_the_region_it_is_grpo_with_as_many_passes(tiny_path, tmp_path):
    # At a rate at which nothing is skipped or pulled back, SGD without a factor on the rate: the first batch.
    shape = {"optim": "sgd", "learning_rate": 1e-3, "max_grad_norm": 0.0, "max_steps": 4, "data": prompts(8)}
    several, recorder, _ = recorded(tiny_path, tmp_path / "several", method="grpo", **shape)
    assert logged(several, "duet/updates") == [4.0]
    stock = trained(
        tiny_path,
        tmp_path / "stock",
        method="grpo",
        num_iterations=2,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        **{**CONSTANT, **shape},
    )
    moved = (recorder.after[-1] - recorder.before[0]).norm()
    assert moved > 0 and (weights(stock) - recorder.after[-1]).norm() < 1e-4 * moved


def test_a_resumed_run_goes_on_at_the_rate_that_it_had_found(tiny_path, tmp_path):
    shape = {"updates": "several", "learning_rate": 1e-1, "save_strategy": "steps", "save_steps": 4, **CONSTANT}
    whole = trained(tiny_path, tmp_path / "whole", max_steps=8, **shape)
    resumed = duet_trainer(tiny_path, tmp_path / "whole", max_steps=8, **shape)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert resumed.several.state_dict() == pytest.approx(whole.several.state_dict())
    np.testing.assert_array_equal(weights(resumed).numpy(), weights(whole).numpy())
