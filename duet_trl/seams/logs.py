# SPDX-License-Identifier: Apache-2.0
"""TRL's metrics and completion table over all rollouts, and the columns of the audit log."""

import math
from collections import deque
from typing import Any

import numpy as np
import torch
from trl.trainer.utils import nanstd

from ..gate.replay import Outcome
from ..update.filters import unscored
from .exchange import Exchange
from .step import Step


def share_extra_logs(step: Step, pending: dict[str, list], exchange: Exchange) -> dict[str, list]:
    """Take the columns that reward functions logged, for all rollouts in global order.

    Args:
        step (Step): Current step.
        pending (dict[str, list]): TRL's buffer of the local rows; emptied.
        exchange (Exchange): Collectives.

    Returns:
        dict[str, list]: Columns of length N.
    """
    local = {column: list(values) for column, values in pending.items()}
    pending.clear()
    shared = {}
    for column in sorted(set(exchange.objects(list(local)))):
        values = local.get(column, [None] * len(step.padded_rows))
        shared[column] = exchange.in_order(step.rows, values)
    return shared


def correct_trl_metrics(
    step: Step, metrics: dict[str, list], reward_names: list[str], reward_weights: torch.Tensor
) -> None:
    """Rewrite the metrics of this step that TRL computed from the trained rows alone, over all rollouts."""
    rewards = step.rewards_per_func
    for index, name in enumerate(reward_names):
        metrics[f"rewards/{name}/mean"][-1] = torch.nanmean(rewards[:, index]).item()
        metrics[f"rewards/{name}/std"][-1] = nanstd(rewards[:, index]).item()
    total = (rewards * reward_weights.to(rewards.device)).nansum(dim=1)
    total[unscored(rewards)] = torch.nan
    metrics["reward"][-1] = torch.nanmean(total).item()
    metrics["reward_std"][-1] = nanstd(total).item()
    metrics["frac_reward_zero_std"][-1] = step.advantages.zero_std.float().mean().item()

    lengths, ended = step.replay.length, step.terminated | step.stopped
    finished = lengths[ended] if ended.any() else np.zeros(1)
    for name, values in (("", lengths), ("terminated_", finished)):
        for statistic, value in (("mean", values.mean()), ("min", values.min()), ("max", values.max())):
            metrics[f"completions/{statistic}_{name}length"][-1] = float(value)
    metrics["completions/clipped_ratio"][-1] = float((~ended).mean())


# TRL's means over the policy tokens of a micro-batch, which it reports as 0 where there are none.
_TOKEN_MEANS = (
    "entropy",
    "kl",
    "clip_ratio/low_mean",
    "clip_ratio/high_mean",
    "clip_ratio/region_mean",
    "cispo_clip_ratio",
    "vespo/phi_seq_mean",
)


def forget_token_means(metrics: dict[str, list]) -> None:
    """Take back what TRL reported of a micro-batch without policy tokens; it averages over what is not nan."""
    for name in _TOKEN_MEANS:
        if name in metrics:
            metrics[name][-1] = math.nan


def log_all_rollouts(
    step: Step, logs: dict[str, Any], reward_names: list[str], exchange: Exchange, completions: bool
) -> None:
    """Put all rollouts of this step, aborted ones included, into TRL's completion table.

    Args:
        step (Step): Current step.
        logs (dict[str, Any]): TRL's table, whose rows of the step are the trained ones alone; replaced.
        reward_names (list[str]): Reward columns.
        exchange (Exchange): Collectives.
        completions (bool): False leaves the table alone: nothing reads it.
    """
    if not completions:
        return
    logs["prompt"] = deque(step.examples[q]["prompt"] for q in step.plan.group)
    logs["completion"] = deque(exchange.in_order(step.rows, step.completions))
    for index, name in enumerate(reward_names):
        logs["rewards"][name] = deque(step.rewards_per_func[:, index].tolist())
    logs["advantages"] = deque(step.advantages.advantages.tolist())
    logs["extra"].clear()
    for column, values in step.extra_logs.items():
        logs["extra"][column] = deque(values)


def audit_columns(step: Step, advantages: np.ndarray) -> dict[str, list]:
    """One column per decision, each of length N, for the audit log."""
    group = step.plan.group
    return {
        "prompt": [step.plan.keys[q] for q in group],
        "num_rollouts": step.plan.num_rollouts[group].tolist(),
        "outcome": [Outcome(value).name.lower() for value in step.replay.outcome],
        "trimmed": step.replay.trimmed.tolist(),
        "marker_at": step.replay.marker_at.tolist(),
        "length": step.replay.length.tolist(),
        "propensity": step.judgement.propensity.tolist(),
        "weight": step.judgement.weight.tolist(),
        "reward": step.advantages.rewards.tolist(),
        "advantage": advantages.tolist(),
        "sum_logp": step.sum_logps.tolist(),
    }
