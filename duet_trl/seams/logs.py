# SPDX-License-Identifier: Apache-2.0
"""TRL's metrics and completion table over all rollouts, and the columns of the audit log."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from trl.trainer.utils import nanstd

from ..exchange import Exchange
from ..gate.replay import Outcome
from ..step_record import StepRecord
from ..update.advantages import GroupAdvantages


class Reporters:
    """Who reports which metric under `duet/`: a name has one reporter, or two figures would be averaged."""

    def __init__(self) -> None:
        self._by: dict[str, str] = {}

    def report(self, metrics: dict[str, list], values: Mapping[str, float], by: str) -> None:
        """Add values to TRL's metrics.

        Raises:
            ValueError: If somebody else reports one of them.
            TypeError: If one is no number.
        """
        for name, value in values.items():
            other = self._by.setdefault(name, by)
            if other != by:
                raise ValueError(f"{by} reports the metric {name!r}, which {other} reports too. Give it another name.")
            if not isinstance(value, int | float):
                raise TypeError(f"{by} reports the metric {name!r} as {value!r}. Use float(x).")
            metrics[f"duet/{name}"].append(value)


def share_extra_logs(rows: np.ndarray, pending: dict[str, list], exchange: Exchange) -> dict[str, list]:
    """Take the columns that reward functions logged, for all rollouts of a round in global order."""
    local = {column: list(values) for column, values in pending.items()}
    pending.clear()
    columns = sorted(set(exchange.objects(list(local))))
    return {column: exchange.in_order(rows, local.get(column, [None] * len(rows))) for column in columns}


def merge_rounds(metrics: dict[str, list], before: dict[str, int]) -> None:
    """Keep one entry of what TRL has reported for each round of a step; the figures themselves are rewritten later."""
    for name, values in metrics.items():
        del values[before.get(name, 0) + 1 :]


def correct_trl_metrics(
    step: StepRecord, metrics: dict[str, list], reward_names: list[str], grouped: GroupAdvantages
) -> None:
    """Rewrite the metrics of this step that TRL computed from the trained rows alone, over all rollouts."""
    rewards = step.done.rewards_per_func
    for index, name in enumerate(reward_names):
        metrics[f"rewards/{name}/mean"][-1] = torch.nanmean(rewards[:, index]).item()
        metrics[f"rewards/{name}/std"][-1] = nanstd(rewards[:, index]).item()
    metrics["reward"][-1] = torch.nanmean(grouped.rewards).item()
    metrics["reward_std"][-1] = nanstd(grouped.rewards).item()
    metrics["frac_reward_zero_std"][-1] = grouped.zero_std[step.counted].float().mean().item()

    lengths, ended = step.replay.length[step.counted], (step.done.terminated | step.stopped)[step.counted]
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
    step: StepRecord, logs: dict[str, Any], reward_names: list[str], exchange: Exchange, completions: bool
) -> None:
    """Put all rollouts of this step, aborted ones included, into TRL's completion table."""
    if not completions:
        return
    shown = np.flatnonzero(step.counted)
    completion = exchange.in_order(step.rows, [rollout.completion for rollout in step.local.values()])
    logs["prompt"] = deque(step.prompts[q].example["prompt"] for q in step.done.prompt[shown])
    logs["completion"] = deque(completion[row] for row in shown)
    for index, name in enumerate(reward_names):
        logs["rewards"][name] = deque(step.done.rewards_per_func[shown, index].tolist())
    logs["advantages"] = deque(step.judgement.advantages[shown].tolist())
    logs["extra"].clear()
    for column, values in step.extra_logs.items():
        logs["extra"][column] = deque(values[row] for row in shown)


def audit_columns(step: StepRecord) -> dict[str, list]:
    """One column per decision, each of length N, for the audit log."""
    group, keys, superseded = step.done.prompt, step.prompts.keys, step.done.superseded

    def outcome(row: int) -> str:
        if superseded[row]:
            return "superseded"
        return "lost" if step.nonfinite[row] else Outcome(step.replay.outcome[row]).name.lower()

    return {
        "prompt": [keys[q] for q in group],
        "round": step.done.round.tolist(),
        "num_rollouts": step.num_rollouts[group].tolist(),
        "outcome": [outcome(row) for row in range(len(group))],
        "trimmed": step.replay.trimmed.tolist(),
        "marker_at": step.replay.marker_at.tolist(),
        "length": step.replay.length.tolist(),
        "new_tokens": step.done.new_tokens.tolist(),
        "propensity": step.judgement.propensity.tolist(),
        "weight": step.judgement.weight.tolist(),
        "reward": step.done.rewards.tolist(),
        "advantage": step.judgement.advantages.tolist(),
        "sum_logp": step.sum_logps.tolist(),
    }
