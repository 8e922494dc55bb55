# SPDX-License-Identifier: Apache-2.0
"""Copies of a configuration: what its user left open is decided anew, what was chosen stays chosen."""

from dataclasses import replace

import pytest

from tests.test_config import config


def test_a_copy_decides_anew_what_was_left_open(tmp_path):
    """As with GRPOConfig, where generation_batch_size alone must be taken out: TRL derives it."""
    first = config(tmp_path, budget_fraction=0.75)
    assert first.filled_in["max_rollouts"] == [None, 64] and "budget_fraction" not in first.filled_in
    assert replace(first, generation_batch_size=None).to_dict() == replace(first).to_dict() == first.to_dict()
    twice = replace(first, per_device_train_batch_size=32, max_completion_length=3072, generation_batch_size=None)
    assert (twice.max_rollouts, twice.grace_window, twice.budget_fraction) == (128, 150, 0.75)
    paper = replace(first, method="paper", generation_batch_size=None)
    assert (paper.marker, paper.allocate, paper.budget_fraction) == ("math_paragraph", True, 0.75)


@pytest.mark.parametrize("method", ["grpo", "dapo", "spec_rl"])
def test_a_copy_may_have_another_method(tmp_path, method):
    found = replace(config(tmp_path), method=method, generation_batch_size=None)
    assert found.to_dict() == config(tmp_path, method=method).to_dict()


def test_a_copy_still_refuses_what_its_user_set(tmp_path):
    with pytest.raises(ValueError, match="budget_fraction=0.75 cannot have an effect under method='grpo'"):
        replace(config(tmp_path, budget_fraction=0.75), method="grpo", generation_batch_size=None)
    with pytest.raises(ValueError, match="trim=False cannot have an effect under method='grpo'"):
        replace(config(tmp_path), method="grpo", trim=False, generation_batch_size=None)


@pytest.mark.parametrize("updates", ["several", "sfpo"])
def test_a_copy_cuts_its_batch_once(tmp_path, updates):
    first = config(tmp_path, updates=updates)
    assert first.num_iterations > 1
    assert replace(first, generation_batch_size=None).to_dict() == first.to_dict()
    assert replace(first, updates="once").to_dict() == config(tmp_path).to_dict()
