# SPDX-License-Identifier: Apache-2.0
"""A learning rate that follows the KL divergence: the rule, and what a run makes of it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from duet_trl.update.kl_rate import FALL, HIGHEST, LOWEST, RISE, KLRate
from tests.runs import duet_trainer, logged


def test_the_divergence_of_a_rollout_is_the_mean_over_rollouts_of_the_sum_over_their_tokens():
    generator = torch.Generator().manual_seed(0)
    before, now = torch.randn(2, 50, generator=generator).log_softmax(-1)
    tokens = torch.multinomial(before.exp(), 200_000, replacement=True, generator=generator)
    moved = (now - before)[tokens].reshape(-1, 100)
    mask = torch.ones_like(moved, dtype=torch.long)
    mask[:, 60:] = 0
    rate = KLRate(0.1)
    rate.note(moved[:1000], mask[:1000])
    rate.note(moved[1000:].where(mask[1000:].bool(), torch.inf), mask[1000:])  # what is not counted may be anything
    padding = torch.zeros_like(mask[:3])
    rate.note(torch.full_like(moved[:3], 9.0), padding)
    total, count = rate.take().tolist()
    exact = torch.nn.functional.kl_div(now, before, log_target=True, reduction="sum").item()
    assert count == len(mask) and total / count == pytest.approx(60 * exact, rel=0.05)
    assert rate.take().tolist() == [0.0, 0.0]


@given(
    desired=st.floats(1e-3, 1.0),
    curvature=st.floats(1e-4, 10.0),
    start=st.floats(LOWEST, HIGHEST),
)
def test_where_the_divergence_is_quadratic_in_the_rate_it_settles_at_what_is_desired_or_at_a_bound(
    desired: float, curvature: float, start: float
):
    rate = KLRate(desired)
    rate.factor = start
    for _ in range(25):  # 1.25^25 is more than from bound to bound
        before = rate.factor
        rate.follow(curvature * rate.factor**2)
        assert 1 / FALL - 1e-9 <= rate.factor / before <= RISE + 1e-9
    settled = min(max(math.sqrt(desired / curvature), LOWEST), HIGHEST)
    assert rate.factor == pytest.approx(settled)


def test_a_batch_that_moves_nothing_changes_nothing_and_one_without_end_lowers_the_rate():
    rate = KLRate(0.1)
    assert rate.follow(0.0) == {"update_kl": 0.0} and rate.factor == 1.0
    assert rate.follow(0.1) == {"update_kl": 0.1} and rate.factor == 1.0
    assert rate.follow(math.inf) == {} and rate.factor == pytest.approx(1 / FALL)
    assert rate.follow(math.nan) == {} and rate.factor == pytest.approx(1 / FALL**2)
    restored = KLRate(0.1)
    restored.load_state_dict(rate.state_dict())
    assert restored.factor == rate.factor
    for divergence, bound in ((1e-9, HIGHEST), (math.inf, LOWEST), (1e-9, HIGHEST), (math.nan, LOWEST)):
        for _ in range(100):
            rate.follow(divergence)
        assert rate.factor == bound


def test_a_schedule_is_multiplied_once_and_one_that_cannot_be_is_refused():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = LambdaLR(optimizer, lambda step: 1 / (step + 1))
    rate = KLRate(1e-3)
    for _ in range(2):
        rate.steer(scheduler)
    rate.follow(1.0)
    optimizer.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [pytest.approx(0.5 / 2 / FALL)]
    with pytest.raises(ValueError, match="needs a LambdaLR schedule.*got ReduceLROnPlateau. Choose another"):
        rate.steer(ReduceLROnPlateau(optimizer))


def test_a_resumed_run_goes_on_with_the_rate_of_its_checkpoint(tiny_path, tmp_path):
    options = {"num_iterations": 2, "desired_kl": 1e-12, "lr_scheduler_type": "constant", "max_steps": 8}
    first = duet_trainer(tiny_path, tmp_path, save_strategy="steps", save_steps=4, **options)
    first.train()
    resumed = duet_trainer(tiny_path, tmp_path, save_strategy="no", **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    rates = logged(first, "learning_rate")
    assert len(set(rates)) == 4  # one for each batch
    assert logged(resumed, "learning_rate") == pytest.approx(rates)
    other = duet_trainer(tiny_path, tmp_path, **{**options, "desired_kl": 1e-3})
    with pytest.raises(ValueError, match="desired_kl: 1e-12 in the state, 0.001 now"):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))


def test_the_rate_of_a_run_follows_the_divergence_that_its_second_pass_finds(tiny_path, tmp_path):
    rates = {}
    for desired in (1e-12, 1e3):  # what is measured is always far above it; far below it
        options = {"num_iterations": 2, "learning_rate": 1e-3, "desired_kl": desired, "lr_scheduler_type": "constant"}
        trainer = duet_trainer(tiny_path, tmp_path / str(desired), max_steps=8, **options)
        trainer.train()
        measured = logged(trainer, "duet/update_kl")
        assert measured and min(measured) > 0
        rates[desired] = logged(trainer, "learning_rate")
        factors = [1.0] * 2 + [RISE if desired > 1 else 1 / FALL] * 2
        assert rates[desired][:4] == pytest.approx([1e-3 * factor for factor in factors])
    assert rates[1e-12][-1] == pytest.approx(1e-3 / FALL**3) and rates[1e3][-1] == pytest.approx(1e-3 * RISE**3)
