# SPDX-License-Identifier: Apache-2.0
"""A batch cut into passes and mini-batches: the optimizer steps that TRL then makes of the same rollouts."""

import pytest

from duet_trl.update.trust_region import CUTS
from tests.test_config import config


@pytest.mark.parametrize("method", ["duet", "grpo", "dapo"])
@pytest.mark.parametrize(("size", "micro_batches"), [(8, 1), (8, 3), (16, 4), (5, 8)])
@pytest.mark.parametrize("updates", sorted(CUTS))
def test_a_batch_has_the_same_rollouts_however_it_is_cut(tmp_path, method, size, micro_batches, updates):
    shape = {"per_device_train_batch_size": size, "gradient_accumulation_steps": micro_batches, "method": method}
    whole = config(tmp_path, **shape)
    cut = config(tmp_path, **shape, updates=updates)
    passes, mini_batches = CUTS[updates].passes, CUTS[updates].mini_batches
    assert cut.generation_batch_size == whole.generation_batch_size == size * micro_batches
    assert cut.num_iterations == passes
    assert cut.steps_per_generation == mini_batches * cut.gradient_accumulation_steps
    assert cut.per_device_train_batch_size <= size
    assert (cut.desired_kl is None) == (updates != "several")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"num_iterations": 2}, "cuts the batch itself, and num_iterations=2 was set by hand. Remove"),
        ({"steps_per_generation": 4}, "steps_per_generation=4 was set by hand"),
        ({"generation_batch_size": 32}, "generation_batch_size=32 was set by hand"),
        (
            {"per_device_train_batch_size": 5, "num_generations": 5},
            "per_device_train_batch_size=5 x gradient_accumulation_steps=1 is too small or odd. Make one of the two",
        ),
        ({"fp16": True}, "the loss scaler of fp16=True cannot do. Set bf16=True, or updates='once'"),
        ({"updates": "many"}, r"updates must be one of \['once', 'several', 'sfpo'\], got 'many'"),
        ({"desired_kl": 0.0}, "desired_kl must be above 0, nats per token; got 0.0"),
    ],
)
def test_what_cannot_be_cut_is_an_error_with_the_remedy(tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **{"updates": "several", "gradient_accumulation_steps": 1, **overrides})
