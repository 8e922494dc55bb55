# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts: the auxiliary loss of the router is GRPOTrainer's, and only rollouts enter it."""

import numpy as np
import pytest
import torch
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from duet_trl.exchange import PADDING_ROW
from tests.runs import PARTS_OFF, check_grpo_loss_for_loss, count_fours, duet_trainer, logged, weights


def same_for_all(completions, **kwargs):
    return [1.0 for _ in completions]


@pytest.mark.parametrize(
    ("switches", "options", "rewards"),
    [
        (PARTS_OFF, {}, [count_fours]),
        # Only the auxiliary loss is left, of rollouts whose advantage is 0.
        (PARTS_OFF, {"learning_rate": 0.5}, [same_for_all]),
        (PARTS_OFF, {"router_aux_loss_coef": 0.0}, [count_fours]),
        ({"method": "grpo"}, {}, [count_fours]),
    ],
    ids=["coefficient-of-the-model", "no-advantage", "coefficient-0", "method-grpo"],
)
def test_with_every_part_off_it_is_grpo_loss_for_loss(moe_path, tmp_path, switches, options, rewards):
    grpo, duet = check_grpo_loss_for_loss(moe_path, tmp_path, switches, options, rewards)
    assert len(logged(grpo, "aux_loss")) == (0 if "router_aux_loss_coef" in options else 3)
    np.testing.assert_allclose(logged(duet, "aux_loss"), logged(grpo, "aux_loss"), atol=1e-6)
    np.testing.assert_allclose(logged(duet, "grad_norm"), logged(grpo, "grad_norm"), rtol=1e-4)


def by_hand(trainer, model):
    """The loss of the first step: Eq. 6, and the mean over micro-batches of the auxiliary loss of their rollouts."""
    step, config = trainer._current, model.config
    policy, balance = torch.zeros(()), torch.zeros(())
    chunks = step.packed_rows.reshape(trainer.args.steps_per_generation, -1)
    for chunk in chunks:
        routed = []
        for row in chunk[chunk != PADDING_ROW]:
            masked = trainer.mask_truncated_completions and step.truncated[row]
            prompt, ids = step.local[row].prompt_ids, [] if masked else step.local[row].completion_ids
            output = model(torch.tensor([prompt + ids]), output_router_logits=True)
            logps = output.logits[0, len(prompt) - 1 : -1].log_softmax(-1)[
                torch.arange(len(ids)), torch.tensor(ids, dtype=torch.long)
            ]
            policy = policy - step.judgement.weight[row] * step.judgement.advantages[row] * logps.sum()
            routed.append(output.router_logits)
        if routed:
            layers = tuple(torch.cat(layer) for layer in zip(*routed, strict=True))
            balance = balance + load_balancing_loss_func(layers, config.num_experts, config.num_experts_per_tok)
    return policy / step.num_kept_tokens + trainer.router_aux_loss_coef * balance / len(chunks)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 32, "keep_probability": 0.05},
        {"mask_truncated_completions": True},
    ],
    ids=["padding-rows", "micro-batches-of-padding", "closing-tokens"],
)
def test_padding_stays_out_of_the_routers_loss(moe_path, tmp_path, options):
    settings = {"optim": "sgd", "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    trainer = duet_trainer(moe_path, tmp_path, max_steps=1, method="paper", **settings | options)
    start = weights(trainer).clone()
    trainer.train()
    empty = (trainer._current.packed_rows.reshape(trainer.args.steps_per_generation, -1) == PADDING_ROW).all(axis=1)
    assert (trainer._current.packed_rows == PADDING_ROW).any()
    assert empty.any() == ("per_device_train_batch_size" in options)
    model = type(trainer.model).from_pretrained(moe_path, dtype=torch.float32)
    by_hand(trainer, model).backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert (start - weights(trainer) - gradient).norm() < 1e-4 * gradient.norm()


def test_rollouts_without_an_advantage_are_kept_for_the_routers_loss(moe_path, tmp_path):
    trainer = duet_trainer(moe_path, tmp_path)
    assert trainer.args.options.drop_zero_advantage is False
    assert duet_trainer(moe_path, tmp_path, router_aux_loss_coef=0.0).args.options.drop_zero_advantage is True
    with pytest.raises(ValueError, match=r"router \(coefficient 0\.1\).*Set drop_zero_advantage=False, or"):
        duet_trainer(moe_path, tmp_path, drop_zero_advantage=True)
