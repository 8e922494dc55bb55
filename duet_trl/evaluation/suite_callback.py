# SPDX-License-Identifier: Apache-2.0
"""Measure the benchmark suites while training, keep the record and the best checkpoint."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from .collective import on_first
from .ends import eos_token_ids
from .measure import Grader, Measurement, Sampler, Settings, average, build_graders, measure
from .record import Record
from .results import Subject
from .schedule import ScheduledMeasurement


class Trainer(Sampler, Protocol):
    """What the callback needs of a trainer: the public part of `DUETGRPOTrainer`."""

    processing_class: PreTrainedTokenizerBase
    eos_token_ids: Sequence[int]

    def log(self, logs: dict[str, float]) -> None:
        """Log metrics, as in transformers' Trainer."""

    def save_model(self, output_dir: str, _internal_call: bool) -> None:
        """Save weights and tokenizer; every process calls it."""


class SuiteEvaluation(ScheduledMeasurement):
    """Measure all suites at step 0, every `every` steps and after the last one, through `trainer.sample`.

    Metrics are `held_out/<suite>/mean@4` (with `_low` and `_high`), `best@4`, `mean@1` (greedy), `truncated` and
    `mean_length` of the samples, and `held_out/average`, the mean over suites of mean@4. Files are as in
    `duet_trl.evaluation.record`. The best checkpoint is chosen on the benchmarks themselves, as the paper does: report
    the last one beside it.

    Add it on every process. Sampling is shared, process 0 grades and writes. The random numbers of training are left
    as they were, so that a run is the same with and without measurements.

    Args:
        trainer (Trainer): The trainer it is added to.
        suites (Mapping[str, Dataset]): Problems by suite, from `load_suite`.
        output_dir (str | Path): The run's folder.
        every (int): Optimizer steps between measurements; 0 = only before the first and after the last. Paper: 30.
        settings (Settings): How to decode. `max_tokens` must fit into the training engine beside the prompts.
        graders (Mapping[str, Grader] | None): From `build_graders`; None: with its defaults.
        subject (Subject | None): Name of the model, sources and versions for the result files.
        save_best (bool): Whether to save the best checkpoint to <output_dir>/best.
        samples (bool): Whether to write every completion.

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
        save_best: bool = True,
        samples: bool = False,
    ) -> None:
        super().__init__(trainer, every)
        if not suites:
            raise ValueError("SuiteEvaluation needs at least one suite. Leave the callback out to measure nothing.")
        self.suites = dict(suites)
        self.settings = settings or Settings()
        self.graders = dict(graders) if graders is not None else build_graders(self.suites)
        self.subject = subject or Subject(model=str(output_dir), engine="training engine")
        self.save_best = save_best
        self.record = Record(Path(output_dir), samples)
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
        with _kept_random_state():
            measurements = measure(
                self.trainer, self.suites, self.graders, self.trainer.processing_class, self._eos_ids, self.settings
            )
        improved = on_first(lambda: self.record.write(step, measurements, self.suites, self._subject(step)))
        if improved and self.save_best:
            on_first(self.record.before_best)
            # Not a save that the user asked for: that would be pushed to the Hub.
            self.trainer.save_model(str(self.record.best_folder), _internal_call=True)
            on_first(lambda: self.record.after_best(step))
        return _metrics(measurements)

    def _subject(self, step: int) -> Subject:
        return Subject(
            **self.subject.__dict__
            | {"step": step, "eos_ids": self._eos_ids, "chat_template": self.trainer.processing_class.chat_template}
        )


def _metrics(measurements: Mapping[str, Measurement]) -> dict[str, float]:
    metrics = {"held_out/average": average(measurements)}
    for suite, measurement in measurements.items():
        for (name, _), score in measurement.scores.items():
            metrics[f"held_out/{suite}/{name}"] = score.value
        headline, sampled = f"held_out/{suite}/mean@{measurement.settings.num_samples}", measurement.graded["sampled"]
        metrics[f"{headline}_low"], metrics[f"{headline}_high"] = measurement.headline.low, measurement.headline.high
        metrics[f"held_out/{suite}/truncated"] = float(sampled.truncated.mean())
        metrics[f"held_out/{suite}/mean_length"] = float(sampled.lengths.mean())
        metrics[f"held_out/{suite}/seconds"] = measurement.seconds
    return metrics


@contextmanager
def _kept_random_state() -> Iterator[None]:
    """Put torch's generators back as they were; an engine in this process samples with them."""
    devices: list[Any] = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        yield
