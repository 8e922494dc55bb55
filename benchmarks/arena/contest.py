# SPDX-License-Identifier: Apache-2.0
"""What the runs of a task say: paired differences at equal tokens and equal seconds, and what it took to get as far.

An entrant and the reference are compared by seed, at shares of what the reference of that seed spent in all; between
two measurements accuracy is linear. The target of a seed is where its reference ended, minus `MARGIN`. Its cost comes
from the non-decreasing curve that fits the measurements of the seed best (isotonic regression), for a single noisy
point that is high enough comes too early. Every seed has its own figure, and one that never gets there says so.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import isotonic_regression

from duet_trl.report.intervals import t_interval

from .entrants import ENTRANTS, REFERENCE
from .records import FREE, REPORT, START, STOPPED, Measurement, Run, Serving
from .tasks import TASKS

MARGIN = 0.01
TOKENS, SECONDS = "generated_tokens", "seconds"
COSTS = (TOKENS, SECONDS)
WORDS = {TOKENS: "tokens", SECONDS: "seconds"}
"""What tables and targets call these."""


@dataclass(frozen=True)
class Estimate:
    """One value per seed, their mean, and its 95% t-interval; None: fewer than two seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over seeds."""
        return float(np.mean(self.values))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends."""
        return t_interval(self.values)


@dataclass(frozen=True, eq=False)
class Contest:
    """All runs of a stage on a task.

    Attributes:
        task (str): Its name.
        start (Run): The policy before training.
        runs (dict[str, dict[int, Run]]): By entrant, in the order of `ENTRANTS`, and seed; the reference is there.
        has_start (bool): Whether the start was measured on the problems of these runs.
    """

    task: str
    start: Run
    runs: dict[str, dict[int, Run]]
    has_start: bool = True

    @cached_property
    def serving(self) -> str:
        """How the policies are served on the way: with the stop string, where the task has one."""
        return STOPPED if STOPPED in self.start.measurements[0].servings else FREE

    def seeds(self, *entrants: str) -> list[int]:
        """Those that all of these and the reference have."""
        return sorted(set.intersection(*(set(self.runs[name]) for name in (*entrants, REFERENCE))))

    @cached_property
    def kinds(self) -> list[str]:
        """Names of the kinds of its problems, in which they come in turn; empty where they have none."""
        return [kind.name for kind in TASKS[self.task].kinds]

    def accuracy(
        self, entrant: str, seed: int, cost: str, share: float, kinds: Collection[str] | None = None
    ) -> float | None:
        """At a share of what the reference of the seed spent, on some kinds; None: it was never spent."""
        amount = share * vars(self.runs[REFERENCE][seed].measurements[-1])[cost]
        spent, found = self.curve(self.runs[entrant][seed], cost, kinds)
        return float(np.interp(amount, spent, found)) if amount <= spent[-1] * 1.001 else None

    def lead(
        self, entrant: str, over: str, cost: str, share: float, kinds: Collection[str] | None = None
    ) -> Estimate | None:
        """Accuracy minus that of another entrant at equal cost, by seed.

        Args:
            entrant, over (str): The entrants.
            cost (str): One of `COSTS`.
            share (float): Of what the reference of the same seed spent, in (0, 1].
            kinds (Collection[str] | None): Of problems; None: all.

        Returns:
            Estimate | None: None if they share no seed, or one of them did not spend that much.
        """
        pairs = [
            [self.accuracy(name, seed, cost, share, kinds) for name in (entrant, over)]
            for seed in self.seeds(entrant, over)
        ]
        if not pairs or any(None in pair for pair in pairs):
            return None
        return Estimate(tuple(own - other for own, other in pairs))

    def reached(self, entrant: str, cost: str) -> list[float | None]:
        """For each seed what it took to reach the seed's target, as a share of the reference's total; None: never."""
        found = []
        for seed in self.seeds(entrant):
            total = self._total(REFERENCE, seed, cost)
            target = self.accuracy(REFERENCE, seed, cost, 1.0) - MARGIN
            spent, accuracy = self.curve(self.runs[entrant][seed], cost)
            found.append(_crossing(spent / total, isotonic_regression(accuracy).x, target))
        return found

    def final(self, entrant: str, figure: str, serving: str) -> Estimate:
        """A figure of `outcome`, or accuracy on a kind, at the end of each seed."""
        return Estimate(tuple(self._outcome(entrant, seed, serving)[figure] for seed in self.runs[entrant]))

    def final_lead(self, entrant: str, figure: str, serving: str) -> Estimate | None:
        """The same, minus the reference's, by seed."""
        seeds = self.seeds(entrant)
        pairs = [[self._outcome(name, seed, serving)[figure] for name in (entrant, REFERENCE)] for seed in seeds]
        return Estimate(tuple(own - other for own, other in pairs)) if pairs else None

    def spent(self, entrant: str, cost: str) -> list[float]:
        """For each seed what a run cost in all, as a share of the reference's."""
        return [self._total(entrant, seed, cost) / self._total(REFERENCE, seed, cost) for seed in self.seeds(entrant)]

    def _outcome(self, entrant: str, seed: int, serving: str) -> dict[str, float]:
        end = self.runs[entrant][seed].measurements[-1].servings[serving]
        turns = (end.right[place :: len(self.kinds)] for place in range(len(self.kinds)))
        return outcome(end) | {
            kind: float(np.mean(own)) / end.samples for kind, own in zip(self.kinds, turns, strict=True)
        }

    def _total(self, entrant: str, seed: int, cost: str) -> float:
        return vars(self.runs[entrant][seed].measurements[-1])[cost]

    def curve(self, run: Run, cost: str, kinds: Collection[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """What had been spent, and accuracy, on the problems (of some kinds) that all measurements share."""
        points = [*([self.start.measurements[0]] if self.has_start else []), *run.measurements]
        servings = [point.servings[self.serving] for point in points]
        count = min(len(one.right) for one in servings)
        rows = np.arange(count)
        if kinds is not None:
            rows = rows[np.isin(np.array(self.kinds)[rows % len(self.kinds)], list(kinds))]
        accuracy = [np.take(one.right, rows).mean() / one.samples for one in servings]
        return np.array([vars(point)[cost] for point in points], dtype=float), np.array(accuracy)


def _crossing(spent: np.ndarray, accuracy: np.ndarray, target: float) -> float | None:
    reached = accuracy >= target - 1e-9  # a tie is a tie, whatever it was rounded to
    if not reached[-1]:
        return None
    place = int(np.argmax(reached))
    if place == 0:
        return 0.0
    around = slice(place - 1, place + 1)
    return float(np.interp(target, accuracy[around], spent[around]))


def contests(runs: Sequence[Run], stage: str = REPORT) -> dict[str, Contest]:
    """Contests by task, of those tasks whose start is measured and whose reference has a run.

    Raises:
        ValueError: If two runs of an entrant have one seed, or two learning rates, or an entrant is unknown.
    """
    starts = {run.task: run for run in runs if run.stage == START}
    found: dict[str, dict[str, dict[int, Run]]] = {}
    for run in runs:
        if run.stage != stage or run.task not in starts:
            continue
        if run.entrant not in ENTRANTS:
            raise ValueError(f"{run.task} {run.entrant}: no entrant of entrants.py. Remove its runs from the records.")
        own = found.setdefault(run.task, {}).setdefault(run.entrant, {})
        if run.seed in own or any(other.learning_rate != run.learning_rate for other in own.values()):
            raise ValueError(
                f"{run.task} {run.entrant} seed {run.seed}: a run of the same seed, or of another learning rate than "
                f"{run.learning_rate:g}, is among the records. Keep one of them."
            )
        own[run.seed] = run
    return {
        task: Contest(
            task, starts[task], {name: entrants[name] for name in ENTRANTS if name in entrants}, stage == REPORT
        )
        for task, entrants in found.items()
        if REFERENCE in entrants
    }


def outcome(serving: Serving) -> dict[str, float]:
    """Figures of a serving: `accuracy` (mean@k over the samples), `pass_8`, `greedy`, `length` and `ended`, as far as
    they were measured.
    """
    right = np.array(serving.right)
    found = {
        "accuracy": serving.accuracy,
        "length": serving.length,
        "ended": serving.ended,
    }
    if serving.samples >= 8:
        found["pass_8"] = pass_at(right, serving.samples, 8)
    if serving.greedy is not None:
        found["greedy"] = float(np.mean(serving.greedy))
    return found


def pass_at(right: np.ndarray, samples: int, k: int) -> float:
    """Chance that one of k samples is right, without bias: mean of 1 - C(n - c, k) / C(n, k) over problems.

    Args:
        right (np.ndarray): Right samples c of each problem, shape (P,).
        samples (int): Samples n of each problem.
        k (int): Of them, at most n.
    """
    return float(np.mean([1 - math.comb(samples - int(count), k) / math.comb(samples, k) for count in right]))


def seconds_per_batch(point: Measurement) -> dict[str, float]:
    """Seconds of a batch by phase, and of the rest."""
    found = {name: value / point.batch for name, value in point.phases.items()}
    return found | {"rest": point.seconds / point.batch - sum(found.values())}
