# SPDX-License-Identifier: Apache-2.0
"""A table in sections with marked best values, as Markdown, LaTeX (booktabs) and CSV.

Markdown and LaTeX are rounded and say "61.6 ± 1.5", half of the 95% t-interval over seeds. CSV has every figure
unrounded, with both ends and the number of seeds.
"""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .tables import markdown_table

DASH = "–"
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {one: "\\" + one for one in "&%$#_{}"}
_LATEX |= {"×": r"$\times$", "±": r"$\pm$", "✓": r"\checkmark{}", "∘": r"$\circ$", "−": "$-$", "–": "--"}


@dataclass(frozen=True)
class Value:
    """A mean over seeds.

    Attributes:
        mean (float): The mean, in the unit of the column before it is shown.
        half (float | None): Half of its 95% t-interval; None for one seed, or where there is nothing to vary.
        seeds (int): Values that it is the mean of.
        ranked (bool): It can be marked as best or second.
    """

    mean: float
    half: float | None = None
    seeds: int = 1
    ranked: bool = True


Cell = Value | float | str | None
"""A number is shown as the mean of a value would be, None as a dash."""


@dataclass(frozen=True)
class Column:
    """A column of values.

    Attributes:
        key (str): Name in the CSV.
        title (str): Heading.
        form (str): One of `FORMS`: how a value is shown.
        better (int): 1 if more is better, -1 if less is, 0 if nothing is marked.
    """

    key: str
    title: str
    form: str
    better: int = 0


@dataclass(frozen=True)
class Section:
    """Rows that are compared with each other: a title, which may be empty, and (label, cells) per row."""

    title: str
    rows: list[tuple[str, list[Cell]]]


@dataclass(frozen=True)
class Table:
    """A table: `name` is that of its files, `heading` its number, which LaTeX counts by itself."""

    name: str
    heading: str
    caption: str
    head: str  # heading of the labels
    columns: list[Column]
    sections: list[Section]
    notes: list[str] = field(default_factory=list)


def _tokens(count: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.0f}"


FORMS = {
    "percent": lambda x: f"{100 * x:.1f}",
    "difference": lambda x: f"{100 * x:+.1f}",
    "share": lambda x: f"{100 * x:.0f}%",
    "factor": lambda x: f"{x:.2f}×",
    "number": lambda x: f"{x:.2f}",
    "tenths": lambda x: f"{x:.1f}",
    "count": lambda x: f"{x:.0f}",
    "tokens": _tokens,
}
"""How a mean is shown; half of the interval is shown alike, without sign and unit."""


def markdown(table: Table) -> str:
    """The table under its caption, with its notes."""
    rows: list[list[str]] = []
    for section in table.sections:
        if section.title:
            rows.append([f"*{section.title}*", *[""] * len(table.columns)])
        rows += _shown(table, section, ("{}", "**{}**", "<u>{}</u>"), str)
    body = markdown_table([table.head, *(column.title for column in table.columns)], rows)
    return "\n\n".join([f"**{table.heading}.** {table.caption}", body, *table.notes]) + "\n"


def latex(table: Table) -> str:
    r"""The table for booktabs; a ✓ needs amssymb."""
    width = 1 + len(table.columns)
    lines = [r"\begin{table}[t]", rf"\caption{{{_escaped(table.caption)}}}", rf"\label{{tab:{table.name}}}"]
    lines += [r"\centering", r"\small", rf"\begin{{tabular}}{{l{'c' * len(table.columns)}}}", r"\toprule"]
    lines += [" & ".join(_escaped(text) for text in (table.head, *(c.title for c in table.columns))) + r" \\"]
    for section in table.sections:
        lines.append(r"\midrule")
        if section.title:
            lines += [rf"\multicolumn{{{width}}}{{l}}{{\textit{{{_escaped(section.title)}}}}} \\", r"\midrule"]
        looks = ("{}", r"\textbf{{{}}}", r"\underline{{{}}}")
        lines += [" & ".join(row) + r" \\" for row in _shown(table, section, looks, _escaped)]
    lines += [r"\bottomrule", r"\end{tabular}"]
    if table.notes:
        lines.append(rf"\par\smallskip\footnotesize {_escaped(' '.join(table.notes))}")
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def csv_text(table: Table) -> str:
    """One line per row; a column of values has its mean, `_low` and `_high` (empty for one seed) and `_seeds`."""
    rows = [(section.title, label, cells) for section in table.sections for label, cells in section.rows]
    headers = ["section", "row"]
    for number, column in enumerate(table.columns):
        valued = any(isinstance(cells[number], Value) for _, _, cells in rows)
        headers += [column.key + suffix for suffix in (("", "_low", "_high", "_seeds") if valued else ("",))]
    file = io.StringIO()
    writer = csv.DictWriter(file, headers, restval="", lineterminator="\n")
    writer.writeheader()
    for title, label, cells in rows:
        line: dict[str, str | float] = {"section": title, "row": label}
        for column, cell in zip(table.columns, cells, strict=True):
            line |= _figures(column.key, cell)
        writer.writerow(line)
    return file.getvalue()


def _figures(key: str, cell: Cell) -> dict[str, str | float]:
    if not isinstance(cell, Value):
        return {} if cell is None else {key: cell}
    figures = {key: cell.mean, f"{key}_seeds": cell.seeds}
    if cell.half is not None:
        figures |= {f"{key}_low": cell.mean - cell.half, f"{key}_high": cell.mean + cell.half}
    return figures


def _shown(table: Table, section: Section, looks: Sequence[str], escape: Callable[[str], str]) -> list[list[str]]:
    """Label and cells of each row as text; `looks` are those of an unmarked, of the best and of the second value."""
    shown = [[escape(label)] for label, _ in section.rows]
    for number, column in enumerate(table.columns):
        cells = [row[number] for _, row in section.rows]
        for line, cell, rank in zip(shown, cells, _ranks(column, cells), strict=True):
            line.append(_text(cell, column, looks[rank], escape))
    return shown


def _text(cell: Cell, column: Column, look: str, escape: Callable[[str], str]) -> str:
    show = FORMS[column.form]
    if not isinstance(cell, Value):
        return escape(DASH if cell is None else cell if isinstance(cell, str) else show(cell))
    half = "" if cell.half is None else f" ± {show(cell.half).strip('+×%')}"
    return look.format(escape(show(cell.mean))) + escape(half)


def _ranks(column: Column, cells: Sequence[Cell]) -> list[int]:
    """1 for the best, 2 for the second of a column, 0 for the others; equal where they are equal as rounded."""
    if not column.better:
        return [0] * len(cells)
    rounded = [
        column.better * float(FORMS[column.form](cell.mean).strip("×%"))
        if isinstance(cell, Value) and cell.ranked
        else None
        for cell in cells
    ]
    different = sorted({value for value in rounded if value is not None}, reverse=True)[:2]
    if len(different) < 2:
        return [0] * len(cells)
    return [different.index(value) + 1 if value in different else 0 for value in rounded]


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(one, one) for one in text)
