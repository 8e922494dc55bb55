# SPDX-License-Identifier: Apache-2.0
"""Tables 1 to 7 of the paper, as Markdown, LaTeX and CSV.

    1  methods at the full budget, DUET at half and at the full budget     5  k_warmup
    2  one part of DUET at a time                                          6  methods at smaller budgets
    3  eps_abort                                                           7  keep rate of ARRoL
    4  capabilities (capabilities.csv)

Figures are means over seeds with 95% t-intervals; differences, speed-ups and shares of tokens are paired by seed.
What was not measured is a dash.
"""

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from duet_trl.report.intervals import half_width
from duet_trl.report.tables import markdown_table

from .runs import FAMILY, FULL, STANDARD, Report, differing, method_title, suite_title

PART_TITLES = {
    (True, False, False): "allocation only",
    (False, True, True): "gate only",
    FULL: "both",
    (False, True, False): "trim only",
    (False, False, True): "abort only",
    (True, True, False): "allocation and trim",
    (True, False, True): "allocation and abort",
    (False, False, False): "neither",
}
CHECKPOINTS = {"final": "at the last step", "best": "best checkpoint of each suite, which selects on the test set"}
DASH = "–"
MARKS = {"+": "✓", "o": "∘", "-": "−"}
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {one: "\\" + one for one in "&%$#_{}"}
_LATEX |= {"×": r"$\times$", "±": r"$\pm$", "✓": r"\checkmark{}", "∘": r"$\circ$", "−": "$-$", "–": "--"}


class Column(NamedTuple):
    """A column: its heading, how a mean is shown, and whether more (1) or less (-1) is better (0: no marks)."""

    title: str
    show: Callable[[float], str]
    better: int = 0


def _tokens(count: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.0f}"


COLUMNS = {
    "budget": Column("Budget", "{:.0%}".format),
    "speed_up": Column("Speed-up", "{:.2f}×".format, 1),
    "minutes": Column("Wall (min)", "{:.1f}".format, -1),
    "pruned": Column("Pruned", "{:.2f}".format),
    "length": Column("Length", "{:.0f}".format),
    "tokens": Column("Tokens", _tokens),
    "share_of_tokens": Column("Tokens, of reference", "{:.0%}".format),
    "seeds": Column("Seeds", "{:.0f}".format),
}


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name (str): Of its files.
        caption (str): What it shows.
        columns (dict[str, Column]): By their keys.
        rows (pd.DataFrame): `section`, `row`, and of each key the mean; `<key>_low`, `<key>_high` and `<key>_seeds`
            where it is one of several seeds. NaN: not measured.
        notes (list[str]): What stands below it.
    """

    name: str
    caption: str
    columns: dict[str, Column]
    rows: pd.DataFrame
    notes: Sequence[str] = ()


def write_tables(report: Report, folder: Path) -> str:
    """Write every table as `.md`, `.tex` (booktabs; ✓ needs amssymb) and `.csv`; the text of all and what is left out.

    Args:
        report (Report): The runs.
        folder (Path): Where they are written; it is made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables, lacking = paper_tables(report)
    for table in tables:
        (folder / f"{table.name}.md").write_text(markdown(table))
        (folder / f"{table.name}.tex").write_text(latex(table))
        table.rows.to_csv(folder / f"{table.name}.csv", index=False)
    return "\n".join([*map(markdown, tables), *(f"* {line}" for line in [*lacking, *report.notes])])


def paper_tables(report: Report) -> tuple[list[Table], list[str]]:
    """All tables that the runs cover, and a line for each that they do not."""
    makers = {1: _table_1, 2: _table_2, 4: _table_4, 6: _table_6}
    makers |= {number: functools.partial(_sweep, number=number) for number in _SWEEPS}
    made = {f"Table {number}": makers[number](report) for number in sorted(makers)}
    tables = [table for found in made.values() if not isinstance(found, str) for table in found]
    return tables, [f"{name} is not covered: {why}." for name, why in made.items() if isinstance(why, str)]


# ---- Tables 1, 2 and 6: methods against the reference ---------------------------------------------------------------


def _table_1(report: Report) -> list[Table] | str:
    kept = [a for a in _standard(report.arms) if a.budget == 1 or (a.method in FAMILY and a.budget == 0.5)]
    groups = [_Group(subject, arms, _labels(report, arms, 1.0), 1.0) for subject, arms in _by_subject(kept)]
    title = "Methods at the full budget, DUET at half and at the full budget"
    return _compared(report, 1, title, groups) if groups else "no run has the full budget"


def _table_2(report: Report) -> list[Table] | str:
    family = [a for a in report.arms if a.method in FAMILY and not a.swept]
    cut = [a for a in family if not a.complete]
    groups = []
    for subject, method, budget in dict.fromkeys((a.subject, a.method, a.budget) for a in cut):
        rows = [a for a in family if (a.subject, a.method, a.budget) == (subject, method, budget)]
        rows.sort(key=lambda a: (a.complete, list(PART_TITLES).index(a.parts)))
        labels = [f"+ {PART_TITLES[a.parts]}" for a in rows]
        base = report.nearest(rows[0], report.reference, budget)
        if base and base not in rows:
            rows, labels = [base, *rows], [f"+{method_title(base.method)}", *labels]
        name = f"{subject}, {method_title(method)}, {budget:.0%} budget"
        groups.append(_Group(name, rows, _told_apart(labels, rows), budget))
    reason = f"no run of {' or '.join(FAMILY)} has one of allocate, trim and abort off"
    return _compared(report, 2, "One part of DUET at a time", groups) if groups else reason


def _table_6(report: Report) -> list[Table] | str:
    groups = []
    for subject, arms in _by_subject([a for a in _standard(report.arms) if a.budget < 1]):
        for budget in sorted({a.budget for a in arms}, reverse=True):
            rows = [a for a in arms if a.budget == budget]
            groups.append(_Group(f"{subject}, {budget:.0%} budget", rows, _labels(report, rows, budget), budget))
    return _compared(report, 6, "Methods at smaller budgets", groups) if groups else "no run has a budget below 1"


class _Group(NamedTuple):
    """Arms of a section with their labels, and the budget of the reference."""

    title: str
    arms: list[Any]
    labels: list[str]
    budget: float


def _compared(report: Report, number: int, title: str, groups: Sequence[_Group]) -> list[Table]:
    """The table of values, and the table of paired differences to the reference."""
    rows, apart = [], []
    for group in groups:
        rows.append(_baseline(report, group))
        for arm, label in zip(group.arms, group.labels, strict=True):
            runs, name = report.of(arm), {"section": group.title, "row": label}
            row = name | {"budget": arm.budget} | _accuracies(report, runs)
            other = report.nearest(arm, report.reference, group.budget)
            pairs = report.pairs(arm, other)
            row |= _figure("speed_up", report.speed_ups(arm, other)) | _figure("tokens", runs.tokens)
            row |= _figure("share_of_tokens", pairs.tokens / pairs.tokens_other) | {"seeds": len(runs)}
            if other is arm:
                row |= {f"{key}{end}": np.nan for key in ("speed_up", "share_of_tokens") for end in ("_low", "_high")}
            elif len(pairs):
                gains = {s: pairs[f"accuracy/{s}"] - pairs[f"accuracy/{s}_other"] for s in report.suites}
                apart.append(name | _figures(gains) | {"seeds": len(pairs)})
            rows.append(row)
    against = f"{method_title(report.reference)} at the {'full' if number == 1 else 'same'} budget"
    caption = (
        f"{_caption(report, title)} Speed-up and share of tokens: against {against}, paired by seed; the speed-up "
    )
    caption += "where engine, hardware and number of steps are the same."
    columns = [*report.suites, "speed_up", "tokens", "share_of_tokens", "seeds"]
    tables = [_table(f"table{number}", caption, ["budget", *columns], rows)]
    if apart and report.suites:
        caption = f"{title}: mean@{report.k} minus that of {against}, percentage points, paired by seed."
        tables.append(_table(f"table{number}_differences", caption, [*report.suites, "seeds"], apart))
    return tables


def _baseline(report: Report, group: _Group) -> dict[str, Any]:
    """Accuracy of all arms of the subject before the first step; the runs of a seed are averaged first."""
    runs = report.runs[report.runs.subject == group.arms[0].subject]
    row = _figures({suite: runs.groupby("seed")[f"start/{suite}"].mean() for suite in report.suites})
    return (
        {"section": group.title, "row": "Baseline"}
        | row
        | {"seeds": max((row[f"{suite}_seeds"] for suite in report.suites), default=0)}
    )


def _standard(arms: Iterable[Any]) -> list[Any]:
    """Arms without ablations; of one subject, method and budget those of the standard values, if there are any."""
    complete = [a for a in arms if a.complete]
    usual = {(a.subject, a.method, a.budget) for a in complete if not a.swept}
    return [a for a in complete if not a.swept or (a.subject, a.method, a.budget) not in usual]


def _by_subject(arms: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    return [(name, [a for a in arms if a.subject == name]) for name in dict.fromkeys(a.subject for a in arms)]


def _labels(report: Report, arms: Sequence[Any], budget: float) -> list[str]:
    """Method, and in brackets another budget than the section's and what tells the arm from the others."""
    mates = [a for a in report.arms if a.subject == arms[0].subject]
    references = [found for a in mates if (found := report.nearest(a, report.reference, budget))]
    base = max(references, key=lambda a: len(report.of(a)), default=arms[0])
    labels = []
    for arm in arms:
        alike = [a.own for a in arms if (a.method, a.budget) == (arm.method, arm.budget)]
        values = arm.swept | {name: arm.own.get(name) for name in differing(alike)}
        values |= {name: arm.context.get(name) for name in differing([base.context, arm.context])}
        words = [f"{100 * arm.budget:g}% budget"] if arm.budget != budget else []
        words += [
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()
        ]
        labels.append(f"+{method_title(arm.method)}" + (f" ({', '.join(words)})" if words else ""))
    return _told_apart(labels, arms)


def _told_apart(labels: Sequence[str], arms: Sequence[Any]) -> list[str]:
    times = Counter(labels)
    return [one if times[one] == 1 else f"{one} [{arm.cell}]" for one, arm in zip(labels, arms, strict=True)]


# ---- Tables 3, 5 and 7: one setting varied, all others the same; Table 4 --------------------------------------------


def _table_4(report: Report) -> list[Table]:
    """What each method can do here; the marks of the first five methods are the paper's, the others are ours."""
    marks = pd.read_csv(Path(__file__).with_name("capabilities.csv"), index_col="capability").replace(MARKS)
    rows = marks.rename_axis("row").reset_index()
    rows.insert(0, "section", "")
    caption = (
        "Capabilities as they are implemented here. ✓ full; ∘ partial, on a single axis or after the rollouts; − "
    )
    caption += "absent. The ∘ of DUET (paper) hold in the setting of its theorems only (docs/fidelity.md)."
    return [Table("table4", f"Table 4. {caption}", {m: Column(method_title(m), str) for m in marks}, rows)]


class _Swept(NamedTuple):
    """A setting of the method, the columns beside the accuracies, and a title."""

    option: str
    columns: Sequence[str]
    title: str


_SWEEPS = {
    3: _Swept("keep_probability", ["speed_up"], "eps_abort, with the speed-up over {}"),
    5: _Swept("surrogate_warmup", ["minutes"], "k_warmup, with the minutes of training on one machine"),
    7: _Swept("keep_rate", ["pruned", "length"], "Keep rate of ARRoL, rollouts pruned, tokens of a rollout"),
}


def _sweep(report: Report, number: int) -> list[Table] | str:
    """Groups of arms that differ in one setting of the method alone."""
    option, columns, title = _SWEEPS[number]
    groups: dict[str, list[Any]] = {}
    for arm in (a for a in report.arms if a.own.get(option) is not None):
        rest = {name: value for name, value in arm.own.items() if name != option}
        key = json.dumps([arm.subject, arm.method, arm.budget, rest, arm.context], sort_keys=True)
        groups.setdefault(key, []).append(arm)
    rows, notes = [], []
    for arms in (sorted(group, key=lambda a: a.own[option]) for group in groups.values() if len(group) > 1):
        others = [f"{name}={value}" for name, value in arms[0].swept.items() if name != option]
        section = ", ".join([arms[0].subject, method_title(arms[0].method), f"{arms[0].budget:.0%} budget", *others])
        for arm in arms:
            runs, reference = report.of(arm), report.nearest(arm, report.reference, 1.0)
            beside = {"speed_up": report.speed_ups(arm, reference), "minutes": runs.seconds / 60}
            beside |= {"pruned": runs.pruned, "length": runs.length}
            label = f"{arm.own[option]:g}" + " (default)" * (arm.own[option] == STANDARD[option])
            figures = _accuracies(report, runs) | _figures({key: beside[key] for key in columns})
            rows.append({"section": section, "row": label} | figures | {"seeds": len(runs)})
        if "minutes" in columns and len({name for arm in arms for name in report.of(arm).machine}) > 1:
            notes.append(f"{section}: minutes of different engines or hardware are not to be compared.")
    if not rows:
        found = sorted({str(a.own[option]) for a in report.arms if a.own.get(option) is not None})
        return f"no two runs differ in {option} alone; the values there are: {', '.join(found) or 'none'}"
    title = title.format(f"{method_title(report.reference)} at the full budget, paired by seed")
    return [_table(f"table{number}", _caption(report, title), [*report.suites, *columns, "seeds"], rows, notes)]


# ---- How a table is made and shown ----------------------------------------------------------------------------------


def _figure(key: str, values: pd.Series) -> dict[str, float]:
    """The mean of one value per seed, its t-interval and the number of values; NaN: not known."""
    known = values.dropna()
    mean, half = known.mean(), half_width(known.to_numpy()) if len(known) else None
    ends = {} if half is None else {f"{key}_low": mean - half, f"{key}_high": mean + half}
    return {key: mean, **ends, f"{key}_seeds": len(known)}


def _figures(values: dict[str, pd.Series]) -> dict[str, Any]:
    return {name: one for key, found in values.items() for name, one in _figure(key, found).items()}


def _accuracies(report: Report, runs: pd.DataFrame) -> dict[str, Any]:
    return _figures({suite: runs[f"accuracy/{suite}"] for suite in report.suites})


def _caption(report: Report, title: str) -> str:
    if not report.suites:
        return f"{title}. No accuracy was measured: set eval_suites."
    return f"{title}: mean@{report.k} in percent, {CHECKPOINTS[report.checkpoint]}."


def _table(
    name: str, caption: str, keys: Sequence[str], rows: list[dict[str, Any]], notes: Sequence[str] = ()
) -> Table:
    different = name.endswith("_differences")
    accuracy = (lambda x: f"{100 * x:+.1f}") if different else (lambda x: f"{100 * x:.1f}")
    columns = {key: COLUMNS.get(key) or Column(suite_title(key), accuracy, int(not different)) for key in keys}
    frame = pd.DataFrame(rows)
    frame = frame.astype({name: "Int64" for name in frame if name.endswith("seeds")})
    ends = [f"{key}{end}" for key in keys for end in ("", "_low", "_high", "_seeds")]
    frame = frame.reindex(columns=["section", "row", *(end for end in ends if end in keys or end in frame)])
    heading = f"Table {name.removeprefix('table').replace('_', ', ')}"
    caption += " Means over seeds ± half of the 95% t-interval (none for one seed; n: fewer seeds than the row has)."
    marks = "" if different else " Best in bold, second underlined, within a section."
    return Table(name, f"{heading}. {caption}{marks}", columns, frame, notes)


def markdown(table: Table) -> str:
    """The table below its caption, with its notes."""
    rows: list[list[str]] = []
    for section, lines in _shown(table, ("{}", "**{}**", "<u>{}</u>"), str):
        rows += [[f"*{section}*", *[""] * len(table.columns)], *lines] if section else lines
    body = markdown_table(["", *(column.title for column in table.columns.values())], rows)
    return "\n\n".join([table.caption, body, *table.notes]) + "\n"


def latex(table: Table) -> str:
    """The table for booktabs."""
    sections = _shown(table, ("{}", r"\textbf{{{}}}", r"\underline{{{}}}"), _escaped)
    rows = [[_escaped(section), *line] for section, lines in sections for line in lines]
    frame = pd.DataFrame(rows, columns=["", "", *(_escaped(column.title) for column in table.columns.values())])
    caption = _escaped(" ".join([table.caption, *table.notes]))
    form = "ll" + "c" * len(table.columns)
    return frame.to_latex(index=False, escape=False, column_format=form, caption=caption, label=f"tab:{table.name}")


def _shown(table: Table, looks: Sequence[str], escape: Callable[[str], str]) -> list[tuple[str, list[list[str]]]]:
    """Sections with the cells of their rows as text; `looks`: of an unmarked, of the best and of the second value."""
    sections = []
    for name, rows in table.rows.groupby("section", sort=False):
        cells = [[escape(label) for label in rows.row]]
        for key, column in table.columns.items():
            ranks = _ranks(rows.loc[rows.row != "Baseline", key], column)
            cells.append([_cell(row, key, column, looks[ranks.get(n, 0)], escape) for n, row in rows.iterrows()])
        sections.append((name, [list(line) for line in zip(*cells, strict=True)]))
    return sections


def _ranks(values: pd.Series, column: Column) -> dict[Any, int]:
    """1 for the best and 2 for the second of a column, equal where they are equal as rounded."""
    if not column.better:
        return {}
    rounded = values.dropna().map(lambda value: float(column.show(value).strip("×")))
    ranks = (column.better * rounded).rank(method="dense", ascending=False).astype(int)
    return {} if ranks.max() == 1 else {n: rank for n, rank in ranks.items() if rank < 3}


def _cell(row: pd.Series, key: str, column: Column, look: str, escape: Callable[[str], str]) -> str:
    if pd.isna(row[key]):
        return escape(DASH)
    if isinstance(row[key], str):
        return escape(row[key])
    half = row[key] - row.get(f"{key}_low", np.nan)
    text = "" if pd.isna(half) else f" ± {column.show(half).strip('+×%')}"
    seeds = row.get(f"{key}_seeds", np.nan)
    text += f" (n={seeds:.0f})" if seeds < row.get("seeds", 0) else ""
    return look.format(escape(column.show(row[key]))) + escape(text)


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(one, one) for one in text)
