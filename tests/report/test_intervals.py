# SPDX-License-Identifier: Apache-2.0
"""Intervals over seeds."""

import numpy as np
import pytest

from duet_trl.report.intervals import half_width, t_interval


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
