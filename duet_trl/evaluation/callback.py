# SPDX-License-Identifier: Apache-2.0
"""Measure held-out accuracy while training, with the trainer's own engine and its current weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .protocol import Score, mean_at_k
from .schedule import ScheduledMeasurement

Prompt = str | list[dict[str, Any]]


class Trainer(Protocol):
    """What the callback needs of a trainer: the public part of `DUETGRPOTrainer`."""

    def sample(
        self,
        prompts: list[Prompt],
        num_samples: int,
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
    ) -> list[list[list[int]]]:
        """Token ids per prompt and sample, from the current weights, without the gate."""

    def log(self, logs: dict[str, float]) -> None:
        """Log metrics, as in transformers' Trainer."""


@dataclass(frozen=True)
class Evaluation:
    """One measurement.

    Attributes:
        step (int): Optimizer steps done before it.
        train_seconds (float): Wall-clock seconds since training began, evaluations excluded.
        score (Score): mean@k.
        correct (np.ndarray): Graded samples, shape (P, k), bool.
        lengths (np.ndarray): Completion lengths, shape (P, k), tokens.
    """

    step: int
    train_seconds: float
    score: Score
    correct: np.ndarray
    lengths: np.ndarray


class HeldOutEvaluation(ScheduledMeasurement):
    """Evaluate before the first step, every `every` steps and after the last one, through `trainer.sample`.

    For problems and a grader of one's own; `SuiteEvaluation` measures the benchmarks and keeps a record. On several
    processes every rank samples and grades the same problems (sampling is a collective operation), so the callback
    needs no communication of its own. Nothing is selected: all measurements stay in `evaluations`.

    Args:
        trainer (Trainer): The trainer it is added to.
        prompts (Sequence[Prompt]): Held-out prompts, as in the training data set.
        grade (Callable[[int, list[int]], bool]): `grade(problem_index, completion_ids)`: is it right?
        num_samples (int): k of mean@k.
        every (int): Optimizer steps between measurements; 0 = only before the first and after the last step.
        temperature (float | None): Sampling temperature; None = the training temperature.
        max_tokens (int | None): Longest completion; None = the training limit.
        seed (int): Seed of the bootstrap.
    """

    def __init__(
        self,
        trainer: Trainer,
        prompts: Sequence[Prompt],
        grade: Callable[[int, list[int]], bool],
        *,
        num_samples: int = 4,
        every: int = 10,
        temperature: float | None = None,
        max_tokens: int | None = None,
        seed: int = 0,
    ) -> None:
        if num_samples < 1 or every < 0 or not prompts:
            raise ValueError(
                f"Evaluation needs prompts, num_samples >= 1 and every >= 0, got {len(prompts)} prompts, "
                f"num_samples {num_samples}, every {every}."
            )
        super().__init__(trainer, every)
        self.prompts = list(prompts)
        self.grade = grade
        self.num_samples = num_samples
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.seed = seed
        self.evaluations: list[Evaluation] = []

    def measure_step(self, step: int, train_seconds: float) -> dict[str, float]:
        """Sample, grade and remember; the accuracy and its interval as metrics."""
        samples = self.trainer.sample(
            self.prompts, self.num_samples, temperature=self.temperature, max_tokens=self.max_tokens
        )
        correct = np.array([[self.grade(index, ids) for ids in row] for index, row in enumerate(samples)], dtype=bool)
        lengths = np.array([[len(ids) for ids in row] for row in samples], dtype=np.int64)
        score = mean_at_k(correct, seed=self.seed)
        self.evaluations.append(Evaluation(step, train_seconds, score, correct, lengths))
        return {
            f"held_out/mean@{self.num_samples}": score.value,
            "held_out/low": score.low,
            "held_out/high": score.high,
            "held_out/mean_length": float(lengths.mean()),
        }
