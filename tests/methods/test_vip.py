# SPDX-License-Identifier: Apache-2.0
"""VIP: predictions and counts against closed forms, bounds by budget, and a run of the trainer."""

import itertools
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.methods.vip import Vip, VipOptions, vip_counts

from .simulator import counts, make_prompts, plan, run_step, setting, table

SIZE = 16


def vector(key: str) -> np.ndarray:
    """Prompts whose keys begin alike lie close together."""
    kind, number = np.random.default_rng(ord(key[0])), np.random.default_rng(sum(map(ord, key)))
    return (kind.normal(size=SIZE) + 0.05 * number.normal(size=SIZE)).astype(np.float32)


def vip(num_generations=8, budget_fraction=1.0, num_prompts=4, **options) -> Vip:
    method = Vip(setting(num_prompts, num_generations, budget_fraction=budget_fraction), VipOptions(**options))
    method.embed = lambda prompts: np.stack([vector(prompt.key) for prompt in prompts])
    return method


FIRST = ["a1", "b1", "c1", "d1"]
SECOND = ["a2", "b2", "c2", "d2"]  # each close to its first
WORLD = table(a1=(1.0, 0.0), b1=(0.0,), c1=(1.0,), d1=(0.0, 0.0, 0.0, 1.0))


def posterior(x: np.ndarray, new: np.ndarray, logits: np.ndarray, scale: float) -> np.ndarray:
    """m + K_qB (K_BB + 1e-4 I)^-1 (g_B - m), as the docstring has it."""

    def covariance(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        apart = first[:, None].astype(np.float64) - second
        return np.exp(-(apart**2).sum(axis=2) / (2 * scale**2))

    solved = np.linalg.solve(covariance(x, x) + 1e-4 * np.eye(len(x)), logits + 1.0)
    return covariance(new, x) @ solved - 1.0


def median_distance(x: np.ndarray) -> float:
    pairs = itertools.combinations(x.astype(np.float64), 2)
    return float(np.median([np.linalg.norm(first - second) for first, second in pairs]))


def test_counts_follow_what_similar_prompts_did():
    method = vip()
    done, _ = run_step(method, make_prompts(FIRST), WORLD)
    assert counts(done) == [8, 8, 8, 8] and method.metrics()["expected_success"] == pytest.approx(1 / (1 + np.e))
    done, _ = run_step(method, make_prompts(SECOND, step=2), WORLD)
    # The shares are 1/2, 0, 1, 1/4, the decided two clipped to 1e-6.
    shares = np.clip([0.5, 0.0, 1.0, 0.25], 1e-6, 1 - 1e-6)
    x, new = (np.stack([vector(key) for key in keys]) for keys in (FIRST, SECOND))
    expected = 1 / (1 + np.exp(-posterior(x, new, np.log(shares / (1 - shares)), median_distance(x))))
    assert counts(done) == vip_counts(expected, 32, 4, 16).tolist() and len(set(counts(done))) > 1
    assert method.metrics()["expected_success"] == pytest.approx(expected.mean(), rel=1e-6)
    seen = np.array([(n // 2) / n for n in counts(done)])  # prompts that are not in the table alternate from 0
    assert method.metrics()["prediction_error"] == pytest.approx(np.abs(seen - expected).mean(), rel=1e-6)


def test_the_scale_is_the_median_distance_of_the_first_step_that_has_one():
    """Distances 3, 4, 5, and 0 between the two that are the same: median of 3, 3, 4, 4, 5."""
    steps = iter([np.ones((4, 2)), [[0, 0], [3, 0], [0, 4], [0, 0]], [[0, 0], [9, 0], [0, 7], [1, 0]]])
    method, scales = vip(), []
    for step, vectors in enumerate(steps, start=1):
        method.embed = lambda prompts, vectors=vectors: np.asarray(vectors, np.float32)
        run_step(method, make_prompts(FIRST, step=step), WORLD)
        scales.append(method.length_scale)
    assert scales == [None, pytest.approx(4.0), pytest.approx(4.0)]


def objective(p: list[float], n: tuple[int, ...]) -> float:
    """The sum as the paper writes it, term by term."""
    rates = np.clip(p, 1e-6, 1 - 1e-6)
    return sum(rate * (1 - rate) / (count - 1) for rate, count in zip(rates, n, strict=True))


@given(p=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4), data=st.data())
def test_no_counts_within_the_bounds_have_a_smaller_sum(p, data):
    lower = data.draw(st.integers(2, 5))
    upper = data.draw(st.integers(lower, 8))
    total = data.draw(st.integers(lower * len(p), upper * len(p)))
    found = vip_counts(np.array(p), total, lower, upper)
    assert found.sum() == total and found.min() >= lower and found.max() <= upper
    every = itertools.product(range(lower, upper + 1), repeat=len(p))
    best = min(objective(p, n) for n in every if sum(n) == total)
    assert objective(p, found) == pytest.approx(best, rel=1e-9, abs=1e-12)


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "sklearn.gaussian_process", raising=False)
    with pytest.raises(ImportError, match=r"method='vip' needs scikit-learn.*pip install 'duet-trl\[vip\]'"):
        vip()


def test_half_the_budget_is_grpo():
    method = vip(budget_fraction=0.5)
    for step in (1, 2):
        done, judgement = run_step(method, make_prompts(FIRST, step=step), WORLD)
        assert plan(done.jobs) == [q for q in range(4) for _ in range(4)]
    assert len(method.logits) == 4  # it would have known
    a = done.rewards[:4]
    np.testing.assert_allclose(judgement.advantages[:4], (a - a.mean()) / (a.std(ddof=1) + 1e-4), rtol=1e-5)


@pytest.mark.parametrize(
    ("num_generations", "fraction", "bounds"),
    [(8, 1.0, (4, 16)), (8, 0.25, (2, 4)), (4, 1.0, (2, 8)), (8, 0.75, (4, 12))],
)
def test_bounds_follow_the_budget(num_generations, fraction, bounds):
    method = vip(num_generations, fraction)
    for step, keys in ((1, FIRST), (2, SECOND)):
        done, _ = run_step(method, make_prompts(keys, step=step), WORLD)
        assert bounds[0] <= min(counts(done)) and max(counts(done)) <= bounds[1]
        assert len(done) == 4 * num_generations * fraction


def test_graded_rewards_count_as_shares_and_one_value_teaches_nothing():
    method = vip()
    run_step(method, make_prompts(FIRST), lambda key, number: 2.0)
    assert not len(method.logits) and method.reward_range == [2.0, 2.0]
    run_step(method, make_prompts(FIRST, step=2), table(a1=(2.0,), b1=(6.0,), c1=(3.0,), d1=(np.nan,)))
    np.testing.assert_array_equal(method.vectors, [vector(key) for key in FIRST[:3]])
    np.testing.assert_allclose(1 / (1 + np.exp(-method.logits)), [1e-6, 1 - 1e-6, 0.25], rtol=1e-9)
    np.testing.assert_allclose(1 / (1 + np.exp(-method.predict(method.vectors))), [0.0, 1.0, 0.25], atol=1e-3)


def test_without_vectors_it_says_what_is_missing():
    method = Vip(setting(4, 8, budget_fraction=1.0), VipOptions())
    with pytest.raises(RuntimeError, match="Vip compares prompts by vectors and was given none"):
        method.jobs(make_prompts(FIRST), None)
