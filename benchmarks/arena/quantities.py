# SPDX-License-Identifier: Apache-2.0
"""Every figure by a name, as text: tables are made of these, and documents quote them one by one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .contest import SHARES, Contest, at_horizon, outcome, pass_at
from .curves import COSTS
from .entrants import CONTROLS
from .estimates import Estimate, over_seeds
from .ranking import Rank
from .records import Run

ACCURACY, DIFFERENCE, SHARE, TOKENS, NUMBER = "{:.3f}", "{:+z.3f}", "{:.0%}", "{:,.0f}k", "{:,.0f}"
EQUAL_COSTS = {"generated_tokens": "", "processor_seconds": "_processor"}
"""Costs at shares of which accuracies are compared, with the ending of the figures' names."""
_COST_FORMS = {cost: TOKENS if cost.endswith("tokens") else NUMBER for cost in COSTS}
_OUTCOME_FORMS = {"difference": DIFFERENCE, "length": "{:.1f}", "ended": "{:.1%}", "careful": "{:.1%}", **_COST_FORMS}


@dataclass(frozen=True)
class Quantity:
    """A figure that knows how it is written.

    Attributes:
        estimate (Estimate | None): None: there is none.
        form (str): Format of a value; that of `TOKENS` is in thousands.
        log (bool): The estimate is of the logarithm.
        bound (float | None): If there is no estimate: the figure is larger than this.
    """

    estimate: Estimate | None
    form: str = ACCURACY
    log: bool = False
    bound: float | None = None

    @property
    def value(self) -> float | None:
        """The figure itself, no logarithm."""
        return None if self.estimate is None else self._linear(self.estimate.value)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends, no logarithms."""
        ends = None if self.estimate is None else self.estimate.interval
        return None if ends is None else (self._linear(ends[0]), self._linear(ends[1]))

    @property
    def text(self) -> str:
        """The value; a bound as `> 560k`, nothing as a dash."""
        if self.value is not None:
            return self._write(self.value)
        return "-" if self.bound is None else f"> {self._write(self.bound)}"

    @property
    def interval_text(self) -> str:
        """Both ends in brackets; `[-]` if they are not known."""
        return "[-]" if self.interval is None else "[{}, {}]".format(*map(self._write, self.interval))

    @property
    def full_text(self) -> str:
        """The value with its interval, unless all seeds agree."""
        return self.text if self.estimate is None or self.estimate.error == 0 else f"{self.text} {self.interval_text}"

    def to_json(self) -> dict[str, Any]:
        """Value, interval and bound, unrounded."""
        return {"value": self.value, "interval": self.interval, "bound": self.bound}

    def _linear(self, value: float) -> float:
        return math.exp(value) if self.log else value

    def _write(self, value: float) -> str:
        return self.form.format(value / 1000 if self.form == TOKENS else value)


Quantities = dict[str, Quantity]
Figures = Mapping[str, Mapping[str, Quantities]]
"""Of each task and entrant."""
NO_FIGURE = Quantity(None)


def figure_of(figures: Figures, task: str, entrant: str, name: str) -> Quantity:
    """One of them; `NO_FIGURE` where the task or the entrant has no runs, or not that figure."""
    return figures.get(task, {}).get(entrant, {}).get(name, NO_FIGURE)


def of_entrant(contest: Contest, entrant: str) -> Quantities:
    """Figures of an entrant on a task.

    Args:
        contest (Contest): The task.
        entrant (str): One that has runs.

    Returns:
        Quantities: At equal steps the names of `outcome` and `difference`; and for the costs of `COSTS`, such as
        generated_tokens, `generated_tokens_to_target` and `generated_tokens_share` (of the reference's). At 25, 50 and
        100% of the reference's generated tokens `accuracy_50`, `to_end_50`, `equal_50` (see `AtCost`) and their
        `resolvable_50` (difference to the end); of its processor seconds `accuracy_50_processor` and so on. Controls
        have those at equal steps, with their change since the start: `accuracy_change`, `entropy_change`.
    """
    steps = contest.at_steps(entrant)
    found = {name: Quantity(value, _OUTCOME_FORMS.get(name, ACCURACY)) for name, value in steps.items()}
    if entrant in CONTROLS:
        return found | _changes(contest, entrant)
    for cost in COSTS:
        reached = contest.reached(entrant, cost)
        for name, form in ((f"{cost}_to_target", _COST_FORMS[cost]), (f"{cost}_share", SHARE)):
            if reached is None:
                found[name] = Quantity(None, form)
            elif form is SHARE:
                found[name] = Quantity(reached.ratio, form, True, reached.bound)
            else:
                found[name] = Quantity(reached.cost, form, True, reached.spent)
    for cost, ending in EQUAL_COSTS.items():
        for share in SHARES:
            at, name = contest.at_cost(entrant, cost, share), f"{share:.0%}".rstrip("%") + ending
            found[f"accuracy_{name}"] = Quantity(None if at is None else at.accuracy)
            found[f"to_end_{name}"] = Quantity(None if at is None else at.to_end, DIFFERENCE)
            found[f"equal_{name}"] = Quantity(None if at is None else at.equal, DIFFERENCE)
            found[f"resolvable_{name}"] = resolvable(None if at is None else at.to_end)
    return found


def _changes(contest: Contest, entrant: str) -> Quantities:
    """Of a control since the start, in accuracy on the same problems and in entropy."""
    runs = contest.runs[entrant].values()
    points = [at_horizon(run) for run in runs]
    before = contest.start.measurements[0]
    accuracy = [
        outcome(point)["accuracy"] - float(np.mean(before.last[: len(point.last)])) / before.samples
        for point in points
    ]
    return {
        "accuracy_change": Quantity(over_seeds(accuracy), DIFFERENCE),
        "entropy_change": Quantity(over_seeds([point.entropy - before.entropy for point in points]), DIFFERENCE),
    }


def of_start(run: Run) -> Quantities:
    """Figures of a policy before training: those of `outcome` that are no costs, and `pass_4`."""
    point = run.measurements[0]
    found = {name: value for name, value in outcome(point).items() if name not in COSTS}
    if point.samples >= 4:
        found["pass_4"] = pass_at(np.array(point.last), point.samples, 4)
    return {name: Quantity(Estimate(value), _OUTCOME_FORMS.get(name, ACCURACY)) for name, value in found.items()}


def of_rank(rank: Rank) -> Quantities:
    """Figures of an entrant over all tasks: `half`, `resolvable_half` and `share`, see `Rank`."""
    return {
        "half": Quantity(rank.half, DIFFERENCE),
        "resolvable_half": resolvable(rank.half),
        "share": Quantity(rank.ratio, SHARE, True, rank.bound),
    }


def resolvable(difference: Estimate | None) -> Quantity:
    """The smallest difference that its seeds resolve (`Estimate.resolvable`)."""
    smallest = None if difference is None else difference.resolvable
    return Quantity(None if smallest is None else Estimate(smallest))


def rate_text(rate: float) -> str:
    """A learning rate: 6e-4."""
    mantissa, exponent = f"{rate:.1e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def rate_of(runs: Sequence[Run]) -> str:
    """The learning rate that the runs of an entrant share."""
    return rate_text(runs[0].learning_rate)
