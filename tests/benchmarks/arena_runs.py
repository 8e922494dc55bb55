# SPDX-License-Identifier: Apache-2.0
"""Runs of the arena made by hand, for the tests of what is decided by them."""

from benchmarks.arena.profiles import TUNING_SEED
from benchmarks.arena.records import REPORT, TUNE, Measurement, Run

RATES = (1.5e-4, 3e-4, 6e-4, 1.2e-3)
"""The full profile's."""


def measured(right: int, of: int = 100, step: int = 80, tokens: int = 1000) -> Measurement:
    """`right` of so many problems, one sample each."""
    last = [1] * right + [0] * (of - right)
    return Measurement(step, tokens, tokens, 1.0, 1.0, 1, last, last, None, 50.0, 1.0, 0.1, None)


def tuning_run(rate: float, horizon: int, right: int, entrant: str = "duet", task: str = "sums", **fields) -> Run:
    """A learning rate on a rung, that has as many problems right a few steps before its end and at it."""
    points = [measured(right, step=horizon - 8), measured(right, step=horizon)]
    return made(task, entrant, TUNE, rate, TUNING_SEED, horizon, points, **fields)


def tuned(entrant: str, rate: float = 6e-4, task: str = "sums") -> list[Run]:
    """All runs of a tuning that ends with this rate and 3e-4 or 1.5e-4 as its runner-up."""
    other = 3e-4 if rate != 3e-4 else 1.5e-4
    first = [tuning_run(one, 32, 40 + 20 * (one == rate) + 10 * (one == other), entrant, task) for one in RATES]
    return [*first, tuning_run(rate, 80, 70, entrant, task), tuning_run(other, 80, 60, entrant, task)]


def reported(entrant: str, seed: int = 0, task: str = "sums", rate: float = 6e-4, tokens: int = 1000, **fields) -> Run:
    """A reported run that generated so many tokens."""
    return made(task, entrant, REPORT, rate, seed, 80, [measured(50, tokens=tokens)], **fields)


def made(task, entrant, stage, rate, seed, horizon, points, took: float = 100.0) -> Run:
    """A run."""
    environment = {"hardware": {"cores": 2}, "versions": {"torch": "2.13.0"}}
    return Run(task, entrant, stage, rate, seed, horizon, points, {"reward": [0.5, None]}, took, environment)
