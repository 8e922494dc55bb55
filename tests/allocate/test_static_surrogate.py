# SPDX-License-Identifier: Apache-2.0
"""Surrogates that no observation changes: the fit against numpy, the file and its refusals, the plans."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.allocate.allocators import NeymanAllocator
from duet_trl.allocate.budget import Budget
from duet_trl.allocate.static_surrogate import StaticSurrogate, SurrogateFile, fit_ridge
from duet_trl.allocate.statistics import PromptStatistics
from tests.states import plain

STORED = str(Path(__file__).parent / "surrogate_version_1.json")


@given(
    pairs=st.lists(st.tuples(st.floats(-8.0, -0.1), st.floats(0.0, 300.0)), min_size=2, max_size=30),
    penalty=st.sampled_from([0.0, 1.0, 30.0]),
)
def test_the_fit_solves_the_normal_equations(pairs: list[tuple[float, float]], penalty: float) -> None:
    """Least squares over [1, z] with a row of sqrt(penalty) for the slope is ridge without a penalty on the mean."""
    x, sigma = np.array(pairs).T
    if x.std() < 1e-3:
        return
    z = (x - x.mean()) / x.std()
    design = np.vstack([np.column_stack([np.ones_like(z), z]), [0.0, math.sqrt(penalty)]])
    (mean, slope), *_ = np.linalg.lstsq(design, np.append(sigma, 0.0), rcond=None)
    fit = fit_ridge(x, sigma, penalty)
    np.testing.assert_allclose(fit.intercept + fit.slope * x, mean + slope * z, rtol=1e-9, atol=1e-7)


def test_a_line_is_found_exactly_without_a_penalty_and_shrunk_with_one() -> None:
    x = np.array([-1.0, -2.0, -3.0, -4.0])
    fit = fit_ridge(x, 100.0 + 20.0 * x, 0.0)
    assert (fit.intercept, fit.slope, fit.r_squared) == pytest.approx((100.0, 20.0, 1.0))
    # With penalty n the slope halves, about the mean (-2.5, 50); a quarter of the variance is left: (1 - 1/2)^2.
    fit = fit_ridge(x, 100.0 + 20.0 * x, 4.0)
    assert (fit.intercept, fit.slope, fit.r_squared) == pytest.approx((75.0, 10.0, 0.75))


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(ValueError, match="same mean log-prob.*surrogate='constant'"):
        fit_ridge(np.array([-1.0, -1.0]), np.array([1.0, 2.0]), 1.0)
    for x in ([-1.0], [-1.0, np.nan]):
        with pytest.raises(ValueError, match="finite values of at least two prompts"):
            fit_ridge(np.array(x), np.ones(len(x)), 1.0)
    assert math.isnan(fit_ridge(np.array([-1.0, -2.0]), np.zeros(2), 1.0).r_squared)


def test_a_file_of_version_1_is_read_and_comes_back_from_a_copy(tmp_path: Path) -> None:
    file = SurrogateFile.read(STORED)
    assert file.sigma(["a", "c", "b"]).tolist() == [27.5, -10.0, 15.0]  # 40 + 12.5 x
    copy = SurrogateFile(**(vars(file) | {"path": str(tmp_path / "copy.json")}))
    copy.write()
    assert SurrogateFile.read(copy.path) == copy and copy.fingerprint == file.fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "has version 2, and this library reads 1. Write it again: python recipes/fit_surrogate.py"),
        ({"slope": 13.0}, "is damaged: its fingerprint does not fit. Write it again"),
        ({"features": {"a": -1.0}}, "is damaged"),
        ({"more": 1}, "is damaged"),
        ({"features": 3}, "is damaged"),
    ],
)
def test_a_stale_or_changed_file_is_refused(tmp_path: Path, change: dict, message: str) -> None:
    path = tmp_path / "surrogate.json"
    path.write_text(json.dumps(json.loads(Path(STORED).read_text()) | change))
    with pytest.raises(ValueError, match=message) as refused:
        SurrogateFile.read(str(path))
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("content", [None, "no json", "[]", "{}"])
def test_what_is_no_surrogate_file_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "surrogate.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match="is no surrogate file.*Write one: python recipes/fit_surrogate.py"):
        SurrogateFile.read(str(path))


def test_another_model_and_other_prompts_are_refused() -> None:
    file = SurrogateFile.read(STORED)
    file.check_model("/elsewhere/tiny/")
    with pytest.raises(ValueError, match="was made for the model 'models/tiny', and this run trains 'models/large'"):
        file.check_model("models/large")
    with pytest.raises(ValueError, match="lacks 2 of 3 prompts, such as 'd'.*Fit it for these data"):
        file.sigma(["a", "d", "e"])


# ---- Plans ------------------------------------------------------------------------------------------------------


def allocator(
    surrogate: StaticSurrogate, lengths: dict[str, int], solver: str = "greedy", num_generations: int = 8
) -> NeymanAllocator:
    """One that has seen a rollout of each prompt."""
    budget = Budget(num_generations=num_generations)
    found = NeymanAllocator(surrogate, budget, solver=solver, max_length=100, num_max=512)
    group, length = np.arange(len(lengths)), np.array(list(lengths.values()))
    found.observe_lengths(list(lengths), group, length, length, np.ones(len(lengths), dtype=bool))
    return found


@pytest.mark.parametrize("solver", ["greedy", "bisection"])
def test_a_constant_gives_counts_by_length_alone(solver: str) -> None:
    """n ~ 1 / sqrt(L): a prompt of a quarter of the length gets twice the rollouts, whatever was observed.

    B = 64 (64 + 256) = 20480, sum sqrt(L) = 8 + 16 = 24, n = B / 24 / sqrt(L) = 106.7 and 53.3; what is left of B
    below one rollout of b pays for up to four of a.
    """
    planner = allocator(StaticSurrogate(1.0), {"a": 64, "b": 256}, solver, num_generations=64)
    before = planner.plan(["a", "b"], 0).num_rollouts.tolist()
    assert abs(before[0] - 106.7) <= 5 and abs(before[1] - 53.3) <= 1
    planner.observe_sigma(["a", "b"], np.array([0, 0, 1, 1]), np.array([1.0, -1, 9, -9]), np.ones(4), np.ones(4, bool))
    assert planner.plan(["a", "b"], 3).num_rollouts.tolist() == before
    assert planner.metrics()["sigma_floor"] == 1.0 and not planner.cold.any()


def test_ridge_predicts_and_the_floor_holds() -> None:
    """s = (27.5, 15, 10 for -10): equal lengths, so n ~ s. B pays for 24: 12.57, 6.86, 4.57."""
    surrogate = StaticSurrogate(10.0, SurrogateFile.read(STORED))
    planner = allocator(surrogate, {"a": 10, "b": 10, "c": 10})
    assert planner.plan(["a", "b", "c"], 0).num_rollouts.tolist() == [12, 7, 5]
    assert planner.plan(["c", "a"], 1).num_rollouts.tolist() == [4, 12]


def test_a_checkpoint_belongs_to_its_file(tmp_path: Path) -> None:
    file = SurrogateFile.read(STORED)
    state = plain(allocator(StaticSurrogate(0.01, file), {"a": 10}).state_dict())
    allocator(StaticSurrogate(0.01, file), {"a": 20}).load_state_dict(state)
    other = SurrogateFile(**(vars(file) | {"slope": 1.0}))
    for surrogate in (StaticSurrogate(0.01, other), StaticSurrogate(1.0)):
        with pytest.raises(ValueError, match="another surrogate file .* Resume with that file"):
            allocator(surrogate, {"a": 10}).load_state_dict(state)


def test_a_surrogate_needs_no_statistics() -> None:
    view = PromptStatistics().lookup(["a", "b"])
    assert StaticSurrogate(2.0).sigma(view, PromptStatistics()).tolist() == [2.0, 2.0]
