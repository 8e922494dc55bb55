# SPDX-License-Identifier: Apache-2.0
"""Tables 3, 5 and 7 of the paper: one setting varied, all others the same."""

from collections.abc import Callable, Sequence

import numpy as np

from .arm_figures import SEEDS, SPEED_UP, Notes, Report, accuracy_columns, mean, suites_of
from .arms import STANDARD, Arm, sweeps
from .layout import Column, Section, Table, Value
from .runs import RunRecord, running_total, series, training_seconds
from .titles import method_title

MINUTES = Column("minutes", "Wall (min)", "tenths", -1)
PRUNED = Column("pruned_share", "Pruned", "number")
LENGTH = Column("mean_length", "Length", "count")

Extra = Callable[[Arm, str, Notes], list[Value | None]]
"""The last cells of a row, from the arm, its label for notes, and the notes."""


def table_3(report: Report) -> list[Table] | str:
    """The probability that a rollout without an answer is kept; speed-up against the reference at the full budget."""

    def extra(arm: Arm, label: str, notes: Notes) -> list[Value | None]:
        return [notes.speed(label, arm, report.reference_of(arm, 1.0))]

    title = (
        f"eps_abort, with the speed-up against {method_title(report.reference)} at the full budget (paired by seed)"
    )
    return _sweep(report, "table3", title, "keep_probability", (0.01, 0.05, 0.1, 0.2), [SPEED_UP], extra)


def table_5(report: Report) -> list[Table] | str:
    """Observations before the surrogate of a prompt is used, and the minutes of training."""

    def extra(arm: Arm, label: str, notes: Notes) -> list[Value | None]:
        return [mean(None if (s := training_seconds(run)) is None else s / 60 for run in arm.runs.values())]

    title = "k_warmup, with the minutes of training, measurements left out"
    return _sweep(report, "table5", title, "surrogate_warmup", (1, 2), [MINUTES], extra)


def table_7(report: Report) -> list[Table] | str:
    """ARRoL's keep rate, with the share of rollouts that it prunes and their mean length."""

    def extra(arm: Arm, label: str, notes: Notes) -> list[Value | None]:
        return [mean(map(of_run, arm.runs.values())) for of_run in (_pruned_share, _mean_length)]

    title = "Keep rate of ARRoL, with the share of scored rollouts that it pruned and their mean length in tokens"
    return _sweep(report, "table7", title, "keep_rate", (0.5, 0.25), [PRUNED, LENGTH], extra)


def _sweep(
    report: Report, name: str, title: str, option: str, values: Sequence[float], columns: list[Column], extra: Extra
) -> list[Table] | str:
    groups = sweeps(report.arms, option)
    if not groups:
        found = sorted({arm.own[option] for arm in report.arms if arm.own.get(option) is not None})
        return f"no two runs differ in {option} alone; the values there are: {', '.join(map(str, found)) or 'none'}"
    names = suites_of([arm for group in groups for arm in group])
    sections, notes = [], Notes()
    for arms in groups:
        heading, rows = _heading(report, arms[0], option), []
        for arm in arms:
            value = arm.own[option]
            label = f"{value:g}" + (" (default)" if value == STANDARD[option] else "")
            where = f"{label} ({heading})"
            measured = report.accuracies(arm, names)
            notes.seeds(where, arm)
            notes.unmeasured(where, arm, names, measured)
            rows.append((label, [*measured, *extra(arm, where, notes), len(arm.runs)]))
        if MINUTES in columns and len({_machine(run) for arm in arms for run in arm.runs.values()}) > 1:
            notes.others.append(f"{heading}: minutes of different engines or hardware are not to be compared.")
        notes.missing(heading, [f"{value:g}" for value in values if value not in {arm.own[option] for arm in arms}])
        sections.append(Section(heading, rows))
    head = [*accuracy_columns(names), *columns, SEEDS]
    return [
        Table(
            name, f"Table {name.removeprefix('table')}", report.caption(title), option, head, sections, notes.lines()
        )
    ]


def _heading(report: Report, arm: Arm, option: str) -> str:
    """Model, method and budget, and what else is not as the paper has it."""
    (title, _), *_ = [one for one in report.sections(report.arms) if arm in one[1]]
    others = [f"{name}={value}" for name, value in arm.swept().items() if name != option]
    return ", ".join([title, method_title(arm.method), f"{arm.budget:.0%} budget", *others])


def _machine(run: RunRecord) -> str:
    return f"{run.engine} {sorted(run.hardware.items())}"


def _pruned_share(run: RunRecord) -> float | None:
    """Pruned rollouts over those that were long enough to be scored, of the whole run."""
    pruned, scored = (running_total(run, f"duet/{name}_rollouts")[1] for name in ("pruned", "scored"))
    return float(pruned[-1] / scored[-1]) if scored.size and scored[-1] and pruned.size else None


def _mean_length(run: RunRecord) -> float | None:
    """Mean length of rollouts, tokens; every entry of the log counts alike."""
    values = series(run.log, "completions/mean_length")[1]
    return float(np.mean(values)) if values.size else None
