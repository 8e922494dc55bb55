# SPDX-License-Identifier: Apache-2.0
"""What most methods share: the same number of rollouts for each prompt, and advantages within its group."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from ..rollouts import Job, Rollouts
from ..update.advantages import group_advantages
from .method import Setting


def check_groups(setting: Setting, num_prompts: int) -> None:
    """Refuse a run whose rollouts have nothing to be compared with, or whose first round is too large."""
    if setting.num_generations < 2:
        raise ValueError(
            f"num_generations must be at least 2, got {setting.num_generations}: this method compares the rollouts of "
            "a prompt."
        )
    rollouts = num_prompts * setting.num_generations
    if rollouts > setting.max_rollouts:
        raise ValueError(
            f"{num_prompts} prompts x num_generations={setting.num_generations} are {rollouts} rollouts, above "
            f"max_rollouts={setting.max_rollouts}. Raise max_rollouts, or lower num_generations or the batch."
        )


def refuse_single(rollouts_per_prompt: float) -> None:
    """Refuse a budget that leaves nothing to compare a rollout with."""
    if rollouts_per_prompt <= 1:
        raise ValueError(
            f"the budget of {rollouts_per_prompt:g} rollouts per prompt leaves every prompt a single one, and no step "
            "has a gradient. Raise budget_fraction or num_generations."
        )


def uniform_jobs(prompts: Iterable[int], num_rollouts: int) -> list[Job]:
    """The same number of ungated rollouts for some prompts, prompt by prompt."""
    return [Job(prompt) for prompt in prompts for _ in range(num_rollouts)]


def counted_jobs(counts: Iterable[int]) -> list[Job]:
    """Ungated rollouts of each prompt, as many as its count, prompt by prompt."""
    return [Job(prompt) for prompt, count in enumerate(counts) for _ in range(count)]


def best_counts(value: np.ndarray, lowest: np.ndarray, total: int) -> np.ndarray:
    """Counts (M,), int64, that maximise a sum of concave values, by taking the largest gains first.

    They sum to ``total``: to less if every prompt has num_max, to more if ``lowest`` (M,), the minimum of each prompt,
    asks for more. ``value`` is that of n rollouts of each prompt, shape (num_max + 1, M), a row per n from 0; from
    ``lowest`` on its differences must fall from row to row.
    """
    base, size = int(lowest.min()), lowest.size
    # Entry i is rollout base + 1 + i // M of prompt i % M. Equal gains: by n first, so that equal prompts stay equal.
    order = np.argsort(-np.diff(value[base:], axis=0).ravel(), kind="stable")
    order = order[order // size + base >= lowest[order % size]]
    return lowest + np.bincount(order[: max(total - int(lowest.sum()), 0)] % size, minlength=size)


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


def positive_rewards(rewards: np.ndarray, extremes: Sequence[float] | None) -> np.ndarray:
    """Rewards above the middle of the run's extremes, shape (N,), bool; none while the run has seen one reward only.

    A single reward value does not define success.
    """
    low, high = (min(extremes), max(extremes)) if extremes else (0.0, 0.0)
    return rewards > (low + high) / 2.0 if low < high else np.zeros(len(rewards), dtype=bool)


def widened(extremes: Sequence[float], rewards: np.ndarray) -> list[float]:
    """The lowest and the highest reward of a run, with more rewards, nan for none; empty before the first."""
    known = [*extremes, *rewards[~np.isnan(rewards)]]
    return [float(min(known)), float(max(known))] if known else []


def spread_within(values: np.ndarray, group: np.ndarray, num_groups: int) -> np.ndarray:
    """Largest minus smallest of the values (N,) of each group, shape (num_groups,); nan counts as no value.

    -inf for a group without any.
    """
    low, high = np.full(num_groups, np.inf), np.full(num_groups, -np.inf)
    np.fmin.at(low, group, values)
    np.fmax.at(high, group, values)
    return high - low


def mixed_prompts(done: Rollouts) -> np.ndarray:
    """Prompts whose scored rollouts do not all have exactly the same reward, shape (M,), bool.

    Exact equality over whole groups: a tolerance, or the spread of the others of each rollout, would split groups.
    """
    return spread_within(done.rewards, done.prompt, len(done.prompts)) > 0.0
