# SPDX-License-Identifier: Apache-2.0
"""Curves of the arena by hand: what counts, the isotonic fit, the first crossing, means of runs of unlike length."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.arena.curves import COSTS, Curve, accuracy_at, cost_to_reach, curve_of, fitted, mean_curve
from tests.benchmarks.arena_records import measurement, run, start


def curve(accuracy: list[float], samples: list[int] | None = None, steps: list[float] | None = None) -> Curve:
    """Measured every 10 steps, at 1,000 tokens and 3 processor seconds a step."""
    found = np.array(steps or range(0, 10 * len(accuracy), 10), dtype=float)
    unit = dict(zip(COSTS, (1000, 500, 3, 2, 1), strict=True))
    costs = {cost: unit[cost] * found for cost in COSTS}
    return Curve(np.array(accuracy), np.array(samples or [400] * len(accuracy)), costs)


def test_a_curve_begins_at_the_start_and_counts_the_shared_problems_only():
    first, second = measurement(10, 0.5), measurement(80, 0.0, problems=200, samples=4)
    second = replace(second, last=[4] * 100 + [0] * 100)
    found = curve_of(replace(run("duet", lambda _: 0.5), measurements=[first, second]), start("sums", 0.25), 100)
    assert found.accuracy.tolist() == [0.25, 0.5, 1.0]
    assert found.samples.tolist() == [1600, 200, 400]
    assert found.costs["generated_tokens"].tolist() == [0, 10_000, 80_000]
    assert found.costs["trained_tokens"].tolist() == [0, 5_000, 40_000]
    assert found.costs["processor_seconds"].tolist() == [0, 30, 240]
    assert found.costs["seconds"].tolist() == [0, 20, 160]


def test_a_pool_is_weighted_by_its_samples():
    # 0.6 on 400 samples before 0.3 on 800: (0.6 * 400 + 0.3 * 800) / 1200 = 0.4
    assert fitted(curve([0.1, 0.6, 0.3], [3200, 400, 800])).accuracy == pytest.approx([0.1, 0.4, 0.4])


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        ("generated_tokens", 25_000),
        ("trained_tokens", 12_500),
        ("processor_seconds", 75),
        ("seconds", 50),
        ("step", 25),
    ],
)
def test_the_crossing_is_linear_between_measurements_on_every_axis(cost: str, expected: float):
    # 0.4 at step 20, 0.5 at step 30
    assert cost_to_reach(curve([0.2, 0.3, 0.4, 0.5]), cost, 0.45) == pytest.approx(expected)


def test_a_noisy_peak_is_no_crossing():
    raw = curve([0.4, 0.6, 0.4, 0.5, 0.6])
    # 0.6, 0.4, 0.5 are pooled to 0.5 at steps 10 to 30; 0.55 lies halfway to 0.6 at step 40.
    assert cost_to_reach(raw, "step", 0.55) == pytest.approx(7.5)  # on the way to the peak
    assert cost_to_reach(fitted(raw), "step", 0.55) == pytest.approx(35)


def test_a_run_that_falls_back_has_not_reached():
    assert cost_to_reach(fitted(curve([0.4, 0.6, 0.3, 0.3])), "step", 0.55) is None


def test_nothing_is_read_beyond_the_last_measurement():
    rising = curve([0.2, 0.3, 0.4])
    assert cost_to_reach(fitted(rising), "step", 0.41) is None
    assert cost_to_reach(fitted(rising), "step", 0.4) == pytest.approx(20)
    assert accuracy_at(rising, "step", 20) == pytest.approx(0.4)
    assert accuracy_at(rising, "step", 20.5) is None


def test_the_mean_of_runs_of_unlike_length_has_their_common_steps_and_their_ends():
    short = curve([0.2, 0.3, 0.4, 0.45], steps=[0, 10, 20, 25])
    long = curve([0.2, 0.5, 0.6, 0.7, 0.75], [400, 400, 400, 400, 800], [0, 10, 20, 30, 35])
    assert mean_curve([short, short]).accuracy.tolist() == short.accuracy.tolist()
    mean = mean_curve([short, long])
    assert mean.costs["step"].tolist() == [0, 10, 20, 30]  # the ends: 25 and 35
    assert mean.accuracy == pytest.approx([0.2, 0.4, 0.5, 0.6])
    assert mean.samples.tolist() == [800, 800, 800, 1200]
    assert mean.costs["generated_tokens"].tolist() == [0, 10_000, 20_000, 30_000]
