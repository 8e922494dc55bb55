# SPDX-License-Identifier: Apache-2.0
"""Knapsack RL: the counts against every plan there is and against dynamic programming, its rules by hand."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duet_trl.field_types import Options
from duet_trl.methods.knapsack import Knapsack, knapsack_counts

from .simulator import counts, make_prompts, run_step, setting, table

NAN = float("nan")
rates = st.floats(0.01, 0.99)


def worth(p: np.ndarray, n: np.ndarray) -> float:
    """Sum of (1 - p^n - (1 - p)^n) p (1 - p)^2."""
    return sum((1 - a**b - (1 - a) ** b) * a * (1 - a) ** 2 for a, b in zip(p.tolist(), n.tolist(), strict=True))


@settings(max_examples=150)
@given(
    success=st.lists(rates, min_size=1, max_size=4), lowest=st.integers(1, 3), width=st.integers(0, 5), data=st.data()
)
def test_counts_are_the_best_of_all_plans(success: list[float], lowest: int, width: int, data: st.DataObject) -> None:
    p, most = np.array(success), lowest + width
    total = data.draw(st.integers(lowest * p.size, most * p.size))
    found = knapsack_counts(p, total, lowest, most)
    assert found.sum() == total and lowest <= found.min() and found.max() <= most
    plans = (np.array(plan) for plan in itertools.product(range(lowest, most + 1), repeat=p.size))
    best = max(worth(p, plan) for plan in plans if plan.sum() == total)
    assert worth(p, found) == pytest.approx(best, rel=1e-12, abs=1e-15)


def test_without_a_history_the_step_is_uniform() -> None:
    assert knapsack_counts(np.full(4, NAN), 18, 2, 128).tolist() == [5, 5, 4, 4]
    # An unseen prompt has C / M beside known ones, and what is solved has the minimum.
    assert knapsack_counts(np.array([NAN, 1.0, 0.5]), 24, 2, 128).tolist() == [8, 2, 14]


def test_the_fall_back_gives_hopeless_prompts_what_the_others_do_not_need() -> None:
    """C = 40, all have 2, so 32 are left. A coin flip is mixed with probability 0.9 at ln 0.1 / ln 0.5 = 3.3 -> 3, and
    p = 0.1 at ln 0.1 / ln 0.9 = 21.9 -> 21. The 8 beyond these 24 go to the prompts that were always wrong."""
    success = np.array([0.5, 0.1, 0.0, 0.0])
    found = knapsack_counts(success, 40, 2, 128)
    assert found[2:].tolist() == [6, 6] and found[:2].sum() == 28
    # All solved or all hopeless: the hopeless share it, and where there are none, all do.
    assert knapsack_counts(np.array([0.0, 1.0, 0.0]), 24, 2, 128).tolist() == [11, 2, 11]
    assert knapsack_counts(np.array([1.0, 1.0, 1.0]), 25, 2, 128).tolist() == [9, 8, 8]
    # n_max holds there too; what the hopeless cannot take goes to those with a value first.
    assert knapsack_counts(np.array([0.0, 1.0, 0.5]), 24, 2, 10).tolist() == [10, 4, 10]


@given(
    success=st.lists(st.sampled_from([NAN, 0.0, 1e-300, 1e-17, 0.3, 0.5, 1.0 - 1e-16, 1.0]), min_size=1, max_size=8),
    share=st.floats(0.0, 1.0),
)
def test_sum_and_bounds_hold_for_every_mixture(success: list[float], share: float) -> None:
    total = len(success) * 2 + round(share * len(success) * 7)
    found = knapsack_counts(np.array(success), total, 2, 9)
    assert found.sum() == total and 2 <= found.min() and found.max() <= 9


def test_the_second_visit_goes_by_the_first() -> None:
    """a solved half, b a quarter, c none, d all: c and d have the minimum, b gains longer than a."""
    method = Knapsack(setting(num_generations=8, num_rollouts_min=2), Options())
    rewards = table(a=(0, 1), b=(0, 0, 0, 1), c=(0,), d=(1,))
    done, judgement = run_step(method, make_prompts("abcd"), rewards)
    assert counts(done) == [4, 4, 4, 4] and judgement.in_gradient.all()
    assert method.metrics()["unseen_prompts"] == 4.0
    done, judgement = run_step(method, make_prompts("abcd", epoch=1), rewards)
    first, second, *others = counts(done)
    assert others == [2, 2] and first + second == 12
    assert [first, second] == knapsack_counts(np.array([0.5, 0.25]), 12, 2, 32).tolist() and second > first
    mixed = 2 - 2 * 0.5**first - 0.25**second - 0.75**second
    assert method.metrics() == {
        "unseen_prompts": 0.0,
        "all_wrong_prompts": 1.0,
        "all_right_prompts": 1.0,
        "mixed_prompts_expected": pytest.approx(mixed),
    }
    # GRPO's advantages: a right rollout of a, (1 - 1/2) / (std over n - 1, + 1e-4).
    of_a = done.rewards[done.prompt == 0]
    expected = (of_a - of_a.mean()) / (of_a.std(ddof=1) + 1e-4)
    np.testing.assert_allclose(judgement.advantages[done.prompt == 0], expected, atol=1e-6)


def test_while_all_rewards_are_the_same_nobody_is_solved() -> None:
    method = Knapsack(setting(num_generations=8), Options())
    for _ in range(2):
        done, _ = run_step(method, make_prompts("abcd"), table(a=(1,), b=(1,), c=(1,), d=(1,)))
        assert counts(done) == [4, 4, 4, 4]
