# SPDX-License-Identifier: Apache-2.0
import statistics as stdlib

import numpy as np
import pytest

from duet_trl.allocate.allocators import Budget, NeymanAllocator
from duet_trl.allocate.neyman import calibration_chi2, sigma_observed

NAN = float("nan")


def paper(sigmas: dict[str, list[float]], **options) -> NeymanAllocator:
    """The allocator after these observations of each prompt."""
    allocator = NeymanAllocator(Budget(), max_length=512.0, **options)
    for key, values in sigmas.items():
        for value in values:
            allocator.statistics.observe_sigma([key], np.array([value]))
    return allocator


def test_sigma_observed_matches_the_standard_library_in_any_order_of_rollouts():
    rng = np.random.default_rng(0)
    group = np.concatenate([rng.integers(0, 6, 60), [6, 6, 7, 8, 8]])
    advantages, sum_logps = rng.normal(size=65), -rng.lognormal(5.0, 1.0, 65)
    use = rng.random(65) < 0.8
    # Prompt 6 has one usable rollout and 7 none; equal rewards have no advantage, and so no spread.
    use[60:], sum_logps[61:63], advantages[63:] = [True, False, False, True, True], NAN, 0.0
    observed = sigma_observed(advantages, sum_logps, group, use, 9)
    for prompt in range(6):
        values = (advantages * sum_logps)[use & (group == prompt)]
        assert observed[prompt] == pytest.approx(stdlib.stdev(values.tolist()), rel=1e-12)
    np.testing.assert_array_equal(observed[6:], [NAN, NAN, 0.0])


@pytest.mark.parametrize(
    ("warmup", "surrogate", "warm"),
    [
        (1, [3.0, 0.01, 0.01, 7.0, 0.01], [True, True, True, True, False]),
        (2, [3.0, 0.01, 0.01, 0.01, 0.01], [True, False, False, False, False]),
        (None, [1.0] * 5, [True] * 5),
    ],
)
def test_sigma_is_the_mean_above_the_floor_of_what_was_seen_often_enough_or_a_constant(warmup, surrogate, warm):
    allocator = paper({"a": [4.0, 2.0], "b": [0.0], "c": [0.004], "d": [7.0]}, warmup=warmup)
    found = allocator.sigma(["a", "b", "c", "d", "new"])
    assert (found[0].tolist(), found[1].tolist()) == (surrogate, warm)


def test_the_floor_becomes_the_fifth_percentile_of_the_positive_sigmas_after_the_first_epoch_and_stays():
    sigmas = {f"p{index}": [float(index)] for index in range(1, 22)}  # 1..21: the 5th percentile is 2
    allocator = paper({"zero": [0.0], "other": [0.0], **sigmas})
    allocator.plan(["p1"], epoch=0)
    assert allocator.floor == 0.01
    allocator.plan(["p1"], epoch=1)
    assert allocator.floor == pytest.approx(2.0)
    assert allocator.sigma(["p1", "zero", "new", "p7"])[0] == pytest.approx([2.0, 2.0, 2.0, 7.0])
    for _ in range(100):
        allocator.statistics.observe_sigma(["p1"], np.array([50.0]))
    allocator.plan(["p1"], epoch=2)
    assert allocator.floor == pytest.approx(2.0)


def test_the_floor_never_falls_and_waits_for_a_positive_sigma():
    allocator = paper({"a": [0.0]})
    for seen in ({}, {"b": [1e-5]}, {"c": [9.0] * 30}):  # frozen by the plan after b
        for key, values in seen.items():
            allocator.statistics.observe_sigma([key] * len(values), np.array(values))
        allocator.plan(["a"], epoch=1)
        assert allocator.floor == 0.01


def test_calibration_is_the_mean_squared_relative_error_over_positive_sigmas():
    # Ratios 2, 0.5, 1 over the positive ones: ((1)^2 + (-.5)^2 + 0) / 3.
    chi2 = calibration_chi2(np.array([4.0, 1.0, 3.0, 9.0, 9.0]), np.array([2.0, 2.0, 3.0, 0.0, NAN]))
    assert chi2 == pytest.approx(1.25 / 3.0)
