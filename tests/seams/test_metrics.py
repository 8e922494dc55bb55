# SPDX-License-Identifier: Apache-2.0
"""Figures of a step, recomputed by hand."""

import numpy as np
import pytest
import torch

from duet_trl.gate.replay import GateSpec, Outcome, Replay
from duet_trl.rollouts import Job, Judgement, Prompt, Prompts, Rollouts
from duet_trl.seams.metrics import step_metrics
from duet_trl.step_record import StepRecord


def example() -> dict[str, float]:
    """Three prompts with 1, 3 and 0 rollouts: natural (two of its tokens a prefix), answered, kept and aborted."""
    prompts = Prompts([Prompt(key, {"prompt": key}) for key in "ab"], source=lambda count, taken: [Prompt("c", {})])
    prompts.more(1)
    gate = GateSpec(8, 16, 4)
    jobs = [Job(0, prefix=(1, 2), gate=gate), *[Job(1, gate=gate)] * 2, Job(1, max_tokens=60, gate=gate)]
    replay = Replay(
        np.array([Outcome.NATURAL, Outcome.ANSWERED, Outcome.KEPT, Outcome.ABORTED]),
        marker_at=np.array([-1, 12, -1, -1]),
        trimmed=np.array([False, True, False, False]),
        length=np.array([8, 17, 60, 35]),
        answered_at=np.array([-1, 12, 48, -1]),
        completed_at=np.array([-1, 11, 44, -1]),
    )
    done = Rollouts(
        prompts,
        tuple(jobs),
        prompt=np.array([0, 1, 1, 1]),
        round=np.zeros(4, dtype=int),
        replay=replay,
        terminated=np.array([False, False, True, False]),
        rewards_per_func=torch.ones(4, 1),
        rewards=np.ones(4),
    )
    judgement = Judgement(
        advantages=np.array([0.0, 1.0, 0.5, -0.5]),
        propensity=np.array([1.0, 1.0, 0.5, 0.5]),
        weight=np.array([2.0, 1.0, 2.0, 0.0]),
        in_divisor=np.array([True, True, True, False]),
        in_gradient=np.array([False, True, True, False]),
    )
    step = StepRecord(prompts, jobs=jobs, done=done, rounds=2, judgement=judgement, asked_tokens=5)
    step.row_tokens = np.array([8, 11, 60, 35])
    return step_metrics(step, num_generations=4, max_tokens=100)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("generated_tokens", 6 + 17 + 60 + 35),
        ("aborted_tokens", 35),
        ("trimmed_tokens", 17),
        ("trained_tokens", 11 + 60),
        # Mean natural length (8 + 17 + 2 * 60) / 4 over 2 prompts x 4 rollouts, less what was generated.
        ("saved_tokens", 8 * (8 + 17 + 120) / 4 - 118),
        ("asked_tokens", 5),
        ("rounds", 2),
        ("num_rollouts/mean", 4 / 3),
        ("singleton_prompts", 1),
        ("share_ended_before_gate", 0.25),
        ("engine_end_rate", 0.25),
        ("share_marker_seen", 0.25),
        ("share_marker_less", 0.5),
        ("share_marker", 2 / 3),  # the first ran into its limit, the last was stopped without one
        ("abort_rate", 0.25),
        ("keep_rate", 0.25),
        ("trim_rate", 0.25),
        ("weight_mean", 5 / 3),
        ("weight_max", 2),
        ("effective_sample_size", 25 / 9),
        ("singleton_gradient_share", 0),
    ],
)
def test_a_step_reports_what_happened(name, value):
    assert example()[name] == pytest.approx(value)
