# SPDX-License-Identifier: Apache-2.0
"""Warnings, once each, about what spoils a run without stopping it."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..methods.grouping import spread_within
from ..step_record import StepRecord

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


ENOUGH = 8
"""Rewarded rollouts without a marker that are more than chance."""


class RunWatch:
    """Warns, once each, about what spoils a run without stopping it."""

    def __init__(self, marker: str | None, patience: int = 3) -> None:
        self.marker = marker
        self.patience = patience
        self._steps = self._rollouts = self._better = self._limited = 0
        self._any_marker = self._marker_settled = self._values_warned = False
        self._idle = 0  # generation steps in a row in which no rollout had an advantage; -1: said
        self._endings = 0  # the same, in which endings alone told rollouts apart

    def judged(self, step: StepRecord, ending: bool) -> None:
        """What a judged step tells of markers, advantages and, if they are paid, of endings."""
        if any(job.gate is not None for job in step.jobs):  # else nothing has looked for a marker
            shown, better = step.replay.answered_at >= 0, step.judgement.advantages > 0
            self.markers(*(flags[step.counted] for flags in (shown, better, step.truncated)))
        self.advantages(step.judgement.advantages)
        if ending:
            self.endings(step.done.rewards_per_func.cpu().numpy(), step.done.prompt)

    def markers(self, shown: np.ndarray, better: np.ndarray, limited: np.ndarray) -> None:
        """The marker fits no answer that is rewarded: trim and abort cannot tell answers from the rest.

        Args:
            shown (np.ndarray): Rollouts with a marker, shape (N,), bool.
            better (np.ndarray): With a positive advantage, shape (N,), bool.
            limited (np.ndarray): That ran into the length limit, shape (N,), bool.
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
                "otherwise, set `marker` ('math', 'code', 'qa' or 'regex:<pattern>'). Until then nothing is trimmed, "
                "and what is aborted may hold an answer; see duet/share_marker.",
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

    def endings(self, rewards_per_func: np.ndarray, group: np.ndarray) -> None:
        """For many steps only the reward for ending differed within prompts: what the script rewards is not trained.

        Args:
            rewards_per_func (np.ndarray): That of the ending last, shape (N, F + 1).
            group (np.ndarray): Prompt of each rollout, shape (N,).
        """
        if self._endings < 0:
            return
        size = int(group.max()) + 1
        differs = [(spread_within(column, group, size) > 0.0).any() for column in rewards_per_func.T]
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
