# SPDX-License-Identifier: Apache-2.0
"""A table with marked values in three formats."""

import csv
import io
import re

import pytest

from duet_trl.report.layout import Column, Section, Table, Value, csv_text, latex, markdown

COLUMNS = [
    Column("budget", "Budget", "share"),
    Column("math500", "A & B_1", "percent", 1),
    Column("speed_up", "Speed-up", "factor", 1),
    Column("minutes", "Wall", "tenths", -1),
    Column("generated_tokens", "Tokens", "tokens"),
]
ROWS = [
    ("Baseline", [None, Value(0.4512, 0.01, 3), None, None, None]),
    ("+GRPO", [1.0, Value(0.5678, None, 1), Value(1.0), Value(70.04, None), Value(1_234_567.0)]),
    ("+DUET (50% budget)", [0.5, Value(0.6204, 0.0123, 3), Value(2.514, 0.031, 3), Value(59.44), Value(999.0)]),
    ("+DUET", [1.0, Value(0.6196, 0.02, 3), Value(1.62), Value(65.0), Value(12_000.0)]),
]
TABLE = Table(
    "table1", "Table 1", "Accuracy ± 50%", "Method", COLUMNS, [Section("tiny_1", ROWS)], ["A note: 5% & more."]
)


def cells_of(line):
    return [cell.strip() for cell in line.strip("| ").split("|")]


def test_markdown_marks_the_best_and_the_second_as_rounded():
    """62.04 and 61.96 are 62.0 both: best alike, so 56.8 is the second. Fewer minutes are better."""
    lines = [line for line in markdown(TABLE).splitlines() if line.startswith("|")]
    assert cells_of(lines[0]) == ["Method", "Budget", "A & B_1", "Speed-up", "Wall", "Tokens"]
    assert cells_of(lines[2])[0] == "*tiny_1*"
    assert [cells_of(line) for line in lines[3:]] == [
        ["Baseline", "–", "45.1 ± 1.0", "–", "–", "–"],
        ["+GRPO", "100%", "<u>56.8</u>", "1.00×", "70.0", "1.23M"],
        ["+DUET (50% budget)", "50%", "**62.0** ± 1.2", "**2.51×** ± 0.03", "**59.4**", "999"],
        ["+DUET", "100%", "**62.0** ± 2.0", "<u>1.62×</u>", "<u>65.0</u>", "12k"],
    ]
    assert markdown(TABLE).splitlines()[0] == "**Table 1.** Accuracy ± 50%"
    assert "A note: 5% & more." in markdown(TABLE)


def test_sections_are_marked_apart_and_one_value_is_no_best():
    sections = [Section("a", ROWS[1:2]), Section("b", ROWS[1:3])]
    text = markdown(Table("t", "T", "c", "Method", COLUMNS, sections))
    assert text.count("**62.0**") == 1
    assert text.count("<u>56.8</u>") == 1
    assert "| +GRPO | 100% | 56.8 |" in text


def braces_balance(text):
    bare = re.sub(r"\\[{}\\]", "", text)
    depth = 0
    for one in bare:
        depth += {"{": 1, "}": -1}.get(one, 0)
        assert depth >= 0
    return depth == 0


def check_latex(text):
    """Rows of as many cells as columns, booktabs' rules in their order, groups that close."""
    lines = text.splitlines()
    (begin,) = [line for line in lines if line.startswith(r"\begin{tabular}")]
    width = len(re.fullmatch(r"\\begin\{tabular\}\{(l(?:c)+)\}", begin)[1])
    body = lines[lines.index(begin) + 1 : lines.index(r"\end{tabular}")]
    assert body[0] == r"\toprule" and body[-1] == r"\bottomrule" and r"\midrule" in body
    rows = [line for line in body if not re.fullmatch(r"\\(top|mid|bottom)rule", line)]
    assert rows
    for row in rows:
        assert row.endswith(r" \\")
        spanned = re.match(r"\\multicolumn\{(\d+)\}", row)
        assert (int(spanned[1]) if spanned else len(re.findall(r"(?<!\\)&", row)) + 1) == width
    begun = re.findall(r"\\begin\{(\w+)\}", text)
    assert begun == list(reversed(re.findall(r"\\end\{(\w+)\}", text)))
    assert braces_balance(text)
    assert text.isascii()  # pdflatex needs no package for any sign
    assert not re.search(r"(?<!\\)[%#_]", text.replace(r"\label{tab:table1}", ""))


def test_latex_is_a_table_for_booktabs():
    text = latex(TABLE)
    check_latex(text)
    assert r"+DUET (50\% budget) & 50\% & \textbf{62.0} $\pm$ 1.2 & \textbf{2.51$\times$} $\pm$ 0.03 & " in text
    assert r"A \& B\_1" in text
    assert r"\caption{Accuracy $\pm$ 50\%}" in text
    assert r"\multicolumn{6}{l}{\textit{tiny\_1}}" in text


def test_every_special_sign_is_escaped():
    table = Table("t", "T", "\\ ~ ^ & % $ # _ { } × ± ✓ ∘ − –", "Method", COLUMNS, [Section("", ROWS)])
    assert r"\textbackslash{} \textasciitilde{} \textasciicircum{} \& \% \$ \# \_ \{ \}" in latex(table)
    check_latex(latex(table))


def test_csv_holds_every_figure_unrounded_with_both_ends_and_the_seeds():
    found = list(csv.DictReader(io.StringIO(csv_text(TABLE))))
    assert [line["row"] for line in found] == [label for label, _ in ROWS]
    for line, (_, cells) in zip(found, ROWS, strict=True):
        for column, cell in zip(COLUMNS, cells, strict=True):
            if not isinstance(cell, Value):
                assert line[column.key] == ("" if cell is None else str(cell))
                continue
            assert float(line[column.key]) == cell.mean
            assert line[f"{column.key}_seeds"] == str(cell.seeds)
            ends = [line[f"{column.key}_low"], line[f"{column.key}_high"]]
            if cell.half is None:
                assert ends == ["", ""]
            else:
                assert [float(end) for end in ends] == pytest.approx([cell.mean - cell.half, cell.mean + cell.half])
