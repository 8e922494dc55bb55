# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass

import numpy as np
import pytest

from duet_trl.allocate.allocators import Budget, NeymanAllocator, UniformAllocator, uniform_allocation
from duet_trl.allocate.neyman import Allocation
from tests.allocate.batches import over_budget
from tests.states import plain

KEYS = [f"prompt {index}" for index in range(16)]


def neyman(budget: Budget | None = None, **options) -> NeymanAllocator:
    return NeymanAllocator(budget or Budget(fraction=0.5, num_generations=8), max_length=512.0, **options)


@dataclass
class Policy:
    """Rollouts with spread and length of their own for every prompt; even prompts have one reward and no spread."""

    seed: int = 0

    def observe(self, allocator: UniformAllocator, keys: list[str], counts: np.ndarray) -> None:
        self.seed += 1
        rng = np.random.default_rng(self.seed)
        number = np.array([int(key.split()[1]) for key in keys])
        group = np.repeat(np.arange(len(keys)), counts)
        lengths = 50 + 20 * number[group] + rng.integers(0, 20, group.size)
        kept = rng.random(group.size) < 0.9
        allocator.statistics.observe_lengths(keys, group, lengths, kept)
        advantages = np.where(number[group] % 2 == 0, 0.0, rng.normal(size=group.size))
        allocator.observe_sigma(keys, group, advantages, -lengths / 2.0, kept)
        allocator.statistics.observe_rewards(keys, group, (advantages > 0).astype(float), kept)


def train(allocator: UniformAllocator, policy: Policy, steps: int, first: int = 0) -> list[Allocation]:
    """Plans of ``steps`` steps of four prompts; the sixteen prompts are one epoch."""
    plans = []
    for step in range(first, first + steps):
        keys = [KEYS[(4 * step + offset) % 16] for offset in range(4)]
        plan = allocator.plan(keys, epoch=step // 4)
        policy.observe(allocator, keys, plan.num_rollouts)
        plans.append(plan)
    return plans


@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_a_cold_start_is_uniform_at_the_nominal_count(fraction):
    allocator = neyman(Budget(fraction=fraction, num_generations=8))
    assert allocator.plan(KEYS, 0).num_rollouts.tolist() == [int(8 * fraction)] * 16
    assert allocator.cold.tolist() == [True] * 16


def test_prompts_that_taught_get_more_rollouts_than_prompts_that_did_not():
    allocator = neyman()
    train(allocator, Policy(), steps=4)
    counts = allocator.plan(KEYS, 0).num_rollouts
    assert counts[::2].tolist() == [1] * 8 and counts[1::2].min() >= 3
    assert not allocator.cold.any()
    assert allocator.plan(["prompt 1", "new"], 0) and allocator.cold.tolist() == [False, True]


@pytest.mark.parametrize("tokens", [None, 4000.0])
@pytest.mark.parametrize("kind", [NeymanAllocator, UniformAllocator])
def test_no_plan_exceeds_its_budget_or_the_row_cap(tokens, kind):
    budget = Budget(fraction=0.5, num_generations=8, budget_tokens=tokens)
    for plan in train(kind(budget, max_length=512.0, max_rollouts=18), Policy(), steps=12):
        assert not over_budget(plan)
        assert plan.num_rollouts.sum() <= 18


def test_the_paper_prices_kept_lengths_and_the_default_all_tokens():
    keys, group = ["a"], np.zeros(2, dtype=int)
    for price_aborted, expected in ((False, 100.0), (True, 250.0)):
        allocator = neyman(price_aborted=price_aborted)
        lengths = np.array([100, 400])
        allocator.statistics.observe_lengths(keys, group, lengths, np.array([True, False]))
        assert allocator.plan(keys, 0).budget_tokens == 4 * expected


@pytest.mark.parametrize("kind", [NeymanAllocator, UniformAllocator])
def test_a_restored_allocator_fed_the_same_observations_plans_the_same(kind):
    original, restored = (kind(Budget(fraction=0.5), max_length=512.0) for _ in range(2))
    policy = Policy()
    original.statistics.observe_rewards(KEYS[:1], np.array([0]), np.array([-2.0]), np.array([True]))  # and never again
    train(original, policy, steps=6)
    state = original.state_dict()
    restored.load_state_dict(state)
    twin = Policy(policy.seed)
    for one, other in zip(train(original, policy, 10, 6), train(restored, twin, 10, 6), strict=True):
        assert one.num_rollouts.tolist() == other.num_rollouts.tolist()
        assert (one.dual, one.planned_tokens) == (other.dual, other.planned_tokens)
    assert plain(original.state_dict()) == plain(restored.state_dict())
    assert original.metrics() == restored.metrics()


def test_calibration_compares_the_plan_with_what_the_step_showed():
    allocator = neyman()
    keys = ["a", "b"]
    allocator.statistics.observe_sigma(keys, np.array([2.0, 8.0]))
    allocator.plan(keys, 0)
    assert "calibration_chi2" not in allocator.metrics()
    # Contributions (0, 2 sqrt 2): sigma_obs = (2 sqrt 2) / sqrt 2 = 2 for a, as its surrogate; b is degenerate.
    advantages, logps = np.array([0.0, 1.0, 0.0, 0.0]), np.full(4, 2.0 * np.sqrt(2.0))
    allocator.observe_sigma(keys, np.array([0, 0, 1, 1]), advantages, logps, np.ones(4, dtype=bool))
    assert allocator.metrics()["calibration_chi2"] == pytest.approx(0.0, abs=1e-20)
    allocator.observe_sigma(keys, np.array([0, 0, 1, 1]), 2.0 * advantages, logps, np.ones(4, dtype=bool))
    assert allocator.metrics()["calibration_chi2"] == pytest.approx(0.25)  # (2 / 4 - 1)^2


def test_metrics_are_plain_floats_of_the_plan():
    allocator = neyman()
    (plan,) = train(allocator, Policy(), steps=1)
    metrics = allocator.metrics()
    assert all(type(value) is float for value in metrics.values())
    assert (metrics["dual"], metrics["budget_tokens"]) == (plan.dual, plan.budget_tokens)
    assert metrics["planned_tokens"] == plan.planned_tokens == 4 * 4 * 512.0
    assert metrics["sigma_floor"] == 0.01


@pytest.mark.parametrize(
    ("fraction", "generations", "prompts", "total"),
    [(0.25, 8, 16, 32), (0.1, 10, 3, 3), (0.29, 100, 1, 29), (1 / 3, 9, 5, 15)],
)
def test_a_budget_is_a_count_of_rollouts_at_current_lengths_that_survives_rounding(
    fraction, generations, prompts, total
):
    budget = Budget(fraction, generations)
    assert budget.total_rollouts(prompts) == total
    assert budget.tokens(np.full(prompts, 100.0)) == pytest.approx(100.0 * total)


def test_uniform_deals_out_what_a_fraction_leaves():
    allocator = UniformAllocator(Budget(fraction=0.3, num_generations=8), max_length=512.0)
    assert allocator.plan(KEYS[:4], 0).num_rollouts.tolist() == [3, 2, 2, 2]  # 0.3 * 8 * 4 = 9.6


@pytest.mark.parametrize(
    ("tokens", "options", "counts"),
    [
        (1030.0, {}, [2, 2, 1]),  # a round costs 600, then 100 and 200 fit and 300 does not
        (1200.0, {}, [2, 2, 2]),
        (99.0, {"num_min": 1}, [1, 1, 1]),
        (9000.0, {"num_max": 4}, [4, 4, 4]),
        (9000.0, {"max_rollouts": 7}, [3, 2, 2]),
    ],
)
def test_uniform_under_a_token_budget_buys_whole_rounds_and_a_part(tokens, options, counts):
    allocator = UniformAllocator(Budget(budget_tokens=tokens), max_length=512.0, **options)
    lengths = np.array([100, 200, 300])
    allocator.statistics.observe_lengths(KEYS[:3], np.arange(3), lengths, np.ones(3, dtype=bool))
    assert allocator.plan(KEYS[:3], 0).num_rollouts.tolist() == counts


def test_uniform_counts_differ_by_at_most_one():
    result = uniform_allocation(4, 10, [10.0, 20.0, 30.0, 40.0], 300.0)
    assert result.num_rollouts.tolist() == [3, 3, 2, 2]
    assert result.planned_tokens == 3 * 10 + 3 * 20 + 2 * 30 + 2 * 40
    assert result.budget_tokens == 300.0


def test_uniform_needs_a_rollout_for_every_prompt():
    with pytest.raises(ValueError, match="total_rollouts=3"):
        uniform_allocation(4, 3, [1.0] * 4, 10.0)
