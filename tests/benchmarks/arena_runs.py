# SPDX-License-Identifier: Apache-2.0
"""Runs of the arena made by hand, whose accuracy is a known function of the batch."""

from collections.abc import Callable

from benchmarks.arena.entrants import REFERENCE
from benchmarks.arena.profiles import TUNING_SEED
from benchmarks.arena.records import FREE, REPORT, START, STOPPED, TUNE, Measurement, Run, Serving

TASK = "mixed_135m"


def line(end: float) -> Callable[[int], float]:
    """Accuracy from 0.4 at the start to this at batch 48, and on at the same rate."""
    return lambda batch: 0.4 + (end - 0.4) * batch / 48


RISING = line(0.6)


def serving(accuracy: float, samples: int, greedy: float | None = None) -> Serving:
    """Of 1,000 problems. Right samples are spread evenly: the first problems have the same mean as all."""
    found = [round(accuracy * samples * count) for count in range(1001)]
    right = [after - before for before, after in zip(found, found[1:], strict=False)]
    certain = None if greedy is None else [int(place < greedy * 1000) for place in range(1000)]
    return Serving(right, samples, certain, 20.0, 0.9)


def measured(batch: int, tokens: float, seconds: float, **servings: Serving) -> Measurement:
    """After a batch, of the given tokens and seconds each."""
    phases = {"plan": 0.1 * batch, "generate": 0.9 * batch, "score": 0.1 * batch, "update": 0.5 * batch}
    return Measurement(batch, round(tokens * batch), 0, seconds * batch, phases, servings)


def start(task: str = TASK) -> Run:
    """The policy before training."""
    servings = {STOPPED: serving(0.4, 16, 0.4), FREE: serving(0.2, 2, 0.2)}
    return made(task, "", START, 0.0, 0, [measured(0, 0, 0, **servings)])


def run(
    entrant: str = REFERENCE,
    accuracy: Callable[[int], float] = RISING,
    seed: int = 0,
    batches: tuple[int, ...] = (12, 24, 36, 48),
    tokens: float = 1000.0,
    seconds: float = 2.0,
    greedy: float = 0.5,
    rate: float = 3e-5,
    **fields,
) -> Run:
    """A reported run: 2 samples with the stop string on the way; at the end 8, greedy decoding, and without it."""
    *way, last = batches
    points = [measured(one, tokens, seconds, **{STOPPED: serving(accuracy(one), 2)}) for one in way]
    whole = {STOPPED: serving(accuracy(last), 8, greedy), FREE: serving(accuracy(last), 1, greedy)}
    points.append(measured(last, tokens, seconds, **whole))
    return made(TASK, entrant, REPORT, rate, seed, points, **fields)


def tuning_run(rate: float, accuracy: float, entrant: str = REFERENCE, task: str = TASK, **fields) -> Run:
    """A learning rate that is tried, with this accuracy at both measurements."""
    points = [measured(batch, 1000, 2.0, **{STOPPED: serving(accuracy, 8)}) for batch in (24, 32)]
    return made(task, entrant, TUNE, rate, TUNING_SEED, points, **fields)


def made(task, entrant, stage, rate, seed, points, took=60.0, began="2026-01-02T00:00:00+00:00", plan="") -> Run:
    """A run."""
    environment = {"hardware": {"cores": 2}, "versions": {"python": "3.11"}}
    return Run(task, entrant, stage, rate, seed, points, {"reward": [0.5, None]}, took, began, plan, environment)
