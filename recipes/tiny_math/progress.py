# SPDX-License-Identifier: Apache-2.0
"""A progress bar that shows three figures instead of sixty metrics a step."""

from typing import Any

from transformers import ProgressCallback, TrainerControl, TrainerState, TrainingArguments

_SHOWN = {"reward": "reward", "duet/generated_tokens": "tokens", "held_out/mean@4": "held-out"}


class ProgressBar(ProgressCallback):
    """The Trainer's own bar with the latest reward, generated tokens and held-out accuracy beside it."""

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
        """Update the figures beside the bar."""
        self._latest |= {
            label: f"{logs[key]:.4g}" for key, label in _SHOWN.items() if (logs or {}).get(key) is not None
        }
        if self.training_bar is not None:
            self.training_bar.set_postfix(self._latest)
