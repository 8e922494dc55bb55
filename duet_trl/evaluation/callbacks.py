# SPDX-License-Identifier: Apache-2.0
"""Measure a policy while it trains, on benchmark suites or on your own problems.

Measured before the first step, every N steps and after the last one, with the trainer's own engine and its current
weights, without the gate. Every process samples (a collective operation) the same problems.
"""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .measure import Grader, Measurement, Sampler, Settings, build_graders, measure, on_first
from .prompts import eos_token_ids

logger = logging.getLogger(__name__)

BEST_FOLDER, BEST_EVALUATION = "best", "evaluation.json"
"""Folder of the best checkpoint, and the file of its measurement: `step` and the logged metrics."""


class Trainer(Sampler, Protocol):
    """The part of a trainer that the callback uses: the public part of `DUETGRPOTrainer`."""

    processing_class: PreTrainedTokenizerBase
    eos_token_ids: Sequence[int]

    def log(self, logs: dict[str, float]) -> None:
        """Log metrics, as in transformers' Trainer."""

    def save_model(self, output_dir: str, _internal_call: bool) -> None:
        """Save weights and tokenizer; every process calls it."""


class SuiteEvaluation(TrainerCallback):
    """Measure all suites, and keep the best checkpoint in <output_dir>/best.

    Metrics are `held_out/<suite>/...` and `held_out/average`, the mean over suites of mean@k, which chooses the best
    checkpoint on the benchmarks themselves, as the paper does: report the last one as well. Step 0 is never best.
    A resumed run keeps the best checkpoint until it is beaten; a new run in the same folder does not.

    Add it on every process: process 0 grades and writes. The random numbers of training are left as they were.

    Args:
        trainer (Trainer): The trainer it is added to.
        suites (Mapping[str, Dataset]): Problems by suite, with `prompt` (messages) and what its grader reads.
        output_dir (str | Path): The run's folder.
        every (int): Optimizer steps between measurements; 0 = only before the first and after the last. Paper: 30.
        settings (Settings): How to decode. `max_tokens` must fit into the training engine with the prompts.
        graders (Mapping[str, Grader] | None): Your own, by suite; the others are those of `build_graders`.

    Attributes:
        measurements (list[tuple[int, dict[str, Measurement]]]): Optimizer steps before each measurement since training
            began, and its result by suite, without the texts.
        seconds (float): Their wall-clock time.
    """

    def __init__(
        self,
        trainer: Trainer,
        suites: Mapping[str, Dataset],
        output_dir: str | Path,
        *,
        every: int = 30,
        settings: Settings | None = None,
        graders: Mapping[str, Grader] | None = None,
    ) -> None:
        if every < 0:
            raise ValueError(f"every must be at least 0 optimizer steps, got {every}. 0 measures only at both ends.")
        if not suites:
            raise ValueError("SuiteEvaluation needs at least one suite. Leave the callback out to measure nothing.")
        if empty := [name for name, problems in suites.items() if not len(problems)]:
            raise ValueError(f"the suite {empty[0]!r} has no problems. Leave it out.")
        self.trainer, self.every, self.suites = trainer, every, dict(suites)
        self.settings = settings or Settings()
        own = dict(graders or {})
        self.graders = build_graders(self.suites.keys() - own.keys()) | own
        self.best_folder = Path(output_dir) / BEST_FOLDER
        self.measurements: list[tuple[int, dict[str, Measurement]]] = []
        self.seconds = 0.0
        self._unlogged: dict[str, float] | None = None
        self._eos_ids = eos_token_ids(trainer.processing_class, trainer.eos_token_ids)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Measure the policy that training starts from.

        A checkpoint is saved before the measurement of its step is logged, so a run that resumes from it makes
        that measurement again. A step between two measurements is not measured.
        """
        self.measurements, self.seconds, self._unlogged = [], 0.0, None
        if state.global_step == 0 or self._due(state):
            self._measure(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Measure every `every` steps and after the last one."""
        if self._due(state):
            self._measure(state.global_step)
            # GRPOTrainer.log takes all pending metrics along: the step logs its own first.
            control.should_log = True

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Log the measurement, once the metrics of its step are logged and before the next step has any."""
        unlogged, self._unlogged = self._unlogged, None
        if unlogged is not None:
            self.trainer.log(unlogged)

    on_train_end = on_step_begin  # the last measurement

    def _due(self, state: TrainerState) -> bool:
        return state.global_step == state.max_steps or (self.every > 0 and state.global_step % self.every == 0)

    def _measure(self, step: int) -> None:
        """Measure all suites, and save the checkpoint if it is the best."""
        begin, tokenizer = time.perf_counter(), self.trainer.processing_class
        devices: list[Any] = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        with torch.random.fork_rng(devices):  # an engine in this process samples with torch's generators
            found = measure(self.trainer, self.suites, self.graders, tokenizer, self._eos_ids, self.settings)
        main, metrics = f"mean@{self.settings.num_samples}", {}
        for suite, measurement in found.items():
            values = {name: score.value for name, score in measurement.scores.items()}
            headline = measurement.scores[main]
            values |= {f"{main}_low": headline.low, f"{main}_high": headline.high, "seconds": measurement.seconds}
            metrics |= {f"held_out/{suite}/{name}": value for name, value in values.items()}
        metrics["held_out/average"] = float(np.mean([metrics[f"held_out/{suite}/{main}"] for suite in self.suites]))
        self._keep_best({"step": step} | metrics)
        self.measurements.append((step, {suite: _without_texts(one) for suite, one in found.items()}))
        self._unlogged = metrics
        self.seconds += time.perf_counter() - begin

    def _keep_best(self, measured: dict[str, float]) -> None:
        """Save the policy if it beats the best checkpoint; step 0 begins a new run, which has none."""
        record = self.best_folder / BEST_EVALUATION

        def improves() -> bool:
            if measured["step"] == 0:
                record.unlink(missing_ok=True)
                return False
            best = json.loads(record.read_text()) if record.exists() else measured | {"held_out/average": -1.0}
            if best.keys() != measured.keys():
                logger.warning("%s has other figures than step %d, which takes its place.", record, measured["step"])
                return True
            return measured["held_out/average"] > best["held_out/average"]

        if not on_first(improves):
            return
        on_first(lambda: record.unlink(missing_ok=True))  # a run that is killed while it saves has no best checkpoint
        # Not a save that the user asked for: that would be pushed to the Hub.
        self.trainer.save_model(str(self.best_folder), _internal_call=True)
        on_first(lambda: record.write_text(json.dumps(measured, indent=2) + "\n"))


def _without_texts(measurement: Measurement) -> Measurement:
    """As it is kept to the end of the training."""
    return replace(measurement, graded={way: replace(one, texts=[]) for way, one in measurement.graded.items()})
