# SPDX-License-Identifier: Apache-2.0
"""Phase 3: group-normalised advantages for groups of unequal size, the A of Eq. 6, and its importance weights w.

The rules are TRL's, for any number of rollouts per prompt. The groups are laid out as rows of a table that is padded
with NaN, and the same nan-aware reductions run over it, so that groups of equal size get exactly the bits that
`GRPOTrainer` computes. Theorem 2, Eq. 8, gives the cost of the weights in second moment.
"""

from dataclasses import dataclass

import numpy as np
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
        scale_rewards (str): "group" or "batch": whose standard deviation divides; "none": no division.
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


def rollout_weights(
    num_rollouts: np.ndarray,
    group: np.ndarray,
    propensity: np.ndarray,
    aborted: np.ndarray,
    *,
    floor: float = 0.05,
) -> np.ndarray:
    """Weight of each rollout, w = (1 - I_abort) / (s_pre * p_abort) (text of Eq. 6; Algorithm 1, phase 3).

    s_pre = clip(n_q / mean n, floor, 1) on the *realised* counts (docs/fidelity.md#stratification). Counts n_q have
    shape (M,); the prompt of a rollout, its probability of being kept in (0, 1] and I_abort have shape (N,); `floor`
    is eps_pre, in (0, 1]. Returns w, shape (N,), float64; 0 for aborted rollouts.

    Example:
        >>> weights = rollout_weights([1, 3], [0, 1, 1, 1], [1, 1, 0.5, 1], [False, False, False, True])
        >>> weights.tolist()
        [2.0, 1.0, 2.0, 0.0]
    """
    num_rollouts, group = np.asarray(num_rollouts), np.asarray(group, dtype=np.int64)
    per_prompt = np.clip(num_rollouts / num_rollouts.mean(), floor, 1.0) if len(group) else np.ones(0)
    return ~np.asarray(aborted, dtype=bool) / (per_prompt[group] * np.asarray(propensity, dtype=np.float64))


def effective_sample_size(weights: np.ndarray) -> float:
    """Kish's effective number of rollouts, (sum w)^2 / sum w^2; at most the number of non-zero weights."""
    weights = np.asarray(weights, dtype=np.float64)
    squares = np.square(weights).sum()
    return float(weights.sum() ** 2 / squares) if squares > 0 else 0.0


def surcharge_bound(
    markerless_rate: np.ndarray,
    keep_probability: float,
    second_moment: np.ndarray,
    squared_weights: np.ndarray | float = 1.0,
) -> np.ndarray:
    """Second moment that the abort adds at most, per prompt (Theorem 2, Eq. 8, with its aggregation corollary).

    (1 - p_marker) * (1 - eps) / eps * sigma^2_mless * sum_i w_i^2

    `markerless_rate` is 1 - p_marker, `keep_probability` eps_abort in (0, 1] (else ValueError), `second_moment`
    sigma^2_mless of a marker-less rollout's contribution, `squared_weights` the sum over a prompt; shape (M,) each.
    """
    if not 0 < keep_probability <= 1:
        raise ValueError(f"keep_probability must be in (0, 1], got {keep_probability}. Nothing is kept at 0.")
    odds = (1 - keep_probability) / keep_probability
    return np.asarray(markerless_rate) * odds * np.asarray(second_moment) * squared_weights


def surcharge(
    advantages: np.ndarray,
    sum_logps: np.ndarray,
    lengths: np.ndarray,
    group: np.ndarray,
    propensity: np.ndarray,
    aborted: np.ndarray,
    *,
    num_prompts: int,
    keep_probability: float,
) -> float:
    """Factor by which the abort raises the second moment of the update (Theorem 2, aggregation corollary (ii)).

    A heuristic, as in the paper: N_t is random, and instead of gradients it uses the surrogate of Eq. 3. The
    contribution of a rollout is z = A * sum log pi / length, its aggregation weight length / N_t. sigma^2_mless of a
    prompt is the mean of z^2 over its marker-less kept rollouts; where it has none, over all of the batch's; where the
    batch has none either, over all kept rollouts. Columns have shape (N,); a propensity below 1 marks a marker-less
    kept rollout. Returns (natural + Eq. 8 summed over prompts) / natural: 1 is free, the paper reports at most 1.5.
    """
    kept = ~aborted
    num_tokens = lengths[kept].sum()  # N_t
    if num_tokens == 0:
        return 1.0
    markerless_kept = kept & (propensity < 1)
    teaching = kept & (advantages != 0)
    contribution = np.zeros(len(group))
    contribution[teaching] = advantages[teaching] * sum_logps[teaching] / np.maximum(lengths[teaching], 1)
    squared_contribution = np.square(contribution)
    squared_weight = np.where(kept, np.square(lengths / num_tokens), 0.0)

    def per_prompt(values: np.ndarray) -> np.ndarray:
        return np.bincount(group, weights=values, minlength=num_prompts)

    size = np.maximum(per_prompt(np.ones(len(group))), 1)
    markerless_rate = per_prompt(aborted | markerless_kept) / size
    pool = markerless_kept if markerless_kept.any() else kept
    observed = per_prompt(markerless_kept)
    second_moment = np.where(
        observed > 0,
        per_prompt(squared_contribution * markerless_kept) / np.maximum(observed, 1),
        squared_contribution[pool].mean(),
    )
    bound = surcharge_bound(markerless_rate, keep_probability, second_moment, per_prompt(squared_weight))
    # Marker-less rollouts survive with probability p, so each represents 1/p natural ones.
    natural = float((squared_weight * squared_contribution / propensity).sum())
    return 1.0 + float(bound.sum()) / natural if natural > 0 else 1.0
