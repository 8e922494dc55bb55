# SPDX-License-Identifier: Apache-2.0
"""The report of the arena: tables on the terminal, a result file, and what documents quote of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS
from duet_trl.report.tables import markdown_table, text_table

from .contest import Contest
from .entrants import CONTROLS, ENTRANTS, REFERENCE
from .profiles import PROFILES
from .quantities import Quantities, rate_of, rate_text
from .quotes import differences, documents, rewritten
from .records import REPORT, START, Run
from .report_tables import Findings, tables
from .tuning import tuned_rate


def write_report(findings: Findings, markdown: bool) -> None:
    """Print all tables; write outputs/bench/arena.json.

    Args:
        findings (Findings): Of the records.
        markdown (bool): Print the tables as Markdown.
    """
    draw = markdown_table if markdown else text_table
    for name, table in tables(findings).items():
        print(f"\n{table.title} ({name})\n\n{draw(table.headers, table.rows)}")
    print(
        "\n[...]: 95% t-interval over seeds; [-]: not known. >: not reached, with what was spent. -: not measured,"
        " or never spent."
    )
    print("\n".join(_gaps(findings)))
    print(_write_json(findings))


def write_documents(findings: Findings, folder: Path) -> list[str]:
    """Write tables and values between their markers in README.md and docs/*.md.

    Args:
        findings (Findings): Of the records.
        folder (Path): Root of the repository.

    Returns:
        list[str]: Files that changed.

    Raises:
        ValueError: If a document asks for what there is not; nothing is written then.
    """
    values = _texts(findings)
    texts = {path: rewritten(path.read_text(), values, str(path.relative_to(folder))) for path in documents(folder)}
    changed = []
    for path, text in texts.items():
        if text != path.read_text():
            path.write_text(text)
            changed.append(str(path.relative_to(folder)))
    return changed


def check_documents(findings: Findings, folder: Path) -> list[str]:
    """What README.md and docs/*.md show, where it is not what the records say.

    Runs whose learning rate is not the one that tuning chose are named too.

    Args:
        findings (Findings): Of the records.
        folder (Path): Root of the repository.

    Returns:
        list[str]: Differences, with file, line, quoted and computed value.
    """
    values = _texts(findings)
    found = []
    for path in documents(folder):
        try:
            found += differences(path.read_text(), values, str(path.relative_to(folder)))
        except ValueError as error:
            found.append(str(error))
    return found + _rates_not_chosen(findings.runs)


def _texts(findings: Findings) -> dict[str, str]:
    """Text of every block that a document may have: tables by their names, values as `value ...`."""
    texts = {name: markdown_table(table.headers, table.rows) for name, table in tables(findings).items()}
    for task, entrants in findings.figures.items():
        contest = findings.contests[task]
        texts[f"value {task} target"] = f"{contest.target:.3f}"
        for name, own in entrants.items():
            texts |= _values(f"value {task} {name}", own)
            texts |= {f"value {task} {name} {key}": text for key, text in _counts(contest, name).items()}
    for task, own in findings.starts.items():
        texts |= _values(f"value {task} start", own)
    for place, rank in enumerate(findings.ranks, 1):
        texts |= _values(f"value overall {rank.entrant}", findings.overall[rank.entrant])
        texts[f"value overall {rank.entrant} place"] = str(place)
        texts[f"value overall {rank.entrant} reached"] = f"{rank.reached} of {rank.tasks}"
    return texts


def _values(prefix: str, own: Quantities) -> dict[str, str]:
    texts = {f"{prefix} {key}": quantity.text for key, quantity in own.items()}
    return texts | {f"{prefix} {key}_interval": quantity.interval_text for key, quantity in own.items()}


def _counts(contest: Contest, name: str) -> dict[str, str]:
    """What is no estimate."""
    runs = list(contest.runs[name].values())
    return {"seeds": str(len(runs)), "learning_rate": rate_of(runs)}


def _gaps(findings: Findings) -> list[str]:
    """What was not run: tasks without their start or their reference, and entrants."""
    tasks = dict.fromkeys(run.task for run in findings.runs if run.stage in (START, REPORT))
    lines = [
        f"not reported: {task}, whose start or whose {REFERENCE} has no run yet"
        for task in tasks
        if task not in findings.contests
    ]
    for task, contest in findings.contests.items():
        missing = [name for name in ENTRANTS if name not in contest.runs and name not in CONTROLS]
        if missing:
            lines.append(f"no runs yet: {task}: {', '.join(missing)}")
    return lines


def _rates_not_chosen(runs: Sequence[Run]) -> list[str]:
    rates = {(run.task, run.entrant): run.learning_rate for run in runs if run.stage == REPORT}
    found = []
    for (task, name), rate in rates.items():
        chosen = tuned_rate(runs, task, name, PROFILES["full"])
        if chosen is not None and chosen != rate:
            says = "its rate is" if ENTRANTS[name].rate else "tuning chose"
            found.append(f"records: {task} {name} ran at {rate_text(rate)}, but {says} {rate_text(chosen)}")
    return found


def _write_json(findings: Findings) -> Path:
    """All figures unrounded, with seeds, and the machines and versions of the runs."""
    environments: list[dict[str, Any]] = []
    for run in findings.runs:
        if run.environment not in environments:
            environments.append(run.environment)
    tasks = {
        task: {
            "target": contest.target,
            "start": _json(findings.starts[task]),
            "entrants": {
                name: {
                    "seeds": list(own),
                    "learning_rate": next(iter(own.values())).learning_rate,
                    **_json(findings.figures[task][name]),
                }
                for name, own in contest.runs.items()
            },
        }
        for task, contest in findings.contests.items()
    }
    payload = {
        "environments": environments,
        "overall": {name: _json(own) for name, own in findings.overall.items()},
        "tasks": tasks,
        "tables": {name: [table.headers, *table.rows] for name, table in tables(findings).items()},
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "arena.json"
    path.write_text(json.dumps(payload, indent=1) + "\n")
    return path


def _json(own: Quantities) -> dict[str, Any]:
    return {name: quantity.to_json() for name, quantity in own.items()}
