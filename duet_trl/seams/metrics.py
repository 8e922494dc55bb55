# SPDX-License-Identifier: Apache-2.0
"""What a step reports: plain floats computed once from the plan, the outcomes and the weights."""

import numpy as np

from ..controller import Judgement, StepPlan
from ..gate.replay import Outcome, Replay
from ..update.importance import effective_sample_size

# Bins of rollouts per prompt, both ends included; the last is open.
HISTOGRAM = ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, None))


def step_metrics(
    plan: StepPlan,
    replay: Replay,
    judgement: Judgement,
    advantages: np.ndarray,
    num_generations: int,
    engine_ended: np.ndarray,
) -> dict[str, float]:
    """Metrics of one step without their `duet/` prefix.

    Args:
        plan (StepPlan): Plan of the step.
        replay (Replay): Outcomes, shape (N,) each.
        judgement (Judgement): Weights and masks, shape (N,) each.
        advantages (np.ndarray): Unweighted, shape (N,).
        num_generations (int): Rollouts per prompt of full-budget GRPO.
        engine_ended (np.ndarray): Ended by neither EOS, gate nor length limit, shape (N,), bool.

    Returns:
        dict[str, float]: Tokens, counts, shares, rates, weights.
    """
    return {
        **_tokens(plan, replay, judgement, num_generations),
        **_counts(plan),
        **_gate(plan, replay, judgement, advantages),
        **_weights(plan, replay, judgement, advantages),
        "engine_end_rate": float(engine_ended.mean()),
    }


def time_metrics(seconds: dict[str, float]) -> dict[str, float]:
    """Where the time of a step went, without the prefix `duet/`; `seconds` is that of a `Step`."""
    overhead = seconds["plan"] + seconds["overhead"]
    return {
        "seconds_plan": seconds["plan"],
        "seconds_generate": seconds["generate"],
        "seconds_score": seconds["score"],
        "seconds_update": seconds["update"],
        "overhead_share": overhead / sum(seconds.values()),
    }


def _tokens(plan: StepPlan, replay: Replay, judgement: Judgement, num_generations: int) -> dict[str, float]:
    length, aborted = replay.length, replay.outcome == Outcome.ABORTED
    # Lengths of the rollouts that were not aborted, weighted to stand for those that were. Trimmed ones are cut
    # short, so the cost of full-budget GRPO, and with it the saving, is a lower bound.
    inverse = np.where(aborted, 0.0, 1.0 / judgement.propensity)
    natural = float((inverse * length).sum() / max(inverse.sum(), 1e-12))
    full = len(plan.keys) * num_generations * natural
    return {
        "generated_tokens": float(length.sum()),
        "aborted_tokens": float(length[aborted].sum()),
        "trimmed_tokens": float(length[replay.trimmed].sum()),
        "saved_tokens": full - float(length.sum()),
        "trained_tokens": float(length[judgement.trained].sum()),
    }


def _counts(plan: StepPlan) -> dict[str, float]:
    n = plan.num_rollouts
    metrics = {
        "num_rollouts/mean": float(n.mean()),
        "num_rollouts/min": float(n.min()),
        "num_rollouts/max": float(n.max()),
        "num_rollouts/std": float(n.std()),
        "cold_prompts": float(plan.cold.sum()),
        "singleton_prompts": float((n == 1).sum()),
    }
    for low, high in HISTOGRAM:
        name = f"{low}_up" if high is None else f"{low}" if low == high else f"{low}_{high}"
        inside = (n >= low) if high is None else (n >= low) & (n <= high)
        metrics[f"num_rollouts/hist_{name}"] = float(inside.sum())
    return metrics


def _gate(plan: StepPlan, replay: Replay, judgement: Judgement, advantages: np.ndarray) -> dict[str, float]:
    outcome = replay.outcome
    # A rollout that the coin kept stands for 1 / eps - 1 others, on average, that it did not keep.
    late = (outcome == Outcome.KEPT) & (replay.answered_at >= 0) & (advantages > 0)
    return {
        "poll_threshold": float(plan.gate.spec.poll_threshold),
        "abort_threshold": float(plan.gate.spec.abort_threshold),
        "share_ended_before_gate": float((outcome == Outcome.NATURAL).mean()),
        "share_marker_seen": float((outcome == Outcome.ANSWERED).mean()),
        "share_marker_less": float(((outcome == Outcome.KEPT) | (outcome == Outcome.ABORTED)).mean()),
        "abort_rate": float((outcome == Outcome.ABORTED).mean()),
        "keep_rate": float((outcome == Outcome.KEPT).mean()),
        "trim_rate": float(replay.trimmed.mean()),
        "late_answers_lost": float((1.0 / judgement.propensity[late] - 1.0).sum()),
    }


def _weights(plan: StepPlan, replay: Replay, judgement: Judgement, advantages: np.ndarray) -> dict[str, float]:
    weight = judgement.weight[judgement.kept]
    mass = np.abs(judgement.weight * advantages) * replay.length
    total = max(float(mass.sum()), 1e-12)
    cold = plan.cold[plan.group]
    return {
        "weight_mean": float(weight.mean()) if weight.size else 0.0,
        "weight_max": float(weight.max()) if weight.size else 0.0,
        "effective_sample_size": effective_sample_size(weight) if weight.size else 0.0,
        "cold_gradient_share": float(mass[cold].sum()) / total,
        "singleton_gradient_share": float(mass[(plan.num_rollouts == 1)[plan.group]].sum()) / total,
    }
