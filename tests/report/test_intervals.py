# SPDX-License-Identifier: Apache-2.0
"""Intervals over seeds, and over prompts."""

import numpy as np
import pytest

from duet_trl.report.intervals import half_width, ratio_interval, t_interval


def test_the_interval_of_three_seeds_is_twice_as_wide_as_a_normal_one():
    # mean 0.02, sd 0.02, standard error 0.02 / sqrt(3); the 0.975 quantile of t with two degrees of freedom is 4.303
    low, high = t_interval(np.array([0.0, 0.02, 0.04]))
    assert (low, high) == pytest.approx((0.02 - 4.303 * 0.02 / 3**0.5, 0.02 + 4.303 * 0.02 / 3**0.5))
    assert t_interval(np.array([0.1])) is None
    many = t_interval(np.tile([0.0, 0.04], 30))  # beyond the table its last entry
    assert many[1] - 0.02 == pytest.approx(2.093 * np.tile([0.0, 0.04], 30).std(ddof=1) / 60**0.5)


def test_two_seeds_have_one_degree_of_freedom():
    # values 1 and 3: sd sqrt(2), standard error 1, quantile 12.706
    assert half_width([1.0, 3.0]) == pytest.approx(12.706)
    assert half_width([1.0]) is None


def test_a_ratio_of_two_clusters_by_hand():
    # Sums 2 of 4 and 0 of 4: r = 1/4, d = 2 - 1 and 0 - 1, variance 2 / 1 x 2 / 8^2; one degree of freedom.
    low, high = ratio_interval(np.array([1.0, 0.0, 1.0]), np.array([2.0, 4.0, 2.0]), np.array([7, 3, 7]))
    assert (low, high) == pytest.approx((0.25 - 12.706 * 2 / 8, 0.25 + 12.706 * 2 / 8))
    assert ratio_interval(np.ones(3), np.ones(3), np.zeros(3)) is None
