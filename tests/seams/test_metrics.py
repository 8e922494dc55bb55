# SPDX-License-Identifier: Apache-2.0
"""Figures of a step, recomputed by hand."""

import numpy as np
import pytest

from duet_trl.allocate.neyman import Allocation
from duet_trl.controller import Judgement, StepPlan
from duet_trl.gate.marker_gate import GatePlan
from duet_trl.gate.replay import GateSpec, Outcome, Replay
from duet_trl.seams.metrics import step_metrics


def example() -> dict[str, float]:
    """Two prompts, one cold with a single rollout, one with three: natural, answered, kept and aborted."""
    plan = StepPlan(
        step=1,
        keys=("a", "b"),
        allocation=Allocation(np.array([1, 3]), dual=1.0, planned_tokens=1.0, budget_tokens=1.0, gap=0.0),
        cold=np.array([True, False]),
        group=np.array([0, 1, 1, 1]),
        gate=GatePlan(GateSpec(10, 30, 5), np.zeros(4, dtype=bool)),
    )
    outcome = np.array([Outcome.NATURAL, Outcome.ANSWERED, Outcome.KEPT, Outcome.ABORTED])
    replay = Replay(
        outcome,
        marker_at=np.array([-1, 12, -1, -1]),
        trimmed=np.array([False, True, False, False]),
        length=np.array([8, 17, 60, 35]),
        answered_at=np.array([-1, 12, 48, -1]),
    )
    judgement = Judgement(
        propensity=np.array([1.0, 1.0, 0.5, 0.5]),
        weight=np.array([2.0, 1.0, 2.0, 0.0]),
        kept=np.array([True, True, True, False]),
        trained=np.array([False, True, True, False]),
    )
    engine_ended = np.array([True, False, False, False])
    return step_metrics(plan, replay, judgement, np.array([0.0, 1.0, 0.5, -0.5]), 4, engine_ended)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("generated_tokens", 8 + 17 + 60 + 35),
        ("aborted_tokens", 35),
        ("trimmed_tokens", 17),
        ("trained_tokens", 17 + 60),
        # Mean natural length (8 + 17 + 2 * 60) / 4 over 2 prompts x 4 rollouts, less what was generated.
        ("saved_tokens", 8 * (8 + 17 + 120) / 4 - 120),
        ("num_rollouts/mean", 2),
        ("num_rollouts/hist_1", 1),
        ("num_rollouts/hist_3_4", 1),
        ("num_rollouts/hist_33_up", 0),
        ("singleton_prompts", 1),
        ("cold_prompts", 1),
        ("poll_threshold", 10),
        ("abort_threshold", 30),
        ("share_ended_before_gate", 0.25),
        ("engine_end_rate", 0.25),
        ("share_marker_seen", 0.25),
        ("share_marker_less", 0.5),
        ("abort_rate", 0.25),
        ("keep_rate", 0.25),
        ("late_answers_lost", 1 / 0.5 - 1),  # the kept rollout answered, better than its baseline
        ("trim_rate", 0.25),
        ("weight_mean", 5 / 3),
        ("weight_max", 2),
        ("effective_sample_size", 25 / 9),
        ("cold_gradient_share", 0),  # its advantage is 0
        ("singleton_gradient_share", 0),
    ],
)
def test_a_step_reports_what_happened(name, value):
    assert example()[name] == pytest.approx(value)
