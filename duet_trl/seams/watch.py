# SPDX-License-Identifier: Apache-2.0
"""Warnings, once each, about a run that goes on and is not what it looks like: nothing learned, nothing stopped."""

import logging

import numpy as np

from ..gate.replay import GateSpec
from ..gate.thresholds import scaled_grace_window
from ..step_record import StepRecord

logger = logging.getLogger(__name__)

ENOUGH = 8
"""Rewarded rollouts without a marker that are more than chance."""


class RunWatch:
    """Looks at each step as the trainer hands it over.

    Args:
        marker (str | None): Marker of the run's gates.
        max_tokens (int): Length limit of a rollout.
        patience (int): Generation steps in a row that are more than chance.
    """

    def __init__(self, marker: str | None, max_tokens: int, patience: int = 3) -> None:
        self.marker = marker
        self.max_tokens = max_tokens
        self.patience = patience
        self._steps = self._rollouts = self._better = self._limited = 0
        self._any_marker = self._marker_settled = self._values_warned = self._gate_seen = False
        self._idle = 0  # generation steps in a row in which no rollout had an advantage; -1: said

    def judged(self, step: StepRecord) -> None:
        """What a judged step tells of gates, markers and advantages."""
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
    """What of a gate stops no rollout of at most `limit` tokens, or so late that not a poll interval is saved.

    Args:
        spec (GateSpec): A gate of the first step. K2 moves, so it is taken at the first token.
        limit (int): Maximum number of tokens of a rollout.
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
