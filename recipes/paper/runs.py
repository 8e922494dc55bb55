# SPDX-License-Identifier: Apache-2.0
"""The runs of a folder as one DataFrame, a row a run. The seeds of a cell are one arm.

What an arm was is known by the settings of its records, not by the name of its cell.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from run_file import RunRecord, UnreadableRuns, read_runs

from duet_trl.config import METHOD_FIELDS, reads
from duet_trl.evaluation.suites import SUITES, suite_named

METHODS = {
    "grpo": "GRPO",
    "dapo": "DAPO",
    "greso": "GRESO",
    "arrol": "ARRoL",
    "vip": "VIP",
    "reinforce_ada": "Reinforce-Ada",
    "knapsack": "Knapsack RL",
    "spec_rl": "SPEC-RL",
    "paper": "DUET (paper)",
    "duet": "DUET",
}
"""Titles in the order of rows and legends."""

FAMILY = ("paper", "duet")
"""Methods whose parts `PARTS` switch."""
PARTS = ("allocate", "trim", "abort")

STANDARD: dict[str, Any] = {"keep_probability": 0.05, "surrogate_warmup": 1, "surrogate": "online", "keep_rate": 0.5}
"""The paper's values of the settings that its tables sweep: of several, a row takes the arm with this one."""

_MEAN_AT_K = re.compile(r"held_out/(.+)/mean@(\d+)")


@dataclass(frozen=True)
class Report:
    """The data of tables and figures.

    Attributes:
        runs (pd.DataFrame): A row a run that is done, by arm and seed: `arm` (number), `subject` (model, and task
            where a model has several), `cell`, `method`, `budget`, `seed`, `own` (settings of the method), `swept` (of
            these, what is not `STANDARD`), `parts`, `complete` (no ablation), `machine` (engine and hardware),
            `tokens` and `seconds` (of the whole run), `pruned`, `length`, `accuracy/<suite>` and `start/<suite>`
            (mean@k in [0, 1], after and before training), `log`, `folder`. NaN: not logged.
        suites (list[str]): Suites that any run measured.
        k (int): Of mean@k; 0 if none was measured.
        checkpoint (str): "final" or "best".
        reference (str): Method that others are compared with.
        notes (list[str]): Runs that are left out, and why.
    """

    runs: pd.DataFrame
    suites: list[str]
    k: int
    checkpoint: str
    reference: str
    notes: list[str]

    @cached_property
    def arms(self) -> list[Any]:
        """The first run of each arm: equal to the others in all but the seed and what was measured."""
        return list(self.runs.drop(columns="log").drop_duplicates("arm").itertuples())

    def subjects(self) -> dict[str, "Report"]:
        """The same report on each subject alone."""
        return {name: replace(self, runs=runs) for name, runs in self.runs.groupby("subject", sort=False)}

    def of(self, arm: Any | None) -> pd.DataFrame:
        """The runs of an arm; empty without one."""
        return self.runs[self.runs.arm == (-1 if arm is None else arm.arm)]

    def pairs(self, arm: Any, other: Any | None, *same: str) -> pd.DataFrame:
        """Runs of two arms with the same seed and number of steps side by side, the columns of `other` with `_other`.

        `same` names further columns that must be equal. Without `other` there are no pairs.
        """
        return self.of(arm).merge(self.of(other), on=["seed", "max_steps", *same], suffixes=("", "_other"))

    def speed_ups(self, arm: Any, other: Any | None) -> pd.Series:
        """Seconds of another arm over those of this one by seed, where engine and hardware are the same."""
        pairs = self.pairs(arm, other, "machine")
        return pairs.seconds_other / pairs.seconds

    def standard(self, subject: str, method: str, budget: float) -> Any | None:
        """The arm of a method and budget without ablations, with the values of the paper if there is one."""
        found = [a for a in self.arms if (a.subject, a.method, a.budget) == (subject, method, budget) and a.complete]
        return min(found, key=lambda a: len(a.swept), default=None)


def read(folder: str | Path, checkpoint: str = "final", reference: str = "grpo") -> Report:
    """The runs of a folder that are done.

    Args:
        folder (str | Path): Folder with `run.json` files, at any depth.
        checkpoint (str): "final": the last measurement; "best": of each suite the best, which selects on the test set.
        reference (str): Method that others are compared with.

    Raises:
        UnreadableRuns: If no run is done, none has the reference method, suites were measured with different k, or as
            `run_file.read_runs`.
    """
    stored = read_runs(folder)
    done = {place: record for place, record in stored.items() if record.status == "done"}
    notes = [f"{one.name} is left out: it is not done." for place, one in stored.items() if place not in done]
    if not done:
        raise UnreadableRuns(f"no run of {str(folder)!r} is done: {' '.join(notes)} Run experiment.py again.")
    if reference not in (methods := {record.method for record in done.values()}):
        raise UnreadableRuns(
            f"no run of {str(folder)!r} has the reference method {reference!r}. Choose from {sorted(methods)}."
        )
    suites, k = _suites(folder, done.values())
    runs = pd.DataFrame([_row(place, record, suites, k, checkpoint) for place, record in done.items()])
    runs = runs.sort_values(["rank", "method", "budget", "grid", "cell", "model", "seed"], ignore_index=True)
    runs["arm"] = runs.groupby(["method", "budget", "grid", "cell", "model"], sort=False).ngroup()
    several = runs.groupby("model").task.transform("nunique") > 1
    runs["subject"] = runs.model.where(~several, runs.model + ", " + runs.task)
    return Report(runs, suites, k, checkpoint, reference, notes)


def _suites(folder: str | Path, records: Iterable[RunRecord]) -> tuple[list[str], int]:
    """Suites in the order of the tables, and k of their mean@k."""
    found: dict[str, int] = {}
    of_k: dict[int, str] = {}
    for record in records:
        matches = [m for entry in record.log for name in entry if (m := _MEAN_AT_K.fullmatch(name))]
        for match in matches:
            found[match[1]] = int(match[2])
            of_k[found[match[1]]] = record.name
    if len(of_k) > 1:
        which = ", ".join(f"mean@{k} ({name})" for k, name in sorted(of_k.items()))
        raise UnreadableRuns(f"runs of {str(folder)!r} were measured differently: {which}. Report on them apart.")
    known = [suite for suite in SUITES if suite in found]
    return [*known, *sorted(found.keys() - SUITES.keys())], max(of_k, default=0)


def _row(place: Path, record: RunRecord, suites: Sequence[str], k: int, checkpoint: str) -> dict[str, Any]:
    log = pd.DataFrame(record.log) if record.log else pd.DataFrame({"step": []})
    own = {name: value for name, value in record.settings.items() if name in METHOD_FIELDS and name != "method_kwargs"}
    own |= record.settings.get("method_kwargs") or {}
    every = tuple(record.method in FAMILY and name in reads(record.method) for name in PARTS)
    parts = tuple(bool(own.get(name, is_on)) for name, is_on in zip(PARTS, every, strict=True))
    measured = {suite: by_step(log, f"held_out/{suite}/mean@{k}") for suite in suites}
    total = {name: running_total(record, log, f"duet/{name}") for name in ("pruned_rollouts", "scored_rollouts")}
    return {
        "grid": record.grid or "",
        "rank": list(METHODS).index(record.method) if record.method in METHODS else len(METHODS),
        "task": record.settings.get("dataset_name", ""),
        "machine": json.dumps([record.engine, record.hardware], sort_keys=True),
        "own": own,
        "swept": swept(own),
        "parts": parts,
        "complete": parts == every,
        "tokens": running_total(record, log, "duet/generated_tokens"),
        "seconds": running_total(record, log, "step_time"),
        "pruned": total["pruned_rollouts"] / total["scored_rollouts"] if total["scored_rollouts"] else np.nan,
        "length": log.get("completions/mean_length", pd.Series(dtype=float)).mean(),
        **{f"start/{suite}": values.get(0, np.nan) for suite, values in measured.items()},
        **{f"accuracy/{suite}": _trained(values, checkpoint) for suite, values in measured.items()},
        "log": log,
        "folder": place,
        **{name: getattr(record, name) for name in ("name", "cell", "model", "method", "budget", "seed", "max_steps")},
    }


def _trained(measured: pd.Series, checkpoint: str) -> float:
    """The last or the best measurement after step 0."""
    values = measured[measured.index > 0]
    return np.nan if values.empty else float(values.iloc[-1] if checkpoint == "final" else values.max())


def by_step(log: pd.DataFrame, key: str) -> pd.Series:
    """A metric by optimizer step, empty where it was not logged; of two values of a step (resumed) the later one."""
    if key not in log:
        return pd.Series(dtype=float)
    values = log.set_index("step")[key].dropna().astype(float)
    return values[~values.index.duplicated(keep="last")].sort_index()


def running_total(record: RunRecord, log: pd.DataFrame, key: str) -> float:
    """Sum of a per-step metric over the whole run; NaN where it was not logged.

    An entry of the log is a mean since the entry before it, over optimizer steps (`step_time`) or over generation
    steps (all other metrics), so each counts as many times as there were.
    """
    if key not in log:
        return np.nan
    entries = log[log[[name for name in ("step_time", key) if name in log]].notna().any(axis=1)]
    steps = np.ceil(entries.step / (1.0 if key == "step_time" else record.steps_per_rollouts))
    return float((entries[key] * steps.diff().fillna(steps)).sum(min_count=1))


def swept(own: dict[str, Any], names: Iterable[str] = tuple(STANDARD)) -> dict[str, Any]:
    """Swept settings that do not have the value of the paper."""
    return {name: own[name] for name in names if own.get(name) not in (None, STANDARD[name])}


def method_title(method: str) -> str:
    """A method as the paper writes it; one without a title keeps its name."""
    return METHODS.get(method, method)


def suite_title(suite: str) -> str:
    """A suite as columns are headed."""
    return suite_named(suite).title
