# SPDX-License-Identifier: Apache-2.0
"""A forward pass in float32 where a model is stored in bf16, or computes in it."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from duet_trl.update.float32 import in_float32


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


def test_autocast_around_it_is_off(narrow):
    wide = copy.deepcopy(narrow).float().eval()
    with torch.no_grad():
        expected = wide(input_ids=IDS).logits
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = wide(input_ids=IDS).logits.float()
            with in_float32(wide) as forward:
                found = forward(input_ids=IDS).logits
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-5)
    assert (rounded - expected).abs().max() > 1e-2
