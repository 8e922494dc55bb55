# SPDX-License-Identifier: Apache-2.0
"""Tables 1 to 7 of the paper from a folder of runs.

    1  methods at the full budget, DUET at half and at the full budget     5  k_warmup
    2  one part of DUET at a time                                          6  methods at smaller budgets
    3  eps_abort                                                           7  keep rate of ARRoL
    4  capabilities (capabilities.py)

Rows are selected by the settings of runs, whatever their cells are called. Figures are means over seeds with 95%
t-intervals; differences and speed-ups are paired by seed. A table says which of the paper's rows no run covers.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .arm_figures import (
    COSTS,
    INTERVAL,
    SEEDS,
    SPEED_UP,
    Notes,
    Report,
    accuracy_columns,
    baseline,
    comparable_seeds,
    costs,
    make_report,
    suites_of,
)
from .arms import FAMILY, FULL, PART_TITLES, Arm, find_arms, labels, standard
from .capabilities import capability_tables
from .layout import Column, Section, Table, csv_text, latex, markdown
from .runs import read_runs
from .sweep_tables import table_3, table_5, table_7
from .titles import method_title, suite_title

BASELINES = ("grpo", "dapo", "arrol", "vip")
"""Rivals of the paper's Tables 1 and 6."""
BUDGETS = (0.5, 0.25)
"""Budgets of Table 6."""
PARTS_OF_TABLE_2 = ((True, False, False), (False, True, True), FULL)
FORMATS = {"md": markdown, "latex": latex, "csv": csv_text}
SUFFIXES = {"md": ".md", "latex": ".tex", "csv": ".csv"}


def write_tables(
    runs: Path,
    output_dir: Path,
    formats: Sequence[str] = tuple(FORMATS),
    checkpoint: str = "final",
    reference: str = "grpo",
) -> str:
    """Write every table that a folder of runs covers.

    Args:
        runs (Path): Folder of runs (`report.runs`).
        output_dir (Path): Where `table1.md`, `table1.tex`, `table1.csv` and so on are written.
        formats (Sequence[str]): Of `FORMATS`.
        checkpoint (str): "final", or "best": that of each suite, as the paper reports.
        reference (str): Method that others are compared with.

    Returns:
        str: All tables as Markdown, then the tables and the runs that are left out, and why.

    Raises:
        UnreadableRuns: If the folder holds no runs that can be reported on.
    """
    found = read_runs(runs)
    arms, repeated = find_arms([one.record for one in found.done])
    tables, uncovered = paper_tables(make_report(arms, checkpoint, reference))
    output_dir.mkdir(parents=True, exist_ok=True)
    for table in tables:
        for name in formats:
            (output_dir / f"{table.name}{SUFFIXES[name]}").write_text(FORMATS[name](table), encoding="utf-8")
    left_out = [f"Left out: {line}." for line in found.left_out] + repeated
    return "\n".join([*map(markdown, tables), *(f"* {line}" for line in [*uncovered, *left_out])]) + "\n"


def paper_tables(report: Report) -> tuple[list[Table], list[str]]:
    """All tables that the runs cover, and a line for each that they do not."""
    makers: dict[str, Callable[[Report], list[Table] | str]] = {
        "Table 1": table_1,
        "Table 2": table_2,
        "Table 3": table_3,
        "Table 4": lambda report: capability_tables(),
        "Table 5": table_5,
        "Table 6": table_6,
        "Table 7": table_7,
    }
    tables, lacking = [], []
    for name, make in makers.items():
        made = make(report)
        if isinstance(made, str):
            lacking.append(f"{name} is not covered: {made}.")
        else:
            tables += made
    return tables, lacking


def table_1(report: Report) -> list[Table] | str:
    """Every method at the full budget, and DUET at half."""
    kept = [one for one in standard(report.arms) if one.budget == 1 or (one.method in FAMILY and one.budget == 0.5)]
    if not kept:
        return "no run has the full budget"
    groups = []
    for title, arms in report.sections(kept):
        expected = [((method,), 1.0) for method in BASELINES] + [(FAMILY, 0.5), (FAMILY, 1.0)]
        groups.append(Group(title, arms, 1.0, True, missing=_missing(arms, expected)))
    return _compared(report, "table1", "Methods at the full budget, DUET at half and at the full budget", groups)


def table_2(report: Report) -> list[Table] | str:
    """One part of DUET at a time, at each budget that has an ablation."""
    family = [arm for arm in report.arms if arm.method in FAMILY and not arm.swept()]
    cut = [arm for arm in family if not arm.complete]
    if not cut:
        return f"no run of {' or '.join(FAMILY)} has one of allocate, trim and abort off"
    groups = []
    for title, arms in report.sections(family):
        for method, budget in dict.fromkeys((arm.method, arm.budget) for arm in cut if arm in arms):
            rows = [arm for arm in arms if (arm.method, arm.budget) == (method, budget)]
            rows.sort(key=lambda arm: list(PART_TITLES).index(arm.parts) if arm.parts in PART_TITLES else -1)
            rows.sort(key=lambda arm: arm.complete)
            base = report.reference_of(rows[0], budget)
            missing = [PART_TITLES[one] for one in PARTS_OF_TABLE_2 if one not in {arm.parts for arm in rows}]
            missing += [f"{method_title(report.reference)} at {budget:.0%}"] * (base is None)
            shown = rows if base is None or base in rows else [base, *rows]
            name = f"{title}, {method_title(method)}, {budget:.0%} budget"
            groups.append(Group(name, shown, budget, False, missing, _part_label))
    return _compared(report, "table2", "One part of DUET at a time", groups)


def table_6(report: Report) -> list[Table] | str:
    """Every method at each smaller budget, compared with the reference at the same budget."""
    kept = [arm for arm in standard(report.arms) if arm.budget < 1]
    if not kept:
        return "no run has a budget below 1"
    groups = []
    for title, arms in report.sections(kept):
        budgets = sorted({arm.budget for arm in arms}, reverse=True)
        for budget in budgets:
            rows = [arm for arm in arms if arm.budget == budget]
            expected = [((method,), budget) for method in BASELINES] + [(FAMILY, budget)]
            groups.append(Group(f"{title}, {budget:.0%} budget", rows, budget, False, _missing(rows, expected)))
        absent = [f"any method at {budget:.0%}" for budget in BUDGETS if budget not in budgets]
        groups[-1].missing.extend(absent)
    return _compared(report, "table6", "Methods at smaller budgets", groups)


@dataclass(frozen=True)
class Group:
    """Arms of one section that are compared with the reference at one budget; `missing` names rows without a run."""

    title: str
    arms: list[Arm]
    budget: float
    with_budget: bool
    missing: list[str]
    label: Callable[[Arm, str], str] = lambda arm, label: label


def _part_label(arm: Arm, label: str) -> str:
    """An ablation as the paper's Table 2 calls it."""
    return label if arm.method not in FAMILY else f"+ {PART_TITLES.get(arm.parts, 'neither')}"


def _missing(arms: Sequence[Arm], expected: Iterable[tuple[tuple[str, ...], float]]) -> list[str]:
    have = {(arm.method, arm.budget) for arm in arms}
    return [
        f"{' or '.join(map(method_title, methods))} at {budget:.0%}"
        for methods, budget in expected
        if not any((method, budget) in have for method in methods)
    ]


def _compared(report: Report, name: str, caption: str, groups: Sequence[Group]) -> list[Table]:
    """The table of values, and the table of paired differences to the reference."""
    names = suites_of([arm for group in groups for arm in group.arms])
    sections, differences, notes = [], [], Notes()
    for group in groups:
        first = group.arms[0]
        cells, num_seeds = baseline([arm for arm in report.arms if arm.subject == first.subject], names)
        rows = [("Baseline", [None, *cells, None, None, None, num_seeds])] if num_seeds else []
        apart = []
        base = report.usual_reference(first, group.budget) or first
        for arm, label in zip(group.arms, labels(group.arms, base, group.with_budget), strict=True):
            label = group.label(arm, label)
            where = f"{label} ({group.title})"
            other = report.reference_of(arm, group.budget)
            measured = report.accuracies(arm, names)
            notes.seeds(where, arm)
            notes.unmeasured(where, arm, names, measured)
            rows.append((label, [arm.budget, *measured, notes.speed(where, arm, other), *costs(arm, other)]))
            if other is not None and other is not arm and (pairs := len(comparable_seeds(arm, other))):
                apart.append((label, [*report.differences(arm, other, names), pairs]))
        notes.missing(group.title, group.missing)
        sections.append(Section(group.title, rows))
        differences += [Section(group.title, apart)] if apart else []
    against = f"{method_title(report.reference)} at the {'full' if name == 'table1' else 'same'} budget"
    columns = [Column("budget", "Budget", "share"), *accuracy_columns(names), SPEED_UP, *COSTS]
    words = f"{report.caption(caption)} Speed-up and share of tokens: against {against}, paired by seed."
    heading = f"Table {name.removeprefix('table')}"
    tables = [Table(name, heading, words, "Method", columns, sections, notes.lines())]
    if differences:
        words = f"{caption}: mean@{report.k} minus that of {against}, percentage points, paired by seed. {INTERVAL}"
        columns = [Column(one, suite_title(one), "difference") for one in names] + [SEEDS]
        tables.append(Table(f"{name}_differences", f"{heading}, differences", words, "Method", columns, differences))
    return tables
