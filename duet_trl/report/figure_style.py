# SPDX-License-Identifier: Apache-2.0
"""How figures look: colours that every reader can tell apart, and sheets as wide as a column of a paper.

Figures are built without pyplot, so nothing depends on a display; matplotlib's settings are changed for one sheet at a
time. Lines differ in style and marker as well as in colour.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .titles import METHODS

# Okabe and Ito's palette: distinguishable with any colour vision deficiency.
BLUE, ORANGE, GREEN, PINK, SKY, RED = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"
GREY, BLACK = "#8A8A8A", "#222222"

COLUMN, PAGE = 3.3, 6.8
"""Widths in inches of one column and of a page with two."""

FORMATS = (".png", ".svg")

_PRINT = {
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "axes.linewidth": 0.6,
    "hatch.linewidth": 0.4,
    "svg.fonttype": "none",  # text stays text: it can be searched, and is set in the reader's font
    "svg.hashsalt": "duet",  # the same figure is the same file
}
_COLORS = (ORANGE, GREEN, RED, PINK)
_MARKERS = "v<DPX>hp*d^"  # eleven, against four colours: the pair repeats after 44 methods
_LINES, _HATCHES = ("-", "--", "-.", ":"), ("", "///", "...", "xxx")


class Look(NamedTuple):
    """What tells a line, or a bar, from its neighbours."""

    color: str
    marker: str
    line: str
    hatch: str


_OURS = {
    "grpo": Look(GREY, "o", "--", ""),
    "duet": Look(BLUE, "s", "-", ""),
    "paper": Look(SKY, "^", "-", ""),
}
_BUDGET_LOOKS = (
    Look(ORANGE, "o", "-", ""),
    Look(BLUE, "s", "--", "///"),
    Look(GREEN, "^", "-.", "..."),
    Look(PINK, "D", ":", "xxx"),
    Look(SKY, "v", (0, (5, 1, 1, 1, 1, 1)), "\\\\\\"),
)


def method_look(method: str) -> Look:
    """Look of a method, the same in every figure; this package's are blue or black, one without a title dotted."""
    if method in _OURS:
        return _OURS[method]
    if method not in METHODS:
        return Look(BLACK, "o", ":", "xxx")
    index = [name for name in METHODS if name not in _OURS].index(method)
    cycle = index // len(_COLORS) % len(_LINES)
    return Look(_COLORS[index % len(_COLORS)], _MARKERS[index % len(_MARKERS)], _LINES[cycle], _HATCHES[cycle])


def budget_look(budget: float, budgets: Sequence[float]) -> Look:
    """Look of a budget among those of a figure, the largest first."""
    return _BUDGET_LOOKS[sorted(set(budgets), reverse=True).index(budget) % len(_BUDGET_LOOKS)]


@contextmanager
def sheet(
    path: Path, size: tuple[float, float], rows: int = 1, columns: int = 1, **shared: Any
) -> Iterator[list[Axes]]:
    """Panels row by row, with one legend below them, written as PNG and SVG once they are filled.

    Args:
        path (Path): File without its ending; its folder is made.
        size (tuple[float, float]): Width and height, inches.
        rows (int): Rows of panels.
        columns (int): Columns of panels.
        shared: Of `Figure.subplots`, such as `sharey=True`, and `legend_columns`.
    """
    legend_columns = shared.pop("legend_columns", 3)
    with rc_context(_PRINT):
        figure = Figure(figsize=size, layout="constrained")
        panels = list(figure.subplots(rows, columns, squeeze=False, **shared).ravel())
        yield panels
        named = {
            name: handle
            for axes in figure.axes
            for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        if named:
            figure.legend(
                named.values(), named, loc="outside lower center", frameon=False, ncols=legend_columns,
                columnspacing=1.2, handlelength=2.2,
            )  # fmt: skip
        for letter, axes in zip("abcdefghijkl", panels, strict=False):
            if len(panels) > 1:
                axes.set_title(f"({letter}) {axes.get_title()}".rstrip(), loc="center")
        finish(figure)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path.with_suffix(".png"), dpi=300)
        figure.set_layout_engine("none")  # it is laid out by now
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def finish(figure: Figure) -> None:
    """Grid behind the data, and no frame at the top and the right but for a second scale."""
    for axes in figure.axes:
        twin = axes.yaxis.get_label_position() == "right"
        if not twin:
            axes.grid(True, color="#DDDDDD", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top"] if twin else ["top", "right"]].set_visible(False)
