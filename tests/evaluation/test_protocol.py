# SPDX-License-Identifier: Apache-2.0
"""mean@k, best@k and their intervals against closed forms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from duet_trl.evaluation import best_at_k, mean_at_k, paired_difference

TABLES = arrays(np.bool_, st.tuples(st.integers(1, 12), st.integers(1, 6)))


def test_mean_at_k_is_the_mean_over_problems_and_samples():
    score = mean_at_k(np.array([[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]))
    assert score.value == pytest.approx(5 / 12)
    assert (score.num_problems, score.num_samples) == (3, 4)


def test_interval_matches_the_binomial_quantiles_for_one_sample_per_problem():
    # With k = 1 the bootstrap mean of P problems is Binomial(P, p)/P exactly. For P = 100 and p = 0.4 its 2.5% and
    # 97.5% quantiles are 31/100 and 50/100 (normal approximation: 40 +- 1.96 * 4.90 = 30.4 .. 49.6).
    score = mean_at_k(np.array([[1]] * 40 + [[0]] * 60), num_resamples=20_000)
    assert score.low == pytest.approx(0.31, abs=0.0101)
    assert score.high == pytest.approx(0.50, abs=0.0101)


def test_interval_resamples_problems_and_not_samples():
    # 16 perfectly dependent samples of 100 problems carry as much information as one sample each: the standard error
    # is sqrt(.25 / 100) = .05, four times the sqrt(.25 / 1600) of independent samples.
    correct = np.repeat(np.array([[1]] * 50 + [[0]] * 50), 16, axis=1)
    score = mean_at_k(correct, num_resamples=20_000)
    assert (score.high - score.low) / (2 * 1.96) == pytest.approx(0.05, rel=0.05)


def test_same_seed_gives_the_same_score_and_json_types():
    correct = np.random.default_rng(0).random((30, 4)) < 0.3
    assert mean_at_k(correct) == mean_at_k(correct)
    assert all(type(value) in (int, float) for value in mean_at_k(correct).to_dict().values())


def test_a_paired_difference_of_equal_policies_has_no_width_however_hard_the_problems_vary():
    correct = np.array([[1, 1]] * 30 + [[0, 0]] * 30)
    difference = paired_difference(correct, correct)
    assert (difference.low, difference.value, difference.high) == (0.0, 0.0, 0.0)


def test_a_paired_difference_has_the_standard_error_of_the_differences():
    # 100 problems, half of them gained: the difference of a problem has mean .5 and variance .25, whatever the
    # difficulty of the others, so the standard error is sqrt(.25 / 100) = .05.
    reference = np.array([[0]] * 100)
    difference = paired_difference(np.array([[1]] * 50 + [[0]] * 50), reference, num_resamples=20_000)
    assert difference.value == 0.5
    assert (difference.high - difference.low) / (2 * 1.96) == pytest.approx(0.05, rel=0.05)


def test_a_paired_difference_of_other_problems_is_refused():
    with pytest.raises(ValueError, match="same problems, got 2 and 1"):
        paired_difference(np.array([[1], [0]]), np.array([[1]]))


def test_best_at_k_of_all_samples_is_any():
    assert best_at_k(np.array([[0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 0, 0]])).value == 0.5


@given(TABLES)
@settings(max_examples=60)
def test_the_value_lies_in_its_interval_and_best_is_not_below_mean(correct):
    mean, best = mean_at_k(correct), best_at_k(correct)
    assert mean.low - 1e-12 <= mean.value <= mean.high + 1e-12
    assert best.value >= mean.value - 1e-12


@pytest.mark.parametrize("bad", [[], [1, 0], [[0.5, 1.0]], [[2, 0]], [[float("nan"), 0]]])
def test_a_table_that_is_not_graded_is_refused(bad):
    with pytest.raises(ValueError, match="correct must"):
        mean_at_k(np.array(bad))
