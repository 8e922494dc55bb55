# SPDX-License-Identifier: Apache-2.0
"""A script as users write it, whose training gets a signal: `python -m tests.interrupted_run model folder signal at`.

On several processes only the last one gets it. `at` is the step that is running then, or `end` for the moment behind
the last step.
"""

import os
import sys
from pathlib import Path

from transformers import TrainerCallback

from tests.runs import duet_trainer


class Interrupt(TrainerCallback):
    """Signals its own process."""

    def __init__(self, number: int, at: str) -> None:
        self.number, self.at = number, at

    def _signal(self) -> None:
        if int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1:
            os.kill(os.getpid(), self.number)

    def on_step_begin(self, args, state, control, **kwargs):
        if str(state.global_step) == self.at:
            self._signal()

    def on_train_end(self, args, state, control, **kwargs):
        if self.at == "end":
            self._signal()


if __name__ == "__main__":
    model, folder, number, at = sys.argv[1:]
    trainer = duet_trainer(model, Path(folder, "run"), max_steps=4, callbacks=[Interrupt(int(number), at)])
    trainer.train()
    trainer.save_model(str(Path(folder, "saved")))
