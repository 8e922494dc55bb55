# SPDX-License-Identifier: Apache-2.0
"""What most methods do alike: as many rollouts for each prompt, and advantages within its group."""

from collections.abc import Iterable

import numpy as np
import torch

from ..rollouts import Job, Rollouts
from ..update.advantages import group_advantages
from .method import Setting


def uniform_jobs(prompts: Iterable[int], num_rollouts: int) -> list[Job]:
    """The same number of ungated rollouts for some prompts, prompt by prompt."""
    return [Job(prompt) for prompt in prompts for _ in range(num_rollouts)]


def counted_jobs(counts: Iterable[int]) -> list[Job]:
    """As many ungated rollouts for each prompt as its count says, prompt by prompt."""
    return [Job(prompt) for prompt, count in enumerate(counts) for _ in range(count)]


def group_relative(done: Rollouts, setting: Setting, include: np.ndarray | None = None) -> np.ndarray:
    """GRPO's advantages over the rollouts of a prompt: see [`~duet_trl.update.advantages.group_advantages`]."""
    rewards = done.rewards_per_func
    weights = torch.ones(rewards.shape[1]) if done.reward_weights is None else done.reward_weights
    found = group_advantages(
        rewards,
        weights.to(rewards.device),
        torch.from_numpy(done.prompt).to(rewards.device),
        scale_rewards=setting.scale_rewards,
        multi_objective_aggregation=setting.multi_objective_aggregation,
        include=None if include is None else torch.from_numpy(include).to(rewards.device),
    )
    return found.advantages.double().cpu().numpy()


def mixed_prompts(done: Rollouts) -> np.ndarray:
    """Prompts whose scored rollouts do not all have the very same reward, shape (M,), bool.

    Exact equality over whole groups: a tolerance, or the spread of the others of each rollout, would split groups.
    """
    num_prompts, scored = len(done.prompts), done.scored
    low, high = np.full(num_prompts, np.inf), np.full(num_prompts, -np.inf)
    np.minimum.at(low, done.prompt[scored], done.rewards[scored])
    np.maximum.at(high, done.prompt[scored], done.rewards[scored])
    return low < high
