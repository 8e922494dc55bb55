# SPDX-License-Identifier: Apache-2.0
"""Which learning rate an entrant gets on a task: the best of the task's grid on the tuning split, with its own seed.

Two rates in the middle are tried, of an even number the lower ones, and the next one on the side of the best until the
best has both neighbours tried. A rate's figure is the accuracy by the last answer at the end of a run, served as the
task is; of equal figures the lower rate is better. A control has the reference's rate times its factor.
"""

from collections.abc import Sequence

from .entrants import ENTRANTS, REFERENCE
from .profiles import TUNING_SEED
from .records import TUNE, Run
from .tasks import TASKS


def accuracy(run: Run) -> float:
    """Share of right samples at the end of a tuning run, which is served in one way."""
    (one,) = run.measurements[-1].servings.values()
    return one.accuracy


def tried(runs: Sequence[Run], task: str, entrant: str) -> dict[float, float]:
    """Accuracy by learning rate, of those on the grid."""
    key = (TUNE, task, entrant, TUNING_SEED)
    own = [run for run in runs if (run.stage, run.task, run.entrant, run.seed) == key]
    return {run.learning_rate: accuracy(run) for run in own if run.learning_rate in TASKS[task].rates}


def best(found: dict[float, float]) -> float:
    """The rate with the highest accuracy; of equal ones the lowest."""
    return min(found, key=lambda rate: (-found[rate], rate))


def wanted(runs: Sequence[Run], task: str, entrant: str) -> list[float]:
    """Rates that still have to be tried; empty: the choice is made, here or for the reference."""
    if ENTRANTS[entrant].factor is not None:
        return []
    found, rates = tried(runs, task, entrant), TASKS[task].rates
    lower = (len(rates) - 1) // 2
    middle = rates[lower - 1 : lower + 1]
    if missing := [rate for rate in middle if rate not in found]:
        return missing
    place = rates.index(best(found))
    return [rate for rate in rates[max(0, place - 1) : place + 2] if rate not in found]


def choose(runs: Sequence[Run], task: str, entrant: str) -> float | None:
    """The learning rate of an entrant on a task; None as long as rates are still to be tried."""
    if (factor := ENTRANTS[entrant].factor) is not None:
        rate = choose(runs, task, REFERENCE)
        return None if rate is None else factor * rate
    return None if wanted(runs, task, entrant) else best(tried(runs, task, entrant))


def at_the_edge(runs: Sequence[Run], task: str, entrant: str) -> bool:
    """Whether the best rate has no neighbour on one side of the grid."""
    rates = TASKS[task].rates
    return ENTRANTS[entrant].factor is None and choose(runs, task, entrant) in (rates[0], rates[-1])
