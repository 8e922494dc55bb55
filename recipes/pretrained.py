# SPDX-License-Identifier: Apache-2.0
# make models && python recipes/pretrained.py --max_steps 40    # two CPU cores or one GPU
"""Trains a pre-trained model on sums (sums.py) and prints a line for each step, and the result on held-out sums.

    python recipes/pretrained.py                                                     SmolLM2-135M-Instruct
    python recipes/pretrained.py --config recipes/configs/pretrained_270m.yaml       gemma-3-270m

`make models` fetches both. Options are those of math_qwen3.py. Nobody stops the held-out completions: the last answer
counts, and a policy that continues after it loses it.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from pretrained_models import FOLDER, REMEDY
from run import Begin, load_tokenizer, prepare, start
from script_arguments import ScriptArguments
from sums import held_out_problems, last_answer_reward, measure, rows, train_problems
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import ModelConfig

from duet_trl import DUETGRPOConfig


class Lines(TrainerCallback):
    """A line for each step, and the held-out figures before the first and after the last."""

    def __init__(self) -> None:
        self.generated = 0.0  # tokens, of all steps
        self.logged: dict[str, float] = {}  # since the last line

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any) -> None:
        """Measure the policy that training starts from."""
        self._measure(state, of)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, float], **of: Any
    ) -> None:
        """Reward, rate, tokens generated so far."""
        if not state.is_world_process_zero:
            return
        self.logged |= logs
        if "duet/seconds_update" not in logs:  # which a batch has with its last update
            return
        of_batch, self.logged = self.logged, {}
        self.generated += of_batch.get("duet/generated_tokens", 0.0)
        print(
            f"step {state.global_step}  reward {of_batch['reward']:.3f}  "
            f"rate {of_batch['learning_rate']:.1e}  tokens {self.generated:,.0f}",
            flush=True,
        )

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any) -> None:
        """Measure the result of training."""
        self._measure(state, of)

    def _measure(self, state: TrainerState, of: dict[str, Any]) -> None:
        if not state.is_world_process_zero:
            return
        problems = held_out_problems()
        for name, temperature in (("greedy", 0.0), ("temperature 1", 1.0)):
            found = measure(of["model"], of["processing_class"], problems, temperature=temperature)
            print(
                f"held out, {name}: last answer {found.last:.3f}, first {found.first:.3f}, ends by itself "
                f"{found.ended:.3f}, {found.mean_length:.1f} tokens",
                flush=True,
            )


def main(arguments: ScriptArguments, config: DUETGRPOConfig, model: ModelConfig) -> Begin:
    """Sums, graded by the last box."""
    place = Path(model.model_name_or_path or "")
    if place.parent.parts[-2:] == FOLDER.parts[-2:] and not place.is_dir():
        raise ValueError(f"there is no model in {place}. {REMEDY}")
    tokenizer = load_tokenizer(config, model)
    dataset = Dataset.from_list(rows(train_problems()))
    return prepare(arguments, config, model, tokenizer, dataset, last_answer_reward, [Lines()])


def options(given: list[str]) -> list[str]:
    """The command line with the settings for this machine, and the smaller model unless a file names another one."""
    named = (
        [] if "--config" in given else ["--config", str(Path(__file__).parent / "configs" / "pretrained_135m.yaml")]
    )
    return [*given, *named, *([] if torch.cuda.is_available() else ["--use_cpu", "true"])]


if __name__ == "__main__":
    start(main, options(sys.argv[1:]))
