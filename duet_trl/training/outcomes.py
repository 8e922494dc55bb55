# SPDX-License-Identifier: Apache-2.0
"""What the gate did to every rollout, known on every process."""

import numpy as np

from ..controller import Controller
from ..generate.gate import GateMismatch, Outcome, Replay
from ..update.weights import surcharge
from .exchange import Exchange
from .step import Step


def share_outcomes(step: Step, controller: Controller, exchange: Exchange, eos_ids: list[int]) -> None:
    """Replay the gate on the local rollouts and gather what every process must know of all of them.

    Args:
        step (Step): Step after generation; gets `replay` and `terminated`.
        controller (Controller): Knows the gate.
        exchange (Exchange): Collectives.
        eos_ids (list[int]): Ids that end a rollout by themselves.

    Raises:
        GateMismatch: On every process, if the engine of any cannot have run the gate.
    """
    local_ids = step.completion_ids[: len(step.rows)]
    local = exchange.fail_together(
        lambda: controller.replay(step.plan, step.rows, local_ids, step.gate_stopped), GateMismatch
    )
    terminated = np.array([bool(ids) and ids[-1] in eos_ids for ids in local_ids], dtype=bool) & ~step.gate_stopped
    columns = np.stack([local.outcome, local.marker_at, local.trimmed, local.length, terminated], axis=1)
    table = exchange.numbers(step.placement, columns)
    step.replay = Replay(
        outcome=table[:, 0], marker_at=table[:, 1], trimmed=table[:, 2].astype(bool), length=table[:, 3]
    )
    step.terminated = table[:, 4].astype(bool)


def surcharge_factor(step: Step, advantages: np.ndarray, keep_probability: float) -> float:
    """Factor by which the abort raises the second moment of the update (Theorem 2, Eq. 8); 1 is free.

    Args:
        step (Step): Step with its sums of log pi.
        advantages (np.ndarray): Unweighted, shape (N,).
        keep_probability (float): eps_abort.
    """
    known = np.isfinite(step.sum_logps)
    return surcharge(
        np.where(known, advantages, 0.0),
        np.where(known, step.sum_logps, 0.0),
        step.replay.length,
        step.plan.group,
        step.judgement.propensity,
        step.replay.outcome == Outcome.ABORTED,
        num_prompts=len(step.plan.keys),
        keep_probability=keep_probability,
    ).factor
