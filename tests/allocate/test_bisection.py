# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings

from duet_trl.allocate.neyman import bisection_allocation
from tests.allocate.batches import batches, lognormal_batch, over_budget


def test_counts_are_the_rounded_closed_form_at_the_returned_dual():
    sigma, length = lognormal_batch(np.random.default_rng(0), 128)
    result = bisection_allocation(sigma, length, 4.0 * float(length.sum()))
    expected = np.clip(np.rint(sigma / np.sqrt(result.dual * length)), 1, 32)
    assert result.num_rollouts.tolist() == expected.tolist()


def test_many_halvings_meet_the_budget_closer_than_ten_and_ten_within_percents():
    rng = np.random.default_rng(1)
    misses = {10: [], 60: []}
    for _ in range(50):
        sigma, length = lognormal_batch(rng, 128)
        budget = 4.0 * float(length.sum())
        for halvings, found in misses.items():
            result = bisection_allocation(sigma, length, budget, num_iterations=halvings)
            assert not over_budget(result)
            found.append(abs(result.planned_tokens / budget - 1.0))
    assert np.mean(misses[60]) < np.mean(misses[10]) < 0.01
    assert max(misses[10]) < 0.03


def test_a_warm_start_orders_of_magnitude_away_still_brackets_the_budget():
    # The paper's dual moves by orders of magnitude when the surrogate wakes up: 0.01 becomes 100 and more.
    sigma, length = lognormal_batch(np.random.default_rng(2), 128)
    budget = 4.0 * float(length.sum())
    near = bisection_allocation(sigma, length, budget)
    for factor in (1e-12, 1e-3, 1.3, 1e8):
        far = bisection_allocation(sigma, length, budget, dual=factor * near.dual, num_iterations=60)
        assert far.planned_tokens == pytest.approx(budget, rel=0.02)


@pytest.mark.parametrize("sigma", [1e-6, 0.01, 100.0])
@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_the_cold_start_of_the_paper_is_uniform_at_the_nominal_count(sigma, fraction):
    # A fixed bracket of log(lambda) in [-20, 20] gives 4 instead of 8 here, or 1 everywhere; its middle may give 9.
    length = np.full(128, 3072.0)
    result = bisection_allocation(np.full(128, sigma), length, fraction * 8 * float(length.sum()))
    assert result.num_rollouts.tolist() == [int(fraction * 8)] * 128


def test_the_row_cap_holds():
    sigma, length = lognormal_batch(np.random.default_rng(5), 64)
    budget = 8.0 * float(length.sum())
    free = bisection_allocation(sigma, length, budget)
    capped = bisection_allocation(sigma, length, budget, max_rollouts=300)
    assert free.num_rollouts.sum() > 300 >= capped.num_rollouts.sum() > 270


def test_bounds_win_over_the_budget():
    low = bisection_allocation([1.0, 2.0], [100.0, 300.0], 10.0, num_min=2)
    assert low.num_rollouts.tolist() == [2, 2] and over_budget(low)
    assert (low.planned_tokens, low.budget_tokens) == (800.0, 10.0)
    high = bisection_allocation([1.0, 2.0], [100.0, 300.0], 1e9, num_max=5)
    assert high.num_rollouts.tolist() == [5, 5]


def test_a_dual_that_is_no_price_is_an_error():
    with pytest.raises(ValueError, match="dual must be positive"):
        bisection_allocation([1.0], [1.0], 5.0, dual=-1.0)
    assert bisection_allocation([1.0], [1.0], 5.0, dual=0.0).num_rollouts.tolist() == [5]


def test_counts_follow_sigma_over_root_length_where_rounding_does_not_matter():
    # Eq. 2 with B = S / sqrt(lambda), S = sum(sigma * sqrt(L)): n = sigma / sqrt(L) * B / S.
    # sigma / sqrt(L) = (.2, .1, .3); S = 2*10 + 2*20 + 3*10 = 90; B = 900,000 gives n = (2000, 1000, 3000).
    sigma, length = np.array([2.0, 2.0, 3.0]), np.array([100.0, 400.0, 100.0])
    result = bisection_allocation(sigma, length, 900_000.0, num_max=10_000, num_iterations=60)
    assert result.num_rollouts.tolist() == [2000, 1000, 3000]
    assert result.dual == pytest.approx((90.0 / 900_000.0) ** 2, rel=1 / 1000)  # or a count of 1000 would change
    # V* = S^2 / B = lambda* B (Theorem 1).
    assert (sigma**2 / result.num_rollouts).sum() == pytest.approx(90.0**2 / 900_000.0, rel=1e-9)


def test_equal_prompts_at_a_whole_number_of_rollouts_keep_it_through_rounding():
    # 0.1 + 0.1 + 0.1 > 0.3 in float64: a strict comparison would take one rollout away.
    for length in np.linspace(250.0, 3072.0, 50):
        result = bisection_allocation(np.full(128, 0.01), np.full(128, length), 0.5 * 8 * 128 * length)
        assert result.num_rollouts.tolist() == [4] * 128


@settings(max_examples=150)
@given(batches())
def test_any_budget_is_kept(batch):
    sigma, length, budget = batch
    result = bisection_allocation(sigma, length, budget)
    assert not over_budget(result)
    assert ((result.num_rollouts >= 1) & (result.num_rollouts <= 32)).all()


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_the_batch_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    sigma, length = rng.lognormal(3.0, 1.0, 30), rng.integers(5, 600, 30) * 1.0  # whole lengths: sums are exact
    order, budget = rng.permutation(30), float(rng.uniform(1.2, 8.0) * length.sum())
    straight, shuffled = (
        bisection_allocation(sigma[order], length[order], budget, max_rollouts=100 if seed % 2 else None)
        for order in (np.arange(30), order)
    )
    assert shuffled.num_rollouts.tolist() == straight.num_rollouts[order].tolist()


@pytest.mark.parametrize("scale", [1e-6, 2.0**-10, 3.0, 1e6])
def test_the_scale_of_sigma_changes_the_dual_only(scale):
    sigma, length = lognormal_batch(np.random.default_rng(6), 64)
    budget = 4.0 * float(length.sum())
    one, other = bisection_allocation(sigma, length, budget), bisection_allocation(scale * sigma, length, budget)
    assert one.num_rollouts.tolist() == other.num_rollouts.tolist()
    assert other.dual == pytest.approx(scale**2 * one.dual, rel=1e-9)


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
        bisection_allocation(*arguments, **options)
