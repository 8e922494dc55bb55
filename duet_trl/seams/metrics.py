# SPDX-License-Identifier: Apache-2.0
"""What a step of any method logs: metrics under `duet/`, TRL's own and its table of completions over all rollouts."""

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
from ..update.importance import effective_sample_size


def step_metrics(step: StepRecord, num_generations: int, max_tokens: int) -> dict[str, float]:
    """Metrics of one step without their `duet/` prefix."""
    limits = np.array([max_tokens if job.max_tokens is None else job.max_tokens for job in step.jobs])  # (N,)
    return {
        **_tokens(step, num_generations),
        **_counts(step.num_rollouts),
        **_gate(step),
        **_weights(step),
        "rounds": float(step.rounds),
        "engine_end_rate": float((step.truncated & (step.replay.length < limits))[step.counted].mean()),
    }


def time_metrics(seconds: dict[str, float]) -> dict[str, float]:
    """Where the time of a step went, without the prefix `duet/`; `seconds` is that of a `StepRecord`."""
    overhead = seconds["plan"] + seconds["overhead"]
    return {
        "seconds_plan": seconds["plan"],
        "seconds_generate": seconds["generate"],
        "seconds_score": seconds["score"],
        "seconds_update": seconds["update"],
        "overhead_share": overhead / sum(seconds.values()),
    }


def _tokens(step: StepRecord, num_generations: int) -> dict[str, float]:
    length, aborted, generated = step.replay.length, step.done.aborted, step.done.new_tokens
    # Lengths of the rollouts that were not aborted, weighted to stand for those that were. Trimmed ones are cut
    # short, so the cost of full-budget GRPO, and with it the saving, is a lower bound.
    inverse = np.where(aborted | ~step.counted, 0.0, 1.0 / step.judgement.propensity)
    natural = float((inverse * length).sum() / max(inverse.sum(), 1e-12))
    full = step.prompts.num_drawn * num_generations * natural
    return {
        "generated_tokens": float(generated.sum()),
        "reused_tokens": float(sum(len(job.prefix) for job in step.jobs if job.continues is None)),
        "aborted_tokens": float(generated[aborted].sum()),
        "trimmed_tokens": float(generated[step.replay.trimmed].sum()),
        "saved_tokens": full - float(generated.sum()),
        "trained_tokens": float(step.row_tokens[step.judgement.in_gradient].sum()),
        "asked_tokens": float(step.asked_tokens),
    }


def _counts(n: np.ndarray) -> dict[str, float]:
    return {
        "num_rollouts/mean": float(n.mean()),
        "num_rollouts/min": float(n.min()),
        "num_rollouts/max": float(n.max()),
        "num_rollouts/std": float(n.std()),
        "singleton_prompts": float((n == 1).sum()),
    }


def _gate(step: StepRecord) -> dict[str, float]:
    outcome, trimmed = step.replay.outcome[step.counted], step.replay.trimmed[step.counted]
    finished = step.counted & ~step.truncated
    shown = step.replay.answered_at[finished] >= 0
    gated = any(job.gate is not None for job in step.jobs)  # else nothing has looked for a marker
    return {
        **({"share_marker": float(shown.mean()) if shown.size else 0.0} if gated else {}),
        "share_ended_before_gate": float((outcome == Outcome.NATURAL).mean()),
        "share_marker_seen": float((outcome == Outcome.ANSWERED).mean()),
        "share_marker_less": float(((outcome == Outcome.KEPT) | (outcome == Outcome.ABORTED)).mean()),
        "abort_rate": float((outcome == Outcome.ABORTED).mean()),
        "keep_rate": float((outcome == Outcome.KEPT).mean()),
        "trim_rate": float(trimmed.mean()),
    }


def _weights(step: StepRecord) -> dict[str, float]:
    weight = step.judgement.weight[step.judgement.in_divisor]
    mass = np.abs(step.judgement.weight * step.judgement.advantages) * step.replay.length
    single = (step.num_rollouts == 1)[step.done.prompt]
    return {
        "weight_mean": float(weight.mean()) if weight.size else 0.0,
        "weight_max": float(weight.max()) if weight.size else 0.0,
        "effective_sample_size": effective_sample_size(weight) if weight.size else 0.0,
        "singleton_gradient_share": float(mass[single].sum()) / max(float(mass.sum()), 1e-12),
    }


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
