# SPDX-License-Identifier: Apache-2.0
"""Gradients clipped to a quantile of their own norms: the rule, and what a run makes of it."""

import math

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from duet_trl.update.clipping import WARMUP, NormHistory
from tests.runs import duet_trainer, logged


def test_the_limit_is_the_quantile_of_the_norms_before_once_there_are_enough():
    norms = NormHistory(0.25)
    for norm in (0.0, math.inf, math.nan):  # nothing was trained, or nothing can be said
        norms.add(norm)
    for number in range(WARMUP):
        assert norms.limit == math.inf
        norms.add(float(number + 1))
    assert norms.limit == pytest.approx(1 + 0.25 * (WARMUP - 1))  # 1, 2, ..., WARMUP are evenly spaced
    norms.add(100.0)
    assert norms.limit == pytest.approx(1 + 0.25 * WARMUP)  # how far off the largest is does not matter

    restored = NormHistory(0.25)
    restored.load_state_dict(norms.state_dict())
    assert restored.limit == norms.limit and restored.state_dict()["grad_norms"].tolist()[-1] == 100.0


class Applied(TrainerCallback):
    """Notes the norm of the gradient that the optimizer is given."""

    def __init__(self, trainer):
        self.trainer, self.norms = trainer, []

    def on_pre_optimizer_step(self, *args, **kwargs):
        grads = [p.grad for p in self.trainer.model.parameters() if p.grad is not None]
        self.norms.append(torch.linalg.vector_norm(torch.stack([g.norm() for g in grads])).item())


def test_no_update_is_longer_than_the_quantile_of_those_before(tiny_path, tmp_path):
    # Two updates of each batch.
    trainer = duet_trainer(tiny_path, tmp_path, max_steps=WARMUP + 8, grad_norm_quantile=0.3, num_iterations=2)
    applied = Applied(trainer)
    trainer.add_callback(applied)
    trainer.train()
    norms = logged(trainer, "grad_norm")  # before clipping, as without the quantile
    assert len(norms) == len(applied.norms) == WARMUP + 8
    for number, (before, after) in enumerate(zip(norms, applied.norms, strict=True)):
        earlier = [norm for norm in norms[:number] if norm > 0]
        limit = np.quantile(earlier, 0.3) if len(earlier) >= WARMUP else math.inf
        assert after == pytest.approx(min(before, 1.0, limit), rel=1e-4), number
    assert any(after < before for before, after in zip(norms, applied.norms, strict=True))
    assert trainer.args.max_grad_norm == 1.0
