# SPDX-License-Identifier: Apache-2.0
"""Phase 3: group-normalised advantages for groups of unequal size, the A of Eq. 6.

The rules are TRL's, for any number of rollouts per prompt. The groups are laid out as rows of a table that is padded
with NaN, and the same nan-aware reductions run over it, so that groups of equal size get the very bits that
`GRPOTrainer` computes.
"""

from dataclasses import dataclass

import torch

EPSILON = 1e-4
"""Added to the standard deviation that divides, as in TRL."""


@dataclass(frozen=True)
class GroupAdvantages:
    """Advantages of one step, shape (N,) each."""

    advantages: torch.Tensor  # A, finite; 0 for rollouts that teach nothing
    rewards: torch.Tensor  # weighted sum of the reward functions; NaN where every function abstained
    zero_std: torch.Tensor  # whether the spread that belongs to the rollout is zero, bool


def group_advantages(
    rewards_per_func: torch.Tensor,
    reward_weights: torch.Tensor,
    group: torch.Tensor,
    *,
    scale_rewards: str = "group",
    multi_objective_aggregation: str = "sum_then_normalize",
    include: torch.Tensor | None = None,
) -> GroupAdvantages:
    """Group-normalised advantages, A = (R - mean of the group) / (std of the group + 1e-4) (paper, section 2; Eq. 6).

    The baseline is over *all* rollouts of a prompt, aborted ones included, as in the paper; `include` narrows it.
    The only rollout of a prompt gets 0: its standard deviation is undefined (docs/fidelity.md#singletons).

    Args:
        rewards_per_func (torch.Tensor): Rewards, shape (N, F), float; NaN where a function abstained (None).
        reward_weights (torch.Tensor): Weight of each function, shape (F,).
        group (torch.Tensor): Prompt of each rollout, shape (N,), int64 in 0..M-1, in any order.
        scale_rewards (str): "group" or "batch": whose standard deviation divides; "none": nothing does.
        multi_objective_aggregation (str): "sum_then_normalize" or "normalize_then_sum" over the functions.
        include (torch.Tensor | None): Rollouts that make up the baseline, shape (N,), bool; the others get advantage
            0. None: all.

    Example:
        >>> rewards = torch.tensor([[1.0], [0.0], [1.0]])
        >>> group_advantages(rewards, torch.ones(1), torch.tensor([0, 0, 1]), scale_rewards="none").advantages
        tensor([ 0.5000, -0.5000,  0.0000])
    """
    summed = weighted_sum(rewards_per_func, reward_weights)
    if not len(group):
        return GroupAdvantages(summed, summed, torch.zeros_like(summed, dtype=torch.bool))

    scored = rewards_per_func if include is None else rewards_per_func.masked_fill(~include.unsqueeze(1), torch.nan)
    slot, table_shape = _table_slots(group)
    alone = torch.bincount(group)[group] == 1

    if multi_objective_aggregation == "sum_then_normalize":
        rewards = weighted_sum(scored, reward_weights)
        advantages, std = _normalize_sum(rewards, slot, table_shape, scale_rewards)
    else:
        advantages, std = _normalize_each(scored, reward_weights, slot, table_shape, alone)
    advantages = torch.nan_to_num(advantages, nan=0.0).masked_fill(alone, 0.0)
    zero_std = alone | torch.isclose(std, torch.zeros_like(std))
    return GroupAdvantages(advantages, summed, zero_std)


def _normalize_sum(
    rewards: torch.Tensor, slot: torch.Tensor, table_shape: tuple[int, int], scale_rewards: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Centre the summed rewards in their group and scale them; also the standard deviation of each rollout."""
    num_slots = table_shape[1]
    table = _to_table(rewards.unsqueeze(1), slot, table_shape).squeeze(2)  # (M, S)
    mean = torch.nanmean(table, dim=1).repeat_interleave(num_slots)[slot]
    if scale_rewards == "batch":
        std = _nanstd(rewards, dim=0).expand_as(rewards)
    else:
        std = _nanstd(table, dim=1).repeat_interleave(num_slots)[slot]
    advantages = rewards - mean
    if scale_rewards != "none":
        advantages = advantages / (std + EPSILON)
    return advantages, std


def _normalize_each(
    scored: torch.Tensor,
    reward_weights: torch.Tensor,
    slot: torch.Tensor,
    table_shape: tuple[int, int],
    alone: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalise every function in its group, sum, and normalise the sum over the batch (`scale_rewards` is unused)."""
    table = _to_table(scored, slot, table_shape)  # (M, S, F)
    mean = torch.nanmean(table, dim=1, keepdim=True)
    std = _nanstd(table, dim=1, keepdim=True)
    normalized = ((table - mean) / (std + EPSILON)).flatten(0, 1)[slot]  # (N, F)
    rewards = (normalized * reward_weights.to(scored.device).unsqueeze(0)).nansum(dim=1)
    # A lone rollout has no normalised reward: as a zero it would shrink the spread of the batch.
    rewards[torch.isnan(scored).all(dim=1) | alone] = torch.nan
    batch_std = _nanstd(rewards, dim=0).expand_as(rewards)
    return (rewards - torch.nanmean(rewards)) / (batch_std + EPSILON), batch_std


def weighted_sum(rewards_per_func: torch.Tensor, reward_weights: torch.Tensor) -> torch.Tensor:
    """Weighted sum over the functions that did not abstain, NaN where all did, shape (N,)."""
    rewards = (rewards_per_func * reward_weights.to(rewards_per_func.device).unsqueeze(0)).nansum(dim=1)
    rewards[torch.isnan(rewards_per_func).all(dim=1)] = torch.nan
    return rewards


def _table_slots(group: torch.Tensor) -> tuple[torch.Tensor, tuple[int, int]]:
    """Flat cell of each rollout in an (M, S) table, S the largest group, and that shape.

    Rollouts of a group keep their order, so that the reductions see what a reshape of prompt-major rows would show.
    """
    sizes = torch.bincount(group)
    num_slots = int(sizes.max())
    order = torch.argsort(group, stable=True)
    first = sizes.cumsum(0) - sizes
    position = torch.empty_like(group)
    position[order] = torch.arange(len(group), device=group.device) - first[group[order]]
    return group * num_slots + position, (len(sizes), num_slots)


def _to_table(values: torch.Tensor, slot: torch.Tensor, table_shape: tuple[int, int]) -> torch.Tensor:
    """Scatter (N, F) values into an (M, S, F) table whose empty cells are NaN."""
    table = values.new_full((table_shape[0] * table_shape[1], values.shape[1]), torch.nan)
    table[slot] = values
    return table.view(*table_shape, -1)


def _nanstd(values: torch.Tensor, dim: int, keepdim: bool = False) -> torch.Tensor:
    """Standard deviation with Bessel's correction over the entries that are not NaN; NaN for fewer than two."""
    mean = torch.nanmean(values, dim=dim, keepdim=True)
    variance = torch.nanmean((values - mean) ** 2, dim=dim, keepdim=keepdim)
    count = (~torch.isnan(values)).sum(dim=dim, keepdim=keepdim)
    correction = torch.where(count > 1, count / (count - 1), torch.nan)
    return torch.sqrt(variance * correction)
