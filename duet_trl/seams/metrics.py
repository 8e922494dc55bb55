# SPDX-License-Identifier: Apache-2.0
"""What a step of any method reports: plain floats computed once from the rollouts and the judgement."""

import numpy as np

from ..gate.replay import Outcome
from ..step_record import StepRecord
from ..update.importance import effective_sample_size

# Bins of rollouts per prompt, both ends included; the last is open.
HISTOGRAM = ((0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, None))


def length_limits(step: StepRecord, max_tokens: int) -> np.ndarray:
    """Length limit of each rollout, tokens, shape (N,): its job's own, or that of the run."""
    return np.array([max_tokens if job.max_tokens is None else job.max_tokens for job in step.jobs])


def step_metrics(step: StepRecord, num_generations: int, max_tokens: int) -> dict[str, float]:
    """Metrics of one step without their `duet/` prefix."""
    limits = length_limits(step, max_tokens)
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
    metrics = {
        "num_rollouts/mean": float(n.mean()),
        "num_rollouts/min": float(n.min()),
        "num_rollouts/max": float(n.max()),
        "num_rollouts/std": float(n.std()),
        "singleton_prompts": float((n == 1).sum()),
    }
    for low, high in HISTOGRAM:
        name = f"{low}_up" if high is None else f"{low}" if low == high else f"{low}_{high}"
        inside = (n >= low) if high is None else (n >= low) & (n <= high)
        metrics[f"num_rollouts/hist_{name}"] = float(inside.sum())
    return metrics


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
