# SPDX-License-Identifier: Apache-2.0
"""One short line for each entry of the log, or the same figures beside the Trainer's bar.

    step 12/200 | reward 0.512 | tokens 15,824 | held out 0.431 | ETA 0:41:10

A bar is drawn where a terminal shows it; a file, a pipe and a notebook get lines. `report_to` and `log_history` get
all metrics. ETA is the time that remains at the mean pace since training began, measurements included.
"""

import re
import sys
import time
from datetime import timedelta
from typing import Any

from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK

from ..config import DUETGRPOConfig

_HELD_OUT = re.compile(r"held_out/(?:average|mean@\d+)")


def shown(logs: dict[str, Any] | None, counts_tokens: bool = False) -> dict[str, str]:
    """The figures that a run is followed by, out of one entry of the log.

    Args:
        logs (dict[str, Any] | None): The entry.
        counts_tokens (bool): Whether the budget is one of tokens, which then stands beside those of the step.
    """
    logs = {name: value for name, value in (logs or {}).items() if value is not None}
    found = {}
    if "reward" in logs:
        found["reward"] = _number(logs["reward"])
    if "duet/generated_tokens" in logs:
        found["tokens"] = _number(logs["duet/generated_tokens"])
        if counts_tokens and "duet/budget_tokens" in logs:
            found["tokens"] += f" of {_number(logs['duet/budget_tokens'])}"
    if "eval_reward" in logs:
        found["eval reward"] = _number(logs["eval_reward"])
    for name in filter(_HELD_OUT.fullmatch, logs):
        found["held out"] = _number(logs[name])
    if "train_runtime" in logs:
        found["trained in"] = _clock(logs["train_runtime"])
    return found


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


class Figures:
    """Figures of an entry, the latest held-out accuracy, and the time that remains."""

    def __init__(self) -> None:
        self._held_out: dict[str, str] = {}
        self._began: tuple[float, int] | None = None  # seconds, optimizer steps
        self._counts_tokens = False

    def begin(self, args: DUETGRPOConfig, state: TrainerState) -> None:
        """Training begins, maybe behind a checkpoint."""
        self._began = time.perf_counter(), state.global_step
        self._counts_tokens = args.budget_reading != "rollouts"

    def of(self, logs: dict[str, Any] | None) -> dict[str, str]:
        """Figures of an entry; that of a step has the latest held-out accuracy too."""
        found = shown(logs, self._counts_tokens)
        if "held out" in found:
            self._held_out = {"held out": found["held out"]}
        return found | self._held_out if "reward" in found else found

    def line(self, state: TrainerState, logs: dict[str, Any] | None) -> str | None:
        """The line of an entry; None if it has none of the figures."""
        found = self.of(logs)
        if not found:
            return None
        if "reward" in found and self._began is not None:
            began, first = self._began
            found["ETA"] = _clock(remaining(time.perf_counter() - began, state.global_step - first, state))
        return " | ".join([f"step {state.global_step}/{state.max_steps}", *(f"{k} {v}" for k, v in found.items())])

    def write(self, state: TrainerState, logs: dict[str, Any] | None) -> None:
        """Print the line of an entry, on the main process."""
        line = self.line(state, logs) if state.is_world_process_zero else None
        if line is not None:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


def remaining(seconds: float, steps: int, state: TrainerState) -> float:
    """Seconds that the other steps of the run take at the pace of `steps` optimizer steps in `seconds`."""
    return seconds / max(steps, 1) * (state.max_steps - state.global_step)


class ProgressBar(ProgressCallback):
    """The Trainer's bar with the latest figures beside it; lines where standard error is no terminal."""

    def __init__(self) -> None:
        super().__init__()
        self._figures = Figures()
        self._beside: dict[str, str] = {}
        self._drawn = sys.stderr.isatty()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the bar, or start the clock of the lines."""
        self._figures.begin(args, state)
        if self._drawn:
            super().on_train_begin(args, state, control, **kwargs)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Move the bar."""
        if self._drawn:
            super().on_step_end(args, state, control, **kwargs)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Move the bar of an evaluation."""
        if self._drawn:
            super().on_prediction_step(args, state, control, **kwargs)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Update the figures."""
        if self.training_bar is None:
            self._figures.write(state, logs)
        else:
            self._beside |= self._figures.of(logs)
            self.training_bar.set_postfix(self._beside)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the bar."""
        if self._drawn:
            super().on_train_end(args, state, control, **kwargs)


class ProgressLine(PrinterCallback):
    """With `disable_tqdm=True`: lines."""

    def __init__(self) -> None:
        self._figures = Figures()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the clock."""
        self._figures.begin(args, state)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Print the line of the entry."""
        self._figures.write(state, logs)


# In a notebook the default is a table of the loss, which says nothing here.
_REPLACED = {DEFAULT_PROGRESS_CALLBACK: ProgressBar, ProgressCallback: ProgressBar, PrinterCallback: ProgressLine}


def show_few_figures(trainer: Trainer) -> None:
    """Replace the Trainer's own callbacks that print; those of a user are left alone."""
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback) in _REPLACED:
            trainer.remove_callback(callback)
            trainer.add_callback(_REPLACED[type(callback)])
