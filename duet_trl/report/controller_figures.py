# SPDX-License-Identifier: Apache-2.0
"""Figures of the paper that show what the controller did: counts, thresholds, dual, marker, surcharge, chi^2.

Each function takes the runs of one subject, a method and a path without ending, writes the figure, and returns a
line for each arm that it could not show. It raises `NotDrawn` if no arm of the method logged what it shows.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from .arm_figures import suites_of
from .arms import Arm
from .audit_data import LATE_SHARE, density, difficulty, lengths
from .figure_data import (
    Curve,
    NotDrawn,
    Subject,
    accuracy_label,
    arm_name,
    main_suite,
    mean_curve,
    metric_curve,
    percent,
    smooth,
)
from .figure_marks import budget_axis, draw_curve, draw_points, log_axis
from .figure_style import BLACK, BLUE, COLUMN, GREY, ORANGE, PAGE, RED, SKY, Look, budget_look, sheet
from .runs import curve
from .titles import method_title, suite_title

_PANELS = 3  # budgets side by side on a page


def fan_out(subject: Subject, method: str, path: Path) -> list[str]:
    """Rollouts per prompt (fewest, mean, most of a step), and held-out accuracy on a second scale."""
    own = _logged(subject, method, "num_rollouts/max")[:_PANELS]
    if not any((metric_curve(arm, "duet/num_rollouts/std").high > 0).any() for arm in own):
        raise NotDrawn("every prompt had the same number of rollouts.")
    measured = bool(suites_of(own))
    suite = main_suite(own) if measured else None
    accuracy, twins = Look(RED, "D", "--", ""), []
    with sheet(path, (max(COLUMN, PAGE * len(own) / _PANELS), 2.4), columns=len(own), sharey=True) as panels:
        for axes, arm in zip(panels, own, strict=True):
            low, mean, high = (metric_curve(arm, f"duet/num_rollouts/{one}") for one in ("min", "mean", "max"))
            axes.fill_between(
                low.steps, low.low, high.high, color=SKY, alpha=0.35, linewidth=0, label="fewest to most"
            )
            draw_curve(axes, mean, "mean", Look(BLUE, "", "-", ""))
            axes.set_title(f"{percent(arm.budget)} of the rollouts")
            axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
            axes.set_ylim(bottom=0)
            if suite is not None:
                twins.append(axes.twinx())
                line = mean_curve(arm, lambda run: curve(run, suite))
                draw_curve(twins[-1], line, f"{suite_title(suite)} accuracy", accuracy, scale=100, markers=True)
                twins[-1].sharey(twins[0])
                twins[-1].tick_params(labelright=arm is own[-1])
        if suite is not None:
            twins[-1].set_ylabel(accuracy_label(own, suite))
        panels[0].set_ylabel("Rollouts per prompt")
    return [] if measured else ["no held-out accuracy beside the counts: set eval_suites."]


def thresholds(subject: Subject, method: str, path: Path) -> list[str]:
    """Where the gate begins to look for an answer (K1) and gives up (K2), by budget."""
    own = _logged(subject, method, "abort_threshold")
    with sheet(path, (COLUMN, 2.5), legend_columns=min(len(own), 3)) as (axes,):
        for arm in own:
            look = _look(arm, own)
            for key, name, line in (("abort", "K2", "-"), ("poll", "K1", "--")):
                found = metric_curve(arm, f"duet/{key}_threshold")
                draw_curve(axes, found, f"{name} at {percent(arm.budget)}", look._replace(line=line))
        axes.set(ylabel="Threshold (tokens)", title="Gate thresholds")
        axes.set_ylim(bottom=0)
    return []


def difficulty_by_epoch(subject: Subject, method: str, path: Path) -> list[str]:
    """Mean level of the prompts, each counted as often as it has rollouts: by epoch, and over the run by budget."""
    found, notes = _each(subject.of(method), lambda arm: difficulty(subject, arm))
    own = [arm for arm, _ in found]
    reference = float(np.mean([one.reference for _, one in found]))
    with sheet(path, (PAGE, 2.4), columns=2, sharey=True, legend_columns=4) as (epochs, average):
        for arm, one in found:
            look, name = _look(arm, own), percent(arm.budget)
            draw_points(epochs, one.epochs, one.by_epoch, name, look, line=True)
            draw_points(average, [100 * arm.budget], [one.average], name, look)
        for axes in (epochs, average):
            axes.axhline(reference, color=BLACK, linewidth=0.8, linestyle=":", label="each prompt once")
        epochs.set(xlabel="Epoch", ylabel="Level, mean over rollouts", title="By epoch")
        epochs.xaxis.set_major_locator(MaxNLocator(integer=True))
        average.set(title="Whole run")
        budget_axis(average, [arm.budget for arm in own])
    return notes


def length_density(subject: Subject, method: str, path: Path) -> list[str]:
    """Density of response lengths: untrained, trained by GRPO, and trained by the method at each of its budgets."""
    grpo = [arm for arm in subject.of("grpo") if arm.budget == 1]
    own = subject.of(method)
    found, notes = _each(own, lambda arm: lengths(subject, arm, late=True))
    references, more = _each(
        grpo, lambda arm: (lengths(subject, arm, late=False), lengths(subject, arm, late=True)), needed=False
    )
    lines = [(percent(arm.budget), _look(arm, own), values) for arm, values in found]
    if references:
        first, last = references[0][1]
        lines = [("GRPO", Look(GREY, "", "-", ""), last), *lines]
    else:
        first = lengths(subject, found[0][0], late=False)
    lines = [("untrained" if references else "first step", Look(BLACK, "", ":", ""), first), *lines]
    at = np.linspace(0, max(np.percentile(values, 99.5) for _, _, values in lines), 256)
    with sheet(path, (COLUMN, 2.8), legend_columns=2) as (axes,):
        for label, look, values in lines:
            name = f"{label} (median {np.median(values):.0f})"
            shape = density(values, at)
            axes.plot(at, 1000 * shape, color=look.color, linestyle=look.line, label=name)
        axes.set(xlabel="Response length (tokens)", ylabel="Density (per 1000 tokens)")
        axes.set_title(f"{method_title(method)}, last {percent(LATE_SHARE)} of the steps")
        axes.set_xlim(0, at[-1])
        axes.set_ylim(bottom=0)
    return [*notes, *more]


def dual(subject: Subject, method: str, path: Path) -> list[str]:
    """The dual of the budget over steps, by budget."""
    own = _logged(subject, method, "dual")
    with sheet(path, (COLUMN, 2.3)) as (axes,):
        _over_budgets(axes, own, lambda arm: metric_curve(arm, "duet/dual"))
        axes.set(ylabel="Dual \N{GREEK SMALL LETTER LAMDA}* (gain per token)", title="Dual of the budget")
        log_axis(axes)
    return []


def marker_shares(subject: Subject, method: str, path: Path) -> list[str]:
    """Shares of a step's rollouts: with a marker at the gate, without one, and of these aborted."""
    own = _logged(subject, method, "abort_threshold")[:_PANELS]
    with sheet(path, (max(COLUMN, PAGE * len(own) / _PANELS), 2.3), columns=len(own), sharey=True) as panels:
        for axes, arm in zip(panels, own, strict=True):
            for key, label, look in (
                ("share_marker_seen", "marker seen", Look(BLUE, "o", "-", "")),
                ("share_marker_less", "no marker", Look(ORANGE, "s", "--", "")),
                ("abort_rate", "aborted", Look(RED, "^", ":", "")),
            ):
                line = metric_curve(arm, f"duet/{key}")
                draw_curve(axes, smooth(line), label, look, scale=100)
            axes.set_title(f"{percent(arm.budget)} of the rollouts")
        panels[0].set_ylim(bottom=0)
        panels[0].set_ylabel("Share of rollouts (%)")
    return []


def markerless_rate(subject: Subject, method: str, path: Path) -> list[str]:
    """Share of rollouts without a marker at the abort gate over steps, by budget."""
    own = _logged(subject, method, "abort_threshold")
    with sheet(path, (COLUMN, 2.3)) as (axes,):
        _over_budgets(axes, own, lambda arm: metric_curve(arm, "duet/share_marker_less"), scale=100)
        axes.set(ylabel="Share of rollouts (%)", title="No marker at the abort gate")
        axes.set_ylim(bottom=0)
    return []


def surcharge(subject: Subject, method: str, path: Path) -> list[str]:
    """Realised surcharge of the abort against its bound (Theorem 2): of each step, and without any marker."""
    own = _logged(subject, method, "surcharge")[:_PANELS]
    found, notes = _each(own, bound_of)
    with sheet(path, (max(COLUMN, PAGE * len(found) / _PANELS), 2.4), columns=len(found), sharey=True) as panels:
        for axes, (arm, bound) in zip(panels, found, strict=True):
            line = metric_curve(arm, "duet/surcharge")
            draw_curve(axes, smooth(line), "realised", Look(BLUE, "o", "-", ""))
            draw_curve(axes, smooth(bound), "bound at the step's marker rate", Look(ORANGE, "s", "--", ""))
            worst = worst_surcharge(_keep_probability(arm))
            axes.axhline(worst, color=BLACK, linewidth=1, linestyle=":", label="bound without markers")
            log_axis(axes)
            axes.set_ylim(bottom=0.9)
            axes.set_title(f"{percent(arm.budget)} of the rollouts")
        panels[0].set_ylabel("Factor on the second moment")
    return notes


def calibration(subject: Subject, method: str, path: Path) -> list[str]:
    """Divergence of the surrogate from the sigma of the step (Theorem 4) over steps, by budget."""
    own = _logged(subject, method, "calibration_chi2")
    with sheet(path, (COLUMN, 2.3)) as (axes,):
        _over_budgets(axes, own, lambda arm: metric_curve(arm, "duet/calibration_chi2"))
        axes.set(
            ylabel="\N{GREEK SMALL LETTER CHI}\N{SUPERSCRIPT TWO} (surrogate, sigma)",
            title="Calibration of the surrogate",
        )
        log_axis(axes)
    return []


FIGURES: Mapping[str, Callable[[Subject, str, Path], list[str]]] = {
    "fan_out": fan_out,
    "thresholds": thresholds,
    "difficulty": difficulty_by_epoch,
    "lengths": length_density,
    "dual": dual,
    "marker_shares": marker_shares,
    "markerless_rate": markerless_rate,
    "surcharge": surcharge,
    "calibration": calibration,
}
"""Figures of a method by the name of their file."""


def worst_surcharge(keep_probability: float, markerless: float = 1.0) -> float:
    """Bound on the factor that the abort puts on the second moment, 1 + (1 - p_marker) (1 - eps) / eps (Theorem 2).

    The paper's sigma^2_mless is taken for the second moment of a rollout without the abort.
    """
    return 1 + markerless * (1 - keep_probability) / keep_probability


def bound_of(arm: Arm) -> Curve:
    """The bound at the marker-less share of each step.

    Raises:
        NotDrawn: If the run does not say with which probability rollouts were kept.
    """
    keep = _keep_probability(arm)
    share = metric_curve(arm, "duet/share_marker_less")
    return Curve(share.steps, *(worst_surcharge(keep, values) for values in (share.mean, share.low, share.high)))


def _keep_probability(arm: Arm) -> float:
    keep = arm.own.get("keep_probability")
    if keep is None:
        raise NotDrawn("keep_probability is not in the settings of the record.")
    return float(keep)


def _look(arm: Arm, own: Sequence[Arm]) -> Look:
    return budget_look(arm.budget, [one.budget for one in own])


def _logged(subject: Subject, method: str, metric: str) -> list[Arm]:
    """Arms of the method whose runs logged a metric."""
    found = [arm for arm in subject.of(method) if metric_curve(arm, f"duet/{metric}").steps.size]
    if not found:
        raise NotDrawn(f"no duet/{metric} in the log.")
    return found


def _over_budgets(axes: Axes, own: Sequence[Arm], line: Callable[[Arm], Curve], scale: float = 1.0) -> None:
    """A line per budget, with the noise of single steps taken out."""
    for arm in own:
        draw_curve(axes, smooth(line(arm)), percent(arm.budget), _look(arm, own), scale=scale)


def _each(arms: Sequence[Arm], compute: Callable, needed: bool = True) -> tuple[list[tuple], list[str]]:
    """Arms with what could be computed of them, and a line for each of the others; if needed, at least one arm."""
    found: list[tuple] = []
    left_out: dict[str, list[str]] = {}
    for arm in arms:
        try:
            found.append((arm, compute(arm)))
        except NotDrawn as reason:
            left_out.setdefault(str(reason), []).append(arm_name(arm))
    if needed and not found:
        raise NotDrawn(" ".join(left_out))
    return found, [f"without {', '.join(names)}: {reason}" for reason, names in left_out.items()]
