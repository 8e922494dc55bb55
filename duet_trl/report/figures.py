# SPDX-License-Identifier: Apache-2.0
"""Figures of a run, from the trainer's log history (`trainer.state.log_history`, the `duet/` metrics).

Every function writes one PNG. Figures are built without pyplot, so nothing depends on a display or on global state.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from .runs import series

History = Sequence[Mapping[str, Any]]

# Okabe and Ito's palette: distinguishable with any colour vision deficiency.
BLUE, ORANGE, GREEN, PINK, SKY, RED = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"
GREY = "#8A8A8A"
_ARM_COLORS = (GREY, BLUE, RED, GREEN, PINK, SKY)
_ARM_STYLES = tuple(zip(_ARM_COLORS, "os^DvP", ("--", *5 * "-"), strict=True))


@dataclass(frozen=True)
class AccuracyCurve:
    """Held-out accuracy of one run at its measurements."""

    name: str  # label of the run
    generated_tokens: Sequence[float]  # rollout tokens generated before each measurement
    seconds: Sequence[float]  # training seconds before each measurement, evaluations excluded
    accuracy: Sequence[float]  # in [0, 1]
    low: Sequence[float]  # lower end of the interval
    high: Sequence[float]  # upper end of the interval


def accuracy_figure(
    curves: Sequence[AccuracyCurve],
    path: Path,
    metric: str = "mean@4",
    clock: str = "wall clock",
    band: str = "problems",
) -> Path:
    """Held-out accuracy against generated tokens (left) and against training seconds (right), one line per run.

    At most six curves; `metric` says what the accuracy is, `clock` what the seconds are, `band` what the intervals
    were drawn over.
    """
    if len(curves) > len(_ARM_STYLES):
        raise ValueError(f"{len(curves)} curves in one figure; at most {len(_ARM_STYLES)} can be told apart.")
    figure = Figure(figsize=(9.5, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for curve, (color, marker, line) in zip(curves, _ARM_STYLES, strict=False):
        for axes, x in ((left, curve.generated_tokens), (right, curve.seconds)):
            axes.fill_between(x, curve.low, curve.high, color=color, alpha=0.15, linewidth=0)
            axes.plot(x, curve.accuracy, color=color, marker=marker, linestyle=line, label=curve.name)
    for axes in (left, right):
        axes.set_xlim(left=0)
    left.set_xlabel("Generated rollout tokens")
    left.xaxis.set_major_formatter(EngFormatter(sep=""))
    right.set_xlabel(f"Training time (s, {clock}, evaluation excluded)")
    left.set_ylabel(f"Held-out accuracy ({metric})")
    left.legend(loc="lower right", frameon=False)
    figure.suptitle(f"Accuracy for the same number of optimizer steps (band: 95% interval over {band})", fontsize=11)
    return _save(figure, path)


def fan_out_figure(history: History, path: Path) -> Path:
    """Rollouts per prompt (fewest, mean, most of the batch) over steps."""
    with _over_steps(
        path, "Fan-out: how unevenly rollouts are shared among prompts", "Rollouts per prompt $n_q$"
    ) as axes:
        steps, low = series(history, "duet/num_rollouts/min")
        _, high = series(history, "duet/num_rollouts/max")
        axes.fill_between(steps, low, high, color=SKY, alpha=0.3, linewidth=0, label="fewest to most", step="mid")
        axes.plot(steps, high, color=SKY, linewidth=1, drawstyle="steps-mid")
        axes.plot(steps, low, color=SKY, linewidth=1, drawstyle="steps-mid")
        axes.plot(*series(history, "duet/num_rollouts/mean"), color=BLUE, label="mean")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return path


def thresholds_figure(history: History, path: Path, max_length: int | None = None) -> Path:
    """Poll threshold K1 and abort threshold K2 over steps; `max_length` draws the completion limit, in tokens."""
    with _over_steps(path, "When the gate polls for an answer, and when it gives up", "Threshold (tokens)") as axes:
        for key, color, line, label in (
            ("duet/abort_threshold", RED, "-", "$K_2$: abort without a marker"),
            ("duet/poll_threshold", BLUE, "--", "$K_1$: start to poll"),
        ):
            axes.plot(*series(history, key), color=color, linestyle=line, drawstyle="steps-post", label=label)
        if max_length is not None:
            axes.axhline(max_length, color=GREY, linewidth=1, linestyle=":", label="longest completion")
        axes.set_ylim(bottom=0)
    return path


def outcomes_figure(history: History, path: Path) -> Path:
    """How rollouts ended, as shares of each step's rollouts that add up to 1."""
    steps, seen = series(history, "duet/share_marker_seen")
    _, trimmed = series(history, "duet/trim_rate")
    floor = np.zeros_like(seen)
    with _over_steps(path, "What became of the rollouts", "Share of rollouts") as axes:
        for label, share, color, hatch in (
            ("ended before the gate decided", series(history, "duet/share_ended_before_gate")[1], SKY, ""),
            ("answered, ended by itself", seen - trimmed, BLUE, ""),
            ("answered, trimmed", trimmed, GREEN, ""),
            ("no answer, kept by the coin", series(history, "duet/keep_rate")[1], ORANGE, "..."),
            ("no answer, aborted", series(history, "duet/abort_rate")[1], RED, "///"),
        ):
            look = {"color": color, "hatch": hatch, "edgecolor": "white", "linewidth": 0.3}
            axes.bar(steps, share, bottom=floor, width=1.0, label=label, **look)
            floor = floor + share
        axes.set_ylim(0, 1)
        axes.margins(x=0)
    return path


@contextmanager
def _over_steps(path: Path, title: str, ylabel: str) -> Iterator[Axes]:
    """Axes over optimizer steps, written to `path` once they are filled."""
    figure = Figure(figsize=(7.2, 3.7), layout="constrained")
    axes = figure.subplots()
    yield axes
    axes.set_title(title, fontsize=11)
    axes.set_xlabel("Optimizer step")
    axes.set_ylabel(ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside lower center", frameon=False, ncols=3, fontsize=9)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> Path:
    for axes in figure.axes:
        axes.grid(True, color="#DDDDDD", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
