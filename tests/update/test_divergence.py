# SPDX-License-Identifier: Apache-2.0
"""The divergence of two policies, by its definition, and in float32 where a model computes in bf16."""

import copy
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from duet_trl.update.divergence import divergence_sums, in_float32, nudged

CHECKPOINT = Path(__file__).parents[2] / "recipes" / "tiny_math" / "checkpoint"


def test_its_mean_over_sampled_tokens_is_the_kl_divergence():
    generator = torch.Generator().manual_seed(0)
    before, now = torch.randn(2, 50, generator=generator).log_softmax(-1)
    tokens = torch.multinomial(before.exp(), 200_000, replacement=True, generator=generator)
    moved = (now - before)[tokens].reshape(-1, 100)
    mask = torch.ones_like(moved, dtype=torch.long)
    mask[:, 60:] = 0
    total, count = divergence_sums(moved.where(mask.bool(), torch.inf), mask).tolist()
    exact = torch.nn.functional.kl_div(now, before, log_target=True, reduction="sum").item()
    assert count == mask.sum() and total / count == pytest.approx(exact, rel=0.05)


@pytest.fixture(scope="module")
def narrow(tiny_path):
    return AutoModelForCausalLM.from_pretrained(tiny_path, dtype=torch.bfloat16).train()


IDS = torch.arange(2 * 40).reshape(2, 40)


def test_a_model_in_bf16_computes_in_float32_and_is_left_as_it_was(narrow):
    wide = copy.deepcopy(narrow).float().eval()
    weights = {name: (one, one.detach().clone()) for name, one in narrow.named_parameters()}
    with torch.no_grad(), in_float32(narrow) as forward:
        found = forward(input_ids=IDS).logits
    assert found.dtype == torch.float32
    with torch.no_grad():
        # Both round where they add in another order, and nowhere else.
        torch.testing.assert_close(found, wide(input_ids=IDS).logits, atol=2e-4, rtol=1e-5)
        assert (narrow(input_ids=IDS).logits.float() - found).abs().max() > 1e-2
    assert narrow.training
    for name, one in narrow.named_parameters():
        assert one is weights[name][0] and torch.equal(one, weights[name][1]), name
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in narrow.modules())


def test_a_forward_pass_that_fails_leaves_the_model_as_it_was(narrow):
    with pytest.raises(IndexError), in_float32(narrow) as forward:
        forward(input_ids=IDS + 10_000)
    assert {one.dtype for one in narrow.parameters()} == {torch.bfloat16}


def test_under_autocast_rounding_is_read_as_divergence_and_in_float32_it_is_not():
    # Weights that differ by a millionth: the true divergence is 1e-10 or less. A trained policy: with random weights
    # some processors round both sides alike.
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)

    @torch.no_grad()
    def logps(forward) -> torch.Tensor:
        return forward(input_ids=IDS).logits[:, :-1].float().log_softmax(-1).gather(-1, IDS[:, 1:, None])[..., 0]

    def rounding(score) -> float:
        before = score()
        with nudged([one.detach() for one in model.parameters()], seed=1):
            total, count = divergence_sums(score() - before, torch.ones_like(before)).tolist()
        assert torch.equal(score(), before)  # the nudge is taken back to the last bit
        return total / count

    def exact() -> torch.Tensor:
        with in_float32(model) as forward:
            return logps(forward)

    def narrow() -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return logps(model)

    assert rounding(narrow) > 1e-5 and rounding(exact) < 1e-8
