# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1 as a whole: what a plan depends on, and that a restored controller goes on as if never interrupted."""

import json

import numpy as np
import pytest

from benchmarks.common import grouped
from duet_trl import DUETGRPOConfig
from duet_trl.gate.automaton import compile_automaton
from duet_trl.gate.markers import get_marker
from duet_trl.gate.replay import Outcome, Replay
from duet_trl.methods import build_controller

KEYS = [f"prompt {i}" for i in range(24)]
VOCABULARY = [b"\\boxed{4}", b"x", None]


def controller(tmp_path, **overrides):
    settings = {
        "output_dir": str(tmp_path),
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 4,
        "num_generations": 8,
        "max_completion_length": 200,
        "threshold_interval": 2,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "seed": 3,
    }
    config = DUETGRPOConfig(**grouped({**settings, **overrides}))
    return build_controller(config, compile_automaton(get_marker("math"), VOCABULARY) if config.gated else None)


def observations(num_rollouts: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Recorded rollouts of a step: lengths, outcomes, advantages, log-probabilities."""
    return {
        "length": rng.integers(1, 200, num_rollouts),
        "outcome": rng.choice([0, 1, 2, 3], num_rollouts, p=[0.5, 0.3, 0.05, 0.15]),
        "advantages": rng.choice([-1.0, 0.0, 1.0], num_rollouts),
        "sum_logps": -rng.uniform(1, 300, num_rollouts),
        "rewards": rng.choice([0.0, 1.0], num_rollouts),
    }


def run_step(unit, step: int, rng: np.random.Generator):
    """Plan a step over 8 of the prompts, feed recorded observations, return what was decided."""
    keys = [KEYS[(8 * step + i) % len(KEYS)] for i in range(8)]
    plan = unit.plan(keys, epoch=step * 8 // len(KEYS))
    seen = observations(len(plan.group), rng)
    marker_at = np.where(seen["outcome"] == Outcome.ANSWERED, seen["length"], -1)
    replay = Replay(seen["outcome"], marker_at, seen["outcome"] == Outcome.ANSWERED, seen["length"], marker_at)
    judgement = unit.weigh(plan, seen["outcome"], seen["advantages"])
    unit.observe_rollouts(plan, replay, judgement, seen["rewards"], np.ones(len(plan.group), dtype=bool))
    unit.observe_sigma(plan, seen["advantages"], seen["sum_logps"], judgement.kept)
    return plan, judgement


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"allocation_objective": "variance"},
        {"method": "paper"},
        {"budget_reading": "reference"},
    ],
)
def test_a_restored_controller_decides_exactly_as_the_uninterrupted_one(tmp_path, overrides):
    whole, halved = controller(tmp_path, **overrides), controller(tmp_path, **overrides)
    rng_whole, rng_halved = np.random.default_rng(0), np.random.default_rng(0)
    for step in range(14):
        if step == 7:
            state = json.loads(json.dumps(halved.state_dict()))
            halved = controller(tmp_path, **overrides)
            halved.load_state_dict(state)
        (plan, judged), (other, other_judged) = run_step(whole, step, rng_whole), run_step(halved, step, rng_halved)
        assert plan.step == other.step
        assert plan.gate.spec == other.gate.spec
        assert plan.allocation.dual == other.allocation.dual
        for name in ("num_rollouts", "group", "cold"):
            np.testing.assert_array_equal(getattr(plan, name), getattr(other, name))
        np.testing.assert_array_equal(plan.gate.keep, other.gate.keep)
        np.testing.assert_array_equal(judged.weight, other_judged.weight)
    assert whole.state_dict() == halved.state_dict()
    assert len(set(plan.num_rollouts.tolist())) > 1  # the history mattered


def test_a_plan_changes_nothing_until_its_rollouts_are_observed(tmp_path):
    unit = controller(tmp_path)
    first, second = unit.plan(KEYS[:8], 0), unit.plan(KEYS[:8], 0)
    np.testing.assert_array_equal(first.gate.keep, second.gate.keep)
    assert first.step == second.step == 1


@pytest.mark.parametrize(
    "change", [{"marker": "qa"}, {"seed": 4}, {"method": "paper"}, {"max_completion_length": 300}]
)
def test_the_state_of_another_configuration_is_refused_by_name(tmp_path, change):
    state = controller(tmp_path).state_dict()
    with pytest.raises(ValueError, match="belongs to another configuration.*" + next(iter(change))):
        controller(tmp_path, **change).load_state_dict(state)


def test_a_state_without_parts_is_refused(tmp_path):
    state = controller(tmp_path).state_dict()
    del state["gate"]
    with pytest.raises(ValueError, match=r"lacks \['gate'\]"):
        controller(tmp_path).load_state_dict(state)


def test_cold_prompts_share_the_budget_evenly(tmp_path):
    assert controller(tmp_path).plan(KEYS[:8], 0).num_rollouts.tolist() == [4] * 8


def test_weights_are_those_of_equation_6(tmp_path):
    # n = (1, 3): mean 2, s_pre = (0.5, 1). p = 1 natural, 0.05 kept, aborted masked.
    unit = controller(
        tmp_path, keep_probability=0.05, stratification="clip", aborted_rollouts="mask", advantage_baseline="group"
    )
    plan = unit.plan(KEYS[:2], 0)
    plan.allocation.num_rollouts[:] = [1, 3]
    plan = type(plan)(plan.step, plan.keys, plan.allocation, plan.cold, np.array([0, 1, 1, 1]), plan.gate)
    outcome = np.array([Outcome.NATURAL, Outcome.ANSWERED, Outcome.KEPT, Outcome.ABORTED])
    judgement = unit.weigh(plan, outcome, np.array([0.0, 1.0, -1.0, 1.0]))
    np.testing.assert_allclose(judgement.weight, [2.0, 1.0, 20.0, 0.0])
    assert judgement.kept.tolist() == [True, True, True, False]
    assert judgement.trained.tolist() == [False, True, True, False]  # advantage 0 needs no forward pass


def test_trained_failures_weigh_as_if_the_gate_had_no_coin(tmp_path):
    unit = controller(tmp_path, aborted_rollouts="failure")
    plan = unit.plan(KEYS[:2], 0)
    outcome = np.full(len(plan.group), Outcome.ABORTED)
    outcome[0] = Outcome.KEPT
    judgement = unit.weigh(plan, outcome, np.ones(len(plan.group)))
    np.testing.assert_allclose(judgement.weight, 1.0)
    assert judgement.kept.all()


def test_aborted_rollouts_stay_out_of_the_length_window(tmp_path):
    unit = controller(tmp_path, threshold_interval=1, threshold_window=32)
    plan = unit.plan(KEYS[:8], 0)
    num = len(plan.group)
    outcome = np.where(np.arange(num) < 4, Outcome.ABORTED, Outcome.NATURAL)
    length = np.where(outcome == Outcome.ABORTED, 190, 50)
    # 28 kept rollouts are fewer than a refit needs, so look at the window itself through its state.
    never = np.full(num, -1)
    replay = Replay(outcome, never, np.zeros(num, dtype=bool), length, never)
    judgement = unit.weigh(plan, outcome, np.ones(num))
    unit.observe_rollouts(plan, replay, judgement, np.ones(num), np.ones(num, dtype=bool))
    assert "190" not in json.dumps(unit.state_dict()["gate"])


def replay_of(outcome: np.ndarray, length: int, answered_at: np.ndarray | None = None) -> Replay:
    """Rollouts of one length that were not trimmed; aborted ones show no answer."""
    never = np.full(len(outcome), -1)
    shown = never if answered_at is None else np.where(outcome == Outcome.ABORTED, -1, answered_at)
    polled = np.where(outcome == Outcome.ANSWERED, shown, -1)
    return Replay(outcome, polled, np.zeros(len(outcome), dtype=bool), np.full(len(outcome), length), shown)


def test_rewards_of_aborted_rollouts_are_remembered_and_missing_ones_are_not(tmp_path):
    unit = controller(tmp_path)
    plan = unit.plan(KEYS[:8], 0)
    assert plan.num_rollouts.tolist() == [4] * 8
    outcome = np.tile([Outcome.NATURAL, Outcome.NATURAL, Outcome.ABORTED, Outcome.NATURAL], 8)
    rewards = np.tile([1.0, 1.0, 0.0, np.nan], 8)
    judgement = unit.weigh(plan, outcome, np.ones(32))
    unit.observe_rollouts(plan, replay_of(outcome, 50), judgement, rewards, ~np.isnan(rewards))
    history = unit.reward_history(unit.plan(KEYS[:8], 0))
    np.testing.assert_allclose(history.count, 0.7 * 3)
    np.testing.assert_allclose(history.mean, 2 / 3)


@pytest.mark.parametrize(("quantile", "expected"), [(0.95, 100), (0.0, 90)])
def test_k2_follows_the_answers_of_rollouts_that_were_not_aborted(tmp_path, quantile, expected):
    # 32 rollouts a step. Answers at 80 in three of four: 1.25 * 80 = 100, where the lengths say 90.
    unit = controller(tmp_path, threshold_interval=2, threshold_window=64, abort_answer_quantile=quantile)
    for _ in range(2):
        plan = unit.plan(KEYS[:8], 0)
        outcome = np.tile([Outcome.ANSWERED, Outcome.ANSWERED, Outcome.ANSWERED, Outcome.ABORTED], 8)
        judgement = unit.weigh(plan, outcome, np.ones(32))
        everyone = np.ones(32, dtype=bool)
        unit.observe_rollouts(plan, replay_of(outcome, 90, np.full(32, 80)), judgement, np.ones(32), everyone)
    assert unit.plan(KEYS[:8], 0).gate.spec.abort_threshold == expected


@pytest.mark.parametrize(("reward", "expected"), [(1.0, 188), (0.0, 140)])
def test_a_late_answer_that_the_coin_kept_raises_k2_at_once_if_it_was_rewarded(tmp_path, reward, expected):
    # K2 begins at 0.7 * 200 = 140. The kept rollout answered after 150 tokens: 1.25 * 150 = 187.5. No refit is due.
    unit = controller(tmp_path, threshold_interval=1000)
    plan = unit.plan(KEYS[:8], 0)
    outcome = np.tile([Outcome.ANSWERED, Outcome.ANSWERED, Outcome.ANSWERED, Outcome.ABORTED], 8)
    outcome[3] = Outcome.KEPT
    found = replay_of(outcome, 160, np.where(outcome == Outcome.KEPT, 150, 80))
    rewards = np.where(outcome == Outcome.KEPT, reward, np.tile([1.0, 1.0, 0.0, 0.0], 8))
    judgement = unit.weigh(plan, outcome, np.ones(32))
    unit.observe_rollouts(plan, found, judgement, rewards, np.ones(32, dtype=bool))
    assert unit.plan(KEYS[:8], 0).gate.spec.abort_threshold == expected


def test_by_default_small_advantages_get_no_forward_pass_and_stay_in_the_divisor(tmp_path):
    unit = controller(tmp_path, advantage_cutoff=0.5)
    plan = unit.plan(KEYS[:8], 0)
    advantages = np.tile([0.6, -0.6, 0.3, 0.0], 8)
    judgement = unit.weigh(plan, np.tile([Outcome.NATURAL, Outcome.ABORTED], 16), advantages)
    assert judgement.trained.tolist() == [True, True, False, False] * 8  # aborted ones are failures, not masked
    assert judgement.kept.all()
    np.testing.assert_array_equal(judgement.weight, 1.0)


def test_the_state_of_another_objective_is_refused(tmp_path):
    variance = controller(tmp_path, allocation_objective="variance").state_dict()
    with pytest.raises(ValueError, match="allocator state"):
        controller(tmp_path).load_state_dict(variance)
    with pytest.raises(ValueError, match="allocator state"):
        controller(tmp_path, allocation_objective="variance").load_state_dict(controller(tmp_path).state_dict())
