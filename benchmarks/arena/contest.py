# SPDX-License-Identifier: Apache-2.0
"""What the runs of a task say: cost to the reference's accuracy, accuracy at equal cost and at equal steps.

The target of a task is the final accuracy of the reference, in the mean over its seeds, minus `MARGIN`. What it took
is read from the mean curve of an entrant's seeds (`curves.py`): a single run, even of the reference, often ends below
the target by noise alone. The interval comes from leaving out one seed at a time, from the entrant, the reference and
the target alike. Costs are compared on a logarithmic scale.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from .curves import COSTS, Curve, accuracy_at, cost_to_reach, curve_of, fitted, mean_curve
from .entrants import CONTROLS, ENTRANTS, REFERENCE
from .estimates import Estimate, leave_one_out, over_seeds
from .pace import SECONDS, is_timed, paced
from .records import REPORT, START, Measurement, Run

MARGIN = 0.01
SHARES = (0.25, 0.5, 1.0)
"""Of what the reference spent, at which the others are compared with it."""


@dataclass(frozen=True)
class Reached:
    """What it took to reach the target.

    Attributes:
        spent (float): At the last measurement, mean over seeds: a lower bound if the target was not reached.
        bound (float): The same as a share of the reference's cost to the target.
        cost (Estimate | None): Logarithm of the cost to the target; None: not reached.
        ratio (Estimate | None): Logarithm of the cost, as a share of the reference's.
        seeds (int): Seeds whose own curve reaches the target.
    """

    spent: float
    bound: float
    cost: Estimate | None
    ratio: Estimate | None
    seeds: int


@dataclass(frozen=True)
class AtCost:
    """Accuracy at a share of what the reference of the same seed spent in all.

    Attributes:
        accuracy (Estimate): The accuracy.
        to_end (Estimate): Its difference to the reference's at the end, by seed.
        equal (Estimate): That to the reference's at the same cost, by seed.
    """

    accuracy: Estimate
    to_end: Estimate
    equal: Estimate


@dataclass(frozen=True, eq=False)
class Contest:
    """All reported runs of a task.

    Attributes:
        task (str): Its name.
        start (Run): The policy before training.
        runs (dict[str, dict[int, Run]]): By entrant, in the order of `ENTRANTS`, and seed; the reference is there.
            Their processor seconds are at the nominal speed.
        problems (int): Problems of the curves: those that all measurements share.
        curves (dict[str, dict[int, Curve]]): As the runs.
    """

    task: str
    start: Run
    runs: dict[str, dict[int, Run]]
    problems: int
    curves: dict[str, dict[int, Curve]]
    _fits: dict[tuple[str, frozenset[int]], Curve] = field(default_factory=dict, init=False, repr=False)

    @property
    def rivals(self) -> list[str]:
        """Entrants that have runs, without the controls."""
        return [name for name in self.runs if name not in CONTROLS]

    @cached_property
    def target(self) -> float:
        """Accuracy that is to be reached."""
        return self._target(frozenset())

    def compares(self, cost: str, *entrants: str) -> bool:
        """Whether a cost of these entrants compares: processor seconds only beside the yardstick (`pace.py`)."""
        return cost != SECONDS or all(is_timed(run) for name in entrants for run in self.runs[name].values())

    def reached(self, entrant: str, cost: str) -> Reached | None:
        """What an entrant spent to reach the target.

        Args:
            entrant (str): The entrant.
            cost (str): One of `COSTS`.

        Returns:
            Reached | None: None if the cost does not compare, or the policy before training is at the target already.
        """

        def log_cost(without: frozenset[int]) -> float | None:
            return self._log_cost(entrant, cost, without)

        def log_ratio(without: frozenset[int]) -> float | None:
            amount, reference = log_cost(without), self._log_cost(REFERENCE, cost, without)
            return None if amount is None or reference is None else amount - reference

        if not self.compares(cost, entrant, REFERENCE):
            return None
        if self.curves[REFERENCE][next(iter(self.curves[REFERENCE]))].accuracy[0] >= self.target:
            return None
        own, reference = self.curves[entrant], self.curves[REFERENCE]
        seeds, count = own.keys() | reference.keys(), min(len(own), len(reference))
        spent = float(np.mean([curve.costs[cost][-1] for curve in own.values()]))
        return Reached(
            spent,
            spent / math.exp(self._log_cost(REFERENCE, cost)),
            leave_one_out(log_cost, seeds, count),
            leave_one_out(log_ratio, seeds, count),
            sum(cost_to_reach(fitted(curve), cost, self.target) is not None for curve in own.values()),
        )

    def at_cost(self, entrant: str, cost: str, share: float) -> AtCost | None:
        """Accuracy of an entrant at a share of what the reference of the same seed spent.

        Args:
            entrant (str): The entrant.
            cost (str): One of `COSTS`.
            share (float): In (0, 1].

        Returns:
            AtCost | None: None if the cost does not compare, a seed did not spend that much, or no seed has a run of
            the reference.
        """
        rows = []
        for seed in self.paired(entrant):
            found = self._accuracy(entrant, seed, cost, share)
            if found is None:
                return None
            end = self.curves[REFERENCE][seed].accuracy[-1]
            rows.append((found, found - end, found - self._accuracy(REFERENCE, seed, cost, share)))
        return AtCost(*(over_seeds(column) for column in zip(*rows, strict=True))) if rows else None

    def lead(self, entrant: str, over: str, cost: str, share: float) -> Estimate | None:
        """Accuracy of an entrant minus that of another one at equal cost, over the seeds of both.

        Args:
            entrant, over (str): The entrants.
            cost (str): One of `COSTS`.
            share (float): Of what the reference of the same seed spent, in (0, 1].

        Returns:
            Estimate | None: None if the cost does not compare, they share no seed, or one of them did not spend that
            much.
        """
        seeds = [seed for seed in self.paired(entrant) if seed in self.runs[over]]
        pairs = [[self._accuracy(name, seed, cost, share) for name in (entrant, over)] for seed in seeds]
        if not pairs or any(None in pair for pair in pairs):
            return None
        return over_seeds([own - other for own, other in pairs])

    def at_steps(self, entrant: str) -> dict[str, Estimate]:
        """Figures of `outcome` at equal optimizer steps, over seeds.

        `difference` is that of the accuracies to the reference's, by seed; the reference itself has none.
        """
        found = {seed: outcome(at_horizon(run)) for seed, run in self.runs[entrant].items()}
        names = [name for name in next(iter(found.values())) if self.compares(name, entrant)]
        estimates = {name: over_seeds([one[name] for one in found.values()]) for name in names}
        pairs = [
            found[seed]["accuracy"] - outcome(at_horizon(self.runs[REFERENCE][seed]))["accuracy"]
            for seed in self.paired(entrant)
        ]
        return estimates | ({"difference": over_seeds(pairs)} if pairs and entrant != REFERENCE else {})

    def paired(self, entrant: str) -> list[int]:
        """Seeds that have a run of the entrant and one of the reference."""
        return [seed for seed in self.runs[entrant] if seed in self.runs[REFERENCE]]

    def _accuracy(self, entrant: str, seed: int, cost: str, share: float) -> float | None:
        """At a share of what the reference of the seed spent; None if the cost does not compare, or it spent less."""
        if not self.compares(cost, entrant, REFERENCE):
            return None
        return accuracy_at(self.curves[entrant][seed], cost, share * self.curves[REFERENCE][seed].costs[cost][-1])

    def _target(self, without: frozenset[int]) -> float:
        ends = [curve.accuracy[-1] for seed, curve in self.curves[REFERENCE].items() if seed not in without]
        return float(np.mean(ends)) - MARGIN

    def _log_cost(self, entrant: str, cost: str, without: frozenset[int] = frozenset()) -> float | None:
        """Of the mean curve; None: the target is not reached."""
        key = entrant, without.intersection(self.curves[entrant])
        if key not in self._fits:
            kept = [curve for seed, curve in self.curves[entrant].items() if seed not in without]
            self._fits[key] = fitted(mean_curve(kept))
        amount = cost_to_reach(self._fits[key], cost, self._target(without))
        return math.log(amount) if amount else None


def contests(runs: Sequence[Run]) -> dict[str, Contest]:
    """Contests by task, of those tasks whose start is measured and whose reference has a run.

    Raises:
        ValueError: If two runs of an entrant have one seed, or two learning rates, or an entrant is unknown.
    """
    starts = {run.task: run for run in runs if run.stage == START}
    found: dict[str, dict[str, dict[int, Run]]] = {task: {name: {} for name in ENTRANTS} for task in starts}
    for run in runs:
        if run.stage != REPORT or run.task not in starts:
            continue
        own = found[run.task].get(run.entrant)
        if own is None:
            raise ValueError(f"{run.task} {run.entrant}: no entrant of entrants.py. Remove its runs from the records.")
        if run.seed in own or any(other.learning_rate != run.learning_rate for other in own.values()):
            raise ValueError(
                f"{run.task} {run.entrant} seed {run.seed}: a run of the same seed, or of another learning rate than "
                f"{run.learning_rate:g}, is among the records. Keep one of them."
            )
        own[run.seed] = paced(run)
    return {
        task: _contest(task, starts[task], {name: dict(sorted(own.items())) for name, own in entrants.items() if own})
        for task, entrants in found.items()
        if entrants[REFERENCE]
    }


def _contest(task: str, start: Run, runs: dict[str, dict[int, Run]]) -> Contest:
    points = [point for own in runs.values() for run in own.values() for point in run.measurements]
    problems = min(len(point.last) for point in [*points, start.measurements[0]])
    curves = {name: {seed: curve_of(run, start, problems) for seed, run in own.items()} for name, own in runs.items()}
    return Contest(task, start, runs, problems, curves)


def at_horizon(run: Run) -> Measurement:
    """The measurement at which runs are compared at equal optimizer steps.

    Raises:
        ValueError: If there is none.
    """
    for point in run.measurements:
        if point.step == run.horizon:
            return point
    raise ValueError(f"{run.task} {run.entrant} seed {run.seed} was not measured at step {run.horizon}. Run it again.")


def outcome(point: Measurement) -> dict[str, float]:
    """Figures of a measurement: `accuracy` (mean@k over the samples), `first` (the same by the first answer),
    `pass` (pass@k with all samples), `greedy` and `careful` where they were measured, and the others by their names.
    """
    right = np.array(point.last)
    found = {
        "accuracy": float(right.mean() / point.samples),
        "first": float(np.mean(point.first) / point.samples),
        "pass": pass_at(right, point.samples, point.samples),
        "length": point.length,
        "ended": point.ended,
        "entropy": point.entropy,
        **{cost: float(vars(point)[cost]) for cost in COSTS},
    }
    if point.greedy is not None:
        found["greedy"] = float(np.mean(point.greedy))
    if point.careful is not None:
        found["careful"] = point.careful
    return found


def pass_at(right: np.ndarray, samples: int, k: int) -> float:
    """Chance that one of k samples is right, without bias: mean of 1 - C(n - c, k) / C(n, k) over problems.

    Args:
        right (np.ndarray): Right samples c of each problem, shape (P,).
        samples (int): Samples n of each problem.
        k (int): Of them, at most n.
    """
    return float(np.mean([1 - math.comb(samples - int(count), k) / math.comb(samples, k) for count in right]))
