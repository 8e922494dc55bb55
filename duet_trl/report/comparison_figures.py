# SPDX-License-Identifier: Apache-2.0
"""Figures of the paper that set methods against each other: accuracy, seconds and tokens by method and budget.

Each function takes the runs of one subject and a path without ending, writes the figure, and returns a line for each
arm that it could not show.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from .arm_figures import suites_of
from .arms import Arm
from .figure_data import (
    NotDrawn,
    Subject,
    accuracy_deltas,
    accuracy_label,
    arm_name,
    decompose,
    featured_arms,
    final_accuracy,
    main_suite,
    mean_curve,
    metric_curve,
    on_one_machine,
    percent,
    smooth,
    speed_ups,
    surrogate_arms,
    surrogate_gains,
    tokens_of,
)
from .figure_marks import budget_axis, draw_bars, draw_curve, draw_points, spread, times
from .figure_style import BLACK, BLUE, COLUMN, GREEN, ORANGE, PAGE, SKY, Look, method_look, sheet
from .layout import Value
from .runs import curve
from .titles import method_title, suite_title

_SURROGATE_LOOKS = {
    "online": Look(BLUE, "o", "-", ""),
    "constant": Look(ORANGE, "s", "--", "///"),
    "ridge": Look(GREEN, "^", "-.", "..."),
}
_PARTS = (
    ("trained", "trained", BLUE, ""),
    ("untrained", "ended, not trained", SKY, "..."),
    ("aborted", "aborted", ORANGE, "///"),
    ("reused", "reused, not generated", "white", "\\\\\\"),
)


def budget_frontier(subject: Subject, path: Path) -> list[str]:
    """Accuracy against nominal budget and measured tokens; accuracy and speed-up at the full budget."""
    shown = subject.shown
    suite = main_suite(shown)
    scores = {id(arm): times(found, 100) for arm in shown if (found := final_accuracy(arm, suite)) is not None}
    measured = [arm for arm in shown if id(arm) in scores]
    featured = featured_arms(measured)
    speeds, notes = speed_ups(subject)
    names, looks = [_short_name(arm) for arm in featured], [_short_look(arm) for arm in featured]
    label = accuracy_label(shown, suite)
    height = 3.0 + 0.17 * len(featured) + 0.06 * len({arm.method for arm in measured})
    ratio = {"height_ratios": [1.9, 0.5 + 0.17 * len(featured)]}
    with sheet(path, (PAGE, height), rows=2, columns=2, legend_columns=5, gridspec_kw=ratio) as panels:
        nominal, tokens, bars, ratios = panels
        _by_method(nominal, measured, scores, None)
        nominal.set(ylabel=label, title="Nominal budget")
        budget_axis(nominal, [arm.budget for arm in measured])
        _by_method(tokens, measured, scores, {id(arm): tokens_of(arm) for arm in measured})
        tokens.set(xlabel="Generated tokens in the whole run", title="Measured tokens")
        tokens.xaxis.set_major_formatter(EngFormatter(sep=""))
        draw_bars(bars, names, [scores[id(arm)] for arm in featured], looks, "{:.1f}")
        bars.set(xlabel=label, title="Accuracy at the full budget")
        draw_bars(ratios, names, [speeds.get((arm.method, arm.budget)) for arm in featured], looks, "{:.2f}x")
        ratios.axvline(1, color=BLACK, linewidth=0.8, linestyle=":")
        ratios.set(xlabel="Speed-up over full-budget GRPO (x)", title="Wall clock")
    return notes


def step_time(subject: Subject, path: Path) -> list[str]:
    """Seconds of a step over training, and the speed-up over full-budget GRPO by budget, on one engine and machine."""
    shown, notes = on_one_machine(subject.shown)
    found = [(arm, metric_curve(arm, "step_time")) for arm in featured_arms(shown)]
    curves = [(arm, line) for arm, line in found if line.steps.size]
    if not curves:
        raise NotDrawn("no run at the full budget has step_time in its log.")
    speeds, left_out = speed_ups(subject)
    with sheet(path, (PAGE, 2.8), columns=2, legend_columns=5) as (seconds, ratios):
        for arm, line in curves:
            line = smooth(line)
            # Bands of many methods would hide each other; the interval is on the right.
            draw_curve(seconds, replace(line, low=line.mean, high=line.mean), _short_name(arm), _short_look(arm))
        seconds.set(ylabel="Seconds per step", title="Step time", ylim=(0, None))
        measured = [arm for arm in shown if (arm.method, arm.budget) in speeds]
        _by_method(ratios, measured, {id(arm): speeds[arm.method, arm.budget] for arm in measured}, None)
        ratios.axhline(1, color=BLACK, linewidth=0.8, linestyle=":")
        ratios.set(ylabel="Speed-up (x)", title="Against full-budget GRPO")
        budget_axis(ratios, [arm.budget for arm in shown])
    return list(dict.fromkeys([*notes, *left_out]))


def token_decomposition(subject: Subject, path: Path) -> list[str]:
    """Generated tokens of a mean step by method and budget, and what became of them."""
    found = [(arm, tokens) for arm in subject.shown if (tokens := decompose(arm)) is not None]
    if not found:
        raise NotDrawn("no run has duet/generated_tokens in its log.")
    places, floor = np.arange(len(found))[::-1], np.zeros(len(found))
    edge = {"edgecolor": BLACK, "linewidth": 0.3}
    with sheet(path, (COLUMN, 1.3 + 0.16 * len(found)), legend_columns=2) as (axes,):
        for field, label, color, hatch in _PARTS:
            share = np.array([vars(tokens)[field] for _, tokens in found])
            if share.any():
                axes.barh(places, share, left=floor, height=0.75, color=color, hatch=hatch, label=label, **edge)
            floor = floor + share
        for place, (_, tokens) in zip(places, found, strict=True):
            if tokens.trimmed:
                axes.plot(
                    tokens.trimmed, place, "D", color="white", markeredgecolor=BLACK, label="in trimmed rollouts"
                )
        axes.set_yticks(places, [arm_name(arm) for arm, _ in found])
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set(xlabel="Tokens per step", title="Tokens by method and budget")
        axes.margins(y=0.02)
        axes.set_xlim(0, 1.04 * floor.max())
    return []


def transfer(subject: Subject, path: Path) -> list[str]:
    """Accuracy of every method on every benchmark minus that of GRPO at the same budget."""
    deltas, notes = accuracy_deltas(subject.shown)
    budgets = sorted({arm.budget for arm, _ in deltas}, reverse=True)
    names = [name for name in suites_of(subject.shown) if any(name in found for _, found in deltas)]
    height = 0.7 + 1.35 * len(budgets) + 0.05 * len({arm.method for arm, _ in deltas})
    with sheet(path, (PAGE, height), rows=len(budgets), sharex=True, legend_columns=5) as panels:
        for axes, budget in zip(panels, budgets, strict=True):
            own = [(arm, found) for arm, found in deltas if arm.budget == budget]
            for place, (arm, found) in zip(spread(len(own), 0.8), own, strict=True):
                x = [names.index(suite) + place for suite in found]
                look = method_look(arm.method)
                draw_points(axes, x, [times(delta, 100) for delta in found.values()], method_title(arm.method), look)
            axes.axhline(0, color=BLACK, linewidth=0.8)
            axes.set(ylabel="Difference (points)", title=f"Against GRPO at {percent(budget)} of the rollouts")
            axes.set_xticks(range(len(names)), [suite_title(name) for name in names])
            axes.set_xlim(-0.5, len(names) - 0.5)
    return notes


def surrogate_gain(subject: Subject, path: Path) -> list[str]:
    """What the online surrogate gains in accuracy over a static one, by budget."""
    suite = main_suite(subject.arms)
    gains = surrogate_gains(subject.arms, suite)
    with sheet(path, (COLUMN, 2.4)) as (axes,):
        for shift, (name, by_budget) in zip(spread(len(gains), 4), gains.items(), strict=True):
            x = [100 * budget + shift for budget in by_budget]
            look = _SURROGATE_LOOKS[name]
            draw_points(axes, x, [times(gain, 100) for gain in by_budget.values()], f"over {name}", look, line=True)
        axes.axhline(0, color=BLACK, linewidth=0.8)
        axes.set(ylabel=f"{suite_title(suite)} gain (points)", title="Gain of the online surrogate")
        budget_axis(axes, [budget for by_budget in gains.values() for budget in by_budget])
    return []


def surrogate_ablation(subject: Subject, path: Path) -> list[str]:
    """Accuracy over training of the variants of the surrogate, at the budget that has most of them."""
    by_budget = surrogate_arms(subject.arms)
    budget = min(by_budget, key=lambda one: (-len(by_budget[one]), abs(one - 0.5)))
    own = by_budget[budget]
    if not (names := suites_of(list(own.values()))[:2]):
        raise NotDrawn("no held-out accuracy in the log. Set eval_suites.")
    with sheet(path, (PAGE if len(names) > 1 else COLUMN, 2.4), columns=len(names)) as panels:
        for axes, suite in zip(panels, names, strict=True):
            for name, arm in own.items():
                line = mean_curve(arm, lambda run, suite=suite: curve(run, suite))
                draw_curve(axes, line, f"{name} surrogate", _SURROGATE_LOOKS[name], scale=100, markers=True)
            axes.set(ylabel=accuracy_label(list(own.values()), suite))
            axes.set_title(f"{suite_title(suite)}, {percent(budget)} of the rollouts")
    return []


FIGURES: Mapping[str, Callable[[Subject, Path], list[str]]] = {
    "budget_frontier": budget_frontier,
    "step_time": step_time,
    "surrogate_gain": surrogate_gain,
    "surrogate_ablation": surrogate_ablation,
    "token_decomposition": token_decomposition,
    "transfer": transfer,
}
"""Figures of a model by the name of their file."""


def _short_name(arm: Arm) -> str:
    """An arm among arms at the full budget."""
    return method_title(arm.method) if arm.budget == 1 else arm_name(arm)


def _short_look(arm: Arm) -> Look:
    """Its look: below the full budget the line is dotted and the bar crossed."""
    look = method_look(arm.method)
    return look if arm.budget == 1 else look._replace(line=":", hatch="xxx")


def _by_method(
    axes: Axes, arms: Sequence[Arm], heights: Mapping[int, Value], across: Mapping[int, Value | None] | None
) -> None:
    """A line per method over its budgets, at `across` (by id) or side by side at the nominal ones."""
    methods = list(dict.fromkeys(arm.method for arm in arms))
    for shift, method in zip(spread(len(methods), min(6.0, 1.2 * len(methods))), methods, strict=True):
        own = [arm for arm in arms if arm.method == method and (across is None or across[id(arm)] is not None)]
        x = [100 * arm.budget + shift if across is None else across[id(arm)] for arm in own]
        look = method_look(method)
        draw_points(axes, x, [heights[id(arm)] for arm in own], method_title(method), look, line=True)
