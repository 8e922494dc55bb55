# SPDX-License-Identifier: Apache-2.0
"""The advantages of a step: which baseline, from whose history, in which order."""

import numpy as np
import pytest
import torch

from duet_trl import DUETGRPOConfig
from duet_trl.allocate.neyman import Allocation
from duet_trl.controller import Controller, StepPlan
from duet_trl.gate.marker_gate import GatePlan
from duet_trl.gate.replay import GateSpec
from duet_trl.methods import build_controller
from duet_trl.seams.exchange import Placement
from duet_trl.seams.step import Step
from duet_trl.seams.step_advantages import step_advantages
from duet_trl.update.advantages import group_advantages
from duet_trl.update.baseline import history_advantages
from tests.runs import duet_settings

NAN = float("nan")
GROUP = np.array([0, 1, 1, 1])
REWARDS = [[1.0, 0.5], [2.0, 0.0], [NAN, NAN], [0.0, NAN]]  # two reward functions; the second may abstain
WEIGHTS = torch.tensor([1.0, 2.0])
SUMMED = np.array([2.0, 2.0, NAN, 0.0])


def config(tmp_path, **overrides) -> DUETGRPOConfig:
    return DUETGRPOConfig(**duet_settings(tmp_path, trim=False, abort=False, **overrides))


def step() -> Step:
    """A scored step of a lone rollout of "a" and three of "b"."""
    plan = StepPlan(
        step=2,
        keys=("a", "b"),
        allocation=Allocation(np.array([1, 3]), dual=0.0, planned_tokens=1.0, budget_tokens=1.0, gap=0.0),
        cold=np.zeros(2, dtype=bool),
        group=GROUP,
        gate=GatePlan(GateSpec(10, 30, 5), np.zeros(4, dtype=bool)),
    )
    placement = Placement(num_rollouts=4, num_processes=1, interleaved=True)
    return Step([{}, {}], plan, placement, np.arange(4), rewards_per_func=torch.tensor(REWARDS))


def remembering(args: DUETGRPOConfig) -> Controller:
    """A controller that has seen "b" earn 2 and 1, and nothing of "a"."""
    controller = build_controller(args, None)
    controller.allocator.observe_rewards(["b"], np.array([0, 0]), np.array([2.0, 1.0]), np.ones(2, dtype=bool))
    return controller


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_over_a_history_the_summed_rewards_of_the_step_meet_those_of_its_prompts(tmp_path, scale):
    args = config(tmp_path, scale_rewards=scale)
    controller = remembering(args)
    found = step_advantages(step(), controller, args, WEIGHTS)
    seen = controller.allocator.statistics.reward_history(["a", "b"])
    np.testing.assert_allclose(found.advantages, history_advantages(SUMMED, GROUP, seen, scale), rtol=1e-6)
    assert found.advantages.dtype == torch.float32
    np.testing.assert_array_equal(found.rewards, SUMMED)
    if scale == "none":
        # "a" has the pool's mean of 1.5 alone; "b" remembers 1.4 rollouts of mean 1.5 and one of the pool.
        np.testing.assert_allclose(found.advantages, [0.5, 2 - 3.6 / 3.4, 0.0, 0 - 5.6 / 3.4], rtol=1e-6)


@pytest.mark.parametrize("options", [{"advantage_baseline": "group"}, {"allocate": False}, {"method": "paper"}])
def test_over_the_group_no_history_matters(tmp_path, options):
    args = config(tmp_path, **options)
    found = step_advantages(step(), remembering(args), args, WEIGHTS)
    expected = group_advantages(torch.tensor(REWARDS), WEIGHTS, torch.from_numpy(GROUP))
    torch.testing.assert_close(found.advantages, expected.advantages, rtol=0, atol=0)
    assert found.advantages[0] == 0.0  # the lone rollout


def test_the_flags_of_zero_spread_stay_those_of_the_group(tmp_path):
    args = config(tmp_path)
    found = step_advantages(step(), remembering(args), args, WEIGHTS)
    assert found.zero_std.tolist() == [True, False, False, False]
    assert found.advantages[0] != 0.0


def test_the_history_is_read_and_not_written(tmp_path):
    args = config(tmp_path)
    controller = remembering(args)
    before = controller.state_dict()
    step_advantages(step(), controller, args, WEIGHTS)
    assert controller.state_dict() == before
