# SPDX-License-Identifier: Apache-2.0
"""Which runs are still to be made, in which order, how long they take, and the plan that reported runs follow.

`plan.json` has the learning rate of every entrant and task, with a hash of everything that its runs depend on. It is
committed before the first of them is made, and each of them keeps the hash.
"""

import hashlib
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .entrants import ENTRANTS, REFERENCE, configuration
from .mixed import SIZES
from .profiles import TUNING_SEED, Profile
from .records import CONFIRM, REPORT, STAGES, START, TUNE, Run
from .tasks import TASKS
from .tuning import choose, wanted

PLAN = Path(__file__).with_name("plan.json")
GUESS = 400.0
"""Seconds of a run before any of its kind has finished."""


@dataclass(frozen=True)
class Cell:
    """A run that is to be made.

    Attributes:
        task, entrant, stage, learning_rate, seed, plan: As in `Run`.
        tokens (int), seconds (float): What the reference spent: where it ends; 0 for the reference.
    """

    task: str
    entrant: str
    stage: str
    learning_rate: float
    seed: int
    tokens: int = 0
    seconds: float = 0.0
    plan: str = ""

    @property
    def key(self) -> tuple[str, str, str, float, int]:
        """As `Run.key`."""
        return self.task, self.entrant, self.stage, self.learning_rate, self.seed

    def __str__(self) -> str:
        return f"{self.task} {self.entrant} {self.stage} lr={self.learning_rate:g} seed={self.seed}"


@dataclass(frozen=True)
class Asked:
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


Plan = dict[str, dict[str, dict[str, Any]]]
"""By task and entrant: `rate` and `hash`."""


def hash_of(task: str, entrant: str, rate: float, profile: Profile) -> str:
    """Of everything that decides a reported run, but for its seed and the code."""
    fields = configuration(ENTRANTS[entrant], TASKS[task], rate, 0, profile.prompts)
    kinds = [(kind.name, kind.generator, kind.levels, kind.examples) for kind in TASKS[task].kinds]
    # True: no forward pass for rollouts with advantage 0, which was once a choice of some entrants.
    everything = [task, entrant, True, fields, asdict(profile), kinds, SIZES, TASKS[task].length]
    return hashlib.sha256(json.dumps(everything, sort_keys=True, default=str).encode()).hexdigest()[:16]


def frozen(runs: Sequence[Run], asked: Asked, like: str | None = None) -> Plan:
    """The plan that the tuning runs decide, for those whose tuning is complete; with the rates of the task `like`."""
    found: Plan = {}
    for task in asked.tasks:
        for name in asked.entrants:
            if (rate := choose(runs, like or task, name)) is not None:
                found.setdefault(task, {})[name] = {"rate": rate, "hash": hash_of(task, name, rate, asked.profile)}
    return found


def ready(asked: Asked, runs: Sequence[Run], plan: Plan) -> list[Cell]:
    """Cells that can start, in their order: the policies before training; tuning; then seed by seed all entrants.

    All but the reference wait for what the reference of the same stage spent.
    """
    done = {run.key for run in runs}
    return [cell for cell in _cells(asked, runs, plan) if cell.key not in done]


def _cells(asked: Asked, runs: Sequence[Run], plan: Plan) -> Iterator[Cell]:
    if START in asked.stages:
        yield from (Cell(task, "", START, 0.0, 0) for task in asked.tasks)
    if TUNE in asked.stages:
        for task in asked.tasks:
            chosen = choose(runs, task, REFERENCE)
            own = [run for run in runs if (run.task, run.entrant, run.stage) == (task, REFERENCE, TUNE)]
            spent = spent_of([run for run in own if run.learning_rate == chosen])
            for name in asked.entrants:
                for rate in wanted(runs, task, name):
                    if name == REFERENCE or spent != (0, 0.0):
                        yield Cell(task, name, TUNE, rate, TUNING_SEED, *(() if name == REFERENCE else spent))
    for stage, seeds in ((REPORT, asked.seeds), (CONFIRM, asked.profile.fresh_seeds)):
        for seed in seeds if stage in asked.stages else ():
            for task in asked.tasks:
                own = [run for run in runs if (run.task, run.stage, run.seed) == (task, stage, seed)]
                spent = spent_of([run for run in own if run.entrant == REFERENCE])
                for name in asked.entrants:
                    entry = plan.get(task, {}).get(name)
                    if entry is not None and (name == REFERENCE or spent != (0, 0.0)):
                        limits = (0, 0.0) if name == REFERENCE else spent
                        yield Cell(task, name, stage, entry["rate"], seed, *limits, plan=entry["hash"])


def spent_of(runs: Sequence[Run]) -> tuple[int, float]:
    """Mean tokens and seconds of some runs at their ends; zeros for none."""
    if not runs:
        return 0, 0.0
    ends = [run.measurements[-1] for run in runs]
    return round(statistics.mean(one.generated_tokens for one in ends)), statistics.mean(one.seconds for one in ends)


def hours(asked: Asked, runs: Sequence[Run]) -> tuple[int, float]:
    """How many runs are left of everything that is asked for, and how many hours they take one after the other.

    A run takes the median of the same entrant, task and stage; else of the task and stage; else `GUESS` seconds.
    """
    left = list(_left(asked, runs))
    return sum(count for count, *_ in left), sum(count * _each(runs, *what) for count, *what in left) / 3600


def _left(asked: Asked, runs: Sequence[Run]) -> Iterator[tuple[int, str, str, str]]:
    for task in asked.tasks:
        of = {stage: [run for run in runs if (run.task, run.stage) == (task, stage)] for stage in STAGES}
        if START in asked.stages:
            yield int(not of[START]), task, "", START
        if TUNE in asked.stages:
            for name in asked.entrants:
                complete = ENTRANTS[name].factor is not None or choose(runs, task, name) is not None
                yield (
                    0 if complete else max(1, 3 - len({r.key for r in of[TUNE] if r.entrant == name})),
                    task,
                    name,
                    TUNE,
                )
        for stage, seeds in ((REPORT, asked.seeds), (CONFIRM, asked.profile.fresh_seeds)):
            for name in asked.entrants if stage in asked.stages else ():
                done = {run.seed for run in of[stage] if run.entrant == name}
                yield len(set(seeds) - done), task, name, stage


def _each(runs: Sequence[Run], task: str, name: str, stage: str) -> float:
    alike = [run for run in runs if (run.task, run.stage) == (task, stage)]
    own = [run.took for run in alike if run.entrant == name]
    return statistics.median(own or [run.took for run in alike] or [GUESS])
