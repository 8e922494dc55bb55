# SPDX-License-Identifier: Apache-2.0
"""VIP's counts: against every allocation of small batches, by their invariants, and on worked examples."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.allocate.bernoulli import LEAST, bernoulli_counts


def objective(p: list[float], counts: tuple[int, ...], variance: str, bias: float) -> float:
    """The sum as the paper writes it, term by term."""
    total = 0.0
    for rate, n in zip(np.clip(p, 1e-6, 1 - 1e-6), counts, strict=True):
        spread = rate * (1 - rate)
        total += (spread / (n - 1) if variance == "rloo" else spread * (n - 1) / n**2) + bias * np.log(rate) * n
    return total


@given(
    p=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4),
    variance=st.sampled_from(sorted(LEAST)),
    bias=st.sampled_from([0.0, 7e-4]),
    data=st.data(),
)
def test_no_allocation_within_the_bounds_has_a_smaller_sum(p, variance, bias, data):
    lower = data.draw(st.integers(LEAST[variance], 5))
    upper = data.draw(st.integers(lower, 8))
    total = data.draw(st.integers(lower * len(p), upper * len(p)))
    found = bernoulli_counts(p, total, lower, upper, variance, bias)
    assert found.sum() == total and found.min() >= lower and found.max() <= upper
    every = itertools.product(range(lower, upper + 1), repeat=len(p))
    best = min(objective(p, n, variance, bias) for n in every if sum(n) == total)
    assert objective(p, found, variance, bias) == pytest.approx(best, rel=1e-9, abs=1e-12)


@given(
    rates=st.lists(st.integers(0, 1000), min_size=1, max_size=40),
    variance=st.sampled_from(sorted(LEAST)),
    skip=st.booleans(),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_sum_bounds_and_order_of_the_prompts(rates, variance, skip, seed, data):
    lower = data.draw(st.integers(LEAST[variance], 6))
    upper = data.draw(st.integers(lower, 20))
    total = data.draw(st.integers(lower, upper)) * len(rates)
    p = np.array(rates) / 2000  # in [0, 1/2], where more open is closer to 1/2
    counts = bernoulli_counts(p, total, lower, upper, variance, 0.0, skip)
    assert counts.sum() == total
    assert set(counts.tolist()) <= {*range(lower, upper + 1), *([0] if skip else [])}
    order = np.random.default_rng(seed).permutation(len(p))
    moved = bernoulli_counts(p[order], total, lower, upper, variance, 0.0, skip)
    for rate in p:  # prompts that are alike may change places
        assert sorted(moved[p[order] == rate]) == sorted(counts[p == rate])
    by_rate = [counts[p == rate] for rate in np.unique(p)]
    assert all(one.max() <= more.min() for one, more in itertools.pairwise(by_rate))
    if not skip:
        assert all(np.ptp(one) <= 1 for one in by_rate)


def test_a_share_below_the_lower_bound_gets_none():
    # p (1 - p) is 1/4, 0.0099, and next to nothing for the decided two, which keep 2 of 16 under the smallest bound.
    # The other two share 12. The third rollout of the second is worth 0.0099 (1 - 1/2) = 0.0050, its fourth 0.0017;
    # the ninth of the first 0.25 (1/7 - 1/8) = 0.0045, its tenth 0.0035. So 9 and 3: the second too is below 4.
    p = [0.5, 0.01, 0.0, 1.0]
    assert bernoulli_counts(p, 16, 2, 16).tolist() == [9, 3, 2, 2]
    assert bernoulli_counts(p, 16, 4, 16, skip=True).tolist() == [16, 0, 0, 0]
    assert bernoulli_counts(p, 16, 4, 10, skip=True).tolist() == [10, 6, 0, 0]  # the first cannot take all
    assert bernoulli_counts([0.5, 0.5], 8, 4, 8, skip=True).tolist() == [4, 4]  # a share of the bound is kept
    assert bernoulli_counts(p, 16, 4, 16).tolist() == [4, 4, 4, 4]  # the whole budget


def test_the_bias_draws_rollouts_to_hard_prompts():
    p = [0.2, 0.8, 0.5, 0.5]
    even, drawn = (bernoulli_counts(p, 40, 4, 16, "rloo", bias) for bias in (0.0, 7e-4))
    assert abs(even[0] - even[1]) <= 1 and drawn[0] > drawn[1] + 1


@pytest.mark.parametrize(
    ("bounds", "named"),
    [
        ((4, 16), "6 rollouts for 2 prompts cannot be 4 to 16 each. Change bounds or budget."),
        ((2, 2), "6 rollouts for 2 prompts cannot be 2 to 2 each"),
        ((1, 16), "lower must be at least 2 with variance='rloo'.*; got 1"),
        ((2, 16, "grpo"), "lower must be at least 3 with variance='grpo'.*; got 2"),
    ],
)
def test_bounds_that_cannot_hold_are_errors(bounds, named):
    with pytest.raises(ValueError, match=named):
        bernoulli_counts([0.2, 0.5], 6, *bounds)


def test_where_the_lower_bound_is_the_whole_budget_counts_are_equal():
    assert bernoulli_counts([0.2, 0.5], 4, 2, 4, "grpo").tolist() == [2, 2]
    assert bernoulli_counts([0.2, 0.5], 2, 1, 4).tolist() == [1, 1]
