# SPDX-License-Identifier: Apache-2.0
"""An interrupt ends the run after the current optimizer step, with a checkpoint, and is then raised again."""

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
    """Turns the first SIGINT or SIGTERM into "save and stop after this step"; the second acts at once.

    A callback of the trainer, and a context manager around its training that ends as the signal would have ended it:
    what follows in a script (`save_model`, `push_to_hub`) is for runs that are complete.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.agreed = 0
        self._requested = 0
        self._previous: dict[int, Any] = {}
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> "StopAfterStep":
        """Install the handlers."""
        self.agreed = self._requested = 0
        try:
            self._previous = {number: signal.signal(number, self._request) for number in _SIGNALS}
        except ValueError:
            logger.info("Training outside the main thread: an interrupt will not wait for the end of the step.")
        self._handlers = dict(self._previous)
        return self

    def __exit__(self, *exception: object) -> None:
        """Put the previous handlers back, however training ended; one that ended for a signal raises it again."""
        self._restore()
        if not self.agreed or exception[0] is not None:
            return
        if callable(self._handlers.get(self.agreed)):  # Python's own for SIGINT, or one of the script
            signal.raise_signal(self.agreed)
        elif self.agreed == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(128 + self.agreed)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save and stop if any process was asked to; several agree on it once a generation batch."""
        # To agree is a collective, which waits for the device; generation waits anyway.
        per_batch = args.steps_per_generation * args.num_iterations
        between = state.global_step * args.gradient_accumulation_steps % per_batch >= args.gradient_accumulation_steps
        if not (between and self.accelerator.num_processes > 1) and self.agree():
            control.should_save = True
            control.should_training_stop = True

    def agree(self) -> int:
        """The signal that any process got, on all of them; 0: none. Returns when all processes have called it."""
        if self.accelerator.num_processes == 1:
            self.agreed = self._requested
            return self.agreed
        number = torch.tensor([self._requested], device=self.accelerator.device)
        self.agreed = int(self.accelerator.gather(number).max())
        return self.agreed

    def _request(self, number: int, frame: FrameType | None) -> None:
        logger.warning("%s: stopping after this step with a checkpoint.", signal.Signals(number).name)
        self._requested = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
