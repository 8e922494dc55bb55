# SPDX-License-Identifier: Apache-2.0
"""PODS: the subset of largest variance against all subsets, and what the others leave."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duet_trl.methods.pods import Pods, PodsOptions, max_variance_subset

from .simulator import make_prompts, run_step, setting, table


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0, 7.25]), min_size=1, max_size=9),
    st.integers(min_value=2, max_value=8),
)
@example([-1.0, -1.0, -1.0, -1.0, 0.0], 3)  # the ties fill both ends
def test_subset_has_the_largest_variance_of_all(rewards: list[float], num_kept: int) -> None:
    values = np.array(rewards)
    chosen = max_variance_subset(values, num_kept)
    size = min(num_kept, len(values))
    best = max(np.var(values[list(subset)]) for subset in combinations(range(len(values)), size))
    assert len(set(chosen.tolist())) == size
    assert np.var(values[chosen]) == pytest.approx(best, abs=1e-12)


def test_subset_of_large_rewards_is_exact() -> None:
    """Variances of 1e-2 around 1e8: without centring the squares would swallow them."""
    rewards = 1e8 + np.array([0.3, 0.1, 0.4, 0.0, 0.2])
    assert max_variance_subset(rewards, 2).tolist() == [2, 3]


def test_dropped_rollouts_leave_gradient_and_divisor() -> None:
    method = Pods(setting(num_prompts=2, num_generations=6, scale_rewards="none"), PodsOptions(num_kept=4))
    done, judgement = run_step(method, make_prompts("ab"), table(a=(1, 0, 0, 0, 0, 0), b=(0, 1)))
    # a keeps its 1 and three 0s, b two of each: the first of the lowest and the last of the highest.
    assert np.flatnonzero(judgement.in_gradient).tolist() == [0, 1, 2, 3, 6, 8, 9, 11]
    assert (judgement.in_divisor == judgement.in_gradient).all()
    assert judgement.advantages[:6].tolist() == pytest.approx([0.75, -0.25, -0.25, -0.25, 0, 0])
    assert method.metrics() == {"num_kept": 8.0, "kept_tokens": 80.0}
    assert done.round.max() == 0


def test_rollouts_without_a_reward_are_never_kept() -> None:
    method = Pods(setting(num_prompts=2, num_generations=4), PodsOptions(num_kept=3))
    nan = float("nan")
    _, judgement = run_step(method, make_prompts("ab"), table(a=(nan, 1, nan, 0), b=(nan,)))
    assert np.flatnonzero(judgement.in_gradient).tolist() == [1, 3]
    # Two rewards, 0 and 1: their std with Bessel's correction is sqrt(1/2).
    assert judgement.advantages[1] == pytest.approx(0.5 / (0.5**0.5 + 1e-4))


def test_degenerate_groups_keep_their_share_with_advantage_zero() -> None:
    method = Pods(setting(num_prompts=1, num_generations=8), PodsOptions())
    _, judgement = run_step(method, make_prompts("a"), table(a=(0.3,)))
    assert method.num_kept == 2 and judgement.in_gradient.sum() == 2
    assert judgement.advantages.tolist() == [0.0] * 8
