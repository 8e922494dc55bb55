# SPDX-License-Identifier: Apache-2.0
"""Tables 1 to 3 and 5 to 7 of the paper, as Markdown and CSV. Table 4 compares no runs.

    1  methods at the full budget, DUET at half and at the full budget     5  k_warmup
    2  one part of DUET at a time                                          6  methods at smaller budgets
    3  eps_abort                                                           7  keep rate of ARRoL

Figures are means over seeds with 95% t-intervals; differences, speed-ups and shares of tokens are paired by seed.
A dash: not measured.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from duet_trl.report.intervals import half_width
from duet_trl.report.tables import markdown_table

from .runs import FAMILY, PARTS, STANDARD, Report, method_title, suite_title

PART_TITLES = {(True, False, False): "allocation only", (False, True, True): "gate only", (True, True, True): "both"}
CHECKPOINTS = {"final": "at the last step", "best": "best checkpoint of each suite, which selects on the test set"}
DASH = "–"
COLUMNS = {
    "budget": ("Budget", "{:.0%}"),
    "speed_up": ("Speed-up", "{:.2f}×"),
    "minutes": ("Wall (min)", "{:.1f}"),
    "pruned": ("Pruned", "{:.2f}"),
    "length": ("Length", "{:.0f}"),
    "tokens": ("Tokens", "{:,.0f}"),
    "share_of_tokens": ("Tokens, of reference", "{:.0%}"),
    "seeds": ("Seeds", "{:.0f}"),
}
"""Heading and format by key; every other column is a suite in percent."""


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name (str): Of its files.
        caption (str): What it shows.
        keys (Sequence[str]): Of its columns.
        rows (pd.DataFrame): `section`, `row`, and of each key the mean; `<key>_low`, `<key>_high` and `<key>_seeds`
            where it is one of several seeds. NaN: not measured.
    """

    name: str
    caption: str
    keys: Sequence[str]
    rows: pd.DataFrame


def write_tables(report: Report, folder: Path) -> str:
    """Write every table as `.md` and `.csv`; the text of all, and what is left out.

    Args:
        report (Report): The runs.
        folder (Path): Where they are written; it is made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables, lacking = paper_tables(report)
    for table in tables:
        (folder / f"{table.name}.md").write_text(markdown(table))
        table.rows.to_csv(folder / f"{table.name}.csv", index=False)
    return "\n".join([*map(markdown, tables), *(f"* {line}" for line in [*lacking, *report.notes])])


def paper_tables(report: Report) -> tuple[list[Table], list[str]]:
    """All tables that the runs cover, and a line for each that they do not."""
    made = {1: _table_1(report), 2: _table_2(report), 6: _table_6(report)}
    made |= {number: _sweep(report, number) for number in _SWEEPS}
    made = dict(sorted(made.items()))
    tables = [table for found in made.values() if not isinstance(found, str) for table in found]
    return tables, [f"Table {n} is not covered: {why}." for n, why in made.items() if isinstance(why, str)]


# ---- Tables 1, 2 and 6: methods against the reference ---------------------------------------------------------------


class _Group(NamedTuple):
    """Arms of a section with their labels, and the budget of the reference."""

    title: str
    arms: list[Any]
    labels: list[str]
    budget: float


def _table_1(report: Report) -> list[Table] | str:
    arms = [a for a in _standard(report) if a.budget == 1 or (a.method in FAMILY and a.budget == 0.5)]
    groups = [_Group(name, own, _labels(own, 1.0), 1.0) for name, own in _by(arms, lambda a: a.subject)]
    title = "Methods at the full budget, DUET at half and at the full budget"
    return _compared(report, 1, title, groups) if groups else "no run has the full budget"


def _table_2(report: Report) -> list[Table] | str:
    family = [a for a in report.arms if a.method in FAMILY and not a.swept]
    groups = []
    for (subject, method, budget), rows in _by(family, lambda a: (a.subject, a.method, a.budget)):
        if all(a.complete for a in rows):
            continue
        rows = sorted(rows, key=lambda a: (a.complete, not a.parts[0]))
        labels = [f"+ {_parts_title(a.parts)}" for a in rows]
        if base := report.standard(subject, report.reference, budget):
            rows, labels = [base, *rows], [f"+{method_title(base.method)}", *labels]
        groups.append(_Group(f"{subject}, {method_title(method)}, {budget:.0%} budget", rows, labels, budget))
    reason = f"no run of {' or '.join(FAMILY)} has one of allocate, trim and abort off"
    return _compared(report, 2, "One part of DUET at a time", groups) if groups else reason


def _table_6(report: Report) -> list[Table] | str:
    arms = sorted((a for a in _standard(report) if a.budget < 1), key=lambda a: -a.budget)
    groups = [
        _Group(f"{subject}, {budget:.0%} budget", own, _labels(own, budget), budget)
        for (subject, budget), own in _by(arms, lambda a: (a.subject, a.budget))
    ]
    return _compared(report, 6, "Methods at smaller budgets", groups) if groups else "no run has a budget below 1"


def _standard(report: Report) -> list[Any]:
    """Arms without ablations; of one subject, method and budget those of the standard values, if there are any."""
    complete = [a for a in report.arms if a.complete]
    usual = {(a.subject, a.method, a.budget) for a in complete if not a.swept}
    return [a for a in complete if not a.swept or (a.subject, a.method, a.budget) not in usual]


def _by(arms: Sequence[Any], key: Any) -> list[tuple[Any, list[Any]]]:
    """Arms by what they have in common, in the order in which it first occurs."""
    return [(name, [a for a in arms if key(a) == name]) for name in dict.fromkeys(map(key, arms))]


def _parts_title(parts: tuple[bool, ...]) -> str:
    on = [name for name, is_on in zip(PARTS, parts, strict=True) if is_on]
    return PART_TITLES.get(parts) or (f"{' and '.join(on)} only" if on else "neither")


def _labels(arms: Sequence[Any], budget: float) -> list[str]:
    """Method, another budget than the section's, swept values, and the cell where this leaves two alike."""
    labels = []
    for arm in arms:
        words = [f"{100 * arm.budget:g}% budget"] * (arm.budget != budget)
        words += [f"{name}={value}" for name, value in arm.swept.items()]
        labels.append(f"+{method_title(arm.method)}" + (f" ({', '.join(words)})" if words else ""))
    times = Counter(labels)
    return [one if times[one] == 1 else f"{one} [{arm.cell}]" for one, arm in zip(labels, arms, strict=True)]


def _compared(report: Report, number: int, title: str, groups: Sequence[_Group]) -> list[Table]:
    """The table of values, and the table of paired differences to the reference."""
    rows, apart = [], []
    for group in groups:
        rows.append(_baseline(report, group))
        for arm, label in zip(group.arms, group.labels, strict=True):
            runs, name = report.of(arm), {"section": group.title, "row": label}
            row = name | {"budget": arm.budget} | _accuracies(report, runs)
            other = report.standard(arm.subject, report.reference, group.budget)
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
        "where engine, hardware and number of steps are the same."
    )
    keys = ["budget", *report.suites, "speed_up", "tokens", "share_of_tokens", "seeds"]
    tables = [_table(f"table{number}", caption, keys, rows)]
    if apart and report.suites:
        caption = f"{title}: mean@{report.k} minus that of {against}, percentage points, paired by seed."
        tables.append(_table(f"table{number}_differences", caption, [*report.suites, "seeds"], apart))
    return tables


def _baseline(report: Report, group: _Group) -> dict[str, Any]:
    """Accuracy of all arms of the subject before the first step; the runs of a seed are averaged first."""
    runs = report.runs[report.runs.subject == group.arms[0].subject]
    row = _figures({suite: runs.groupby("seed")[f"start/{suite}"].mean() for suite in report.suites})
    seeds = max((row[f"{suite}_seeds"] for suite in report.suites), default=0)
    return {"section": group.title, "row": "Baseline"} | row | {"seeds": seeds}


# ---- Tables 3, 5 and 7: one setting varied, all others of the method the same ---------------------------------------


_SWEEPS = {
    3: ("keep_probability", ["speed_up"], "eps_abort, with the speed-up over {}"),
    5: ("surrogate_warmup", ["minutes"], "k_warmup, with the minutes of training, to be compared on one machine"),
    7: ("keep_rate", ["pruned", "length"], "Keep rate of ARRoL, rollouts pruned, tokens of a rollout"),
}
"""Setting of the method, columns next to the accuracies, and title."""


def _sweep(report: Report, number: int) -> list[Table] | str:
    """Groups of arms that differ in one setting of the method alone."""
    option, columns, title = _SWEEPS[number]

    def rest(arm: Any) -> str:
        others = {name: value for name, value in arm.own.items() if name != option}
        return json.dumps([arm.subject, arm.method, arm.budget, others], sort_keys=True)

    varied, rows = [a for a in report.arms if a.own.get(option) is not None], []
    for _, arms in _by(varied, rest):
        if len({a.own[option] for a in arms}) < 2:
            continue
        others = [f"{name}={value}" for name, value in arms[0].swept.items() if name != option]
        section = ", ".join([arms[0].subject, method_title(arms[0].method), f"{arms[0].budget:.0%} budget", *others])
        for arm in sorted(arms, key=lambda a: a.own[option]):
            runs, reference = report.of(arm), report.standard(arm.subject, report.reference, 1.0)
            beside = {"speed_up": report.speed_ups(arm, reference), "minutes": runs.seconds / 60}
            beside |= {"pruned": runs.pruned, "length": runs.length}
            label = f"{arm.own[option]:g}" + " (default)" * (arm.own[option] == STANDARD[option])
            figures = _accuracies(report, runs) | _figures({key: beside[key] for key in columns})
            rows.append({"section": section, "row": label} | figures | {"seeds": len(runs)})
    if not rows:
        found = sorted({str(a.own[option]) for a in varied})
        return f"no two runs differ in {option} alone; the values there are: {', '.join(found) or 'none'}"
    title = title.format(f"{method_title(report.reference)} at the full budget, paired by seed")
    return [_table(f"table{number}", _caption(report, title), [*report.suites, *columns, "seeds"], rows)]


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


def _table(name: str, caption: str, keys: Sequence[str], rows: list[dict[str, Any]]) -> Table:
    frame = pd.DataFrame(rows)
    frame = frame.astype({name: "Int64" for name in frame if name.endswith("seeds")})
    ends = [f"{key}{end}" for key in keys for end in ("", "_low", "_high", "_seeds")]
    frame = frame.reindex(columns=["section", "row", *(end for end in ends if end in keys or end in frame)])
    heading = f"Table {name.removeprefix('table').replace('_', ', ')}"
    caption += " Means over seeds ± half of the 95% t-interval (none for one seed; n: fewer seeds than the row has)."
    return Table(name, f"{heading}. {caption}", keys, frame)


def markdown(table: Table) -> str:
    """The table below its caption."""
    rows: list[list[str]] = []
    sign = "+" if table.name.endswith("_differences") else ""
    for section, lines in table.rows.groupby("section", sort=False):
        rows += [[f"*{section}*", *[""] * len(table.keys)]]
        rows += [[line["row"], *(_cell(line, key, sign) for key in table.keys)] for _, line in lines.iterrows()]
    titles = [COLUMNS[key][0] if key in COLUMNS else suite_title(key) for key in table.keys]
    return f"{table.caption}\n\n{markdown_table(['', *titles], rows)}\n"


def _cell(row: pd.Series, key: str, sign: str) -> str:
    if pd.isna(row[key]):
        return DASH
    form, scale = (COLUMNS[key][1], 1) if key in COLUMNS else (f"{{:{sign}.1f}}", 100)
    half = row[key] - row.get(f"{key}_low", np.nan)
    text = form.format(scale * row[key])
    text += "" if pd.isna(half) else f" ± {form.format(scale * half).strip('+×%')}"
    seeds = row.get(f"{key}_seeds", np.nan)
    return text + (f" (n={seeds:.0f})" if seeds < row.get("seeds", 0) else "")
