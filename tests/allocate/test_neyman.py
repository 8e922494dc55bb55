# SPDX-License-Identifier: Apache-2.0
import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from duet_trl.allocate.allocators import uniform_allocation
from duet_trl.allocate.neyman import Allocation
from tests.allocate.oracles import (
    batches,
    enumerate_optimum,
    lognormal_batch,
    neyman_allocation,
    over_budget,
    tabulate_optimum,
    variance,
)


def assert_near(allocation: Allocation, sigma: np.ndarray, length: np.ndarray, optimum: float, capped=False) -> None:
    """No better than the best of all plans; no further from it than the tokens of one rollout are worth."""
    excess = variance(sigma, allocation.num_rollouts) - optimum
    assert -1e-9 * optimum <= excess
    assert capped or excess <= allocation.dual * length.max() + 1e-9 * optimum


def random_small_batch(rng: np.random.Generator) -> tuple:
    """Up to five prompts of one of four kinds: free, whole numbers, equal lengths, equal sigmas."""
    num_prompts, kind = rng.integers(1, 6), rng.integers(4)
    sigma = rng.lognormal(0.0, rng.choice([0.1, 1.0, 3.0]), num_prompts)
    length = rng.lognormal(5.0, rng.choice([0.01, 0.5, 1.5]), num_prompts)
    if kind == 1:
        sigma, length = rng.integers(1, 4, num_prompts) * 1.0, rng.integers(1, 6, num_prompts) * 1.0
    elif kind == 2:
        length[:] = length[0]
    elif kind == 3:
        sigma[:] = sigma[0]
    num_min = rng.integers(1, 3, num_prompts)
    num_max = int(num_min.max() + rng.integers(0, 6))
    budget = float(length @ num_min + 1.1 * rng.random() * (length @ (num_max - num_min)))
    return sigma, length, budget, num_min, num_max


@pytest.mark.parametrize("seed", range(4))
def test_no_integer_allocation_has_less_variance_by_more_than_a_rollout_is_worth(seed):
    rng = np.random.default_rng(seed)
    optimal = 0
    for _ in range(100):
        sigma, length, budget, num_min, num_max = random_small_batch(rng)
        cap = int(num_min.sum() + rng.integers(0, (num_max - num_min).sum() + 2)) if rng.random() < 0.6 else None
        result = neyman_allocation(sigma, length, budget, num_min=num_min, num_max=num_max, max_rollouts=cap)
        assert np.all((num_min <= result.num_rollouts) & (result.num_rollouts <= num_max))
        assert cap is None or result.num_rollouts.sum() <= cap
        assert not over_budget(result)
        best = enumerate_optimum(sigma, length, budget, num_min, np.full(sigma.size, num_max), cap)
        assert_near(result, sigma, length, best, capped=cap is not None)
        optimal += variance(sigma, result.num_rollouts) <= best * (1.0 + 1e-12)
    assert optimal > 60  # most plans are the best there is


def test_where_all_rollouts_cost_the_same_the_greedy_order_is_optimal():
    rng = np.random.default_rng(10)
    for _ in range(100):
        sigma = rng.lognormal(0.0, 1.0, 5)
        budget = float(rng.integers(5, 25))
        result = neyman_allocation(sigma, np.ones(5), budget, num_max=6)
        best = enumerate_optimum(sigma, np.ones(5), budget, np.ones(5, dtype=int), np.full(5, 6))
        assert variance(sigma, result.num_rollouts) == pytest.approx(best, rel=1e-12)


def test_equal_prompts_at_a_whole_number_of_rollouts_keep_it_through_rounding():
    # 0.1 + 0.1 + 0.1 > 0.3 in float64: a strict comparison would take one rollout away.
    for length in np.linspace(250.0, 3072.0, 50):
        result = neyman_allocation(np.full(128, 0.01), np.full(128, length), 0.5 * 8 * 128 * length)
        assert result.num_rollouts.tolist() == [4] * 128


def test_counts_follow_sigma_over_root_length_where_rounding_does_not_matter():
    # Eq. 2 with B = S / sqrt(lambda), S = sum(sigma * sqrt(L)): n = sigma / sqrt(L) * B / S.
    # sigma / sqrt(L) = (.2, .1, .3); S = 2*10 + 2*20 + 3*10 = 90; B = 900,000 gives n = (2000, 1000, 3000).
    sigma, length = np.array([2.0, 2.0, 3.0]), np.array([100.0, 400.0, 100.0])
    result = neyman_allocation(sigma, length, 900_000.0, num_max=10_000)
    assert result.num_rollouts.tolist() == [2000, 1000, 3000]
    assert result.dual == pytest.approx((90.0 / 900_000.0) ** 2, rel=1e-3)  # n (n + 1) instead of n^2
    # V* = S^2 / B = lambda* B (Theorem 1).
    assert variance(sigma, result.num_rollouts) == pytest.approx(90.0**2 / 900_000.0, rel=1e-9)


def test_a_budget_that_pays_for_everything_has_no_price():
    result = neyman_allocation([1.0, 5.0], [10.0, 20.0], 1e6, num_max=7)
    assert result.num_rollouts.tolist() == [7, 7]
    assert result.dual == 0.0


def test_a_row_cap_that_binds_alone_allocates_by_sigma():
    # n proportional to sigma under a count budget: (6, 3, 3) of 12, though the lengths differ.
    result = neyman_allocation([2.0, 1.0, 1.0], [100.0, 400.0, 25.0], 1e6, max_rollouts=12)
    assert result.num_rollouts.tolist() == [6, 3, 3]


def test_num_min_above_the_budget_is_granted_and_told():
    result = neyman_allocation([1.0, 2.0], [100.0, 300.0], 500.0, num_min=2)
    assert result.num_rollouts.tolist() == [2, 2]
    assert over_budget(result) and result.planned_tokens == 800.0 and result.budget_tokens == 500.0


@settings(max_examples=150)
@given(batches())
def test_the_budget_is_never_exceeded_and_never_left_unused(batch):
    sigma, length, budget = batch
    result = neyman_allocation(sigma, length, budget)
    assert not over_budget(result)
    growable = result.num_rollouts < 32
    assert np.all(result.planned_tokens + length[growable] > budget)  # not one more rollout fits


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_the_batch_does_not_matter(seed):
    # Drawn from continuous distributions, so that no two gains tie; whole lengths, so that sums are exact.
    rng = np.random.default_rng(seed)
    sigma, length = rng.lognormal(3.0, 1.0, 30), rng.integers(5, 600, 30) * 1.0
    order, budget = rng.permutation(30), float(rng.uniform(1.2, 8.0) * length.sum())
    cap = 100 if seed % 2 else None
    straight = neyman_allocation(sigma, length, budget, max_rollouts=cap).num_rollouts
    shuffled = neyman_allocation(sigma[order], length[order], budget, max_rollouts=cap).num_rollouts
    assert shuffled.tolist() == straight[order].tolist()


@pytest.mark.parametrize("scale", [1e-6, 2.0**-10, 3.0, 1e6])
def test_the_scale_of_sigma_changes_the_dual_only(scale):
    sigma, length = lognormal_batch(np.random.default_rng(6), 64)
    budget = 4.0 * float(length.sum())
    one, other = neyman_allocation(sigma, length, budget), neyman_allocation(scale * sigma, length, budget)
    assert one.num_rollouts.tolist() == other.num_rollouts.tolist()
    assert other.dual == pytest.approx(scale**2 * one.dual, rel=1e-9)


def test_bounds_per_prompt_hold():
    # 4500 tokens go to the five rollouts of prompt 2; the ten cheap ones that are left go to the largest sigma first.
    result = neyman_allocation([9.0, 1.0, 0.01], [10.0, 10.0, 900.0], 4600.0, num_min=[1, 2, 5], num_max=7)
    assert result.num_rollouts.tolist() == [7, 3, 5]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([1.0, 2.0], [1.0], 9.0), {}, "1 entries for 2 prompts"),
        (([], [], 9.0), {}, "non-empty"),
        (([[1.0]], [1.0], 9.0), {}, "shape"),
        (([1.0, 0.0], [1.0, 1.0], 9.0), {}, "positive and finite, got 0.0 at index 1"),
        (([1.0, np.nan], [1.0, 1.0], 9.0), {}, "got nan at index 1"),
        (([1.0], [np.inf], 9.0), {}, "mean_length must be positive and finite"),
        (([1.0], [1.0], 0.0), {}, "budget_tokens must be positive"),
        (([1.0], [1.0], np.inf), {}, "budget_tokens must be positive"),
        (([1.0], [1.0], 9.0), {"num_min": 0}, "num_min"),
        (([1.0], [1.0], 9.0), {"num_min": 3, "num_max": 2}, "1 <= num_min <= num_max must hold, got 3 and 2"),
        (([1.0, 1.0], [1.0, 1.0], 9.0), {"num_min": 2, "max_rollouts": 3}, "below the 4 rollouts"),
        (([1.0], [1.0], 9.0), {"max_rollouts": 0}, "max_rollouts=0 is below"),
    ],
)
def test_bad_input_is_named(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        neyman_allocation(*arguments, **options)


def test_uniform_counts_differ_by_at_most_one():
    result = uniform_allocation(4, 10, [10.0, 20.0, 30.0, 40.0], 300.0)
    assert result.num_rollouts.tolist() == [3, 3, 2, 2]
    assert result.planned_tokens == 3 * 10 + 3 * 20 + 2 * 30 + 2 * 40
    assert result.budget_tokens == 300.0


def test_uniform_needs_a_rollout_for_every_prompt():
    with pytest.raises(ValueError, match="total_rollouts=3"):
        uniform_allocation(4, 3, [1.0] * 4, 10.0)


def test_enumeration_and_table_agree():
    sigma, length = np.array([3.0, 1.0, 2.0]), np.array([4.0, 3.0, 5.0])
    for budget, cap in itertools.product((14, 25, 37), (4, 6, 12)):
        bounds = np.ones(3, dtype=int), np.full(3, 5)
        assert tabulate_optimum(sigma, length, budget, 1, 5, cap) == pytest.approx(
            enumerate_optimum(sigma, length, float(budget), *bounds, cap)
        )


def test_two_limits_that_bind_at_once_are_both_used():
    rng = np.random.default_rng(9)
    for _ in range(10):
        sigma, length = lognormal_batch(rng, 128)
        cap = 128 * 6
        # A little less than what the row cap alone would spend: tokens alone then buy more, shorter rollouts.
        budget = 0.98 * neyman_allocation(sigma, length, 1e9, max_rollouts=cap).planned_tokens
        assert neyman_allocation(sigma, length, budget).num_rollouts.sum() > cap
        result = neyman_allocation(sigma, length, budget, max_rollouts=cap)
        assert result.num_rollouts.sum() <= cap and not over_budget(result)
        assert result.num_rollouts.sum() > 0.99 * cap and result.planned_tokens > 0.99 * budget
