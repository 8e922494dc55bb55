# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from duet_trl.allocate.neyman import bisection_allocation
from tests.allocate.oracles import lognormal_batch, over_budget


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
    high = bisection_allocation([1.0, 2.0], [100.0, 300.0], 1e9, num_max=5)
    assert high.num_rollouts.tolist() == [5, 5]


def test_a_dual_that_is_no_price_is_an_error():
    with pytest.raises(ValueError, match="dual must be positive"):
        bisection_allocation([1.0], [1.0], 5.0, dual=-1.0)
    assert bisection_allocation([1.0], [1.0], 5.0, dual=0.0).num_rollouts.tolist() == [5]
