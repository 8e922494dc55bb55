# SPDX-License-Identifier: Apache-2.0
"""A line for each entry of the log, in place of the hundred metrics that transformers prints."""

from typing import Any

from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback

_SHOWN = {"reward": ".3f", "duet/generated_tokens": ",.0f", "held_out/mean@4": ".3f"}


class StepLine(TrainerCallback):
    """Prints step, reward, tokens of the step, and held-out accuracy where it was measured."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **of: Any) -> None:
        """Print the line of an entry."""
        found = [f"{name.split('/')[-1]} {logs[name]:{form}}" for name, form in _SHOWN.items() if name in logs]
        if found and state.is_world_process_zero:
            print(f"step {state.global_step}/{state.max_steps}", *found, sep=" | ", flush=True)


def print_lines(trainer: Trainer) -> None:
    """Have a trainer print only such lines."""
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    trainer.add_callback(StepLine())
