# SPDX-License-Identifier: Apache-2.0
"""Marks of the paper's figures: points and bars are means over seeds with 95% t-intervals, bands are their range."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatter, MaxNLocator, StrMethodFormatter

from .figure_data import Curve
from .figure_style import BLACK, Look
from .layout import Value


def times(value: Value, factor: float) -> Value:
    """A mean in another unit."""
    return Value(factor * value.mean, None if value.half is None else factor * value.half, value.seeds)


def spread(count: int, width: float) -> np.ndarray:
    """Places side by side around 0, shape (count,), so that intervals do not cover each other."""
    return (np.arange(count) - (count - 1) / 2) * width / max(count, 1)


def draw_curve(axes: Axes, curve: Curve, label: str, look: Look, *, scale: float = 1.0, markers: bool = False) -> None:
    """A metric over optimizer steps; markers at each of a few measurements, or at eight places of a long line."""
    mean, low, high = (scale * values for values in (curve.mean, curve.low, curve.high))
    if (high > low).any():
        axes.fill_between(curve.steps, low, high, color=look.color, alpha=0.18, linewidth=0)
    every = 1 if markers else max(1, len(curve.steps) // 8)
    axes.plot(
        curve.steps, mean, color=look.color, linestyle=look.line, marker=look.marker, markevery=every, label=label
    )
    axes.set_xlabel("Optimizer step" + (f" (median of {curve.window})" if curve.window > 1 else ""))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))


def draw_points(
    axes: Axes, x: Sequence[float | Value], y: Sequence[Value], label: str, look: Look, *, line: bool = False
) -> None:
    """Means with their intervals, also across where x is measured, and a line through them."""
    across = [one if isinstance(one, Value) else Value(one) for one in x]
    axes.errorbar(
        [one.mean for one in across], [one.mean for one in y], xerr=_halves(across), yerr=_halves(y), label=label,
        color=look.color, marker=look.marker, linestyle=look.line if line else "none", elinewidth=0.8, capsize=1.5,
    )  # fmt: skip


def draw_bars(
    axes: Axes, names: Sequence[str], values: Sequence[Value | None], looks: Sequence[Look], form: str
) -> None:
    """Horizontal bars from the top with their values at the right margin; None has no bar and a dash."""
    places = np.arange(len(names))[::-1]
    for place, value, look in zip(places, values, looks, strict=True):
        if value is not None:
            edge = {"edgecolor": BLACK, "linewidth": 0.3}
            axes.barh(place, value.mean, color=look.color, hatch=look.hatch, height=0.75, **edge)
            axes.errorbar([value.mean], [place], xerr=_halves([value]), color=BLACK, elinewidth=0.8, capsize=1.5)
        text = "-" if value is None else form.format(value.mean)
        axes.text(1.02, place, text, transform=axes.get_yaxis_transform(), va="center", fontsize=7)
    axes.set_yticks(places, names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlim(left=0)


def budget_axis(axes: Axes, budgets: Sequence[float]) -> None:
    """Ticks of an axis at the nominal budgets, which are shares of the full one."""
    axes.set_xticks([100 * budget for budget in sorted(set(budgets))])
    axes.set_xlabel("Nominal budget (% of full rollouts)")
    axes.margins(x=0.08)


def log_axis(axes: Axes) -> None:
    """A logarithmic scale, whose numbers have no small exponents."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(LogFormatter())


def _halves(values: Sequence[Value]) -> list[float]:
    """Half of each interval; nan, which is not drawn, for a single seed."""
    return [np.nan if one.half is None else one.half for one in values]
