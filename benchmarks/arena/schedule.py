# SPDX-License-Identifier: Apache-2.0
"""Which runs are still to be made, in which order, and how long they take."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .entrants import REFERENCE
from .profiles import TUNING_SEED, Profile
from .records import REPORT, STAGES, START, TUNE, Run
from .tuning import tuned_pairs, tuned_rate, wanted

GUESS = 3.0
"""Seconds of an optimizer step, with its share of start and measurements, before any run has finished."""
START_STEPS = 30
"""What measuring a policy before training takes, in such steps."""


@dataclass(frozen=True)
class Cell:
    """A run that is to be made.

    Attributes:
        task, entrant, stage, learning_rate, seed, horizon: As in `Run`.
        tokens (int): It goes on until it has generated as many.
    """

    task: str
    entrant: str
    stage: str
    learning_rate: float
    seed: int
    horizon: int
    tokens: int = 0

    @property
    def key(self) -> tuple[str, str, str, float, int, int]:
        """What tells it from other runs."""
        return self.task, self.entrant, self.stage, self.learning_rate, self.seed, self.horizon

    def __str__(self) -> str:
        return f"{self.task} {self.entrant} {self.stage} lr={self.learning_rate:g} seed={self.seed} to {self.horizon}"


def key_of(run: Run) -> tuple[str, str, str, float, int, int]:
    """`Cell.key` of a finished run."""
    return run.task, run.entrant, run.stage, run.learning_rate, run.seed, run.horizon


@dataclass(frozen=True)
class Plan:
    """What is asked for.

    Attributes:
        profile (Profile): Sizes.
        tasks, entrants (tuple[str, ...]): Names.
        seeds (tuple[int, ...]): Of the reported runs.
        stages (tuple[str, ...]): Of `STAGES`.
    """

    profile: Profile
    tasks: tuple[str, ...]
    entrants: tuple[str, ...]
    seeds: tuple[int, ...]
    stages: tuple[str, ...] = STAGES


def ready(plan: Plan, runs: Sequence[Run]) -> list[Cell]:
    """Cells that can start, in their order: the policies before training; tuning by task and entrant; then seed by
    seed, all entrants of a seed in turn on every task. A run waits for its learning rate and the reference's tokens.

    Args:
        plan (Plan): What is asked for.
        runs (Sequence[Run]): Finished runs.

    Returns:
        list[Cell]: None of them finished; more may follow from their results.
    """
    done = {key_of(run) for run in runs}
    cells = []
    if START in plan.stages:
        cells += [cell for task in plan.tasks if (cell := Cell(task, "", START, 0.0, 0, 0)).key not in done]
    if TUNE in plan.stages:
        cells += [
            Cell(task, name, TUNE, rate, TUNING_SEED, horizon)
            for task, name in tuned_pairs(plan.tasks, plan.entrants)
            for rate, horizon in wanted(runs, task, name, plan.profile)
        ]
    if REPORT in plan.stages:
        cells += [cell for cell in _reports(plan, runs) if cell.key not in done]
    return cells


def _reports(plan: Plan, runs: Sequence[Run]) -> Iterator[Cell]:
    profile = plan.profile
    rates = {(task, name): tuned_rate(runs, task, name, profile) for task in plan.tasks for name in plan.entrants}
    spent = {
        (run.task, run.seed): run.measurements[-1].generated_tokens
        for run in runs
        if (run.entrant, run.stage) == (REFERENCE, REPORT)
    }
    for seed in plan.seeds:
        for (task, name), rate in rates.items():
            if rate is not None and (name == REFERENCE or (task, seed) in spent):
                tokens = 0 if name == REFERENCE else round(profile.share * spent[task, seed])
                yield Cell(task, name, REPORT, rate, seed, profile.horizon, tokens)


def hours(plan: Plan, runs: Sequence[Run], jobs: int) -> tuple[int, float]:
    """How many runs are left of everything that is asked for, and how long they take.

    A run that is not finished takes the median of the same entrant, task and stage; else of the task and stage; else
    `GUESS` seconds a step.

    Returns:
        tuple[int, float]: Runs, and wall-clock hours with so many `jobs` side by side.
    """
    left = list(_left(plan, runs))
    seconds = sum(count * _each(runs, *what) for count, *what in left)
    return sum(count for count, *_ in left), seconds / jobs / 3600


def _left(plan: Plan, runs: Sequence[Run]) -> Iterator[tuple[int, str, str, str, int]]:
    """How many runs are left of each task, entrant, stage and horizon."""
    profile = plan.profile
    if START in plan.stages:
        measured = {run.task for run in runs if run.stage == START}
        for task in plan.tasks:
            yield int(task not in measured), task, "", START, 0
    if TUNE in plan.stages:
        for task, name in tuned_pairs(plan.tasks, plan.entrants):
            starting = len(profile.factors)
            for horizon, keep in profile.rungs:
                done = sum(key_of(run)[:3] == (task, name, TUNE) and run.horizon == horizon for run in runs)
                yield max(0, starting - done), task, name, TUNE, horizon
                starting = keep
    if REPORT in plan.stages:
        for task in plan.tasks:
            for name in plan.entrants:
                seeds = {run.seed for run in runs if key_of(run)[:3] == (task, name, REPORT)}
                yield sum(seed not in seeds for seed in plan.seeds), task, name, REPORT, profile.horizon


def _each(runs: Sequence[Run], task: str, name: str, stage: str, horizon: int) -> float:
    alike = [run for run in runs if (run.task, run.stage, run.horizon) == (task, stage, horizon)]
    own = [run.took for run in alike if run.entrant == name]
    return statistics.median(own or [run.took for run in alike] or [GUESS * (horizon or START_STEPS)])
