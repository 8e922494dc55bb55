# SPDX-License-Identifier: Apache-2.0
"""What the gate did to every rollout, known on every process."""

import logging

import numpy as np

from ..config import DUETGRPOConfig
from ..controller import Controller
from ..gate.replay import GateMismatch, Outcome, Replay
from ..methods import settings_of
from ..update.importance import surcharge
from .exchange import Exchange
from .step import Step

logger = logging.getLogger(__name__)


def share_outcomes(step: Step, controller: Controller, exchange: Exchange, final_ids: set[int]) -> None:
    """Replay the gate on the local rollouts and gather what every process must know of all of them.

    Args:
        step (Step): Step after generation; gets `replay` and `terminated`.
        controller (Controller): Knows the gate.
        exchange (Exchange): Collectives.
        final_ids (set[int]): Last ids by which TRL tells that a rollout ended by itself: EOS and padding.

    Raises:
        GateMismatch: On every process, if the engine of any cannot have run the gate.
    """
    local_ids = step.completion_ids[: len(step.rows)]
    local = exchange.fail_together(
        lambda: controller.replay(
            step.plan, step.rows, local_ids, step.gate_stopped, step.in_thought[: len(step.rows)]
        ),
        GateMismatch,
    )
    terminated = np.array([bool(ids) and ids[-1] in final_ids for ids in local_ids], dtype=bool) & ~step.gate_stopped
    columns = [local.outcome, local.marker_at, local.trimmed, local.length, local.answered_at, terminated]
    table = exchange.numbers(step.placement, np.stack(columns, axis=1))
    step.replay = Replay(
        outcome=table[:, 0],
        marker_at=table[:, 1],
        trimmed=table[:, 2].astype(bool),
        length=table[:, 3],
        answered_at=table[:, 4],
    )
    step.terminated = table[:, 5].astype(bool)


def surcharge_factor(step: Step, advantages: np.ndarray, args: DUETGRPOConfig) -> float:
    """Factor by which the abort raises the second moment of the update (Theorem 2, Eq. 8); 1 is free.

    Args:
        step (Step): Step with its sums of log pi.
        advantages (np.ndarray): Unweighted, shape (N,).
        args (DUETGRPOConfig): What becomes of aborted rollouts, and eps_abort.
    """
    settings = settings_of(args)
    if settings.options.aborted_rollouts == "failure":
        return 1.0  # none is masked, so none is weighted for those that are
    known = np.isfinite(step.sum_logps)
    return surcharge(
        np.where(known, advantages, 0.0),
        np.where(known, step.sum_logps, 0.0),
        step.replay.length,
        step.plan.group,
        step.judgement.propensity,
        step.replay.outcome == Outcome.ABORTED,
        num_prompts=len(step.plan.keys),
        keep_probability=settings.keep_probability,
    ).factor


class RunWatch:
    """Warns, once each, about what spoils a run without stopping it.

    Args:
        marker (str): Marker of the configuration.
        patience (int): Generation steps without a marker before the warning.
        abort_rate (float): Share of aborted rollouts from which it matters.
    """

    def __init__(self, marker: str, patience: int = 3, abort_rate: float = 0.1) -> None:
        self.marker = marker
        self.patience = patience
        self.abort_rate = abort_rate
        self._steps = self._rollouts = self._aborted = 0
        self._marker_settled = self._values_warned = False

    def outcomes(self, outcome: np.ndarray) -> None:
        """Rollouts are aborted although no marker was ever seen: likely the wrong marker. `outcome` has shape (N,)."""
        if self._marker_settled:
            return
        self._steps += 1
        self._rollouts += len(outcome)
        self._aborted += int((outcome == Outcome.ABORTED).sum())
        if (outcome == Outcome.ANSWERED).any():
            self._marker_settled = True
        elif self._steps >= self.patience and self._aborted >= self.abort_rate * self._rollouts:
            self._marker_settled = True
            logger.warning(
                "No rollout of the first %d generation steps showed the marker %r at a poll, and %d of %d were "
                "aborted. If answers look otherwise, set `marker` ('math', 'code', 'qa' or 'regex:<pattern>'); with "
                "abort=False nothing is lost meanwhile.",
                self._steps,
                self.marker,
                self._aborted,
                self._rollouts,
            )

    def values(self, nonfinite: np.ndarray) -> None:
        """Rollouts without a finite reward or log-probability, shape (N,), bool."""
        if nonfinite.any() and not self._values_warned:
            self._values_warned = True
            logger.warning(
                "%d of %d rollouts have no finite reward or log-probability. They stay out of the statistics, now and "
                "later; the metric duet/nonfinite_rollouts counts them. Check the reward functions.",
                int(nonfinite.sum()),
                len(nonfinite),
            )
