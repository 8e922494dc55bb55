# SPDX-License-Identifier: Apache-2.0
"""The comparison of abort thresholds: a cut by hand, equal savings, and a case for each verdict."""

import numpy as np
import pytest

from benchmarks.thresholds import (
    ONE,
    OWN_ANSWERS,
    OWN_LENGTH,
    SHRUNK,
    Rollouts,
    at_equal_savings,
    cut,
    measure,
    shapes,
)
from duet_trl.gate.replay import NEVER


def rollouts(length: list, answered_at: list, right: list) -> Rollouts:
    return Rollouts(np.array(length), np.array(answered_at), np.array(right, dtype=bool))


def two_lengths(rng: np.random.Generator, own: bool) -> Rollouts:
    """200 prompts x 16: answers at the prompt's own typical length or at anybody's, a fifth of them without one."""
    typical = rng.choice([20.0, 200.0], (200, 1)) if own else rng.choice([20.0, 200.0], (200, 16))
    answered_at = (typical * rng.uniform(0.9, 1.1, (200, 16))).astype(np.int64)
    silent = rng.random((200, 16)) < 0.2
    length = np.where(silent, 400, answered_at)
    return Rollouts(length, np.where(silent, NEVER, answered_at), ~silent)


def test_a_cut_by_hand() -> None:
    found = rollouts([[30, 100], [50, 40]], [[20, NEVER], [NEVER, 35]], [[1, 0], [0, 1]])
    result = cut(found, np.array([10.0, 45.5]))
    # tokens up to the answer or the end: 20 + 100 + 50 + 35; stopped at 10, 10 and 45, the fourth answers before
    assert result.aborted.tolist() == [[True, True], [True, False]]
    assert result.saved == pytest.approx((10 + 90 + 5) / 205)
    assert result.lost == 0.5


def test_a_rollout_that_answers_or_ends_at_the_threshold_is_left_alone() -> None:
    result = cut(rollouts([[20, 20]], [[20, NEVER]], [[1, 0]]), np.array([20.0]))
    assert (result.aborted.any(), result.saved, result.lost) == (False, 0.0, 0.0)


def test_shapes_of_the_rules_by_hand() -> None:
    found = shapes(rollouts([[10, 30], [80, 40]], [[10, 20], [NEVER, NEVER]], [[1, 1], [0, 0]]))
    assert found[ONE].tolist() == [1.0, 1.0]
    assert found[OWN_LENGTH].tolist() == [20.0, 60.0]
    assert found[OWN_ANSWERS] == pytest.approx([19.5, 19.5])  # the silent prompt has the quantile of all
    assert found[SHRUNK] == pytest.approx([(30 + 8 * 15) / 10, 15.0])


def test_equal_savings_are_equal() -> None:
    found = two_lengths(np.random.default_rng(0), own=True)
    wanted = cut(found, np.full(200, 250.0)).saved
    for shape in (np.ones(200), np.linspace(0.5, 2.0, 200)):
        assert at_equal_savings(found, shape, wanted).saved == pytest.approx(wanted, abs=2e-3)


def test_own_thresholds_win_where_prompts_differ_in_length_and_lose_where_they_do_not() -> None:
    rng = np.random.default_rng(1)
    # without slack so much is to be saved that one threshold has to cut right answers
    apart = measure(two_lengths(rng, own=True), 0.95, 1.0, seed=0, resamples=40)[OWN_ANSWERS]
    alike = measure(two_lengths(rng, own=False), 0.95, 1.0, seed=0, resamples=40)[OWN_LENGTH]
    assert apart["interval"][1] < 0 < alike["interval"][0]
