# SPDX-License-Identifier: Apache-2.0
"""Records of runs whose accuracy is a known function of the step, for the tests of the arena's report."""

from collections.abc import Callable, Sequence

from benchmarks.arena.entrants import ENTRANTS
from benchmarks.arena.pace import CURVE, NOMINAL
from benchmarks.arena.records import REPORT, START, TUNE, Measurement, Run

ENVIRONMENT = {"hardware": {"cores": 2}, "versions": {"python": "3.11"}}


def right_counts(accuracy: float, problems: int, samples: int) -> list[int]:
    """Right samples of each problem, so that the first of them have the same mean as all, up to half a sample."""
    total = [round(accuracy * samples * count) for count in range(problems + 1)]
    return [after - before for before, after in zip(total, total[1:], strict=False)]


def measurement(
    step: int,
    accuracy: float,
    tokens_per_step: float = 1000.0,
    seconds_per_step: float = 2.0,
    problems: int = 100,
    samples: int = 2,
    careful: float | None = None,
) -> Measurement:
    """What a run has at a step; greedy decoding is right on as many problems, where samples are as many as at ends."""
    last = right_counts(accuracy, problems, samples)
    return Measurement(
        step=step,
        generated_tokens=round(tokens_per_step * step),
        trained_tokens=round(tokens_per_step * step / 2),
        seconds=seconds_per_step * step,
        processor_seconds=1.5 * seconds_per_step * step,
        samples=samples,
        last=last,
        first=last,
        greedy=None if samples == 2 else right_counts(accuracy, problems, 1),
        length=50.0,
        ended=0.9,
        entropy=0.3,
        careful=careful,
    )


def start(task: str, accuracy: float, problems: int = 100, careful: float | None = None) -> Run:
    """The policy before training."""
    point = measurement(0, accuracy, problems=problems, samples=16, careful=careful)
    return Run(task, "", START, 0.0, 0, 0, [point], {}, 1.0, ENVIRONMENT)


def run(
    entrant: str,
    accuracy: Callable[[int], float],
    seed: int = 0,
    task: str = "sums",
    steps: Sequence[int] = tuple(range(10, 81, 10)),
    horizon: int = 80,
    learning_rate: float | None = None,
    problems: int = 100,
    **costs: float,
) -> Run:
    """A reported run: 2 samples on the way; 4, greedy decoding and twice the problems at the horizon and the end.

    Args:
        entrant (str): The entrant.
        accuracy (Callable[[int], float]): By step.
        seed, task, horizon, learning_rate: As in `Run`. None: the entrant's own, or 3e-4.
        steps (Sequence[int]): Measured ones.
        problems (int): On the way.
        costs: `tokens_per_step`, `seconds_per_step`, and `careful`.
    """
    own = ENTRANTS[entrant].rate if entrant in ENTRANTS else None
    learning_rate = learning_rate or own or 3e-4
    points = []
    for step in steps:
        full = step in (horizon, steps[-1])
        size = {"problems": 2 * problems, "samples": 4} if full else {"problems": problems, "samples": 2}
        points.append(measurement(step, accuracy(step), **size, **costs))
    curves = {CURVE: [NOMINAL] * steps[-1]}
    return Run(task, entrant, REPORT, learning_rate, seed, horizon, points, curves, 60.0, ENVIRONMENT)


def tuning_run(entrant: str, learning_rate: float, horizon: int, accuracy: float, task: str = "sums") -> Run:
    """A run that tries a learning rate."""
    points = [measurement(step, accuracy) for step in (horizon - 8, horizon)]
    return Run(task, entrant, TUNE, learning_rate, 100, horizon, points, {}, 30.0, ENVIRONMENT)
