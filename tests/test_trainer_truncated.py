# SPDX-License-Identifier: Apache-2.0
"""`mask_truncated_completions`: rollouts that TRL leaves out of the loss are healthy, and count as such."""

import logging

import numpy as np
import pytest

from duet_trl.methods.duet import Duet
from tests.runs import duet_trainer, logged, weights


@pytest.fixture(params=["duet", "paper", "grpo"])
def choice(request):
    return {"method": request.param}


def assert_healthy(trainer, caplog):
    assert logged(trainer, "duet/nonfinite_rollouts") == [0.0] * 3
    assert "finite" not in caplog.text


def test_it_trains_where_some_completions_are_truncated(tiny_path, tmp_path, choice, caplog):
    trainer = duet_trainer(tiny_path, tmp_path, mask_truncated_completions=True, **choice)
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
