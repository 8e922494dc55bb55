# SPDX-License-Identifier: Apache-2.0
"""`duet` and `paper` as a whole: what a step depends on, and that a restored method continues as if uninterrupted."""

import copy

import numpy as np
import pytest
import torch

from duet_trl.gate.replay import GateSpec, Outcome, Replay
from duet_trl.methods import build_method
from duet_trl.methods.duet import Duet
from duet_trl.methods.paper import Paper
from duet_trl.rollouts import Job, Prompt, Prompts, Rollouts
from duet_trl.update.advantages import EPSILON, weighted_sum
from tests.states import plain
from tests.test_config import config

KEYS = [f"prompt {i}" for i in range(24)]
PAPER = {"method": "paper"}
NAN = float("nan")


def duet(tmp_path, **overrides) -> Duet | Paper:
    return build_method(config(tmp_path, **{"max_completion_length": 200, "seed": 3, **overrides}))


def prompts(keys, step: int = 1, epoch: int = 0) -> Prompts:
    return Prompts([Prompt(key, {"prompt": key}) for key in keys], step, epoch)


def done(of: Prompts, jobs, outcome, length, rewards, answered_at=None, trimmed=None) -> Rollouts:
    """The rollouts of some jobs, with a single reward function or several."""
    never = np.full(len(jobs), -1)
    answered_at = never if answered_at is None else np.asarray(answered_at)
    marker_at = np.where(outcome == Outcome.ANSWERED, answered_at, -1)
    per_func = torch.tensor(np.reshape(rewards, (len(jobs), -1)))
    trimmed = np.zeros(len(jobs), dtype=bool) if trimmed is None else trimmed
    return Rollouts(
        prompts=of,
        jobs=tuple(jobs),
        prompt=np.array([job.prompt for job in jobs]),
        round=np.zeros(len(jobs), dtype=np.int64),
        replay=Replay(np.asarray(outcome), marker_at, trimmed, np.asarray(length), answered_at, answered_at),
        terminated=np.ones(len(jobs), dtype=bool),
        rewards_per_func=per_func,
        rewards=weighted_sum(per_func, torch.ones(per_func.shape[1])).double().numpy(),
    )


def run_step(unit: Duet, number: int, rng: np.random.Generator):
    """A step over 8 of the prompts with recorded rollouts; what was decided."""
    of = prompts([KEYS[(8 * number + i) % len(KEYS)] for i in range(8)], number + 1, number * 8 // len(KEYS))
    jobs = unit.jobs(of, None)
    n = len(jobs)
    outcome = rng.choice([0, 1, 2, 3], n, p=[0.5, 0.3, 0.05, 0.15])
    length = rng.integers(1, 200, n)
    found = done(
        of, jobs, outcome, length, rng.choice([0.0, 1.0], n), np.where(outcome == Outcome.ANSWERED, length, -1)
    )
    assert unit.jobs(of, found) == []
    judgement = unit.judge(found)
    unit.observe(found, judgement, -rng.uniform(1, 300, n))
    return jobs, judgement


@pytest.mark.parametrize("overrides", [{}, {**PAPER, "threshold_interval": 3}])
def test_a_restored_method_decides_exactly_as_the_uninterrupted_one(tmp_path, overrides):
    whole, halved = duet(tmp_path, **overrides), duet(tmp_path, **overrides)
    rng_whole, rng_halved = np.random.default_rng(0), np.random.default_rng(0)
    decided = set()
    for step in range(14):
        if step == 7:
            state = copy.deepcopy(halved.state_dict())
            halved = duet(tmp_path, **overrides)
            halved.load_state_dict(state)
        (jobs, judged), (other, other_judged) = run_step(whole, step, rng_whole), run_step(halved, step, rng_halved)
        assert jobs == other  # prompts, gates and coins
        np.testing.assert_array_equal(judged.weight, other_judged.weight)
        np.testing.assert_array_equal(judged.advantages, other_judged.advantages)
        assert whole.metrics() == halved.metrics()
        decided.add((whole.metrics()["price"], *np.bincount([job.prompt for job in jobs]).tolist()))
    assert plain(whole.state_dict()) == plain(halved.state_dict())
    assert len(decided) > 1  # the history mattered


def test_a_state_without_parts_is_refused(tmp_path):
    state = duet(tmp_path).state_dict()
    del state["thresholds"]
    with pytest.raises(ValueError, match=r"keys \['allocator'\]"):
        duet(tmp_path).load_state_dict(state)


def test_the_state_of_other_counts_or_another_method_is_refused(tmp_path):
    even, uneven = duet(tmp_path, **PAPER, allocate=False), duet(tmp_path, **PAPER)
    with pytest.raises(ValueError, match="Allocator state"):
        uneven.load_state_dict(even.state_dict())
    with pytest.raises(ValueError, match="Allocator state"):
        even.load_state_dict(uneven.state_dict())
    with pytest.raises(ValueError, match="LengthThresholds state"):
        even.load_state_dict(duet(tmp_path).state_dict())


def test_weights_are_those_of_equation_6(tmp_path):
    # n = (1, 3): mean 2, s_pre = (0.5, 1). p = 1 natural, 0.05 kept, aborted masked.
    unit = duet(tmp_path, **PAPER, keep_probability=0.05)
    of = prompts(KEYS[:2])
    unit.jobs(of, None)
    outcome = np.array([Outcome.NATURAL, Outcome.ANSWERED, Outcome.KEPT, Outcome.ABORTED])
    found = done(of, [Job(0), Job(1), Job(1), Job(1)], outcome, [9] * 4, [1.0, 1.0, 0.0, 1.0])
    judgement = unit.judge(found)
    np.testing.assert_allclose(judgement.weight, [2.0, 1.0, 20.0, 0.0])
    assert judgement.in_divisor.tolist() == [True, True, True, False]
    assert judgement.in_gradient.tolist() == [True, True, True, False]


def test_trained_failures_weigh_as_if_the_gate_had_no_coin(tmp_path):
    unit, of = duet(tmp_path), prompts(KEYS[:2])
    jobs = unit.jobs(of, None)
    outcome = np.full(len(jobs), Outcome.ABORTED)
    outcome[0] = Outcome.KEPT
    judgement = unit.judge(done(of, jobs, outcome, [9] * len(jobs), np.arange(len(jobs)) % 2.0))
    np.testing.assert_allclose(judgement.weight, 1.0)
    assert judgement.in_divisor.all()


def test_rewards_of_aborted_rollouts_are_remembered_and_missing_ones_are_not(tmp_path):
    unit, of = duet(tmp_path), prompts(KEYS[:8])
    jobs = unit.jobs(of, None)
    outcome = np.tile([Outcome.NATURAL, Outcome.NATURAL, Outcome.ABORTED, Outcome.NATURAL], 8)
    found = done(of, jobs, outcome, [50] * 32, np.tile([1.0, 1.0, 0.0, NAN], 8))
    unit.observe(found, unit.judge(found), np.zeros(32))
    history = unit.allocator.statistics.reward_history(of.keys)
    np.testing.assert_allclose(history.count, 0.7 * 3)
    np.testing.assert_allclose(history.mean, 2 / 3)


def gated(unit: Duet, rewards: np.ndarray, step: int = 1) -> None:
    """A step in which 24 rollouts answer at 80 of 90 tokens, and 8 run to the limit of 200 for nothing."""
    of = prompts(KEYS[:8], step)
    jobs = unit.jobs(of, None)
    late = np.tile([False, False, False, True], 8)
    length, answered_at = np.where(late, 200, 90), np.where(late, -1, 80)
    found = done(of, jobs, np.full(32, Outcome.NATURAL), length, np.where(late, 0.0, rewards), answered_at)
    unit.observe(found, unit.judge(found), np.zeros(32))


def gate_of(unit: Duet, step: int) -> GateSpec:
    return unit.jobs(prompts(KEYS[:8], step), None)[0].gate


def test_k2_follows_what_answers_earn_and_by_the_papers_rule_the_lengths(tmp_path):
    rewards = np.tile([1.0, 0.0, 1.0, 0.0], 8)
    by_price = duet(tmp_path)
    by_length = duet(tmp_path, **PAPER, allocate=False, threshold_interval=2)
    for unit in (by_price, by_length):
        gated(unit, rewards)
    assert gate_of(by_price, 2).abort_at == 200  # 8 rollouts that earned nothing do not yet outweigh the prior
    for unit in (by_price, by_length):
        gated(unit, rewards, 2)
    assert gate_of(by_price, 3).abort_at == 80
    assert (gate_of(by_length, 3).poll_threshold, gate_of(by_length, 3).abort_threshold) == (90, 200)
    assert gate_of(by_price, 3).poll_threshold == 1


def test_the_coin_of_a_step_is_the_propensity_of_its_rollouts(tmp_path):
    unit = duet(tmp_path)
    for step in range(1, 9):
        gated(unit, np.tile([1.0, 0.0, 1.0, 0.0], 8), step)
    of = prompts(KEYS[:8], 9)
    jobs = unit.jobs(of, None)
    coin = unit.keep_probability
    assert coin < 0.5
    gated_ones = done(of, jobs, np.full(32, Outcome.KEPT), [100] * 32, np.zeros(32))
    judgement = unit.judge(gated_ones)
    np.testing.assert_allclose(judgement.propensity, coin)


def test_the_rollouts_of_a_step_share_their_coin_so_that_few_steps_wait_for_a_long_one(tmp_path):
    unit, literal = duet(tmp_path), duet(tmp_path, **PAPER, keep_probability=0.5)
    coins = np.array([[job.keep for job in unit.jobs(prompts(KEYS[:8], step), None)] for step in range(400)])
    assert unit.keep_probability == 0.5
    assert (coins == coins[:, :1]).all()
    assert abs(coins[:, 0].sum() - 200) < 4 * 10  # standard deviations
    alone = np.array([job.keep for job in literal.jobs(prompts(KEYS[:8], 1), None)])
    assert alone.any() and not alone.all()


def test_advantages_are_those_of_grpo_and_zeros_get_no_forward_pass_but_count_in_the_divisor(tmp_path):
    unit = duet(tmp_path)
    of = prompts(KEYS[:8])
    jobs = unit.jobs(of, None)
    rewards = np.concatenate([np.tile([1.0, 0.0, 0.0, 0.0], 4), np.ones(12), np.tile([NAN], 4)])
    step = done(of, jobs, np.tile([Outcome.NATURAL, Outcome.ABORTED], 16), [9] * 32, rewards)
    for _ in range(2):  # what was earned before changes nothing
        judgement = unit.judge(step)
        expected = np.array([0.75, -0.25, -0.25, -0.25]) / (np.std([1, 0, 0, 0], ddof=1) + EPSILON)
        np.testing.assert_allclose(judgement.advantages, [*np.tile(expected, 4), *np.zeros(16)], rtol=1e-6)
        assert judgement.in_divisor.all()
        assert judgement.in_gradient.tolist() == [True] * 16 + [False] * 16  # aborted ones are failures, not masked
        np.testing.assert_array_equal(judgement.weight, 1.0)
        unit.observe(step, judgement, np.full(32, -1.0))


def test_the_metrics_say_what_the_gate_cost_and_who_was_cold(tmp_path):
    unit = duet(tmp_path, **PAPER, keep_probability=0.5)
    of = prompts(["a", "b"])
    unit.jobs(of, None)
    unit.allocator.cold = np.array([True, False])
    outcome = np.array([Outcome.NATURAL, Outcome.ANSWERED, Outcome.KEPT, Outcome.ABORTED])
    found = done(
        of, [Job(0), Job(1), Job(1), Job(1)], outcome, [8, 17, 60, 35], [1.0, 0.0, 1.0, 0.0], [-1, 12, 48, -1]
    )
    unit.observe(found, unit.judge(found), np.array([NAN, -5.0, -20.0, NAN]))
    metrics = unit.metrics()
    assert metrics["late_answers_lost"] == 1 / 0.5 - 1  # the kept rollout answered, better than its baseline
    assert metrics["cold_prompts"] == 1.0
    assert metrics["cold_gradient_share"] == 0.0  # its advantage is 0
    assert (metrics["poll_threshold"], metrics["abort_threshold"]) == (60.0, 140.0)  # 0.3 and 0.7 of 200
    assert metrics["surcharge"] > 1.0
