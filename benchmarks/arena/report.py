# SPDX-License-Identifier: Apache-2.0
"""The report of the arena: tables on the terminal, and what documents quote of them."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from duet_trl.report.tables import markdown_table, text_table

from .contest import SECONDS, TOKENS, WORDS, Contest, Estimate, contests, outcome, seconds_per_batch
from .entrants import ENTRANTS, REFERENCE
from .measuring import PHASES
from .mixed import REPORT as SPLIT
from .mixed import best_rules
from .profiles import PROFILES
from .quotes import differences, documents, rewritten
from .records import CONFIRM, REPORT, START, STOPPED, TUNE, Run
from .schedule import PLAN, hash_of
from .targets import PLAIN, SUBJECT, SWAP, SWAP_UNGATED, TARGETS, UNGATED, signed, verdicts
from .tasks import TASKS
from .tuning import at_the_edge, choose

SHARES = (0.25, 0.5, 1.0)
ENDS = 10
"""How many batches are the beginning of a run, and how many its end."""
FIGURE = Path("docs/assets")
MAIN = (REFERENCE, PLAIN, UNGATED, SWAP)
"""Entrants of the figure, which has no room for all."""
PAIRS = (
    (SWAP, "grpo_8_stop_2x"),
    (SUBJECT, "grpo_8_stop_2x"),
    (SWAP, PLAIN),
    (SWAP_UNGATED, PLAIN),
    (SWAP, SWAP_UNGATED),
    (SUBJECT, UNGATED),
    ("dapo", UNGATED),
    ("dapo", SUBJECT),
)
"""Entrants that are compared with each other."""
RULED = "words"
"""The kind of which a rule of position gets half right."""


@dataclass(frozen=True)
class Table:
    """Headers and rows of strings, under a title of one line."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


def report(runs: Sequence[Run], root: Path, *, write: bool) -> list[str]:
    """Print all tables and, if asked, write tables, values and figures into the documents.

    Returns:
        list[str]: What a document quotes that is not as the records say, runs that do not follow the committed plan,
        and learning rates at an edge of their grid.
    """
    found = tables(runs)
    for name, table in found.items():
        print(f"\n{table.title} ({name})\n\n{text_table(table.headers, table.rows)}")
    texts = {name: markdown_table(table.headers, table.rows) for name, table in found.items()} | values(runs)
    if write:
        for path in documents(root):
            path.write_text(rewritten(path.read_text(), texts, str(path.relative_to(root))))
        for task, contest in contests(runs).items():
            if contest.kinds:
                draw(contest, root / FIGURE / f"{task}.svg")
    problems = off_plan(runs, root)
    for path in documents(root):
        try:
            problems += differences(path.read_text(), texts, str(path.relative_to(root)))
        except ValueError as error:
            problems.append(str(error))
    return problems


def tables(runs: Sequence[Run]) -> dict[str, Table]:
    """All tables that the records can fill, by name: `<what> <task>`."""
    found = {"start": _start([run for run in runs if run.stage == START])}
    for task in dict.fromkeys(run.task for run in runs):
        found[f"tuning {task}"] = _tuning([run for run in runs if (run.task, run.stage) == (task, TUNE)], task)
    for task, contest in contests(runs).items():
        found |= {f"{word} {task}": _leads(contest, cost) for cost, word in WORDS.items()}
        found[f"pairs {task}"] = _pairs(contest)
        found[f"kinds {task}"] = _kinds(contest)
        found[f"by kind {task}"] = _by_kind(contest)
        found |= {f"{serving} {task}": _scores(contest, serving) for serving in contest.start.measurements[0].servings}
        found[f"batch {task}"] = _batch(contest)
        found[f"rollouts {task}"] = _rollouts(contest)
        pairs = zip(TARGETS, verdicts(contest), strict=True)
        rows = [[one.claim, str(own)] for one, own in pairs]
        found[f"targets {task}"] = Table(f"{task}: targets", ["target", "verdict"], rows)
    for task, contest in contests(runs, CONFIRM).items():
        found |= {f"confirmed {word} {task}": _leads(contest, cost) for cost, word in WORDS.items()}
        found[f"confirmed pairs {task}"] = _pairs(contest)
        found[f"confirmed stopped {task}"] = _scores(contest, STOPPED)
    return {name: table for name, table in found.items() if table.rows}


def values(runs: Sequence[Run]) -> dict[str, str]:
    """What documents quote inside a sentence, by name: `value <task> ...`."""
    found = {}
    for task, contest in contests(runs).items():
        rest = _rest(contest)
        for name in contest.runs:
            found[f"value {task} {name} seeds"] = str(len(contest.runs[name]))
            for cost, word in WORDS.items():
                for share in SHARES:
                    for over in contest.runs:
                        whom = "" if over == REFERENCE else f" over {over}"
                        lead = contest.lead(name, over, cost, share)
                        found[f"value {task} {name} {word} {share:.0%}{whom}"] = signed(lead)
                        if rest:
                            lead = contest.lead(name, over, cost, share, rest)
                            found[f"value {task} {name} {word} {share:.0%}{whom} but {RULED}"] = signed(lead)
            aborted = _by_seed(contest, name, "duet/abort_rate", slice(None))
            found[f"value {task} {name} aborted by seed"] = _shares(aborted)
            found[f"value {task} {name} spent seconds"] = _shares(contest.spent(name, SECONDS))
            for kind in contest.kinds:
                right = contest.final(name, kind, contest.serving).values
                found[f"value {task} {name} {kind} by seed"] = _shares(right)
                found[f"value {task} {name} {kind} lead"] = signed(contest.final_lead(name, kind, contest.serving))
            for serving in contest.start.measurements[0].servings:
                for figure in ("ended", "accuracy"):
                    by_seed = contest.final(name, figure, serving).values
                    found[f"value {task} {name} {serving} {figure} by seed"] = _shares(by_seed)
                for figure in _figures(contest, serving):
                    own = f"value {task} {name} {serving} {figure}"
                    found[own] = f"{contest.final(name, figure, serving).mean:.3f}"
                    found[f"{own} lead"] = signed(contest.final_lead(name, figure, serving))
    return found


def _shares(found: Sequence[float | None]) -> str:
    return ", ".join("never" if one is None else f"{one:.0%}" for one in found)


def _start(starts: Sequence[Run]) -> Table:
    rows = []
    for run in starts:
        for serving, one in run.measurements[0].servings.items():
            own = outcome(one)
            rates = np.array(one.right) / one.samples
            hopeless, solved = (f"{np.mean(rates < 0.05):.0%}", f"{np.mean(rates > 0.9):.0%}")
            shares = [hopeless, solved, f"{np.mean(rates > 0):.2f}"] if one.samples >= 16 else ["-", "-", "-"]
            scores = [f"{own['accuracy']:.3f}", f"{own['greedy']:.3f}", *shares]
            rows.append([run.task, serving, *scores, f"{one.length:.1f}", f"{one.ended:.0%}"])
    headers = ["task", "served", "mean", "greedy", "p < .05", "p > .9", "pass@16", "tokens", "ended"]
    return Table("The policies before training", headers, rows)


def _tuning(runs: Sequence[Run], task: str) -> Table:
    rates = sorted({run.learning_rate for run in runs})
    rows = []
    for name in (name for name in ENTRANTS if any(run.entrant == name for run in runs)):
        own = {run.learning_rate: _tuned(run) for run in runs if run.entrant == name}
        chosen = choose(runs, task, name)
        rows.append([name, *(own.get(rate, "-") for rate in rates), "-" if chosen is None else f"{chosen:g}"])
    return Table(
        f"{task}: accuracy (pass@8) on the tuning split by learning rate",
        ["", *map("{:g}".format, rates), "chosen"],
        rows,
    )


def _tuned(run: Run) -> str:
    (one,) = run.measurements[-1].servings.values()
    found = outcome(one)
    return f"{found['accuracy']:.3f}" + (f" ({found['pass_8']:.2f})" if "pass_8" in found else "")


def _leads(contest: Contest, cost: str) -> Table:
    """A main table: differences to the reference at equal cost, and the cost of getting as far."""
    rows = []
    for name, own in contest.runs.items():
        cells = [_cell(contest.lead(name, REFERENCE, cost, share)) for share in SHARES]
        cells = ["0"] * len(cells) if name == REFERENCE else cells
        rows.append([name, str(len(own)), *cells, _shares(contest.reached(name, cost))])
    headers = ["", "seeds", *map("{:.0%}".format, SHARES), "to its end"]
    return Table(f"{contest.task}: accuracy minus {REFERENCE}'s at equal {WORDS[cost]}", headers, rows)


def _cell(lead: Estimate | None) -> str:
    """A difference in a table, which has the number of seeds in a column."""
    return signed(lead).removesuffix(" (one seed)")


def _pairs(contest: Contest) -> Table:
    """Differences between two entrants at shares of what the reference spends."""
    rows = []
    for own, other in PAIRS:
        if {own, other} <= contest.runs.keys():
            leads = [contest.lead(own, other, cost, share) for cost in WORDS for share in SHARES]
            rows.append([f"{own} - {other}", str(len(contest.seeds(own, other))), *map(_cell, leads)])
    columns = [f"{share:.0%} of the {word}" for word in WORDS.values() for share in SHARES]
    return Table(f"{contest.task}: accuracy of the first minus the second's", ["", "seeds", *columns], rows)


def _rest(contest: Contest) -> list[str]:
    """Kinds but `RULED`; none where it is not one of them."""
    return [kind for kind in contest.kinds if kind != RULED] if RULED in contest.kinds else []


def _kinds(contest: Contest) -> Table:
    """Differences at half of the reference's seconds, by kind of problem."""
    rest = _rest(contest)
    columns = [None, *([kind] for kind in contest.kinds), *([rest] if rest else [])]
    rows = []
    for own, other in ((SWAP, REFERENCE), (SUBJECT, REFERENCE), *PAIRS):
        if contest.kinds and {own, other} <= contest.runs.keys():
            leads = [contest.lead(own, other, SECONDS, 0.5, kinds) for kinds in columns]
            rows.append([f"{own} - {other}", *map(_cell, leads)])
    headers = ["", "all", *contest.kinds, *([f"all but {RULED}"] if rest else [])]
    return Table(f"{contest.task}: accuracy of the first minus the second's, half of the seconds", headers, rows)


def _by_kind(contest: Contest) -> Table:
    """Accuracy at the end by kind of problem, means over seeds, and what a rule of position would have."""
    rows = []
    if contest.kinds:
        rules = best_rules(TASKS[contest.task].problems(SPLIT))
        found = {"best rule of position": [rules[kind] for kind in contest.kinds]}
        for name in contest.runs:
            found[name] = [contest.final(name, kind, contest.serving).mean for kind in contest.kinds]
        rows = [[name, *(f"{one:.2f}" for one in (*own, float(np.mean(own))))] for name, own in found.items()]
    return Table(f"{contest.task}: accuracy at the end by kind", ["", *contest.kinds, "all"], rows)


def _figures(contest: Contest, serving: str) -> dict[str, str]:
    """Scores at the end: in `outcome`, and in tables."""
    return {"accuracy": "mean", "greedy": "greedy"} | ({"pass_8": "pass@8"} if serving == contest.serving else {})


def _scores(contest: Contest, serving: str) -> Table:
    """Scores before training and at the end, and minus the reference's."""
    figures = _figures(contest, serving)
    rows = []
    for name in (*(["start"] if contest.has_start else []), *contest.runs):
        runs = [contest.start] if name == "start" else list(contest.runs[name].values())
        found = [outcome(run.measurements[-1].servings[serving]) for run in runs]
        own = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
        row = [name, *(f"{own[key]:.3f}" for key in figures), f"{own['length']:.1f}", f"{own['ended']:.0%}"]
        for figure in figures:
            lead = contest.final_lead(name, figure, serving) if name not in ("start", REFERENCE) else None
            row.append("-" if lead is None else _cell(lead))
        rows.append(row)
    headers = ["", *figures.values(), "tokens", "ended", *(f"{what} minus {REFERENCE}'s" for what in figures.values())]
    return Table(f"{contest.task}: scores at the end, served {serving}", headers, rows)


def _batch(contest: Contest) -> Table:
    rows = []
    for name, own in contest.runs.items():
        ends = [run.measurements[-1] for run in own.values()]
        found = [seconds_per_batch(end) for end in ends]
        parts = [float(np.mean([one[key] for one in found])) for key in (*PHASES, "rest")]
        tokens = float(np.mean([end.generated_tokens / end.batch for end in ends]))
        batches = float(np.mean([end.batch for end in ends]))
        rows.append([name, f"{batches:.0f}", f"{tokens:.0f}", f"{sum(parts):.1f}", *(f"{part:.2f}" for part in parts)])
    headers = ["", "batches", "tokens a batch", "seconds a batch", *PHASES, "rest"]
    return Table(f"{contest.task}: a batch", headers, rows)


def _by_seed(contest: Contest, name: str, curve: str, part: slice) -> list[float]:
    """Means of a curve over a part of each run that has it."""
    return [
        float(np.mean(known))
        for run in contest.runs[name].values()
        if (known := [value for value in run.curves.get(curve, [])[part] if value is not None])
    ]


def _rollouts(contest: Contest) -> Table:
    """Training rollouts: how many groups agree, tokens, and what the gate stopped, in some batches of the runs."""

    def mean(name: str, curve: str, part: slice, form: str) -> str:
        found = _by_seed(contest, name, curve, part)
        return format(float(np.mean(found)), form) if found else "-"

    first, last, whole = slice(ENDS), slice(-ENDS, None), slice(None)
    columns = (
        (f"agree, first {ENDS}", "frac_reward_zero_std", first, ".0%"),
        (f"agree, last {ENDS}", "frac_reward_zero_std", last, ".0%"),
        (f"tokens, first {ENDS}", "completions/mean_length", first, ".1f"),
        (f"tokens, last {ENDS}", "completions/mean_length", last, ".1f"),
        (f"trimmed, first {ENDS}", "duet/trim_rate", first, ".0%"),
        ("trimmed", "duet/trim_rate", whole, ".1%"),
        ("aborted", "duet/abort_rate", whole, ".1%"),
    )
    rows = [[name, *(mean(name, curve, part, form) for _, curve, part, form in columns)] for name in contest.runs]
    return Table(f"{contest.task}: rollouts of some batches", ["", *(column[0] for column in columns)], rows)


def off_plan(runs: Sequence[Run], root: Path) -> list[str]:
    """Reported runs that do not follow the committed plan, or began before it was committed, and edges of grids."""
    plan = json.loads(PLAN.read_text()) if PLAN.exists() else {}
    found = []
    reported = [run for run in runs if run.stage in (REPORT, CONFIRM)]
    for run in reported:
        entry = plan.get(run.task, {}).get(run.entrant)
        name = f"{run.task} {run.entrant} seed {run.seed}"
        if entry is None or (entry["hash"], entry["rate"]) != (run.plan, run.learning_rate):
            found.append(f"records: {name} does not follow {PLAN.name}")
            continue
        if hash_of(run.task, run.entrant, run.learning_rate, PROFILES["full"]) != run.plan:
            found.append(f"records: {name} ran with other settings than entrants.py and profiles.py have now")
        if not (root / ".git").exists() or (root / ".git" / "shallow").exists():
            continue  # no history to compare with
        committed = _committed(root, run.plan)
        if committed is None:
            found.append(f"records: {name}: its plan was never committed")
        elif committed > run.began:
            found.append(f"records: {name} began {run.began}, before its plan was committed ({committed})")
    for task, name in dict.fromkeys((run.task, run.entrant) for run in reported):
        if at_the_edge(runs, task, name):
            found.append(f"records: {task} {name}: the chosen rate is at an edge of its grid")
    return found


def _committed(root: Path, text: str) -> str | None:
    """When a text entered the plan, UTC, by the author's date, which a rebase keeps; None: never."""
    command = ["git", "log", "--reverse", "--format=%ad", "--date=format-local:%Y-%m-%dT%H:%M:%S+00:00", f"-S{text}"]
    command += ["--", str(PLAN.relative_to(root))]
    environment = os.environ | {"TZ": "UTC"}
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, env=environment)
    return done.stdout.split("\n")[0] or None


def draw(contest: Contest, path: Path) -> None:
    """Accuracy against tokens and against seconds: a thin line for each seed, a thick one for their mean."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "arena", "font.size": 9}
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
    labels: Mapping[str, tuple[str, float]] = {TOKENS: ("thousand tokens generated", 1e3), SECONDS: ("minutes", 60)}
    for axis, (cost, (label, unit)) in zip(axes, labels.items(), strict=True):
        for place, name in enumerate(name for name in MAIN if name in contest.runs):
            curves = [contest.curve(run, cost) for run in contest.runs[name].values()]
            most = min(float(spent[-1]) for spent, _ in curves)
            grid = np.linspace(0, most, 60)
            for spent, found in curves:
                axis.plot(spent / unit, found, "o-", color=f"C{place}", lw=0.5, ms=2, alpha=0.4)
            mean = np.mean([np.interp(grid, spent, found) for spent, found in curves], axis=0)
            axis.plot(grid / unit, mean, color=f"C{place}", lw=2, label=ENTRANTS[name].what)
        ends = [contest.curve(run, cost)[0][-1] for run in contest.runs[REFERENCE].values()]
        axis.set_xlim(0, 1.25 * max(ends) / unit)  # without a stop string an entrant needs several times the tokens
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("accuracy at temperature 1")
    axes[0].legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
