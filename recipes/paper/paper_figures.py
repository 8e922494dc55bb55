# SPDX-License-Identifier: Apache-2.0
"""Every figure of the paper, a folder per model (and task, where a model has several).

    <figure>.png, .svg             methods against each other
    <figure>_<method>.png, .svg    what the controller did

Points and bars are means over seeds with 95% t-intervals, bands the range of the seeds. What is not logged is not
drawn, and is said.
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

from .runs import FAMILY, METHODS, Report, by_step, method_title, suite_title, swept

COLORS = ("#8A8A8A", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#0072B2")
"""Okabe and Ito's: distinguishable with any colour vision deficiency."""
MARKERS, LINES = "osv<DPX>hp*d^", ("-", "--", "-.", ":")
SURROGATES = ("online", "constant")
LATE_SHARE = 0.1
"""The last tenth of the steps is the trained policy."""


class NotDrawn(ValueError):
    """Why a figure cannot be drawn, and what would have to be logged."""


def write_figures(report: Report, folder: Path) -> list[str]:
    """Draw every figure of every subject; a line for all that was left out, with the reason.

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
    """One arm per method and budget, the largest budget first, without ablations.

    Of several it is the one whose settings are nearest to those of the reference at the full budget, then to the
    paper's.
    """
    arms = report.arms
    anchor = next((a for a in arms if (a.method, a.budget) == (report.reference, 1)), arms[0])
    places = sorted({(a.rank, a.method, -a.budget) for a in arms})
    found = [report.nearest(anchor, method, -budget) for _, method, budget in places]
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
    return report.nearest(report.arms[0], report.reference, 1.0)


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


def surrogate_arms(report: Report) -> dict[float, tuple[Any, Any]]:
    """By budget, the two arms of a method that differ in their surrogate alone, in the order of `SURROGATES`."""

    def others(arm: Any) -> Any:
        own = {name: value for name, value in arm.own.items() if not name.startswith("surrogate")}
        return arm.method, arm.budget, own, arm.context

    # Of arms that differ in another option of the surrogate the one with the paper's value comes first.
    arms = sorted(report.arms, key=lambda a: (-a.budget, len(swept(a.own, ["surrogate_warmup"]))))
    online, constant = ([a for a in arms if a.complete and a.own.get("surrogate") == one] for one in SURROGATES)
    pairs = [(a, b) for a in online for b in constant if others(a) == others(b)]
    if not pairs:
        raise NotDrawn("no budget was run with both surrogates. Add cells with surrogate: constant.")
    return {a.budget: (a, b) for a, b in reversed(pairs) if a.method == pairs[0][0].method}


def audit(report: Report, arm: Any, *columns: str) -> list[pd.DataFrame]:
    """Columns of the audit log of each run, a row a rollout, beginnings that a later rollout took up left out."""
    tables = []
    for folder in report.of(arm).folder:
        files = sorted((folder / "duet_audit").glob("*.parquet"))
        if not files:
            raise NotDrawn(f"{arm_name(arm)} has no audit log. Train with audit_log=True.")
        rows = pd.concat(map(pd.read_parquet, files), ignore_index=True)
        if missing := sorted(set(columns) - set(rows)):
            raise NotDrawn(f"no {', '.join(missing)} in the audit log. Train with audit_columns={missing}.")
        tables.append(rows[rows.outcome != "superseded"][["step", *columns]])
    return tables


def levels(report: Report, arm: Any) -> pd.DataFrame:
    """Seed, epoch, prompt and level of each rollout of an arm; those whose level is no number are left out."""
    found = []
    for run, rows in zip(report.of(arm).itertuples(), audit(report, arm, "prompt", "level"), strict=True):
        numbers = pd.to_numeric(rows.level, errors="coerce")  # they are written as text
        rows = rows.assign(level=numbers).dropna(subset=["level"])
        epochs = by_step(run.log, "epoch").drop(0, errors="ignore")
        if rows.empty:
            raise NotDrawn("no number in the column 'level' of the data set.")
        if epochs.empty:
            raise NotDrawn("no epoch in the log.")
        # The end of a step that was not logged itself lies on the line between its neighbours; training begins at 0.
        ends = np.interp(rows.step, [0, *epochs.index], [0.0, *epochs])
        found.append(rows.assign(seed=run.seed, epoch=np.maximum(np.ceil(ends - 1e-6), 1).astype(int)))
    return pd.concat(found, ignore_index=True)


def rollout_lengths(report: Report, arm: Any, late: bool) -> pd.Series:
    """Tokens of the rollouts of an arm's first step, or of its last steps (`LATE_SHARE`)."""
    tables = audit(report, arm, "length")
    return pd.concat(
        [t.length[t.step > (1 - LATE_SHARE) * t.step.max() if late else t.step == t.step.min()] for t in tables]
    )


def worst_surcharge(keep_probability: float, markerless: Any = 1.0) -> Any:
    """Bound on the factor that the abort puts on the second moment, 1 + (1 - p_marker) (1 - eps) / eps (Theorem 2).

    The paper's sigma^2_mless is taken for the second moment of a rollout without the abort.
    """
    return 1 + markerless * (1 - keep_probability) / keep_probability


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
    """What tells a line from its neighbours, in colour and without."""
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


def transfer(report: Report, path: Path) -> None:
    """Accuracy of every method on every suite minus that of the reference at the same budget, paired by seed."""
    main_suite(report)
    references = {a.budget: a for a in shown(report) if a.method == report.reference}
    gains: dict[float, list[tuple[Any, list[pd.Series]]]] = {}
    for arm in (a for a in shown(report) if a.method != report.reference):
        pairs = report.pairs(arm, references.get(arm.budget))
        own = [100 * (pairs[f"accuracy/{s}"] - pairs[f"accuracy/{s}_other"]) for s in report.suites]
        if any(values.count() for values in own):
            gains.setdefault(arm.budget, []).append((arm, own))
    if not gains:
        name = method_title(report.reference)
        raise NotDrawn(f"{name} has no run at a budget with a seed, a suite and the number of steps in common.")
    with sheet(path, rows=len(gains), sharex=True, height=2) as panels:
        for axes, (budget, own) in zip(panels, sorted(gains.items(), reverse=True), strict=True):
            for number, (arm, values) in enumerate(own):
                x = np.arange(len(report.suites)) + 0.8 * ((number + 0.5) / len(own) - 0.5)
                draw_points(axes, x, values, method_title(arm.method), look_of(arm.method) | {"linestyle": "none"})
            axes.axhline(0, color="black", linewidth=0.8)
            title = f"Against {method_title(report.reference)} at {percent(budget)} of the rollouts"
            axes.set(ylabel="Difference (points)", title=title)
            axes.set_xticks(range(len(report.suites)), map(suite_title, report.suites))


def surrogate_gain(report: Report, path: Path) -> None:
    """What the online surrogate gains in accuracy over the constant one, by budget, paired by seed."""
    suite, by_budget = main_suite(report), surrogate_arms(report)
    pairs = {100 * budget: report.pairs(*own) for budget, own in by_budget.items()}
    gains = [100 * (both[f"accuracy/{suite}"] - both[f"accuracy/{suite}_other"]) for both in pairs.values()]
    with sheet(path) as (axes,):
        draw_points(axes, list(pairs), gains, "over constant", look(1))
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set(ylabel=f"{suite_title(suite)} gain (points)", title="Gain of the online surrogate")
        budget_axis(axes, [online for online, _ in by_budget.values()])


def surrogate_ablation(report: Report, path: Path) -> None:
    """Accuracy over training with either surrogate, at the budget nearest to a half."""
    main_suite(report)
    by_budget = surrogate_arms(report)
    budget = min(by_budget, key=lambda one: abs(one - 0.5))
    names = report.suites[:2]
    with sheet(path, columns=len(names)) as panels:
        for axes, suite in zip(panels, names, strict=True):
            for number, arm in enumerate(by_budget[budget]):
                values = 100 * curve(report, arm, f"held_out/{suite}/mean@{report.k}")
                draw_curve(axes, values, f"{SURROGATES[number]} surrogate", look(number), smooth=False)
            axes.set(ylabel=f"mean@{report.k} (%)", title=f"{suite_title(suite)}, {percent(budget)} of the rollouts")


# ---- What the controller did ----------------------------------------------------------------------------------------


def fan_out(report: Report, path: Path, method: str) -> None:
    """Rollouts per prompt (fewest, mean, most of a step), and held-out accuracy on a second scale."""
    own = logged(report, method, "duet/num_rollouts/max")
    if not any((curve(report, a, "duet/num_rollouts/std") > 0).any(axis=None) for a in own):
        raise NotDrawn("every prompt had the same number of rollouts.")
    with panel_per_budget(path, own, ylabel="Rollouts per prompt", ylim=(0, None)) as panels:
        for axes, arm in panels:
            low, mean, most = (curve(report, arm, f"duet/num_rollouts/{one}") for one in ("min", "mean", "max"))
            draw_curve(axes, mean, "mean", look(6) | {"marker": ""}, smooth=False)
            ends = low.min(axis=1), most.max(axis=1)
            axes.fill_between(low.index, *ends, color=COLORS[5], alpha=0.35, label="fewest to most")
            if report.suites:
                values = 100 * curve(report, arm, f"held_out/{report.suites[0]}/mean@{report.k}")
                twin, label = axes.twinx(), f"{suite_title(report.suites[0])} accuracy"
                draw_curve(twin, values, label, look(3) | {"linestyle": "--"}, smooth=False)
                twin.set_ylabel(f"{label} (%)")


def difficulty(report: Report, path: Path, method: str) -> None:
    """Mean level of the prompts, each counted as often as it has rollouts: by epoch, and over the run by budget."""
    own = [a for a in shown(report) if a.method == method]
    found = [levels(report, arm) for arm in own]
    once = np.mean([rows.groupby("prompt")["level"].first().mean() for rows in found])
    with sheet(path, columns=2, sharey=True) as (epochs, average):
        for number, (arm, rows) in enumerate(zip(own, found, strict=True)):
            by_epoch = rows.pivot_table(index="seed", columns="epoch", values="level").dropna(axis=1)
            name = percent(arm.budget)
            draw_points(epochs, list(by_epoch), [by_epoch[epoch] for epoch in by_epoch], name, look(number))
            draw_points(average, [100 * arm.budget], [rows.groupby("seed")["level"].mean()], name, look(number))
        for axes in (epochs, average):
            axes.axhline(once, color="black", linewidth=0.8, linestyle=":", label="each prompt once")
        epochs.set(xlabel="Epoch", ylabel="Level, mean over rollouts", title="By epoch")
        average.set(title="Whole run")
        budget_axis(average, own)


def lengths(report: Report, path: Path, method: str) -> None:
    """Response lengths: of the first step, of the trained reference, and of the method at each of its budgets."""
    own = {percent(a.budget): a for a in shown(report) if a.method == method}
    if reference := full_reference(report):
        own = {method_title(report.reference): reference} | own
    found = {"first step": rollout_lengths(report, next(iter(own.values())), late=False)}
    found |= {name: rollout_lengths(report, arm, late=True) for name, arm in own.items()}
    bins = np.linspace(0, max(values.quantile(0.995) for values in found.values()), 50)
    with sheet(path, height=2.8) as (axes,):
        for number, (name, values) in enumerate(found.items()):
            label = f"{name} (median {values.median():.0f})"
            axes.hist(values, bins, density=True, histtype="step", color=COLORS[number % 7], label=label)
        axes.set(xlabel="Response length (tokens)", ylabel="Density")
        axes.set_title(f"{method_title(method)}, last {percent(LATE_SHARE)} of the steps")


def marker_shares(report: Report, path: Path, method: str) -> None:
    """Shares of a step's rollouts: with a marker at the gate, without one, and of these aborted."""
    own = logged(report, method, GATE)
    keys = {"share_marker_seen": "marker seen", "share_marker_less": "no marker", "abort_rate": "aborted"}
    with panel_per_budget(path, own, ylabel="Share of rollouts", ylim=(0, None)) as panels:
        for axes, arm in panels:
            for number, (key, label) in enumerate(keys.items(), 1):
                draw_curve(axes, curve(report, arm, f"duet/{key}"), label, look(number))


def surcharge(report: Report, path: Path, method: str) -> None:
    """Realised surcharge of the abort against its bound (Theorem 2): of each step, and without any marker."""
    own = [a for a in logged(report, method, "duet/surcharge") if a.own.get("keep_probability") is not None]
    if not own:
        raise NotDrawn("keep_probability is not in the settings of the record.")
    with panel_per_budget(path, own, ylabel="Factor on the second moment", yscale="log") as panels:
        for axes, arm in panels:
            keep, less = arm.own["keep_probability"], curve(report, arm, "duet/share_marker_less")
            draw_curve(axes, curve(report, arm, "duet/surcharge"), "realised", look(6))
            draw_curve(axes, worst_surcharge(keep, less), "bound at the step's marker rate", look(1))
            axes.axhline(worst_surcharge(keep), color="black", linestyle=":", label="bound without markers")


def _by_budget(name: str, title: str, ylabel: str, lines: dict[str, str], needs: str, yscale: str) -> Callable:
    """A figure with a line per budget over steps for each metric, `lines`: what stands before the budget in the label.

    `needs` is the metric that a method must have logged.
    """

    def draw(report: Report, path: Path, method: str) -> None:
        with sheet(path) as (axes,):
            for number, arm in enumerate(logged(report, method, needs)):
                for line, (key, prefix) in zip(LINES, lines.items(), strict=False):
                    style = look(number) | {"linestyle": line}
                    draw_curve(axes, curve(report, arm, key), f"{prefix}{percent(arm.budget)}", style)
            axes.set(title=title, ylabel=ylabel, yscale=yscale)

    draw.__name__ = name
    return draw


GATE = "duet/abort_threshold"
_KS = {GATE: "K2 at ", "duet/poll_threshold": "K1 at "}
_LESS, _CHI2 = {"duet/share_marker_less": ""}, {"duet/calibration_chi2": ""}
COMPARISONS = (budget_frontier, step_time, surrogate_gain, surrogate_ablation, token_decomposition, transfer)
OF_A_METHOD = (
    fan_out,
    _by_budget("thresholds", "Gate thresholds", "Threshold (tokens)", _KS, GATE, "linear"),
    difficulty,
    lengths,
    _by_budget("dual", "Dual of the budget", "Gain per token", {"duet/dual": ""}, "duet/dual", "log"),
    marker_shares,
    _by_budget("markerless_rate", "No marker at the abort gate", "Share of rollouts", _LESS, GATE, "linear"),
    surcharge,
    _by_budget("calibration", "Calibration of the surrogate", "$\\chi^2$", _CHI2, "duet/calibration_chi2", "log"),
)
"""Figures by the name of their file, with the method behind it where they show one."""
