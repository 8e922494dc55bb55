# SPDX-License-Identifier: Apache-2.0
"""An interrupt ends the run after the current optimizer step, with a checkpoint."""

import logging
import signal
from types import FrameType
from typing import Any

import torch
from accelerate import Accelerator
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopAfterStep(TrainerCallback):
    """Turns the first SIGINT or SIGTERM into "save and stop after this step"; the second acts as usual.

    A callback of the trainer, and a context manager around its training.

    Args:
        accelerator (Accelerator): Of the trainer: every process stops at the same step, whichever was signalled.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopAfterStep":
        """Install the handlers."""
        self.requested = False
        try:
            self._previous = {number: signal.signal(number, self._request) for number in _SIGNALS}
        except ValueError:
            logger.info("Training outside the main thread: an interrupt will not wait for the end of the step.")
        return self

    def __exit__(self, *exception: object) -> None:
        """Put the previous handlers back, however training ended."""
        self._restore()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save and stop if any process was asked to."""
        flag = torch.tensor([int(self.requested)], device=self.accelerator.device)
        if self.accelerator.gather(flag).any().item():
            control.should_save = True
            control.should_training_stop = True

    def _request(self, number: int, frame: FrameType | None) -> None:
        logger.warning("%s: stopping after this step with a checkpoint.", signal.Signals(number).name)
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
