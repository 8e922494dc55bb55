# SPDX-License-Identifier: Apache-2.0
"""The region that no batch leaves, on policies whose divergence is known."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from duet_trl.update.trust_region import CEILING, DESIRED_KL, FALL, LIMIT, RISE, SEARCH, TrustRegion


class Policy:
    """A policy of one weight, whose divergence from where the batch began is a function of the way gone."""

    def __init__(self, divergence: Callable[[float], float]) -> None:
        self.divergence = divergence
        self.way = 0.0

    def at(self, share: float) -> float:
        self.way = self.way * share if share else 0.0
        return self.divergence(self.way)


def train(region: TrustRegion, policy: Policy, rate: float) -> int:
    """One batch; the updates that were made."""
    policy.way, made = 0.0, 0
    region.begin(worth=True)
    while made < region.num_updates and not region.closed:
        policy.way += rate * region.factor
        made += 1
        region.after_update(policy.divergence(policy.way), policy.at)
    region.end(made)
    return made


@given(
    rate=st.floats(1e-5, 1.0),
    curvature=st.floats(1e-2, 1e4),
    desired=st.sampled_from([1e-4, DESIRED_KL, 1e-1]),
    highest=st.sampled_from([math.inf, 6.0]),
)
def test_no_batch_leaves_the_region_and_the_rate_settles_where_all_updates_come_to_what_is_desired(
    rate: float, curvature: float, desired: float, highest: float
):
    # Quadratic in the way, and for some policies nowhere more than 6 nats a token, as for a ruined one.
    policy, region = Policy(lambda way: min(curvature * way**2, highest)), TrustRegion(desired, 4)
    for _ in range(100):
        made = train(region, policy, rate)
        assert policy.divergence(policy.way) <= LIMIT * desired * (1 + 1e-9)
    settled = math.sqrt(desired / curvature) / 4 / rate
    if 1e-4 < settled < 1e2:
        assert made == 4 and region.factor == pytest.approx(settled, rel=0.01)


@pytest.mark.parametrize(
    ("updates", "found", "closed"),
    [
        # What update n + 1 would come to is found * ((n + 1) / n)^2; twice the desired is the most.
        (1, 0.49, False),
        (1, 0.51, True),
        (2, 2 * 4 / 9 - 0.01, False),
        (2, 2 * 4 / 9 + 0.01, True),
        (3, 2 * 9 / 16 - 0.01, False),
        (3, 2 * 9 / 16 + 0.01, True),
    ],
)
def test_the_next_update_is_skipped_where_it_would_pass_twice_what_is_desired(updates, found, closed):
    region = TrustRegion(1.0, 4)
    region.begin(worth=True)
    for number in range(1, updates + 1):
        assert not region.closed
        region.after_update(found if number == updates else 0.0, pytest.fail)
    assert region.closed == closed


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_where_the_batch_began_again(broken):
    policy, region = Policy(lambda way: broken if way else 0.0), TrustRegion(1.0, 4)
    assert train(region, policy, 1.0) == 1
    assert policy.way == 0.0 and region.factor < 0.1 and region.pulled_back == 1


def test_a_batch_that_was_pulled_back_tells_at_once_how_much_too_high_the_rate_was():
    policy, region = Policy(lambda way: way**2), TrustRegion(1.0, 4)
    train(region, policy, 1e3)
    assert policy.way == pytest.approx(1.0)
    assert region.factor == pytest.approx(1e-3 / 4)  # four updates are to come to 1


def test_a_batch_without_anything_to_train_is_skipped_and_says_nothing_of_the_rate():
    region = TrustRegion(1.0, 4)
    region.begin(worth=False)
    assert region.closed and region.end(0) == {} and region.factor == 1.0 and region.skipped == 0
    region.begin(worth=True)
    assert not region.closed


def test_the_rate_moves_by_bounded_factors_where_no_batch_is_pulled_back():
    region = TrustRegion(1.0, 1)
    factors = (
        (0.0, 1.0),  # says nothing
        (4.9, FALL),
        (1e-6, FALL * SEARCH),
        (1e-6, FALL * SEARCH**2),
        (4.9, FALL**2 * SEARCH**2),
        (1e-6, FALL**2 * SEARCH**2 * RISE),  # once it had to go down after a rise, it goes up by small steps
        (1.0, FALL**2 * SEARCH**2 * RISE),
    )
    for divergence, expected in factors:
        region.begin(worth=True)
        region.after_update(divergence, pytest.fail)
        assert region.end(1)["update_kl"] == divergence and region.factor == pytest.approx(expected)
    restored = TrustRegion(1.0, 1)
    restored.load_state_dict(region.state_dict())
    assert restored.state_dict() == region.state_dict()
    assert CEILING * 1.0 < 4.9 < LIMIT


def test_a_schedule_is_multiplied_once_and_one_that_cannot_be_is_refused():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = LambdaLR(optimizer, lambda step: 1 / (step + 1))
    region = TrustRegion(1.0, 1)
    for _ in range(2):
        region.steer(scheduler)
    region.begin(worth=True)
    region.after_update(4.9, pytest.fail)
    region.end(1)
    optimizer.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [pytest.approx(0.5 / 2 * FALL)]
    with pytest.raises(ValueError, match="need a LambdaLR schedule.*got ReduceLROnPlateau. Choose another"):
        region.steer(ReduceLROnPlateau(optimizer))
