# SPDX-License-Identifier: Apache-2.0
"""Advantages of a step over the configured baseline."""

from dataclasses import replace

import torch

from ..config import DUETGRPOConfig
from ..controller import Controller
from ..methods import settings_of
from ..update.advantages import GroupAdvantages, group_advantages
from ..update.baseline import history_advantages
from .step import Step


def step_advantages(
    step: Step, controller: Controller, args: DUETGRPOConfig, reward_weights: torch.Tensor
) -> GroupAdvantages:
    """Unweighted advantages of all N rollouts.

    Args:
        step (Step): Scored step.
        controller (Controller): Remembers earlier visits of its prompts.
        args (DUETGRPOConfig): Baseline, scale and aggregation.
        reward_weights (torch.Tensor): Weight of each reward function, shape (F,).

    Returns:
        GroupAdvantages: On the device of the rewards.
    """
    rewards = step.rewards_per_func
    found = group_advantages(
        rewards,
        reward_weights.to(rewards.device),
        torch.from_numpy(step.plan.group).to(rewards.device),
        scale_rewards=args.scale_rewards,
        multi_objective_aggregation=args.multi_objective_aggregation,
    )
    if settings_of(args).options.advantage_baseline == "group":
        return found
    history = controller.reward_history(step.plan)
    summed = found.rewards.double().cpu().numpy()
    advantages = history_advantages(summed, step.plan.group, history, args.scale_rewards)
    return replace(found, advantages=torch.from_numpy(advantages).to(found.advantages))
