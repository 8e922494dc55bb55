# SPDX-License-Identifier: Apache-2.0
"""Which learning rate an entrant gets on a task: successive halving on the tuning split, with a seed of its own.

All rates run to the first rung; the best of them go on, from their checkpoints, to the next. A rung is a number of
batches of rollouts: who updates twice from each is tuned over as many tokens as the others. A rate's figure is the
accuracy by the last answer over all its measurements of a rung (at its end and a few batches before); of equal figures
the lower rate is better. Behind the last rung the lowest rate that is within `TOLERANCE` of the best is chosen: 160
problems tell no more, and one seed does not show how often the higher rate breaks a run. The choice looks at nothing
else.
"""

from collections.abc import Iterable, Sequence

from .entrants import BASE_RATE, ENTRANTS
from .profiles import TUNING_SEED, Profile
from .records import TUNE, Run
from .tasks import TASKS

TOLERANCE = 0.02
"""Rates whose accuracies differ by no more are taken for equally good."""


def accuracy(run: Run) -> float:
    """Share of right samples, by the last answer, over all measurements of a run."""
    right = sum(sum(one.last) for one in run.measurements)
    return right / sum(one.samples * len(one.last) for one in run.measurements)


def wanted(runs: Iterable[Run], task: str, entrant: str, profile: Profile) -> list[tuple[float, int]]:
    """Runs that the tuning of an entrant on a task still needs and can start.

    Args:
        runs (Iterable[Run]): Finished ones, of any stage.
        task (str): The task.
        entrant (str): The entrant.
        profile (Profile): Rates and rungs.

    Returns:
        list[tuple[float, int]]: Learning rate and batches of rollouts. Empty: the choice is made.
    """
    return _climb(runs, task, entrant, profile)[1]


def choose(runs: Iterable[Run], task: str, entrant: str, profile: Profile) -> float | None:
    """The learning rate of an entrant on a task; None as long as runs are wanted."""
    rates, missing = _climb(runs, task, entrant, profile)
    return None if missing else rates[0]


def tuned_pairs(tasks: Iterable[str], entrants: Iterable[str]) -> list[tuple[str, str]]:
    """Tasks and entrants that are tuned so that these have their learning rates, each pair once."""
    tuned = [ENTRANTS[name].tuned_as for name in entrants if ENTRANTS[name].rate is None]
    pairs = ((TASKS[task].tuned_on or task, name) for task in tasks for name in tuned)
    return list(dict.fromkeys(pairs))


def tuned_rate(runs: Iterable[Run], task: str, entrant: str, profile: Profile) -> float | None:
    """The learning rate of a reported run: the entrant's own, or what `choose` says of the pair tuned for it."""
    if (rate := ENTRANTS[entrant].rate) is not None:
        return rate
    return choose(runs, *tuned_pairs([task], [entrant])[0], profile)


def _climb(
    runs: Iterable[Run], task: str, entrant: str, profile: Profile
) -> tuple[list[float], list[tuple[float, int]]]:
    """Learning rates that are left at the first rung that is not finished, or behind the last, and what it lacks."""
    rates = [factor * BASE_RATE for factor in profile.factors]
    for horizon, keep in profile.rungs:
        done = _of_rung(runs, task, entrant, horizon, rates)
        missing = [rate for rate in rates if rate not in {run.learning_rate for run in done}]
        if missing:
            return rates, [(rate, horizon) for rate in missing]
        rates = _best(done, keep)
    return [_lowest_of_the_best(done)], []


def _of_rung(runs: Iterable[Run], task: str, entrant: str, horizon: int, rates: Sequence[float]) -> list[Run]:
    key = (TUNE, task, entrant, horizon, TUNING_SEED)
    return [
        run
        for run in runs
        if (run.stage, run.task, run.entrant, run.horizon, run.seed) == key and run.learning_rate in rates
    ]


def _best(done: Sequence[Run], keep: int) -> list[float]:
    ranked = sorted(done, key=lambda run: (-accuracy(run), run.learning_rate))
    return sorted(run.learning_rate for run in ranked[:keep])


def _lowest_of_the_best(done: Sequence[Run]) -> float:
    best = max(accuracy(run) for run in done)
    return min(run.learning_rate for run in done if accuracy(run) >= best - TOLERANCE - 1e-12)
