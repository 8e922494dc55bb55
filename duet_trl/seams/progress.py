# SPDX-License-Identifier: Apache-2.0
"""A few figures on the console instead of all metrics of a step; `report_to` and `log_history` get them all."""

import re
from typing import Any

from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerControl, TrainerState, TrainingArguments

_SHOWN = {
    "reward": "reward",
    "duet/generated_tokens": "tokens",
    "duet/trim_rate": "trimmed",
    "duet/abort_rate": "aborted",
    "eval_reward": "eval reward",
    "train_runtime": "seconds",
}
_HELD_OUT = re.compile(r"held_out/(?:average|mean@\d+)")


def shown(logs: dict[str, Any] | None) -> dict[str, str]:
    """The figures that a run is followed by, out of one entry of the log."""
    logs = logs or {}
    found = {label: logs[name] for name, label in _SHOWN.items() if name in logs}
    found |= {_HELD_OUT.sub("held out", name): value for name, value in logs.items() if _HELD_OUT.fullmatch(name)}
    return {label: f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" for label, value in found.items()}


class ProgressBar(ProgressCallback):
    """The Trainer's bar with the latest figures beside it."""

    def __init__(self) -> None:
        super().__init__()
        self._latest: dict[str, str] = {}

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Update the figures."""
        self._latest |= shown(logs)
        if self.training_bar is not None:
            self.training_bar.set_postfix(self._latest)


class ProgressLine(PrinterCallback):
    """With `disable_tqdm=True`: one short line for each entry of the log."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Let the Trainer's callback print the figures alone."""
        figures = shown(logs)
        if figures:
            figures = {"step": f"{state.global_step}/{state.max_steps}", **figures}
            super().on_log(args, state, control, logs=figures, **kwargs)


_REPLACED = {ProgressCallback: ProgressBar, PrinterCallback: ProgressLine}


def show_few_figures(trainer: Trainer) -> None:
    """Replace the callbacks that print whole entries. A notebook's own, and a user's, are left alone."""
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback) in _REPLACED:
            trainer.remove_callback(callback)
            trainer.add_callback(_REPLACED[type(callback)])
