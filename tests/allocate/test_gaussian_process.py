# SPDX-License-Identifier: Apache-2.0
"""The Gaussian process: against scikit-learn, step by step, and what is kept of it."""

import json

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, Matern

from duet_trl.allocate.gaussian_process import KERNELS, GaussianProcess, distances
from tests.states import plain

ORACLES = {"rbf": lambda scale: RBF(scale, "fixed"), "matern": lambda scale: Matern(scale, "fixed", nu=2.5)}


def points(num: int, seed: int, shared: float = 0.0, size: int = 12) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(num, size)) + shared).astype(np.float32)


def oracle(kernel: str, scale: float, x: np.ndarray, residual: np.ndarray) -> GaussianProcessRegressor:
    found = GaussianProcessRegressor(ORACLES[kernel](scale), alpha=1e-4, optimizer=None)
    return found.fit(x.astype(np.float64), residual)


def keys(num: int, first: int = 0) -> list[str]:
    return [f"p{row}" for row in range(first, first + num)]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("scale", "shared"), [(0.7, 0.0), (4.0, 0.0), (4.0, 20.0)])
def test_the_posterior_mean_is_that_of_scikit_learn(kernel, scale, shared):
    x, new, y = points(40, 0, shared), points(30, 1, shared), np.random.default_rng(2).normal(size=40) * 5
    process = GaussianProcess(-1.0, kernel, scale)
    process.learn(keys(40), x, y)
    expected = oracle(kernel, scale, x, y + 1.0).predict(new.astype(np.float64)) - 1.0
    np.testing.assert_allclose(process.predict(new), expected, atol=1e-8, rtol=1e-8)
    assert np.abs(expected + 1.0).max() > 0.01  # there was something to predict


def test_the_last_step_alone_counts_unless_the_mean_is_reused():
    x, y, new = points(20, 0), np.linspace(-3, 3, 20), points(5, 1)
    forgets, reuses = (GaussianProcess(0.5, "rbf", 5.0, reuse_mean=reuse) for reuse in (False, True))
    first = oracle("rbf", 5.0, x[:12], y[:12] - 0.5)
    for process in (forgets, reuses):
        process.learn(keys(12), x[:12], y[:12])
        process.learn(keys(12, 8), x[8:], y[8:])  # four prompts again
    second = oracle("rbf", 5.0, x[8:], y[8:] - 0.5)
    np.testing.assert_allclose(forgets.predict(new), second.predict(new) + 0.5, atol=1e-8)
    # Each step corrects what the steps before predicted.
    rest = oracle("rbf", 5.0, x[8:], y[8:] - 0.5 - first.predict(x[8:]))
    np.testing.assert_allclose(reuses.predict(new), first.predict(new) + rest.predict(new) + 0.5, atol=1e-8)
    assert (len(forgets.keys), len(reuses.keys)) == (12, 20)


def test_a_prompt_that_a_step_holds_twice_is_observed_twice():
    x = points(3, 0)[[0, 1, 1, 2]]
    process = GaussianProcess(0.0, "rbf", 3.0, reuse_mean=True)
    process.learn(["a", "b", "b", "c"], x, np.array([1.0, 2.0, 4.0, -1.0]))
    expected = oracle("rbf", 3.0, x, np.array([1.0, 2.0, 4.0, -1.0])).predict(x)
    np.testing.assert_allclose(process.predict(x), expected, atol=1e-7)
    assert expected[1] == pytest.approx(3.0, abs=1e-3) and process.keys == ["a", "b", "c"]


def test_the_scale_is_the_median_distance_of_the_first_step_that_has_one():
    process = GaussianProcess(0.0)
    same = np.ones((3, 2), dtype=np.float32)
    process.learn(keys(3), same, np.array([1.0, 1.0, 1.0]))
    assert process.length_scale is None
    np.testing.assert_allclose(process.predict(same), 1.0, atol=1e-3)
    # Distances 3, 4, 5, and 0 between the two that are the same: median of 3, 3, 4, 4, 5.
    corners = np.array([[0, 0], [3, 0], [0, 4], [0, 0]], dtype=np.float32)
    process.learn(keys(4), corners, np.zeros(4))
    assert process.length_scale == pytest.approx(4.0)
    process.learn(keys(2), 9 * corners[:2], np.zeros(2))
    assert process.length_scale == pytest.approx(4.0)


def test_distances_survive_a_large_shared_mean():
    x = points(30, 0, shared=1000.0)
    x[7] = x[3]
    direct = np.sqrt(((x[:, None].astype(np.float64) - x[None]) ** 2).sum(-1))
    found = distances(x, x)
    np.testing.assert_allclose(found, direct, rtol=1e-9, atol=1e-12)
    assert found[3, 7] == 0.0 and (np.diag(found) == 0.0).all()


@pytest.mark.parametrize("reuse", [False, True])
def test_a_restored_process_predicts_and_learns_alike(reuse):
    one, other = (GaussianProcess(-1.0, "matern", reuse_mean=reuse) for _ in range(2))
    one.learn(keys(9), points(9, 0), np.arange(9.0))
    state = one.state_dict()
    assert json.dumps(plain(state))
    other.load_state_dict(state)
    for process in (one, other):
        process.learn(keys(9, 4), points(9, 1), -np.arange(9.0))
    np.testing.assert_array_equal(one.predict(points(4, 2)), other.predict(points(4, 2)))
    with pytest.raises(ValueError, match="Gaussian process state has keys"):
        other.load_state_dict({"keys": []})


def test_vectors_of_another_size_are_an_error():
    process = GaussianProcess(0.0)
    process.learn(keys(3), points(3, 0), np.arange(3.0))
    with pytest.raises(ValueError, match="The vectors have 5 numbers, and those of the steps before had 12"):
        process.predict(points(3, 0, size=5))
