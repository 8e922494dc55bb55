# SPDX-License-Identifier: Apache-2.0
"""Measures a run on sums at the start, half-way and at the end of its time, and prints what it does meanwhile."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from sums import MAX_COMPLETION_LENGTH, Sum, is_correct
from transformers import TrainerCallback

from duet_trl.evaluation.protocol import mean_at_k

STOP = "\n"  # an answer ends with its line
SERVINGS = {"stopped": "served with the stop string", "free": "served freely"}
SAMPLES = 4  # of each held-out sum, at temperature 1
LINE_EVERY = 10  # seconds of training between two lines


class Watch(TrainerCallback):
    """Measures a run at the start, half-way and at the end, and ends it by its clock.

    Args:
        trainer (Any): The trainer it is added to, with a colocated engine.
        seconds (float): Of training, measurements excluded; the batch in which they are over is the last.
        problems (Sequence[Sum]): Measured with four samples each.
    """

    def __init__(self, trainer: Any, seconds: float, problems: Sequence[Sum]) -> None:
        self.trainer, self.limit, self.problems = trainer, seconds, problems
        self.points: list[dict[str, Any]] = []  # measurements, and what was spent before each
        self.first: dict[str, float] = {}  # what the first batch logged, and the last one
        self.last: dict[str, float] = {}
        self.batches, self.tokens, self.seconds = 0, 0, 0.0
        self._began = self._next_line = 0.0
        self._logged: dict[str, float] = {}  # since the last batch

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Measure the policy that training starts from."""
        self._measure()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        """Count a batch; print a line and measure where it is time."""
        self._logged |= logs
        if "duet/seconds_update" not in logs:  # which a batch has with its last update
            return
        of_batch, self._logged = self._logged, {}
        self.first, self.last = self.first or of_batch, of_batch
        self.seconds += time.perf_counter() - self._began
        self._began = time.perf_counter()
        self.batches, self.tokens = self.batches + 1, self.tokens + round(of_batch["duet/generated_tokens"])
        if self.seconds >= self._next_line:
            self._next_line = self.seconds + LINE_EVERY
            print(
                f"{clock(self.seconds)}  batch {self.batches}  reward {of_batch['reward']:.3f}  "
                f"tokens {self.tokens:,}",
                flush=True,
            )
        if self.seconds >= self.limit:
            control.should_training_stop = True
            self._measure()
        elif self.seconds >= self.limit / 2 and len(self.points) == 1:
            self._measure()

    def _measure(self) -> None:
        self.trainer.engine.sync_weights()
        servings = {"stopped": self._serve([STOP]), "free": self._serve(None)}
        spent = {"batches": self.batches, "tokens": self.tokens, "seconds": round(self.seconds, 1)}
        self.points.append(spent | {"servings": servings})
        found = ", ".join(f"{servings[key]['sampled']['value']:.2f} {what}" for key, what in SERVINGS.items())
        print(f"{clock(self.seconds)}  held out: {found}", flush=True)
        self._began = time.perf_counter()

    def _serve(self, stop: list[str] | None) -> dict[str, Any]:
        from vllm import SamplingParams

        prompts = [problem.prompt for problem in self.problems]
        found = {}
        for name, count, temperature in (("sampled", SAMPLES, 1.0), ("greedy", 1, 0.0)):
            # Seeds by problem: all runs are measured with the same luck. vLLM adds the sample's number to them.
            wanted = [
                SamplingParams(
                    n=count,
                    temperature=temperature,
                    max_tokens=MAX_COMPLETION_LENGTH,
                    stop=stop,
                    seed=SAMPLES * number,
                )
                for number in range(len(prompts))
            ]
            done = self.trainer.vllm_generation.llm.generate(prompts, wanted, use_tqdm=False)
            pairs = zip(self.problems, done, strict=True)
            right = [[is_correct(one.text, problem.answer) for one in each.outputs] for problem, each in pairs]
            found[name] = mean_at_k(np.array(right)).to_dict()
        return found


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
