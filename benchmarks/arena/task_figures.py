# SPDX-License-Identifier: Apache-2.0
"""A figure for each task: mean accuracy against generated tokens and against processor seconds.

A picture is not compared by pixels, which change with matplotlib. The file carries a digest of the data it was drawn
from, and that is compared.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from PIL import Image
from scipy.optimize import isotonic_regression

from duet_trl.report.intervals import half_width

from .contest import Contest
from .curves import shared
from .entrants import REFERENCE
from .pace import SECONDS
from .ranking import TOKENS, best_rivals

# Okabe and Ito's palette: distinguishable with any colour vision deficiency.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
GREY, BLACK = "#8A8A8A", "#222222"


class Look(NamedTuple):
    """What tells a line from its neighbours."""

    color: str
    marker: str
    line: str


APART = {REFERENCE: Look(BLACK, "o", "--"), "grpo_4": Look(GREY, "o", "--"), "duet": Look(BLUE, "s", "-")}
"""Entrants that are always in colour."""
RIVALS = (Look(RED, "^", "-"), Look(GREEN, "D", "-"), Look(ORANGE, "v", "-"))
"""Looks of the best others."""
_X_LABELS = {TOKENS: "Generated tokens", SECONDS: "Processor seconds of training"}
_Y_LABELS = {"accuracy": "Held-out accuracy (last answer)", "careful": "Share of careful solutions"}
_THIN = "#BBBBBB"
_DIGEST = "Arena data"


def drawn_data(contest: Contest) -> dict[str, Any]:
    """What the figure of a task shows.

    Args:
        contest (Contest): The task.

    Returns:
        dict[str, Any]: `target`, `best` (rivals in colour) and `entrants`: mean curves, with `half`, half of the 95%
        t-interval over seeds (none: fewer than three; that of two is as wide as the figure).
    """
    entrants = {}
    for name in contest.rivals:
        curve = contest.mean_curve(name)
        entrants[name] = {
            "accuracy": _rounded(curve.accuracy),
            "half": _half_widths(contest, name),
            TOKENS: _rounded(curve.costs[TOKENS]),
            SECONDS: _rounded(curve.costs[SECONDS]) if contest.compares(SECONDS, name) else None,
            "careful": None if curve.careful is None else _rounded(curve.careful),
        }
    best = best_rivals(contest, tuple(APART), len(RIVALS))
    return {"target": round(contest.target, 4), "best": best, "entrants": entrants}


def is_drawn_from(path: Path, data: dict[str, Any]) -> bool:
    """Whether a figure was drawn from these data."""
    with Image.open(path) as found:
        return found.info.get(_DIGEST) == _digest(data)


def task_figure(contest: Contest, path: Path) -> Path:
    """Draw the figure of a task; one with two ways to answer gets a second row, the share of careful solutions.

    Where no entrant has seconds that compare there is no column of seconds.

    Args:
        contest (Contest): The task.
        path (Path): PNG; its folder is made.
    """
    data = drawn_data(contest)
    looks = APART | dict(zip(data["best"], RIVALS, strict=False))
    with_careful = all(own["careful"] is not None for own in data["entrants"].values())
    figures = ("accuracy", "careful") if with_careful else ("accuracy",)
    costs = {cost: label for cost, label in _X_LABELS.items() if any(own[cost] for own in data["entrants"].values())}
    figure = Figure(figsize=(5 * len(costs), 0.7 + 3.9 * len(figures)), layout="constrained")
    rows = figure.subplots(len(figures), len(costs), squeeze=False, sharex="col", sharey="row")
    for row, name in zip(rows, figures, strict=True):
        for axes, cost in zip(row, costs, strict=True):
            _draw(axes, data, cost, name, looks)
        row[0].set_ylabel(_Y_LABELS[name])
        drawn = np.concatenate([own[name] for own in data["entrants"].values()])
        margin = 0.06 * (drawn.max() - drawn.min())
        # A band over two or three seeds may be wider than everything that was measured; the curves decide.
        row[0].set_ylim(drawn.min() - margin, drawn.max() + margin)
    for axes, (cost, label) in zip(rows[-1], costs.items(), strict=True):
        longest = max(own[cost][-1] for own in data["entrants"].values() if own[cost])
        axes.set(xlabel=label, xlim=(0, 1.03 * longest))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    for axes in rows[0]:
        axes.axhline(data["target"], color=BLACK, linewidth=0.8, linestyle=":", zorder=1)
    for axes, cost in zip(rows.ravel(), [*costs] * len(figures), strict=True):
        _name_ends(axes, data, cost, figures[0] if axes in rows[0] else figures[-1], looks)
    handles, names = rows[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", frameon=False, ncols=len(names))
    banded = ", ".join(_banded(data))
    bands = f"95% t-interval: {banded}; " if banded else ""
    figure.suptitle(f"{contest.task}: mean over seeds ({bands}dotted: target)", fontsize=11)
    for axes in figure.axes:
        axes.grid(True, color="#DDDDDD", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={_DIGEST: _digest(data)})
    return path


def _banded(data: dict[str, Any]) -> list[str]:
    """Entrants that get a band, those of them that have one: more would hide each other."""
    entrants, chosen = data["entrants"], (REFERENCE, "duet", *data["best"][:1])
    return [name for name in chosen if name in entrants and None not in entrants[name]["half"]]


def _draw(axes: Axes, data: dict[str, Any], cost: str, figure: str, looks: Mapping[str, Look]) -> None:
    """The curves of a panel: entrants in colour, the others thin and grey."""
    for name, own in data["entrants"].items():
        x, y = own[cost], own[figure]
        if x is None:
            continue  # nothing that compares
        if name not in looks:
            axes.plot(x, y, color=_THIN, linewidth=0.9, zorder=1)
            continue
        look = looks[name]
        if figure == "accuracy" and name in _banded(data):
            low, high = np.subtract(y, own["half"]), np.add(y, own["half"])
            axes.fill_between(x, low, high, color=look.color, alpha=0.13, linewidth=0, zorder=2)
        style = {"color": look.color, "marker": look.marker, "linestyle": look.line}
        axes.plot(x, y, **style, markersize=4, linewidth=1.7, label=name, zorder=3)


def _name_ends(axes: Axes, data: dict[str, Any], cost: str, figure: str, looks: Mapping[str, Look]) -> None:
    """Names of the grey curves at the right, apart from each other, each with a line to the end of its curve."""
    thin = {name: own for name, own in data["entrants"].items() if name not in looks and own[cost]}
    ends = [(own[figure][-1], own[cost][-1], name) for name, own in thin.items()]
    if not ends:
        return
    low, high = axes.get_ylim()
    gaps = np.arange(len(ends)) * (high - low) / 24
    heights = np.array([y for y, _, _ in sorted(ends)])
    # The nearest places that keep their order and a gap: without the gaps they do not decrease.
    places = isotonic_regression(heights - gaps).x + gaps
    places -= max(0.0, places[-1] - high)
    right = axes.get_xlim()[1]
    for place, (y, x, name) in zip(places, sorted(ends), strict=True):
        axes.plot([x, right], [y, place], color="#E2E2E2", linewidth=0.6, zorder=0, clip_on=False)
        axes.annotate(f" {name}", (right, place), fontsize=7.5, color="#777777", va="center", annotation_clip=False)
    axes.set(xlim=(0, right), ylim=(low, high))


def _half_widths(contest: Contest, name: str) -> list[float | None]:
    """Of the accuracies of the mean curve."""
    curves = list(contest.curves[name].values())
    rows = [curve.accuracy[own] for curve, own in zip(curves, shared(curves), strict=True)]
    halves = [half_width(values) if len(values) > 2 else None for values in np.transpose(rows)]
    return [None if half is None else round(half, 4) for half in halves]


def _rounded(values: np.ndarray) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def _digest(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()
