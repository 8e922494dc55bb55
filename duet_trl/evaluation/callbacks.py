# SPDX-License-Identifier: Apache-2.0
"""Measure a policy while it trains: on problems of one's own, or on the benchmark suites with a record.

Measured before the first step, every N steps and after the last one, with the trainer's own engine and its current
weights, without the gate. Every process samples (a collective operation) the same problems.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .measure import Grader, Prompt, Sampler, Settings, build_graders, measure, on_first
from .prompts import eos_token_ids
from .protocol import Score, mean_at_k
from .record import Record
from .results import Subject


class Trainer(Sampler, Protocol):
    """What the callbacks need of a trainer: the public part of `DUETGRPOTrainer`."""

    processing_class: PreTrainedTokenizerBase
    eos_token_ids: Sequence[int]

    def log(self, logs: dict[str, float]) -> None:
        """Log metrics, as in transformers' Trainer."""

    def save_model(self, output_dir: str, _internal_call: bool) -> None:
        """Save weights and tokenizer; every process calls it."""


class ScheduledMeasurement(TrainerCallback, ABC):
    """A callback that measures on the schedule and logs apart from the metrics of the training steps.

    Args:
        trainer (Trainer): The trainer it is added to; its `log` takes the metrics.
        every (int): Optimizer steps between measurements; 0 = only before the first and after the last step.
    """

    def __init__(self, trainer: Trainer, every: int) -> None:
        if every < 0:
            raise ValueError(f"every must be at least 0 optimizer steps, got {every}. 0 measures the two ends only.")
        self.trainer = trainer
        self.every = every
        self.seconds = 0.0  # wall-clock time of the measurements since training began
        self._began = 0.0
        self._unlogged: dict[str, float] | None = None

    @abstractmethod
    def measure_step(self, step: int, train_seconds: float) -> dict[str, float]:
        """Metrics of the policy, `step` optimizer steps and `train_seconds` (without measurements) after training
        began.
        """

    def prepare(self, step: int) -> bool:
        """Called once before training, at step 0 or a checkpoint's: whether to measure before the next step."""
        return True

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Measure the policy that training starts from."""
        self._began, self.seconds, self._unlogged = time.perf_counter(), 0.0, None
        if self.prepare(state.global_step):
            self._measure(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Measure every `every` steps and after the last one."""
        due = self.every > 0 and state.global_step % self.every == 0
        if due or state.global_step == state.max_steps:
            self._measure(state.global_step)
            # GRPOTrainer.log takes all pending metrics along: the step logs its own first.
            control.should_log = True

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Log the measurement, once the metrics of its step are logged and before the next step has any."""
        unlogged, self._unlogged = self._unlogged, None
        if unlogged is not None:
            self.trainer.log(unlogged)

    on_train_end = on_step_begin  # the last measurement

    def _measure(self, step: int) -> None:
        begin = time.perf_counter()
        self._unlogged = self.measure_step(step, begin - self._began - self.seconds)
        self.seconds += time.perf_counter() - begin


@dataclass(frozen=True)
class Evaluation:
    """One measurement of `HeldOutEvaluation`."""

    step: int  # optimizer steps done before it
    train_seconds: float  # wall-clock seconds since training began, evaluations excluded
    score: Score  # mean@k
    correct: np.ndarray  # graded samples, shape (P, k), bool
    lengths: np.ndarray  # completion lengths, shape (P, k), tokens


class HeldOutEvaluation(ScheduledMeasurement):
    """Measure problems and a grader of one's own, sampled as in training; `evaluations` holds all measurements.

    Args:
        trainer (Trainer): The trainer it is added to; of it only `sample` and `log` are used.
        prompts (Sequence[Prompt]): Held-out prompts, as in the training data set.
        grade (Callable[[int, list[int]], bool]): `grade(problem_index, completion_ids)`: is it right?
        num_samples (int): k of mean@k.
        every (int): Optimizer steps between measurements; 0 = only before the first and after the last step.

    Raises:
        ValueError: If there are no prompts or samples, or `every` is negative.
    """

    def __init__(
        self,
        trainer: Trainer,
        prompts: Sequence[Prompt],
        grade: Callable[[int, list[int]], bool],
        *,
        num_samples: int = 4,
        every: int = 10,
    ) -> None:
        super().__init__(trainer, every)
        if num_samples < 1 or not prompts:
            raise ValueError(
                f"Evaluation needs prompts and num_samples >= 1, got {len(prompts)} prompts and "
                f"num_samples {num_samples}."
            )
        self.prompts = list(prompts)
        self.grade = grade
        self.num_samples = num_samples
        self.evaluations: list[Evaluation] = []

    def measure_step(self, step: int, train_seconds: float) -> dict[str, float]:
        """Sample, grade and remember; the accuracy and its interval as metrics."""
        samples = self.trainer.sample(self.prompts, self.num_samples)
        correct = np.array([[self.grade(index, ids) for ids in row] for index, row in enumerate(samples)], dtype=bool)
        lengths = np.array([[len(ids) for ids in row] for row in samples], dtype=np.int64)
        score = mean_at_k(correct)
        self.evaluations.append(Evaluation(step, train_seconds, score, correct, lengths))
        return {
            f"held_out/mean@{self.num_samples}": score.value,
            "held_out/low": score.low,
            "held_out/high": score.high,
            "held_out/mean_length": float(lengths.mean()),
        }


class SuiteEvaluation(ScheduledMeasurement):
    """Measure all suites, keep the record of `record.py`, and the best checkpoint in <output_dir>/best.

    Metrics are `held_out/<suite>/mean@4` (with `_low` and `_high`), `best@4`, `mean@1` (greedy), `truncated` and
    `mean_length` of the samples, and `held_out/average`, the mean over suites of mean@4. The best checkpoint is chosen
    on the benchmarks themselves, as the paper does: report the last one beside it.

    Add it on every process: process 0 grades and writes. The random numbers of training are left as they were, so that
    a run is the same with and without measurements.

    Args:
        trainer (Trainer): The trainer it is added to.
        suites (Mapping[str, Dataset]): Problems by suite, from `load_suite`.
        output_dir (str | Path): The run's folder.
        every (int): Optimizer steps between measurements; 0 = only before the first and after the last. Paper: 30.
        settings (Settings): How to decode. `max_tokens` must fit into the training engine beside the prompts.
        graders (Mapping[str, Grader] | None): From `build_graders`; None: with its defaults.
        subject (Subject | None): Name of the model, sources and versions for the result files.

    Raises:
        ValueError: If there is no suite, or `every` is negative.
        SandboxError: If a suite runs programs and no strong isolation holds here.
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
        subject: Subject | None = None,
    ) -> None:
        super().__init__(trainer, every)
        if not suites:
            raise ValueError("SuiteEvaluation needs at least one suite. Leave the callback out to measure nothing.")
        self.suites = dict(suites)
        self.settings = settings or Settings()
        self.graders = dict(graders) if graders is not None else build_graders(self.suites, own=self.suites)
        self.subject = subject or Subject(model=str(output_dir), engine="training engine")
        self.record = Record(Path(output_dir))
        self._eos_ids = eos_token_ids(trainer.processing_class, trainer.eos_token_ids)

    def prepare(self, step: int) -> bool:
        """Take up the record; a resumed run does not measure its first step as step 0."""
        measured = on_first(lambda: self.record.begin(step))
        if step > 0:
            # The checkpoint was saved before the measurement of its own step was logged: it would be lost to the log.
            self._unlogged = on_first(lambda: self.record.logged(step))
        return measured

    def measure_step(self, step: int, train_seconds: float) -> dict[str, float]:
        """Measure all suites, add to the record, save the checkpoint if it is the best."""
        tokenizer = self.trainer.processing_class
        devices: list[Any] = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        with torch.random.fork_rng(devices):  # an engine in this process samples with torch's generators
            found = measure(self.trainer, self.suites, self.graders, tokenizer, self._eos_ids, self.settings)
        subject = replace(self.subject, step=step, eos_ids=self._eos_ids, chat_template=tokenizer.chat_template)
        improved = on_first(lambda: self.record.write(step, found, self.suites, subject))
        if improved:
            on_first(self.record.before_best)
            # Not a save that the user asked for: that would be pushed to the Hub.
            self.trainer.save_model(str(self.record.best_folder), _internal_call=True)
            on_first(lambda: self.record.after_best(step))
        seconds = {f"held_out/{suite}/seconds": measurement.seconds for suite, measurement in found.items()}
        return on_first(lambda: self.record.logged(step)) | seconds
