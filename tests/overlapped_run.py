# SPDX-License-Identifier: Apache-2.0
"""A run of `duet` whose generation overlaps, killed: `python -m tests.overlapped_run model folder url step`."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from duet_trl import DUETGRPOTrainer
from tests.runs import duet_trainer, prompts

NUM_STEPS = 5
NUM_PROMPTS = 12
"""Four of them a step: the second epoch begins with step 4, which is generated in turn."""

METHODS = {
    "duet": {"method": "duet", "grace_window": 4, "method_kwargs": {"poll_interval": 4}},
    "dapo": {"method": "dapo", "method_kwargs": {"oversample": 1.5}},
}


def build(model: Path | str, folder: Path, url: str, method: str, **overrides: Any) -> DUETGRPOTrainer:
    """A trainer on a `WeightServer`, with a checkpoint after each step."""
    server = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": url, "engine": "openai"}
    server |= {"overlap": True, "server_weights_dir": str(folder / "weights")}
    # A whole rollout of the server's distribution is far from the policy's; a token is not.
    server |= {"vllm_importance_sampling_mode": "token_truncate"}
    batch = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "max_completion_length": 24}
    kept = {"save_strategy": "steps", "save_steps": 1, "audit_log": True, "max_steps": NUM_STEPS}
    return duet_trainer(
        model, folder, data=prompts(NUM_PROMPTS), **(server | batch | kept | METHODS[method] | overrides)
    )


class Kill(TrainerCallback):
    """Ends its own process between the gradient and the update of a step, whose successor is begun by then."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == self.step - 1:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    model, folder, url, step = sys.argv[1:]
    build(model, Path(folder), url, "duet", callbacks=[Kill(int(step))]).train()
