# SPDX-License-Identifier: Apache-2.0
"""Histograms of rollouts per prompt and of stop reasons, for the trackers that take histograms."""

from typing import Any

import numpy as np
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback
from transformers.trainer_callback import CallbackHandler

from ..gate.replay import Outcome
from ..step_record import StepRecord
from .metrics import length_limits
from .start import say

STOP_REASONS = ("own end", "length limit", "trimmed", "aborted", "engine")
"""What ended a rollout, by its number in the histogram; "engine": none of the others (docs/engines.md#other-ends)."""
HIGHEST = 500
"""Prompts with more rollouts count as this many: trackers take about 512 bins."""
_TAKE = {"tensorboard", "trackio", "wandb"}


def stop_reasons(step: StepRecord, max_tokens: int) -> np.ndarray:
    """Index into `STOP_REASONS` of each counted rollout of a step; `max_tokens` is the length limit of the run."""
    at_limit = step.truncated & (step.replay.length >= length_limits(step, max_tokens))
    reason = np.select(
        [step.replay.trimmed, step.replay.outcome == Outcome.ABORTED, step.done.terminated, at_limit], [2, 3, 0, 1], 4
    )
    return reason[step.counted]


class Histograms(TrainerCallback):
    """Writes both histograms at every log entry, over the generation steps since the last one.

    Args:
        handler (CallbackHandler): Of the trainer, whose trackers are written to.
    """

    def __init__(self, handler: CallbackHandler) -> None:
        self._handler = handler
        self._counts: list[np.ndarray] = []
        self._reasons: list[np.ndarray] = []

    def observe(self, step: StepRecord, max_tokens: int) -> None:
        """Add a generation step; see `stop_reasons`."""
        self._counts.append(np.minimum(step.num_rollouts, HIGHEST))
        self._reasons.append(stop_reasons(step, max_tokens))

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Say who gets none."""
        without = sorted({*args.report_to} - _TAKE - {"none"})
        if without and state.is_world_process_zero:
            names = ", ".join(without)
            say(f"No histograms of counts and stop reasons for {names}: {', '.join(sorted(_TAKE))} get them.")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write them with the entry of a step, on the main process."""
        if not self._counts or "duet/generated_tokens" not in (logs or {}):
            return
        counts, reasons = np.concatenate(self._counts), np.concatenate(self._reasons)
        self._counts, self._reasons = [], []
        if not state.is_world_process_zero:
            return
        found = {
            "train/duet/num_rollouts": (counts, _edges(int(counts.max()) + 1)),
            "train/duet/stop_reason": (reasons, _edges(len(STOP_REASONS))),
        }
        for tracker in self._handler.callbacks:
            if isinstance(tracker, TensorBoardCallback) and tracker.tb_writer is not None:
                for name, (values, edges) in found.items():
                    tracker.tb_writer.add_histogram(name, values, state.global_step, bins=edges)
                tracker.tb_writer.flush()
            elif isinstance(tracker, TrackioCallback):
                import trackio

                _log_binned(trackio, found, state.global_step)
            elif isinstance(tracker, WandbCallback):
                import wandb

                _log_binned(wandb, found, state.global_step)


def _edges(count: int) -> np.ndarray:
    """Bins around 0, 1, ..., count - 1."""
    return np.arange(count + 1) - 0.5


def _log_binned(tracker: Any, found: dict[str, tuple[np.ndarray, np.ndarray]], step: int) -> None:
    """To W&B or to trackio, which has the names of W&B."""
    binned = {
        name: tracker.Histogram(np_histogram=np.histogram(values, bins=edges))
        for name, (values, edges) in found.items()
    }
    tracker.log({**binned, "train/global_step": step})
