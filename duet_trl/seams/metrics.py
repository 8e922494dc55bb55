# SPDX-License-Identifier: Apache-2.0
"""The log of a step: metrics under `duet/`, TRL's own and its table of completions over all rollouts, and warnings,
once each, about a run that is not what it looks like."""

import logging
import math
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from trl import GRPOTrainer
from trl.trainer.utils import nanstd

from ..exchange import Exchange
from ..gate.replay import GateSpec, Outcome
from ..gate.thresholds import scaled_grace_window
from ..rollouts import StepRecord
from ..update.advantages import effective_sample_size, group_advantages


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
    """The reporter of each metric under `duet/`: a name has only one, or two figures would be averaged."""

    def __init__(self) -> None:
        self._by: dict[str, str] = {}

    def report(self, metrics: dict[str, list], values: Mapping[str, float], by: str) -> None:
        """Add values to TRL's metrics.

        Raises:
            ValueError: If somebody else reports one of them.
            TypeError: If one is not a number.
        """
        for name, value in values.items():
            other = self._by.setdefault(name, by)
            if other != by:
                raise ValueError(f"{by} reports the metric {name!r}, which {other} reports too. Give it another name.")
            if not isinstance(value, int | float):
                raise TypeError(f"{by} reports the metric {name!r} as {value!r}. Use float(x).")
            metrics[f"duet/{name}"].append(value)


def merge_rounds(metrics: dict[str, list], before: dict[str, int]) -> None:
    """Keep the mean of what was reported for each round of a step; TRL's own figures are rewritten later."""
    for name, values in metrics.items():
        rounds = values[before.get(name, 0) :]
        if len(rounds) > 1:
            values[before.get(name, 0) :] = [sum(rounds) / len(rounds)]


def tokens_seen(step: StepRecord, exchange: Exchange) -> int:
    """Tokens of prompts and of what was generated; TRL also counts prefixes, and rows that fill up a process."""
    prompts = exchange.objects([sum(len(one.prompt_ids) for one in step.local.values())])
    return sum(prompts) + int(step.done.new_tokens.sum())


def correct_trl_metrics(step: StepRecord, trainer: GRPOTrainer) -> None:
    """Rewrite the metrics of this step that TRL computed from the trained rows alone, over all rollouts."""
    metrics, rewards = trainer._metrics["train"], step.done.rewards_per_func
    grouped = group_advantages(  # what GRPOTrainer would make of all rollouts
        rewards,
        trainer.reward_weights.to(rewards.device),
        torch.from_numpy(step.done.prompt).to(rewards.device),
        scale_rewards=trainer.scale_rewards,
        multi_objective_aggregation=trainer.multi_objective_aggregation,
    )
    for index, name in enumerate(trainer.reward_func_names):
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


logger = logging.getLogger(__name__)

ENOUGH = 8
"""Rewarded rollouts without a marker that are more than chance."""


def write_audit(step: StepRecord, output_dir: str, columns: list[str]) -> None:
    """Write what was decided about every rollout of an observed step, and some `columns` of the data set as text.

    The file is `duet_audit/step_<number>.parquet` of a folder.
    """
    group, keys, superseded = step.done.prompt, step.prompts.keys, step.done.superseded

    def outcome(row: int) -> str:
        if superseded[row]:
            return "superseded"
        return "lost" if step.nonfinite[row] else Outcome(step.replay.outcome[row]).name.lower()

    table = {
        "step": [step.prompts.step] * len(group),
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
        **{column: [str(step.prompts[q].example[column]) for q in group] for column in columns},
    }
    path = Path(output_dir, "duet_audit", f"step_{step.prompts.step:06d}.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), path)


class RunWatch:
    """Looks at each step as the trainer hands it over; `patience` generation steps in a row are more than chance."""

    def __init__(self, marker: str | None, max_tokens: int, patience: int = 3) -> None:
        self.marker = marker
        self.max_tokens = max_tokens
        self.patience = patience
        self._steps = self._rollouts = self._better = self._limited = 0
        self._any_marker = self._marker_settled = self._values_warned = self._gate_seen = False
        self._idle = 0  # generation steps in a row in which no rollout had an advantage; -1: reported

    def judged(self, step: StepRecord) -> None:
        """Check gates, markers and advantages of a judged step."""
        gates = [job.gate for job in step.jobs if job.gate is not None]
        if gates:  # else nothing has looked for a marker
            for warning in () if self._gate_seen else gate_warnings(gates[0], self.max_tokens):
                logger.warning(warning)
            self._gate_seen = True
            shown, better = step.replay.answered_at >= 0, step.judgement.advantages > 0
            self.markers(*(flags[step.counted] for flags in (shown, better, step.truncated)))
        self.advantages(step.judgement.advantages)

    def markers(self, shown: np.ndarray, better: np.ndarray, limited: np.ndarray) -> None:
        """The marker fits no answer that is rewarded: trim and abort cannot tell answers from the rest.

        Which rollouts show a marker, have a positive advantage, ran into the length limit; shape (N,) each, bool.
        """
        if self._marker_settled:
            return
        self._steps += 1
        self._rollouts += len(shown)
        self._better += int(better.sum())
        self._limited += int(limited.sum())
        self._any_marker |= bool(shown.any())
        if (shown & better).any():
            self._marker_settled = True
        elif self._steps >= self.patience and (self._better >= ENOUGH or not self._any_marker):
            self._marker_settled = True
            logger.warning(
                "None of the %d rollouts that were rewarded in the first %d generation steps shows the marker %r, and "
                "%s of all %d does. %d ran into max_completion_length: if these are most, raise it. If answers look "
                "otherwise, set `marker` ('math', 'code', 'qa' or 'opening...closing'). Until then nothing is "
                "trimmed, and what is aborted may hold an answer; see duet/share_marker.",
                self._better,
                self._steps,
                self.marker,
                "one or more" if self._any_marker else "none",
                self._rollouts,
                self._limited,
            )

    def advantages(self, advantages: np.ndarray) -> None:
        """Nothing was learned for `patience` steps: every group's rewards are all the same. Shape (N,)."""
        if self._idle < 0:
            return
        self._idle = 0 if advantages.any() else self._idle + 1
        if self._idle == self.patience:
            self._idle = -1
            logger.warning(
                "No rollout of the last %d generation steps has an advantage: the rewards of each prompt's rollouts "
                "are all the same, and the policy learns nothing. Look at the metric `reward`: near its lowest value "
                "the prompts are too hard or the reward function does not see answers, near its highest too easy. "
                "Choose other prompts, raise num_generations, or draw until rewards differ with method='dapo'.",
                self.patience,
            )

    def values(self, nonfinite: np.ndarray) -> None:
        """Rollouts without a finite reward, shape (N,), bool."""
        if nonfinite.any() and not self._values_warned:
            self._values_warned = True
            logger.warning(
                "%d of %d rollouts have no finite reward: they are lost. They stay out of gradient and statistics, "
                "now and later; the metric duet/nonfinite_rollouts counts them. Check the reward functions.",
                int(nonfinite.sum()),
                len(nonfinite),
            )


def gate_warnings(spec: GateSpec, limit: int) -> list[str]:
    """Parts of a gate that stop no rollout of at most `limit` tokens, or too late to save a poll interval.

    The gate is one of the first step. K2 moves, so it is taken at the first token.
    """
    scaled, found = scaled_grace_window(limit), []
    remedy = f"Set grace_window={scaled}" if spec.grace_window > scaled else "Raise max_completion_length"
    if spec.trim and limit - spec.trim_at < spec.poll_interval:
        found.append(
            f"trim=True saves nothing: it acts from token {spec.trim_at} of {limit} on (first poll "
            f"{spec.first_poll}, G = {spec.grace_window}). {remedy}, or set trim=False."
        )
    if spec.abort and limit - 1 - spec.grace_window < spec.poll_interval:
        found.append(
            f"abort=True saves nothing: a grace window of {spec.grace_window} is the whole of {limit} tokens. "
            f"{remedy}, or set abort=False."
        )
    return found
