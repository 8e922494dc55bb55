# SPDX-License-Identifier: Apache-2.0
"""VIP: predictions from similar prompts, counts from predictions, bounds by budget, and a run of the trainer."""

import logging

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from duet_trl.allocate.bernoulli import bernoulli_counts
from duet_trl.methods.vip import Vip, VipOptions
from tests.runs import duet_trainer, logged, prompts

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


def test_counts_follow_what_similar_prompts_did():
    method = vip(length_scale=1.0)
    done, _ = run_step(method, make_prompts(FIRST), WORLD)
    assert counts(done) == [8, 8, 8, 8] and method.metrics()["expected_success"] == pytest.approx(1 / (1 + np.e))
    done, _ = run_step(method, make_prompts(SECOND, step=2), WORLD)
    # scikit-learn on the logits of the shares 1/2, 0, 1, 1/4, the decided two clipped to 1e-6.
    shares = np.clip([0.5, 0.0, 1.0, 0.25], 1e-6, 1 - 1e-6)
    x, new = (np.stack([vector(key) for key in keys]).astype(np.float64) for keys in (FIRST, SECOND))
    oracle = GaussianProcessRegressor(RBF(1.0, "fixed"), alpha=1e-4, optimizer=None)
    logits = oracle.fit(x, np.log(shares / (1 - shares)) + 1.0).predict(new) - 1.0
    expected = 1 / (1 + np.exp(-logits))
    assert counts(done) == bernoulli_counts(expected, 32, 4, 16).tolist()
    assert counts(done)[0] > counts(done)[3] > counts(done)[1] == counts(done)[2] == 4
    assert method.metrics()["expected_success"] == pytest.approx(expected.mean(), rel=1e-6)
    seen = np.array([(n // 2) / n for n in counts(done)])  # prompts that are not in the table alternate from 0
    assert method.metrics()["prediction_error"] == pytest.approx(np.abs(seen - expected).mean(), rel=1e-6)


def test_a_share_below_the_bound_is_skipped_if_asked_for_and_is_not_observed():
    method = vip(length_scale=1.0, skip_prompts=True)
    run_step(method, make_prompts(FIRST), WORLD)
    done, _ = run_step(method, make_prompts(SECOND, step=2), WORLD)
    assert counts(done)[1] == counts(done)[2] == 0 and sum(counts(done)) == 32
    assert method.metrics()["skipped_prompts"] == 2.0
    assert sorted(method.process.keys) == ["a2", "d2"]  # the last step alone counts


def test_half_the_budget_is_grpo_and_says_so(caplog):
    method = vip(budget_fraction=0.5)
    assert (method.lower, method.upper) == (4, 8)
    with caplog.at_level(logging.WARNING):
        for step in (1, 2):
            done, judgement = run_step(method, make_prompts(FIRST, step=step), WORLD)
            assert plan(done.jobs) == [q for q in range(4) for _ in range(4)]
    assert caplog.text.count("vip has nothing to allocate: lower=4 is the whole budget") == 1
    assert method.process.keys  # it would have known
    a = done.rewards[:4]
    np.testing.assert_allclose(judgement.advantages[:4], (a - a.mean()) / (a.std(ddof=1) + 1e-4), rtol=1e-5)


@pytest.mark.parametrize(
    ("num_generations", "fraction", "options", "bounds"),
    [
        (8, 1.0, {}, (4, 16)),
        (8, 0.25, {}, (2, 4)),
        (4, 1.0, {}, (2, 8)),
        (4, 1.0, {"variance": "grpo"}, (3, 8)),
        (8, 0.25, {"variance": "grpo"}, (2, 4)),
        (8, 0.75, {}, (4, 12)),
        (8, 1.0, {"lower": 2, "upper": 10}, (2, 10)),
        (8, 0.25, {"lower": 2}, (2, 4)),
    ],
)
def test_bounds_follow_the_budget(num_generations, fraction, options, bounds):
    method = vip(num_generations, fraction, length_scale=1.0, **options)
    assert (method.lower, method.upper) == bounds
    for step, keys in ((1, FIRST), (2, SECOND)):
        done, _ = run_step(method, make_prompts(keys, step=step), WORLD)
        assert bounds[0] <= min(counts(done)) and max(counts(done)) <= bounds[1]
        assert len(done) == 4 * num_generations * fraction


@pytest.mark.parametrize(
    ("num_generations", "fraction", "options", "named"),
    [
        (8, 0.25, {"lower": 4}, "lower=4 and upper=4 cannot hold: .* = 2 rollouts per prompt, which must lie between"),
        (8, 1.0, {"upper": 7}, "lower=4 and upper=7 cannot hold: the budget is .* = 8 rollouts .*raise `upper`"),
        (8, 1.0, {"lower": 1}, "lower must be at least 2 with variance='rloo', got 1. Raise it and the budget"),
        (8, 1.0, {"lower": 2, "variance": "grpo"}, "lower must be at least 3 with variance='grpo', got 2"),
        (8, 0.25, {"variance": "grpo", "skip_prompts": True}, "lower must be at least 3 with variance='grpo', got 2"),
        (8, 0.125, {}, "vip needs a budget of at least 2 rollouts per prompt, got .* = 1 rollouts per prompt"),
        (8, 1.0, {"reward_clip": 0.5}, "reward_clip must be in .0, 0.5., got 0.5"),
        (8, 1.0, {"length_scale": 0.0}, "length_scale must be above 0, got 0.0. None: the median distance"),
        (8, 1.0, {"kernel": "cosine"}, "kernel must be one of"),
        (8, 1.0, {"embeddings": " "}, "embeddings must be a name or a path, got ' '"),
    ],
)
def test_what_cannot_hold_is_an_error_with_a_remedy(num_generations, fraction, options, named):
    with pytest.raises(ValueError, match=named):
        vip(num_generations, fraction, **options)


def test_more_rollouts_than_the_ceiling_are_an_error():
    with pytest.raises(ValueError, match="8 rollouts for each of 4 prompts are above max_rollouts=31"):
        Vip(setting(4, 8, max_rollouts=31, budget_fraction=1.0), VipOptions())


def test_graded_rewards_count_as_shares_and_one_value_teaches_nothing():
    method = vip(length_scale=1.0)
    run_step(method, make_prompts(FIRST), lambda key, number: 2.0)
    assert method.process.keys == [] and method.reward_range == [2.0, 2.0]
    run_step(method, make_prompts(FIRST, step=2), table(a1=(2.0,), b1=(6.0,), c1=(3.0,), d1=(np.nan,)))
    assert method.process.keys == ["a1", "b1", "c1"]
    predicted = 1 / (1 + np.exp(-method.process.predict(np.stack([vector(key) for key in FIRST[:3]]))))
    np.testing.assert_allclose(predicted, [0.0, 1.0, 0.25], atol=1e-3)


def test_without_vectors_it_says_what_is_missing():
    method = Vip(setting(4, 8, budget_fraction=1.0), VipOptions())
    with pytest.raises(RuntimeError, match="Vip compares prompts by vectors and was given none"):
        method.jobs(make_prompts(FIRST), None)


def parity_where_not_hopeless(completions, level, **columns) -> list[float]:
    """Two of five prompts are never solved; of the others about every second rollout is."""
    return [float(lvl > 1 and text.count("4") % 2) for text, lvl in zip(completions, level, strict=True)]


def test_the_trainer_embeds_with_the_policy_and_resumes(tiny_path, tmp_path, caplog):
    options = {"method": "vip", "save_strategy": "steps", "save_steps": 1, "max_steps": 2}
    # Every step is an epoch here, and TRL shuffles the second one anew when it resumes.
    options |= {"rewards": parity_where_not_hopeless, "data": prompts(8), "shuffle_dataset": False}
    with caplog.at_level(logging.INFO, "duet_trl"):
        whole = duet_trainer(tiny_path, tmp_path, **options)
    assert caplog.text.count("prompts are compared by the mean of the policy's input embeddings") == 1
    whole.train()
    spread = logged(whole, "duet/num_rollouts/std")
    assert spread[0] == 0.0 and spread[1] > 0.0  # nothing is known, then all prompts are
    assert logged(whole, "duet/num_rollouts/mean") == [4.0, 4.0]
    assert len(logged(whole, "duet/prediction_error")) == 2
    resumed = duet_trainer(tiny_path, tmp_path, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert resumed._current.jobs == whole._current.jobs
    assert resumed._current.prompts.keys == whole._current.prompts.keys
