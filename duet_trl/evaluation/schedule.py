# SPDX-License-Identifier: Apache-2.0
"""When a policy is measured while it trains: before the first step, every N steps and after the last one."""

import time
from abc import ABC, abstractmethod
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class ScheduledMeasurement(TrainerCallback, ABC):
    """A callback that measures on the schedule and logs apart from the metrics of the training steps.

    Args:
        trainer (Any): The trainer it is added to; its `log` takes the metrics.
        every (int): Optimizer steps between measurements; 0 = only before the first and after the last step.

    Attributes:
        seconds (float): Wall-clock time spent in measurements since training began.
    """

    def __init__(self, trainer: Any, every: int) -> None:
        if every < 0:
            raise ValueError(f"every must be at least 0 optimizer steps, got {every}. 0 measures the two ends only.")
        self.trainer = trainer
        self.every = every
        self.seconds = 0.0
        self._began = 0.0
        self._unlogged: dict[str, float] | None = None

    @abstractmethod
    def measure_step(self, step: int, train_seconds: float) -> dict[str, float]:
        """Measure the policy as it is.

        Args:
            step (int): Optimizer steps done.
            train_seconds (float): Wall-clock seconds since training began, measurements excluded.

        Returns:
            dict[str, float]: Metrics to log.
        """

    def prepare(self, step: int) -> bool:
        """Called once before training; whether the policy is to be measured before the first step that follows.

        Args:
            step (int): Optimizer steps done: 0, or those of the checkpoint that the run resumes from.
        """
        return True

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure the policy that training starts from."""
        self._began = time.perf_counter()
        self.seconds = 0.0
        self._unlogged = None
        if self.prepare(state.global_step):
            self._measure(state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure every `every` steps and after the last one."""
        due = self.every > 0 and state.global_step % self.every == 0
        if due or state.global_step == state.max_steps:
            self._measure(state.global_step)
            # GRPOTrainer.log takes all pending metrics along: the step logs its own first.
            control.should_log = True

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log the measurement, once the metrics of its step are logged and before the next step has any."""
        self._log()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log the last measurement."""
        self._log()

    def _log(self) -> None:
        unlogged, self._unlogged = self._unlogged, None
        if unlogged is not None:
            self.trainer.log(unlogged)

    def _measure(self, step: int) -> None:
        begin = time.perf_counter()
        self._unlogged = self.measure_step(step, begin - self._began - self.seconds)
        self.seconds += time.perf_counter() - begin
