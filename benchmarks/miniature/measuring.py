# SPDX-License-Identifier: Apache-2.0
"""Held-out accuracy while a cell trains, with what the run had cost by then."""

from collections.abc import Sequence
from typing import Any

from duet_trl.evaluation.callbacks import ScheduledMeasurement
from duet_trl.gate.markers import extract_answer
from recipes.tiny_math.problems import Problem

from .cell import Profile, processor_seconds
from .grading import is_right


class Measurement(ScheduledMeasurement):
    """Measure `profile.held_out` problems on the way and all at the end, first and last answer of every sample.

    The last measurement takes the problems of the others first, so that the first `held_out` of it belong to the
    curve. Processor seconds are those of training: measurements are left out.

    Args:
        trainer (Any): The trainer it is added to.
        problems (Sequence[Problem]): Held-out problems, the levels in turn.
        marker (str): Of an answer.
        profile (Profile): How many of them are measured when.
        seed (int): Of the run.
    """

    def __init__(self, trainer: Any, problems: Sequence[Problem], marker: str, profile: Profile, seed: int) -> None:
        super().__init__(trainer, profile.every)
        self.problems = problems
        self.marker = marker
        self.profile = profile
        self.seed = seed
        self.evaluations: list[dict[str, Any]] = []
        self._began: float = 0.0
        self._start = 0.0
        self._measuring = 0.0

    def prepare(self, step: int) -> bool:
        """Start the clock of the processor."""
        self._start = processor_seconds()
        return True

    def measure_step(self, step: int, train_seconds: float) -> dict[str, float]:
        """Sample, grade and remember."""
        begin = processor_seconds()
        last = step == self.trainer.state.max_steps
        problems = self.problems[: self.profile.held_out_end if last else self.profile.held_out]
        samples = self.trainer.sample([problem.messages for problem in problems], self.profile.samples)
        texts = [[self.trainer.processing_class.decode(ids) for ids in row] for row in samples]
        right = {
            which: [
                sum(is_right(text, problem.answer, which, self.marker) for text in row)
                for problem, row in zip(problems, texts, strict=True)
            ]
            for which in ("first", "last")
        }
        lengths = [len(ids) for row in samples for ids in row]
        unanswered = sum(extract_answer(self.marker, text) is None for row in texts for text in row)
        self.evaluations.append(
            {
                "step": step,
                "train_seconds": train_seconds,
                "processor_seconds": begin - self._start - self._measuring,
                "right_first": right["first"],
                "right_last": right["last"],
                "mean_length": sum(lengths) / len(lengths),
                "no_answer": unanswered / len(lengths),
            }
        )
        self._measuring += processor_seconds() - begin
        return {"held_out/first": sum(right["first"]) / len(lengths)}
