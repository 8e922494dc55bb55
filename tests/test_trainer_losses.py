# SPDX-License-Identifier: Apache-2.0
"""Every loss type of TRL, redone in float64: what it divides by where groups are uneven and rows are missing."""

import logging

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from benchmarks.arena.cell import leave_out_idle
from duet_trl.exchange import PADDING_ROW
from duet_trl.seams.data_checks import prompt_keys
from tests.runs import (
    PARTS_OFF,
    check_grpo_loss_for_loss,
    count_fours,
    duet_trainer,
    logged,
    prompts,
    trained,
    weights,
)

LOSS_TYPES = ["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "luspo", "sapo", "vespo"]
MASKED = {"method": "paper", "keep_probability": 0.5}


def of_type(loss_type):
    """Fields of a loss type; luspo is defined for ratios of sequences, and cispo clips no ratio of 1 at 5."""
    level = "sequence" if loss_type == "luspo" else "token"
    return {"loss_type": loss_type, "importance_sampling_level": level, "epsilon_high": 5.0}


def agree_on_even_ones(prompts, completions, earned=0.1, **kwargs):
    """All rollouts of every other prompt earn the same: 0.1, which float32 does not hold."""
    return [
        earned if int(prompt.split()[1]) % 2 == 0 else reward
        for prompt, reward in zip(prompts, count_fours(completions), strict=True)
    ]


def agree_exactly(prompts, completions, **kwargs):
    """The same with a reward whose mean over any count is itself, so that advantages are 0."""
    return agree_on_even_ones(prompts, completions, earned=0.125)


class Gradients(TrainerCallback):
    """The gradient of each optimizer step."""

    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        self.seen.append(torch.cat([p.grad.flatten() for p in model.parameters()]))


def run(tiny_path, tmp_path, **options):
    """One generation step, two optimizer steps of two micro-batches that leave the weights where they are."""
    gradients = Gradients()
    trainer = duet_trainer(
        tiny_path,
        tmp_path,
        rewards=agree_exactly,
        callbacks=[gradients],
        max_steps=2,
        learning_rate=0.0,
        max_grad_norm=0.0,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        **options,
    )
    if options.get("method") != "grpo":
        leave_out_idle(trainer.method)  # rows are missing
        keys = prompt_keys(list(prompts()), None)
        lengths = np.resize([8.0, 8.0, 60.0, 60.0], len(keys))  # counts differ
        trainer.method.allocator.statistics.observe_lengths(keys, np.arange(len(keys)), lengths, lengths > 0)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():  # away from the reference model, where the KL term has no gradient
        for parameter in trainer.model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    for model in (trainer.model, trainer.ref_model):
        if model is not None:
            model.double()
    policy = type(trainer.model)(trainer.model.config).double()
    policy.load_state_dict(trainer.model.state_dict())
    trainer.train()
    return trainer, policy, gradients.seen


def log_probs(model, rollout):
    prompt, ids = rollout.prompt_ids, rollout.completion_ids
    logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)]


def by_hand(trainer, policy, reference, window, counted):
    """Gradient of one optimizer step on the policy that made the batch: every ratio is 1, and so is its slope."""
    step, args = trainer._current, trainer.args
    lengths = np.array([len(step.local[row].completion_ids) for row in range(len(step.jobs))])
    if args.mask_truncated_completions:
        lengths[step.truncated] = 0
    num_rollouts, num_tokens = counted.sum(), lengths[counted].sum()
    total = torch.zeros((), dtype=torch.float64)
    for row in step.packed_rows.reshape(2, -1)[window]:
        if row == PADDING_ROW or lengths[row] == 0:
            continue
        logps = log_probs(policy, step.local[row])
        loss = -step.judgement.weight[row] * step.judgement.advantages[row] * logps.sum()
        if args.beta:
            with torch.no_grad():
                gap = log_probs(reference, step.local[row])
            ratio = (logps - logps.detach()).exp()  # TRL corrects the KL term for who drew the tokens
            loss = loss + args.beta * (((gap - logps).exp() - (gap - logps) - 1) * ratio).sum()
        divisor = {
            "grpo": num_rollouts * lengths[row],
            "sapo": num_rollouts * lengths[row],
            "dr_grpo": num_rollouts * args.max_completion_length,
            "luspo": num_rollouts,
        }.get(args.loss_type, num_tokens)
        total = total + loss / (divisor / 2)  # two optimizer steps share the batch
    policy.zero_grad()
    total.backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters()])


@pytest.mark.parametrize(
    "options",
    [
        *[of_type(name) for name in LOSS_TYPES],
        {**of_type("grpo"), "beta": 0.5},
        {**of_type("bnpo"), "beta": 0.5},
        {**of_type("grpo"), "mask_truncated_completions": True},
        *[{**of_type(name), "exclude_zero_variance_groups": True} for name in ("dapo", "bnpo", "sapo")],
    ],
    ids=lambda options: "-".join([options["loss_type"], *list(options)[3:]]),
)
def test_the_gradient_divides_by_all_that_count_however_rows_are_packed(tiny_path, tmp_path, options):
    trainer, policy, gradients = run(tiny_path, tmp_path, **MASKED, **options)
    step = trainer._current
    counted = step.judgement.in_divisor
    assert (step.packed_rows == PADDING_ROW).any() and (step.judgement.weight > 1).any()
    assert len(set(np.bincount(step.done.prompt))) > 1
    if "beta" not in options:
        assert (counted & ~step.judgement.in_gradient).sum() > 4  # dropped, and counted all the same
    if "mask_truncated_completions" in options:
        assert (step.truncated & counted).any()
    if "exclude_zero_variance_groups" in options:
        odd = np.array([int(prompt.example["prompt"].split()[1]) % 2 for prompt in step.prompts], dtype=bool)
        counted = counted & odd[step.done.prompt]
    reference = type(trainer.model).from_pretrained(tiny_path, dtype=torch.float64)
    for window, gradient in enumerate(gradients):
        expected = by_hand(trainer, policy, reference, window, counted)
        # Qwen3 normalises in float32; a rollout too many in the divisor would be 3%.
        assert (gradient - expected).norm() < 1e-3 * expected.norm()
    assert len(gradients) == 2


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_at_the_full_budget_every_loss_type_is_that_of_grpo(tiny_path, tmp_path, loss_type):
    # Two updates of each batch, so that ratios differ from 1; vespo raises e to sums of them, and rounding with it.
    options = {"num_iterations": 1 if loss_type == "vespo" else 2, **of_type(loss_type)}
    if loss_type == "bnpo":  # whose divisor TRL takes from each micro-batch
        options |= {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 1}
    switches, atol = dict(PARTS_OFF), 1e-6
    if (
        loss_type == "luspo"
    ):  # as many times larger as a sequence has tokens, and the rounding of another order with it
        switches, atol = switches | {"shared_prompts": False}, 1e-5
    check_grpo_loss_for_loss(tiny_path, tmp_path, switches, options, atol=atol)


@pytest.mark.parametrize("loss_type", ["bnpo", "sapo"])
def test_method_grpo_leaves_rows_in_the_micro_batches_of_grpo(tiny_path, tmp_path, loss_type):
    check_grpo_loss_for_loss(tiny_path, tmp_path, {"method": "grpo"}, of_type(loss_type))


@pytest.mark.parametrize("method", ["grpo", "paper"])
def test_groups_that_agree_leave_the_divisor_by_choice(tiny_path, tmp_path, method):
    norms = []
    for exclude in (False, True):
        options = {"method": method, "max_steps": 1, "exclude_zero_variance_groups": exclude, "max_grad_norm": 0.0}
        options |= {"abort": False} if method == "paper" else {}
        trainer = trained(tiny_path, tmp_path, rewards=agree_on_even_ones, **options)
        norms += logged(trainer, "grad_norm")
    step = trainer._current
    length, kept = step.replay.length, step.num_kept_tokens
    odd = np.array([int(prompt.example["prompt"].split()[1]) % 2 for prompt in step.prompts], dtype=bool)
    assert kept == length[odd[step.done.prompt]].sum() < length.sum()
    assert norms[1] / norms[0] == pytest.approx(length.sum() / kept, rel=1e-3)


def test_a_batch_in_which_all_groups_agree_moves_nothing(tiny_path, tmp_path):
    def alike(completions, **kwargs):
        return [0.1] * len(completions)

    trainer = duet_trainer(tiny_path, tmp_path, rewards=alike, method="grpo", exclude_zero_variance_groups=True)
    start = weights(trainer).clone()
    trainer.train()
    assert trainer._current.num_kept_tokens == 0
    assert (weights(trainer) == start).all()


def test_method_grpo_goes_on_where_no_rollout_has_a_reward(tiny_path, tmp_path, caplog):
    def abstains(completions, **kwargs):
        return [None] * len(completions)

    trainer = duet_trainer(tiny_path, tmp_path, rewards=abstains, method="grpo")
    start = weights(trainer).clone()
    with caplog.at_level(logging.WARNING, logger="trl.trainer.grpo_trainer"):
        trainer.train()
    assert "All reward functions returned None for the following kwargs:" in caplog.text
    assert logged(trainer, "duet/nonfinite_rollouts") == [32.0] * 3
    assert (weights(trainer) == start).all()
