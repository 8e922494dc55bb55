# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the simulator: its fit and its targets."""

import numpy as np
import pytest

from benchmarks.simulate import checks, checks_of_run
from benchmarks.simulation_parts.fitting import features, fit
from benchmarks.simulation_parts.long_run import coin_deviation
from duet_trl.simulation.serving import EngineCost, serve

RUNS = [(np.full(count, tokens), 64) for count, tokens in ((2, 40), (8, 200), (64, 40), (64, 160), (150, 30))]


def test_the_fit_finds_the_costs_that_made_the_times():
    costs = {"fixed": 3e-3, "per_rollout": 7e-5, "per_context": 2e-7, "per_prompt": 6e-6}
    seconds = [serve(EngineCost(**costs, most_running=capacity), tokens, 64.0).seconds for tokens, capacity in RUNS]
    assert fit([features(*run, 64.0) for run in RUNS], seconds) == pytest.approx(costs, rel=1e-6)


def test_no_cost_is_negative():
    seconds = [0.01 * len(tokens) for tokens, _ in RUNS]  # however long they are
    found = fit([features(*run, 64.0) for run in RUNS], seconds)
    assert min(found.values()) >= 0.0 < max(found.values())


def test_coins_are_compared_with_their_binomial_law():
    assert coin_deviation([0, 0], [0.0, 0.0]) == 0.0
    # 10,000 of 0.05: 500 expected, standard deviation sqrt(475).
    assert coin_deviation([10_000, 500 + 44], [500.0, 475.0]) == pytest.approx(44 / 475**0.5)


GOOD = {
    "method": "duet",
    "steps": 100,
    "prompts": 50,
    "most_rollouts": 64,
    "max_rollouts": 64,
    "largest_planned_over_budget": 1.0,
    "coins": [1000, 50],
    "coin_law": [50.0, 47.5],
    "longest_wait_visits": 0,
    "late_right_answers": [100, 5],
    "peak_bytes": [1_000_000] * 100,
    "step_seconds_by_tenth": [0.01] * 10,
}


def test_a_run_that_keeps_to_its_bounds_meets_all_targets():
    assert all(checks_of_run(GOOD, long=True).values())
    assert checks({}) == {}


@pytest.mark.parametrize(
    "broken",
    [
        {"most_rollouts": 65},
        {"largest_planned_over_budget": 1.001},
        {"coins": [1000, 90]},
        {"longest_wait_visits": 1},
        {"late_right_answers": [100, 6]},
        {"peak_bytes": [1_000_000] * 99 + [40_000_000]},
        {"step_seconds_by_tenth": [0.01] * 9 + [0.016]},
    ],
    ids=lambda broken: next(iter(broken)),
)
def test_each_target_can_be_missed(broken):
    assert list(checks_of_run(GOOD | broken, long=True).values()).count(False) == 1


def test_a_method_that_skips_prompts_may_let_them_wait():
    assert all(checks_of_run(GOOD | {"method": "greso", "longest_wait_visits": 6}, long=False).values())
