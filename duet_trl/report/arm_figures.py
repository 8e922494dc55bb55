# SPDX-License-Identifier: Apache-2.0
"""What a row of a table says of an arm: means over seeds, and what is paired by seed with a reference."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from .arms import Arm, reference_of
from .intervals import half_width
from .layout import Cell, Column, Value
from .runs import RunRecord, UnreadableRuns, accuracy, generated_tokens, suites, training_seconds, untrained
from .titles import SUITES, in_order, method_title, suite_title

SPEED_UP = Column("speed_up", "Speed-up", "factor", 1)
SEEDS = Column("seeds", "Seeds", "count")
COSTS = [
    Column("generated_tokens", "Tokens", "tokens"),
    Column("share_of_tokens", "Tokens, of reference", "share"),
    SEEDS,
]
INTERVAL = "Means over seeds ± half of the 95% t-interval."
MARKS = "Best in bold, second underlined, as rounded, within a section."


@dataclass(frozen=True)
class Report:
    """What all tables are made of.

    Attributes:
        arms (list[Arm]): All arms of the folder.
        checkpoint (str): One of `runs.CHECKPOINTS`.
        reference (str): Method that others are compared with.
        k (int): Of mean@k.
    """

    arms: list[Arm]
    checkpoint: str
    reference: str
    k: int

    def sections(self, arms: Sequence[Arm]) -> list[tuple[str, list[Arm]]]:
        """Arms by model and task, with the title of their section."""
        subjects = list(dict.fromkeys(arm.subject for arm in arms))
        models = [model for model, _ in subjects]
        return [
            (
                model if models.count(model) == 1 else f"{model}, {task}",
                [arm for arm in arms if arm.subject == (model, task)],
            )
            for model, task in subjects
        ]

    def reference_of(self, arm: Arm, budget: float) -> Arm | None:
        """The arm of the same subject that this one is compared with, at a budget."""
        return reference_of(arm, [one for one in self.arms if one.subject == arm.subject], self.reference, budget)

    def usual_reference(self, arm: Arm, budget: float) -> Arm | None:
        """Of the references of a subject at a budget the one with the most seeds: settings of others are named."""
        found = {
            id(one): one
            for other in self.arms
            if other.subject == arm.subject and (one := self.reference_of(other, budget))
        }
        return max(found.values(), key=lambda one: len(one.runs), default=None)

    def accuracies(self, arm: Arm, names: Sequence[str]) -> list[Value | None]:
        """Mean accuracy of the arm on each suite."""
        return [mean(accuracy(run, name, self.checkpoint) for run in arm.runs.values()) for name in names]

    def differences(self, arm: Arm, other: Arm, names: Sequence[str]) -> list[Value | None]:
        """Mean difference in accuracy to another arm on each suite, paired by seed."""
        pairs = [(arm.runs[seed], other.runs[seed]) for seed in comparable_seeds(arm, other)]
        found = []
        for name in names:
            values = [[accuracy(run, name, self.checkpoint) for run in pair] for pair in pairs]
            found.append(mean(a - b for a, b in values if a is not None and b is not None))
        return found

    def caption(self, title: str) -> str:
        """Caption of a table of accuracies."""
        which = {
            "final": "at the last step",
            "best": "best checkpoint of each suite, which selects on the test set",
        }[self.checkpoint]
        return f"{title}: mean@{self.k} in percent, {which}. {INTERVAL} {MARKS}"


def make_report(arms: list[Arm], checkpoint: str, reference: str) -> Report:
    """A report on arms.

    Raises:
        UnreadableRuns: If no run has the reference method, or runs measured with different k.
    """
    methods = {arm.method for arm in arms}
    if reference not in methods:
        raise UnreadableRuns(f"no run has the reference method {reference!r}. Choose from {sorted(methods)}.")
    found = {k: run.name for arm in arms for run in arm.runs.values() for k in suites(run).values()}
    if len(found) > 1:
        which = ", ".join(f"mean@{k} ({name})" for k, name in sorted(found.items()))
        raise UnreadableRuns(f"runs were measured with different numbers of samples: {which}. Report on them apart.")
    if not found:
        raise UnreadableRuns("no run measured a suite: there is no accuracy to show. Run with eval_suites.")
    return Report(arms, checkpoint, reference, next(iter(found)))


def suites_of(arms: Sequence[Arm]) -> list[str]:
    """Suites that any of their runs measured, in the paper's order."""
    return in_order({name for arm in arms for run in arm.runs.values() for name in suites(run)}, SUITES)


def accuracy_columns(names: Sequence[str]) -> list[Column]:
    """A column per suite."""
    return [Column(name, suite_title(name), "percent", 1) for name in names]


def baseline(arms: Sequence[Arm], names: Sequence[str]) -> tuple[list[Value | None], int]:
    """Mean accuracy before the first step on each suite, and its seeds; the runs of a seed are averaged first.

    It is never marked as best or second.
    """
    by_seed: dict[int, list[RunRecord]] = {}
    for arm in arms:
        for seed, run in arm.runs.items():
            by_seed.setdefault(seed, []).append(run)
    cells = []
    for name in names:
        known = [[v for run in group if (v := untrained(run, name)) is not None] for group in by_seed.values()]
        value = mean(math.fsum(values) / len(values) for values in known if values)
        cells.append(value and replace(value, ranked=False))
    return cells, max((cell.seeds for cell in cells if cell is not None), default=0)


def mean(values: Iterable[float | None]) -> Value | None:
    """Mean of one value per seed with its t-interval; None unless there is a value."""
    known = [value for value in values if value is not None]
    return Value(math.fsum(known) / len(known), half_width(known), len(known)) if known else None


def comparable_seeds(arm: Arm, other: Arm) -> list[int]:
    """Seeds that both have, after as many optimizer steps."""
    return [s for s in arm.runs if s in other.runs and arm.runs[s].max_steps == other.runs[s].max_steps]


def speed_up(arm: Arm, reference: Arm) -> tuple[Value | None, str | None]:
    """Seconds of the reference over those of the arm, paired by seed, and a note where pairs are missing.

    A pair counts only if both runs had the same engine, the same hardware and the same number of steps: the ratio of
    two machines says nothing about two methods.
    """
    ratios, reasons = [], []
    for seed, run in arm.runs.items():
        other = reference.runs.get(seed)
        if other is None:
            reasons.append(f"seed {seed} has no run of {method_title(reference.method)}")
        elif run.max_steps != other.max_steps:
            reasons.append(f"seed {seed} has {run.max_steps} and {other.max_steps} steps")
        elif run.engine != other.engine:
            reasons.append(f"seed {seed} ran on the engines {run.engine!r} and {other.engine!r}")
        elif run.hardware != other.hardware:
            reasons.append(f"seed {seed} ran on different hardware")
        elif not (own := training_seconds(run)) or not (base := training_seconds(other)):
            reasons.append(f"seed {seed} has no step_time in its log")
        else:
            ratios.append(base / own)
    return mean(ratios), "; ".join(reasons) or None


def costs(arm: Arm, reference: Arm | None) -> list[Cell]:
    """Generated tokens of a run, their share of the reference's by seed, and the number of seeds."""
    tokens = mean(generated_tokens(run) for run in arm.runs.values())
    share = Value(1.0, None, len(arm.runs)) if arm is reference and tokens is not None else None
    if reference is not None and arm is not reference:
        pairs = [
            (generated_tokens(arm.runs[seed]), generated_tokens(reference.runs[seed]))
            for seed in comparable_seeds(arm, reference)
        ]
        share = mean(own / other for own, other in pairs if own is not None and other)
    return [tokens, share, len(arm.runs)]


@dataclass
class Notes:
    """What stands below a table: what it leaves open, and why."""

    one_seed: list[str] = field(default_factory=list)
    num_rows: int = 0
    others: list[str] = field(default_factory=list)

    def speed(self, label: str, arm: Arm, reference: Arm | None) -> Value | None:
        """The speed-up of a row; a note says which pairs are missing."""
        if reference is None:
            return None
        if arm is reference:
            return Value(1.0, None, len(arm.runs))
        value, reasons = speed_up(arm, reference)
        if reasons:
            self.others.append(f"Speed-up of {label}: {'not given' if value is None else 'partly'}, {reasons}.")
        return value

    def seeds(self, label: str, arm: Arm) -> None:
        """Take down a row that has no interval."""
        self.num_rows += 1
        if len(arm.runs) == 1:
            self.one_seed.append(label)

    def unmeasured(self, label: str, arm: Arm, names: Sequence[str], cells: Sequence[Value | None]) -> None:
        """Take down suites that not all seeds of a row measured."""
        short = [
            suite_title(name)
            for name, cell in zip(names, cells, strict=True)
            if cell is None or cell.seeds < len(arm.runs)
        ]
        if short:
            self.others.append(f"Not measured by every run of {label}: {', '.join(short)}.")

    def missing(self, title: str, rows: Sequence[str]) -> None:
        """Take down rows of the paper's table without a run."""
        if rows:
            self.others.append(f"{title}: no run of {', '.join(rows)}.")

    def lines(self) -> list[str]:
        """All notes, a line each."""
        which = ", ".join(self.one_seed) if len(self.one_seed) < self.num_rows else "all rows"
        first = [f"One seed, so no interval: {which}."] if self.one_seed else []
        return first + list(dict.fromkeys(self.others))
