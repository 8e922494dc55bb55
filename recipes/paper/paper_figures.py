# SPDX-License-Identifier: Apache-2.0
"""Every figure of the paper, a folder per model (and task, where a model has several).

    <figure>.png, .svg             methods against each other
    <figure>_<method>.png, .svg    what the controller did

Points and bars are means over seeds with 95% t-intervals, bands the range of the seeds. Quantities that are not
logged are not drawn, and are reported.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from duet_trl.report.intervals import half_width

from .runs import FAMILY, METHODS, Report, by_step, method_title, suite_title

COLORS = ("#8A8A8A", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#0072B2")
"""Okabe and Ito's: distinguishable with any colour vision deficiency."""
MARKERS, LINES = "osv<DPX>hp*d^", ("-", "--", "-.", ":")
SURROGATES = ("online", "constant")


class NotDrawn(ValueError):
    """Why a figure cannot be drawn, and what would have to be logged."""


def write_figures(report: Report, folder: Path) -> list[str]:
    """Draw every figure of every subject; a line for everything left out, with the reason.

    Args:
        report (Report): The runs.
        folder (Path): Where a folder per subject is made.
    """
    notes = []
    for name, own in report.subjects().items():
        place, methods = folder / re.sub(r"[^\w.-]+", "_", name), dict.fromkeys(a.method for a in shown(own))
        calls = [(draw, place / draw.__name__, ()) for draw in COMPARISONS]
        calls += [(draw, place / f"{draw.__name__}_{m}", (m,)) for draw in OF_A_METHOD for m in methods if m != "grpo"]
        for draw, path, method in calls:
            try:
                draw(own, path, *method)
            except NotDrawn as reason:
                notes.append(f"{name}: {path.name} is not drawn: {reason}")
        if others := [a.cell for a in own.arms if a not in shown(own)]:
            notes.append(f"{name}: ablations and other settings are not among the methods: {', '.join(others)}.")
    return [*notes, *report.notes]


# ---- What is shown --------------------------------------------------------------------------------------------------


def shown(report: Report) -> list[Any]:
    """One arm per method and budget, the largest budget first, without ablations."""
    subject = report.arms[0].subject
    places = sorted({(a.rank, a.method, -a.budget) for a in report.arms})
    found = [report.standard(subject, method, -budget) for _, method, budget in places]
    return [arm for arm in found if arm is not None]


def featured(arms: Sequence[Any]) -> list[Any]:
    """Every method at the full budget, and ours at half of it."""
    return [a for a in arms if a.budget == 1 or (a.method in FAMILY and a.budget == 0.5)]


def curve(report: Report, arm: Any, key: str) -> pd.DataFrame:
    """A metric at the steps that every seed logged, a column a seed; empty if they share none."""
    return pd.concat([by_step(log, key) for log in report.of(arm).log], axis=1, join="inner").sort_index()


def logged(report: Report, method: str, key: str) -> list[Any]:
    """Arms of a method whose runs logged a metric."""
    if found := [a for a in shown(report) if a.method == method and len(curve(report, a, key))]:
        return found
    raise NotDrawn(f"no {key} in the log.")


def full_reference(report: Report) -> Any | None:
    """The reference at the full budget; None without one."""
    return report.standard(report.arms[0].subject, report.reference, 1.0)


def main_suite(report: Report) -> str:
    """The first suite of the tables."""
    if not report.suites:
        raise NotDrawn("no held-out accuracy in the log. Set eval_suites.")
    return report.suites[0]


def tokens_of_a_step(report: Report, arm: Any) -> pd.Series | None:
    """Tokens of a mean step by what became of them: `trained`, `ended, not trained` and `aborted` add up to those
    generated; `reused` were not generated, `trimmed` are those in trimmed rollouts. None where nothing was logged.

    Where rollouts begin with reused tokens, those of untrained rollouts count as generated.
    """
    names = ("generated", "trained", "aborted", "trimmed", "reused")
    mean = {name: curve(report, arm, f"duet/{name}_tokens").mean(axis=1).mean() for name in names}
    if np.isnan(mean["generated"]):
        return None
    generated, trained, aborted, trimmed, reused = (0.0 if np.isnan(value) else value for value in mean.values())
    lost = min(max(generated + reused - trained, 0.0), generated)
    aborted = min(aborted, lost)  # under `duet` they are trained
    parts = {"trained": generated - lost, "ended, not trained": lost - aborted, "aborted": aborted}
    return pd.Series(parts | {"reused": reused, "trimmed": trimmed})


def surrogate_arms(report: Report) -> dict[float, list[Any]]:
    """By budget, the arm with either surrogate that is nearest to the paper's values, in the order of `SURROGATES`."""
    pairs: dict[float, list[Any]] = {}
    for budget in sorted({a.budget for a in report.arms}, reverse=True):
        arms = [a for a in report.arms if a.budget == budget and a.complete]
        own = [[a for a in arms if a.own.get("surrogate") == one] for one in SURROGATES]
        pair = [min(found, key=lambda a: len(a.swept), default=None) for found in own]
        if None not in pair:
            pairs[budget] = pair
    if not pairs:
        raise NotDrawn("no budget was run with both surrogates. Add cells with surrogate: constant.")
    return pairs


# ---- How it is drawn ------------------------------------------------------------------------------------------------


@contextmanager
def sheet(path: Path, rows: int = 1, columns: int = 1, height: float = 2.5, **shared: Any) -> Iterator[list[Axes]]:
    """Panels row by row, with one legend below them, written as PNG and SVG once they are filled."""
    rcParams["svg.fonttype"] = "none"  # text stays text: it can be searched
    figure = Figure(figsize=(max(4.0, 3.2 * columns), height * rows + 0.6), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, **shared).ravel())
    yield panels
    named = {n: h for axes in figure.axes for h, n in zip(*axes.get_legend_handles_labels(), strict=True)}
    if named:
        figure.legend(
            named.values(), named, loc="outside lower center", frameon=False, ncols=2 * min(columns, 2), fontsize=8
        )
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path.with_name(f"{path.name}.png"), dpi=200)
    figure.savefig(path.with_name(f"{path.name}.svg"), metadata={"Date": None})


@contextmanager
def panel_per_budget(path: Path, arms: Sequence[Any], **labels: Any) -> Iterator[list[tuple[Axes, Any]]]:
    """A panel for each arm of a method, on one scale; `labels` are those of the axes."""
    with sheet(path, columns=len(arms), sharey=True) as panels:
        yield list(zip(panels, arms, strict=True))
        for axes, arm in zip(panels, arms, strict=True):
            axes.set(title=f"{percent(arm.budget)} of the rollouts", **labels)


def look(number: int) -> dict[str, Any]:
    """Colour, line and symbol that tell a line from its neighbours, also without colour."""
    return {"color": COLORS[number % 7], "marker": MARKERS[number % 13], "linestyle": LINES[number // 7 % 4]}


def look_of(method: str) -> dict[str, Any]:
    """The look of a method, the same in every figure."""
    return look(list(METHODS).index(method) if method in METHODS else len(METHODS))


def percent(budget: float) -> str:
    """A budget as a share of the full one."""
    return f"{100 * budget:g}%"


def arm_name(arm: Any) -> str:
    """Method, and a budget below the full one."""
    return method_title(arm.method) + ("" if arm.budget == 1 else f" {percent(arm.budget)}")


def draw_curve(axes: Axes, values: pd.DataFrame, label: str, look: dict[str, Any], smooth: bool = True) -> None:
    """The mean over seeds and their range over steps; a long one as a running median that leaves about 40 points."""
    half = len(values) // 80 if smooth else 0
    lines = pd.DataFrame({"mean": values.mean(axis=1), "low": values.min(axis=1), "high": values.max(axis=1)})
    lines = lines.rolling(2 * half + 1, center=True, min_periods=1).median() if half else lines
    axes.fill_between(lines.index, lines.low, lines.high, color=look["color"], alpha=0.18, linewidth=0)
    axes.plot(lines["mean"], label=label, markevery=max(1, len(lines) // 8), markersize=4, **look)
    axes.set_xlabel("Optimizer step" + (f" (median of {2 * half + 1})" if half else ""))


def interval(values: pd.Series) -> tuple[float, float]:
    """Mean over seeds and half of its t-interval; NaN, which is not drawn, where there is none."""
    known = values.dropna().to_numpy()
    half = half_width(known) if len(known) else None
    return (known.mean() if len(known) else np.nan), (np.nan if half is None else half)


def draw_points(axes: Axes, x: Sequence[float], y: Sequence[pd.Series], label: str, look: dict[str, Any]) -> None:
    """Means over seeds with their t-intervals, and a line through them."""
    means, halves = zip(*map(interval, y), strict=True)
    axes.errorbar(x, means, yerr=halves, label=label, capsize=2, markersize=4, **look)


def draw_by_method(axes: Axes, arms: Sequence[Any], heights: Callable, across: Callable | None = None) -> None:
    """A line per method over its budgets: the nominal ones, or at the mean of `across`."""
    for method in dict.fromkeys(a.method for a in arms):
        own = [a for a in arms if a.method == method and heights(a).count()]
        x = [across(a).mean() if across else 100 * a.budget for a in own]
        if own:
            draw_points(axes, x, [heights(a) for a in own], method_title(method), look_of(method))
    if across is None:
        budget_axis(axes, arms)


def budget_axis(axes: Axes, arms: Sequence[Any]) -> None:
    """Ticks at the nominal budgets."""
    axes.set_xticks([100 * budget for budget in sorted({a.budget for a in arms})])
    axes.set_xlabel("Nominal budget (% of full rollouts)")


def draw_bars(axes: Axes, arms: Sequence[Any], values: Callable) -> None:
    """Horizontal bars from the top; an arm without a value has none."""
    bars = pd.DataFrame([interval(values(a)) for a in arms], [arm_name(a) for a in arms], ["mean", "half"])
    axes.barh(bars.index, bars["mean"], xerr=bars.half, color=[look_of(a.method)["color"] for a in arms], capsize=2)
    axes.invert_yaxis()


# ---- Methods against each other -------------------------------------------------------------------------------------


def budget_frontier(report: Report, path: Path) -> None:
    """Accuracy against nominal budget and measured tokens; accuracy and speed-up at the full budget."""
    suite, arms, reference = main_suite(report), shown(report), full_reference(report)

    def score(arm: Any) -> pd.Series:
        return 100 * report.of(arm)[f"accuracy/{suite}"]

    label = f"{suite_title(suite)} mean@{report.k} (%)"
    with sheet(path, rows=2, columns=2, height=3) as (nominal, tokens, bars, ratios):
        draw_by_method(nominal, arms, score)
        nominal.set(ylabel=label, title="Nominal budget")
        draw_by_method(tokens, arms, score, lambda a: report.of(a).tokens)
        tokens.set(xlabel="Generated tokens in the whole run", title="Measured tokens")
        tokens.xaxis.set_major_formatter(EngFormatter(sep=""))
        draw_bars(bars, featured(arms), score)
        bars.set(xlabel=label, title="Accuracy at the full budget")
        draw_bars(ratios, featured(arms), lambda a: report.speed_ups(a, reference))
        ratios.set(xlabel=f"Speed-up over full-budget {method_title(report.reference)}", title="Wall clock")


def step_time(report: Report, path: Path) -> None:
    """Seconds of a step over training on the engine and machine that most runs used, and the speed-up by budget."""
    reference, common = full_reference(report), report.runs.machine.mode()[0]
    curves = {}
    for arm in featured(shown(report)):
        logs = [by_step(run.log, "step_time") for run in report.of(arm).itertuples() if run.machine == common]
        if logs and len(values := pd.concat(logs, axis=1, join="inner").sort_index()):
            # Bands of many methods would hide each other.
            curves[arm_name(arm)] = arm, values.mean(axis=1).to_frame()
    if not curves:
        raise NotDrawn("no run at the full budget has step_time in its log.")
    with sheet(path, columns=2, height=3) as (seconds, ratios):
        for name, (arm, values) in curves.items():
            draw_curve(seconds, values, name, look_of(arm.method) | ({} if arm.budget == 1 else {"linestyle": ":"}))
        seconds.set(ylabel="Seconds per step", title="Step time", ylim=(0, None))
        draw_by_method(ratios, shown(report), lambda a: report.speed_ups(a, reference))
        ratios.set(ylabel="Speed-up", title=f"Against full-budget {method_title(report.reference)}")


def token_decomposition(report: Report, path: Path) -> None:
    """Generated tokens of a mean step by method and budget, and what became of them."""
    found = {f"{method_title(a.method)} {percent(a.budget)}": tokens_of_a_step(report, a) for a in shown(report)}
    parts = pd.DataFrame({name: tokens for name, tokens in found.items() if tokens is not None}).T
    if parts.empty:
        raise NotDrawn("no run has duet/generated_tokens in its log.")
    with sheet(path, height=1 + 0.2 * len(parts)) as (axes,):
        colors = dict(
            zip(("trained", "ended, not trained", "aborted", "reused"), (*COLORS[6:3:-1], "white"), strict=False)
        )
        parts.drop(columns="trimmed").plot.barh(stacked=True, ax=axes, color=colors, edgecolor="black", legend=False)
        trimmed = parts.trimmed.where(parts.trimmed > 0)
        axes.plot(trimmed, range(len(parts)), "D", color="white", markeredgecolor="black", label="in trimmed rollouts")
        axes.set(xlabel="Tokens per step", title="Tokens by method and budget")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.invert_yaxis()


def surrogate_gain(report: Report, path: Path) -> None:
    """Gain of the online surrogate in accuracy over the constant one, by budget, paired by seed."""
    suite, by_budget = main_suite(report), surrogate_arms(report)
    pairs = {100 * budget: report.pairs(*own) for budget, own in by_budget.items()}
    gains = [100 * (both[f"accuracy/{suite}"] - both[f"accuracy/{suite}_other"]) for both in pairs.values()]
    with sheet(path) as (axes,):
        draw_points(axes, list(pairs), gains, "over constant", look(1))
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set(ylabel=f"{suite_title(suite)} gain (points)", title="Gain of the online surrogate")
        budget_axis(axes, [online for online, _ in by_budget.values()])


# ---- What the controller did ----------------------------------------------------------------------------------------


def _over_steps(name: str, ylabel: str, yscale: str, lines: dict[str, str]) -> Callable:
    """A figure with a panel per budget and a line over steps for each metric of `lines`, which has their labels."""

    def draw(report: Report, path: Path, method: str) -> None:
        own = logged(report, method, next(iter(lines)))
        with panel_per_budget(path, own, ylabel=ylabel, yscale=yscale) as panels:
            for axes, arm in panels:
                for number, (key, label) in enumerate(lines.items(), 1):
                    values = surcharge_bound(report, arm) if key == "bound" else curve(report, arm, key)
                    draw_curve(axes, values, label, look(number))

    draw.__name__ = name
    return draw


def surcharge_bound(report: Report, arm: Any) -> pd.DataFrame:
    """Bound on the factor that the abort puts on the second moment, 1 + (1 - p_marker) (1 - eps) / eps (Theorem 2).

    The paper's sigma^2_mless is taken for the second moment of a rollout without the abort.
    """
    keep = arm.own.get("keep_probability")
    if keep is None:
        raise NotDrawn("keep_probability is not in the settings of the record.")
    return 1 + curve(report, arm, "duet/share_marker_less") * (1 - keep) / keep


_ROLLOUTS = {"max": "most", "mean": "mean", "min": "fewest"}
_MARKERS = {"share_marker_less": "no marker", "share_marker_seen": "marker seen", "abort_rate": "aborted"}
COMPARISONS = (budget_frontier, step_time, surrogate_gain, token_decomposition)
OF_A_METHOD = (
    _over_steps(
        "fan_out", "Rollouts per prompt", "linear", {f"duet/num_rollouts/{k}": v for k, v in _ROLLOUTS.items()}
    ),
    _over_steps(
        "thresholds", "Threshold (tokens)", "linear", {"duet/abort_threshold": "K2", "duet/poll_threshold": "K1"}
    ),
    _over_steps("marker_shares", "Share of rollouts", "linear", {f"duet/{k}": v for k, v in _MARKERS.items()}),
    _over_steps("surcharge", "Factor on the second moment", "log", {"duet/surcharge": "realised", "bound": "bound"}),
    _over_steps("dual", "Gain per token", "log", {"duet/dual": "dual of the budget"}),
    _over_steps("calibration", "$\\chi^2$", "log", {"duet/calibration_chi2": "calibration of the surrogate"}),
)
"""Figures by the name of their file, with the method after it where they show one."""
