# SPDX-License-Identifier: Apache-2.0
"""Result files side by side: best and last checkpoint, the paper's baseline-correction shift, rows of a table.

The paper's headline is the best mean@4 over all evaluation checkpoints, for each benchmark on its own (Evaluation
Protocol). That selects on the test set: a policy that does not improve at all still gains by the luckiest of its
measurements. The last checkpoint stands beside it (docs/evaluation.md).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .results import Figure, Results
from .suites import SUITES

Shift = Mapping[str, Mapping[str, float]]
"""By suite and metric, what is subtracted."""

_HEADLINE = re.compile(r"mean@\d+,sampled")
_SHARE = re.compile(r"(?:mean|best)@\d+,")
_NOT_SHOWN = ("truncated,greedy", "mean_length,greedy")
_TITLES = {"truncated": "cut at the limit", "mean_length": "mean length, tokens"}


def headline(results: Results) -> str | None:
    """Name of the figure that the paper reports, "mean@4,sampled"; None where a file has none."""
    return next((n for metrics in results.figures.values() for n in metrics if _HEADLINE.fullmatch(n)), None)


def average(results: Results, metric: str, suites: Sequence[str] | None = None) -> float | None:
    """Mean of a metric over suites (None: those of the file); None unless all of them have it."""
    suites = list(results.figures) if suites is None else suites
    values = [results.figures[suite][metric].value for suite in suites if metric in results.figures.get(suite, {})]
    return sum(values) / len(values) if values and len(values) == len(suites) else None


def candidates(runs: Sequence[Results]) -> list[Results]:
    """What best and last are taken of: trained checkpoints by step; without any steps, all models as they are given.

    A run's step 0, and a model without a step beside checkpoints (the one they began with), is no candidate.
    """
    own = [run for run in runs if headline(run) is not None and run.step != 0]
    trained = [run for run in own if run.step is not None]
    return sorted(trained, key=lambda run: run.step or 0) if trained else own


def best_and_last(runs: Sequence[Results]) -> list[Results]:
    """The selections that the rows of a training run end with; none without a candidate.

    Best of each suite (the paper's headline, mean@k only), the best checkpoint by the mean over suites of mean@k (the
    earlier one on a tie), the last checkpoint. ValueError if checkpoints were not measured alike.
    """
    chosen = candidates(runs)
    if not chosen:
        return []
    metric = headline(chosen[0])
    for run in chosen:
        if headline(run) != metric or run.figures.keys() != chosen[0].figures.keys():
            raise ValueError(
                f"{run.path or run.model} and {chosen[0].path or chosen[0].model} were not measured alike: "
                f"{headline(run)} on {sorted(run.figures)}, {metric} on {sorted(chosen[0].figures)}. Give the same "
                "--suites and --samples for all checkpoints of a run."
            )
    peaks = {suite: max(chosen, key=lambda run: run.figures[suite][metric].value) for suite in chosen[0].figures}
    figures = {suite: {metric: run.figures[suite][metric]} for suite, run in peaks.items()}
    best, last = max(chosen, key=lambda run: average(run, metric) or 0.0), chosen[-1]
    return [
        Results("best of each suite", None, figures),
        replace(best, model=f"best: {_name(best)}", step=None),
        replace(last, model=f"last: {_name(last)}", step=None),
    ]


def shift_of(own: Results, reference: Results) -> Shift:
    """The paper's baseline-correction shift of one run: own step-0 value minus the common step-0 reference.

    `value - shift` is the shifted value. The paper applies it to every cell of a model so that all start at the same
    number, "to control for vLLM-RNG variance across runs" (Evaluation Protocol). It takes the noise of one step-0
    measurement for the noise of every later one, with which it has nothing in common: the shifted figure has a larger
    variance than the raw one, and its raw interval no longer covers it. docs/evaluation.md says more. ValueError if
    the two files have no accuracy in common.
    """
    shifts: dict[str, dict[str, float]] = {}
    for suite, metrics in own.figures.items():
        for metric, figure in metrics.items():
            common = reference.figures.get(suite, {}).get(metric)
            if common is not None and _SHARE.match(metric):
                shifts.setdefault(suite, {})[metric] = figure.value - common.value
    if not shifts:
        raise ValueError(
            f"step 0 of the run ({own.path or own.model}) and the reference ({reference.path or reference.model}) "
            f"have no accuracy in common: {_names(own)} and {_names(reference)}. Measure both alike."
        )
    return shifts


def table(
    runs: Sequence[Results], shifts: Sequence[Shift | None] | None = None
) -> tuple[list[str], list[list[str | None]]]:
    """Headers and rows for a Markdown table: one row per file and metric, one column per suite, the raw value always.

    `shifts` has one `shift_of` per file, None where a file is not shifted. A suite that any of them shifts has a
    column "shifted" behind its own.
    """
    shifts = [None] * len(runs) if shifts is None else shifts
    present = {suite for run in runs for suite in run.figures}
    suites = [name for name in SUITES if name in present] + sorted(present - SUITES.keys())
    shifted = {suite for shift in shifts for suite in shift or {}}
    headers = ["model", "metric"]
    for suite in suites:
        title = SUITES[suite].title if suite in SUITES else suite
        headers += [title, f"{title} shifted"] if suite in shifted else [title]
    headers += ["mean of suites"] * (len(suites) > 1)
    rows = []
    for run, shift in zip(runs, shifts, strict=True):
        names = dict.fromkeys(name for metrics in run.figures.values() for name in metrics if name not in _NOT_SHOWN)
        for metric in names:
            row: list[str | None] = [_name(run), metric_title(metric)]
            for suite in suites:
                figure = run.figures.get(suite, {}).get(metric)
                row.append(None if figure is None else shown(metric, figure))
                if suite in shifted:
                    amount = (shift or {}).get(suite, {}).get(metric)
                    moved = None if figure is None or amount is None else figure.value - amount
                    row.append(None if moved is None else f"{100 * moved:.1f}")
            if len(suites) > 1:
                mean = average(run, metric, suites)
                row.append(None if mean is None else shown(metric, Figure(mean)))
            rows.append(row)
    return headers, rows


def metric_title(metric: str) -> str:
    """A metric as a table names it: "mean@1 (greedy)"."""
    name, _, way = metric.partition(",")
    return f"{_TITLES.get(name, name)} ({way})"


def shown(metric: str, figure: Figure) -> str:
    """A figure in its unit: lengths as they are, all others in percent, with the interval where known."""
    scale = "{:,.1f}" if metric.startswith("mean_length") else "{:.1%}"
    ends = [] if figure.low is None else [figure.low, figure.high]
    value, *interval = (scale.format(one).rstrip("%") for one in (figure.value, *ends))
    return f"{value} [{', '.join(interval)}]" if interval else value


def _name(run: Results) -> str:
    return run.model if run.step is None else f"{run.model}, step {run.step}"


def _names(run: Results) -> list[str]:
    return sorted(f"{suite}: {metric}" for suite, metrics in run.figures.items() for metric in metrics)
