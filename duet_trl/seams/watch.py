# SPDX-License-Identifier: Apache-2.0
"""Warnings, once each, about what spoils a run without stopping it."""

import logging

import numpy as np

from ..gate.replay import Outcome

logger = logging.getLogger(__name__)


class RunWatch:
    """Warns, once each, about what spoils a run without stopping it."""

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
