# SPDX-License-Identifier: Apache-2.0
"""Warnings, once each, about a run that goes on and is not what it looks like: nothing learned, nothing stopped."""

import logging
import math
from collections.abc import Sized
from typing import Any

import numpy as np
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..config import DUETGRPOConfig
from ..gate.marker_gate import MarkerGate
from ..gate.replay import GateSpec
from ..gate.thresholds import scaled_grace_window
from ..methods.duet_settings import mean_rollouts
from ..step_record import StepRecord

logger = logging.getLogger(__name__)

ENOUGH = 8
"""Rewarded rollouts without a marker that are more than chance."""


class RunWatch(TrainerCallback):
    """Looks at the settings when training starts, and at each step as the trainer hands it over.

    Args:
        config (DUETGRPOConfig): Configuration.
        gate (MarkerGate | None): The gate of `duet` and `paper`; None: another method.
        rows (Any): Training data.
        patience (int): Generation steps in a row that are more than chance.
    """

    def __init__(self, config: DUETGRPOConfig, gate: MarkerGate | None, rows: Any, patience: int = 3) -> None:
        self.config = config
        self.gate = gate
        self.num_rows = len(rows) if isinstance(rows, Sized) else None
        self.patience = patience
        self._steps = self._rollouts = self._better = self._limited = 0
        self._any_marker = self._marker_settled = self._values_warned = False
        self._idle = 0  # generation steps in a row in which no rollout had an advantage; -1: said

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Name each setting that does nothing, on the main process."""
        config = self.config
        if self.gate is None or not (state.is_world_process_zero and config.duet_active):
            return
        found = []
        if config.gated:
            by_price = config.options.abort_rule == "price"
            found += gate_warnings(self.gate.spec(), config.max_completion_length, by_price)
        per_generation = config.steps_per_generation * config.num_iterations / config.gradient_accumulation_steps
        found += batch_warnings(config, self.num_rows, math.ceil(state.max_steps / per_generation))
        for warning in found:
            logger.warning(warning)

    def judged(self, step: StepRecord) -> None:
        """What a judged step tells of markers and advantages."""
        if any(job.gate is not None for job in step.jobs):  # else nothing has looked for a marker
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
                self.config.marker,
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


def gate_warnings(spec: GateSpec, limit: int, by_price: bool) -> list[str]:
    """What of a gate stops no rollout of at most `limit` tokens, or so late that not a poll interval is saved.

    Args:
        spec (GateSpec): The gate as training starts.
        limit (int): Maximum number of tokens of a rollout.
        by_price (bool): Whether K2 follows the price, and may come down to the first token.
    """
    scaled, found = scaled_grace_window(limit), []
    remedy = f"Set grace_window={scaled}" if spec.grace_window > scaled else "Raise max_completion_length"
    if spec.trim and limit - spec.trim_at < spec.poll_interval:
        found.append(
            f"trim=True saves nothing: it acts from token {spec.trim_at} of {limit} on (first poll "
            f"{spec.first_poll}, G = {spec.grace_window}). {remedy}, or set trim=False."
        )
    threshold = 1 if by_price else spec.abort_threshold
    if spec.abort and limit - threshold - spec.grace_window < spec.poll_interval:
        found.append(
            f"abort=True saves nothing: it acts at token K2 + G = {threshold} + {spec.grace_window} = "
            f"{threshold + spec.grace_window} of {limit}. {remedy}, or set abort=False."
        )
    return found


def batch_warnings(config: DUETGRPOConfig, num_rows: int | None, num_steps: int) -> list[str]:
    """Where there is nothing to allocate, and where a rollout has nothing to be compared with.

    Args:
        config (DUETGRPOConfig): Configuration of `duet` or `paper`.
        num_rows (int | None): Prompts of the data set; None: a stream.
        num_steps (int): Generation steps of the run.
    """
    mean, per_step, found = mean_rollouts(config), config.num_prompts, []
    if config.allocate and mean <= config.num_rollouts_min:
        found.append(
            f"allocate=True has nothing to allocate: the budget of {mean:g} rollouts per prompt is num_rollouts_min. "
            "Raise budget_fraction or num_generations, lower num_rollouts_min, or set allocate=False."
        )
    elif config.allocate and num_rows is not None and num_steps <= num_rows // per_step:
        found.append(
            f"allocate=True has no history to allocate by: {num_steps} generation steps of {per_step} of {num_rows} "
            "prompts visit none of them twice, so counts stay uniform. Train more than one epoch, use fewer prompts, "
            "or set allocate=False."
        )
    lone = max(2 * per_step - math.floor(mean * per_step * (1 + 1e-12)), 0) if mean < 2 else 0
    if lone and config.options.advantage_baseline == "group":
        found.append(
            f"{lone} or more of {per_step} prompts have a single rollout, which teaches nothing under "
            "advantage_baseline='group'. Raise num_generations or budget_fraction, or set "
            "advantage_baseline='least_noise'."
        )
    return found
