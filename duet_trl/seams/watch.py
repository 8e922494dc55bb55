# SPDX-License-Identifier: Apache-2.0
"""Warnings, once each, about what spoils a run without stopping it."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..gate.replay import Outcome

logger = logging.getLogger(__name__)

SLOW_SECONDS = 600.0
"""Longer than rewards of a step take; a function that waits for something else may wait for ever."""

ENDING_PATIENCE = 10
"""Generation steps in a row; of few prompts some do so by chance."""


@contextmanager
def noticed_if_slow(functions: list[str], step: int) -> Iterator[None]:
    """While active, reward functions that take longer than `SLOW_SECONDS` are named, once."""
    text = (
        "The reward functions %s have worked on the rollouts of generation step %d for %g s. If one of them waits for "
        "something that does not come, the run waits with it: give it a time limit of its own, and let it return None "
        "for what it could not score. SIGINT ends the run once it returns, a second one at once."
    )
    timer = threading.Timer(SLOW_SECONDS, logger.warning, (text, ", ".join(functions), step, SLOW_SECONDS))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class RunWatch:
    """Warns, once each, about what spoils a run without stopping it."""

    def __init__(self, marker: str, patience: int = 3, abort_rate: float = 0.1) -> None:
        self.marker = marker
        self.patience = patience
        self.abort_rate = abort_rate
        self._steps = self._rollouts = self._aborted = 0
        self._marker_settled = self._values_warned = False
        self._idle = 0  # generation steps in a row in which no rollout had an advantage; -1: said
        self._endings = 0  # the same, in which endings alone told rollouts apart

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

    def endings(self, rewards_per_func: np.ndarray, group: np.ndarray) -> None:
        """For many steps only the reward for ending differed within prompts: what the script rewards is not trained.

        Args:
            rewards_per_func (np.ndarray): That of the ending last, shape (N, F + 1).
            group (np.ndarray): Prompt of each rollout, shape (N,).
        """
        if self._endings < 0:
            return
        differs = [_differs_within(column, group) for column in rewards_per_func.T]
        if any(differs[:-1]):
            self._endings = 0
        elif differs[-1]:
            self._endings += 1
        if self._endings == ENDING_PATIENCE:
            self._endings = -1
            logger.warning(
                "In the last %d generation steps with a gradient only the reward for ending told the rollouts of a "
                "prompt apart: the reward functions paid all of them alike. If that is not because all prompts are "
                "solved, the policy learns to end and nothing else: choose other prompts, or set "
                "ending_reward_weight=0.",
                ENDING_PATIENCE,
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


def _differs_within(values: np.ndarray, group: np.ndarray) -> bool:
    """Whether any two values of a group differ; nan says nothing."""
    known = ~np.isnan(values)
    values, group = values[known], group[known]
    order = np.argsort(group, kind="stable")
    values, group = values[order], group[order]
    return bool(((np.diff(values) != 0) & (np.diff(group) == 0)).any())
