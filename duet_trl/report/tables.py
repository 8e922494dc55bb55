# SPDX-License-Identifier: Apache-2.0
"""Tables of results as aligned plain text and as Markdown."""

from collections.abc import Sequence

Cell = str | int | float | None


def text_table(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """An aligned table for a terminal, without a final newline: text to the left, numbers to the right.

    None becomes a dash, integers get thousands separators, floats four significant digits; format a cell yourself, as
    a string, where that does not fit.
    """
    cells, numeric = _cells(headers, rows)
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    lines = [headers, ["-" * width for width in widths], *cells]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """The same table in GitHub's Markdown; numeric columns are aligned to the right. See `text_table`."""
    cells, numeric = _cells(headers, rows)
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in [headers, *cells]]
    rule = ["---:" if right else "---" for right in numeric]
    return "\n".join(f"| {' | '.join(line)} |" for line in [escaped[0], rule, *escaped[1:]])


def _cells(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> tuple[list[list[str]], list[bool]]:
    columns = zip(headers, *rows, strict=True)
    numeric = [bool(column) and all(not isinstance(cell, str) for cell in column) for _, *column in columns]
    return [[_format(cell) for cell in row] for row in rows], numeric


def _format(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.4g}"
