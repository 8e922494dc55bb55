# SPDX-License-Identifier: Apache-2.0
"""The tables of the arena, by name: what a document shows between markers, and what the terminal shows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .contest import MARGIN, Contest, contests
from .curves import COSTS
from .entrants import CONTROLS, ENTRANTS, REFERENCE
from .profiles import PROFILES
from .quantities import (
    NO_FIGURE,
    Figures,
    Quantities,
    figure_of,
    of_entrant,
    of_rank,
    of_start,
    rate_of,
    rate_text,
)
from .ranking import Rank, ranking
from .records import REPORT, START, TUNE, Run
from .targets import TARGETS, Verdict, verdicts
from .tasks import TASKS
from .tuning import accuracy as tuning_accuracy
from .tuning import choose

ANCHORS = (REFERENCE, "grpo_4", "duet")
"""Entrants that an excerpt always has."""
PARTS = {
    "duet_quarter": "two rollouts of each prompt",
    "duet_quarter_ungated": "the same without the gate",
    "grpo_2_steered": "GRPO, two rollouts, the same updates",
    "duet": "four rollouts of each prompt",
    "duet_counts": "the same with uneven counts and the last weights",
    "duet_mean": "that over the mean of the rewards",
    "duet_1x1": "that with one update of each batch",
    "grpo_4_steered": "GRPO, four rollouts, the updates of `duet_counts`",
    "grpo_4": "GRPO, four rollouts",
}
"""Entrants that tell what the parts of `duet` do, with what they are."""


@dataclass(frozen=True)
class Table:
    """Headers and rows of strings, under a title of one line."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Findings:
    """All figures.

    Attributes:
        runs (Sequence[Run]): The records.
        contests (Mapping[str, Contest]): By task.
        figures (Figures): Of each task and entrant.
        starts (Mapping[str, Quantities]): Of each task's policy before training.
        ranks (Sequence[Rank]): Entrants over all tasks, the best first.
        overall (Mapping[str, Quantities]): Of each of them.
        verdicts (Mapping[str, list[Verdict]]): By entrant that is held to the targets, in their order.
    """

    runs: Sequence[Run]
    contests: Mapping[str, Contest]
    figures: Figures
    starts: Mapping[str, Quantities]
    ranks: Sequence[Rank]
    overall: Mapping[str, Quantities]
    verdicts: Mapping[str, list[Verdict]]


def findings_of(runs: Sequence[Run]) -> Findings:
    """All figures that these records have."""
    runs = sorted(runs, key=lambda run: list(TASKS).index(run.task))
    found = contests(runs)
    figures = {task: {name: of_entrant(contest, name) for name in contest.runs} for task, contest in found.items()}
    ranks = ranking(found)
    return Findings(
        runs,
        found,
        figures,
        {run.task: of_start(run) for run in runs if run.stage == START},
        ranks,
        {rank.entrant: of_rank(rank) for rank in ranks},
        verdicts(found, figures),
    )


def tables(findings: Findings) -> dict[str, Table]:
    """All tables that the records can fill: those of all tasks, then `<name> <task>`."""
    found = {
        "targets": _targets(findings),
        "start": _start(findings),
        "ranking": _ranking(findings),
        "excerpt": _excerpt(findings),
        "parts": _parts(findings),
        "controls": _controls(findings),
    }
    for task in dict.fromkeys(run.task for run in findings.runs):
        found[f"tuning {task}"] = _tuning([run for run in findings.runs if run.task == task], task)
    for task, contest in findings.contests.items():
        figures = {name: findings.figures[task][name] for name in contest.rivals}
        found[f"leaderboard {task}"] = _leaderboard(contest, figures)
    return {name: table for name, table in found.items() if table.rows}


def _targets(findings: Findings) -> Table:
    found = findings.verdicts
    rows = [
        [target.claim, *(f"{'met' if own[place].met else 'missed'}: {own[place].text}" for own in found.values())]
        for place, target in enumerate(TARGETS)
    ]
    return Table("Targets", ["target", *found], rows if found else [])


def _start(findings: Findings) -> Table:
    names = {
        "accuracy": "mean@4", "greedy": "greedy", "pass_4": "pass@4", "pass": "pass@{}", "first": "first answer",
        "entropy": "entropy", "length": "tokens", "ended": "ended", "careful": "careful",
    }  # fmt: skip
    most = max((run.measurements[0].samples for run in findings.runs if run.stage == START), default=0)
    headers = ["task", *(title.format(most) for title in names.values())]
    rows = [[task, *(own.get(name, NO_FIGURE).text for name in names)] for task, own in findings.starts.items()]
    return Table("The policies before training", headers, rows)


def _tuning(runs: Sequence[Run], task: str) -> Table:
    tried = [run for run in runs if run.stage == TUNE]
    columns = sorted({(run.horizon, run.learning_rate) for run in tried})
    reported = {run.entrant: run.learning_rate for run in runs if run.stage == REPORT}
    rows = []
    for name in (name for name in ENTRANTS if any(run.entrant == name for run in tried)):
        found = {
            (run.horizon, run.learning_rate): f"{tuning_accuracy(run):.3f}" for run in tried if run.entrant == name
        }
        rate = reported.get(name) or choose(runs, task, name, PROFILES["full"])
        rows.append([name, *(found.get(column, "-") for column in columns), "-" if rate is None else rate_text(rate)])
    headers = ["entrant", *(f"{rate_text(rate)}, {horizon} batches" for horizon, rate in columns), "chosen"]
    return Table(f"{task}: accuracy on the tuning split by learning rate", headers, rows)


def _ranking(findings: Findings) -> Table:
    half = f"at half of {REFERENCE}'s tokens, minus its final"
    headers = ["entrant", "tasks", half, "resolvable", "tokens to the target", "targets reached"]
    rows = []
    for rank in findings.ranks:
        own = findings.overall[rank.entrant]
        cells = [own["half"].full_text, own["resolvable_half"].text, own["share"].full_text]
        rows.append([rank.entrant, str(rank.tasks), *cells, f"{rank.reached} of {rank.tasks}"])
    return Table("All tasks", headers, rows)


def _parts(findings: Findings) -> Table:
    """Tokens and seconds to the targets of those that differ in parts."""

    def cell(task: str, name: str) -> str:
        own = findings.figures[task].get(name)
        costs = ("generated_tokens_share", "processor_seconds_share")
        return "-" if own is None else " / ".join(own[cost].text for cost in costs)

    rows = [
        [name, what, *(cell(task, name) for task in findings.contests)]
        for name, what in PARTS.items()
        if any(name in own for own in findings.figures.values())
    ]
    title = f"Tokens / processor seconds to the target, share of {REFERENCE}'s"
    return Table(title, ["entrant", "what it is", *findings.contests], rows)


def _excerpt(findings: Findings) -> Table:
    """The best three and the anchors: where they are after half of the tokens, and their tokens to each target."""
    names = [rank.entrant for place, rank in enumerate(findings.ranks) if place < 3 or rank.entrant in ANCHORS]
    rows = [
        [
            name,
            findings.overall[name]["half"].full_text,
            *(figure_of(findings.figures, task, name, "generated_tokens_share").text for task in findings.figures),
        ]
        for name in names
    ]
    half = f"at half of {REFERENCE}'s tokens, minus its final"
    return Table("Excerpt", ["entrant", half, *(f"{task}: tokens to target" for task in findings.contests)], rows)


def _controls(findings: Findings) -> Table:
    rows = []
    for task, own in findings.figures.items():
        for name in CONTROLS:
            if name in own:
                figures = ("accuracy", "accuracy_change", "entropy", "entropy_change", "length")
                seeds = str(len(findings.contests[task].runs[name]))
                rows.append([task, name, seeds, *(own[name][figure].full_text for figure in figures)])
    headers = ["task", "control", "seeds", "accuracy", "since the start", "entropy", "since the start", "tokens"]
    return Table("Rewards that say nothing", headers, rows)


def _leaderboard(contest: Contest, figures: Mapping[str, Quantities]) -> Table:
    headers = [
        "entrant", "seeds", "rate", "tokens to target", f"of {REFERENCE}'s", "CPU s to target", f"of {REFERENCE}'s",
        "reached", "at half the tokens", f"minus {REFERENCE}'s final", "resolvable",
    ]  # fmt: skip
    names = (
        "generated_tokens_to_target", "generated_tokens_share", "processor_seconds_to_target",
        "processor_seconds_share",
    )  # fmt: skip
    rows = []
    for name, own in sorted(figures.items(), key=_behind):
        runs = list(contest.runs[name].values())
        reached = contest.reached(name, COSTS[0])
        rows.append(
            [
                name,
                str(len(runs)),
                rate_of(runs),
                *(own[figure].full_text for figure in names),
                "-" if reached is None else f"{reached.seeds} of {len(runs)}",
                own["accuracy_50"].full_text,
                own["to_end_50"].full_text,
                own["resolvable_50"].text,
            ]
        )
    title = f"{contest.task}: target {contest.target:.3f}, the final accuracy of {REFERENCE} minus {MARGIN}"
    return Table(title, headers, rows)


def _behind(item: tuple[str, Quantities]) -> float:
    """Order of a leaderboard: by the accuracy at half of the tokens, those without it last."""
    value = item[1]["to_end_50"].value
    return math.inf if value is None else -value
