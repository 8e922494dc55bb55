# SPDX-License-Identifier: Apache-2.0
"""The record of a run, `run.json` in its output folder, and the figures that tables and plots take from it.

    <runs>/<cell>/seed_<seed>/run.json    any depth of folders; whatever else lies there is not read

A run is selected by what its record says of it, never by the name of its folder.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

FILE_NAME = "run.json"
VERSION = 1
STATUSES = ("running", "done", "failed")
CHECKPOINTS = ("final", "best")

_MEAN_AT_K = re.compile(r"held_out/(.+)/mean@(\d+)")
_REMEDY = "Give the folder that recipes/experiment.py writes to."


class UnreadableRuns(ValueError):
    """A folder of runs that is none, or holds runs that cannot be told apart."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What a run was and what it logged; JSON values only.

    Attributes:
        cell (str): Name of the cell, a line of the grid.
        seed (int): Seed of the run.
        model (str): Short name of the policy.
        method (str): Method of training, as in `DUETGRPOConfig`.
        budget (float): Share of the full number of rollouts, (0, 1]; that of GRPO is in its `num_generations`.
        num_generations (int): Rollouts per prompt, as in the configuration.
        settings (dict): Fields of the configuration whose value differs from the default, as resolved by it;
            `method_kwargs` holds every option of the method.
        engine (str): What generated the rollouts.
        hardware (dict): As `report.environment.hardware` gives it.
        versions (dict): As `report.environment.versions` gives it.
        status (str): "running", "done" or "failed".
        max_steps (int): Optimizer steps of the whole run.
        log (list): `trainer.state.log_history`.
        error (str | None): Why it failed.
        grid (str | None): Name of the grid; None for a single run.
        version (int): Of this layout.
    """

    cell: str
    seed: int
    model: str
    method: str
    budget: float
    num_generations: int
    settings: dict[str, Any]
    engine: str
    hardware: dict[str, Any]
    versions: dict[str, str]
    status: str
    max_steps: int
    log: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    grid: str | None = None
    version: int = VERSION

    @property
    def name(self) -> str:
        """Grid, cell and seed, as messages name a run."""
        return f"{'' if self.grid is None else self.grid + '/'}{self.cell}, seed {self.seed}"

    @property
    def options(self) -> dict[str, Any]:
        """Settings and, beside them, the options of `method_kwargs`."""
        others = {name: value for name, value in self.settings.items() if name != "method_kwargs"}
        return others | (self.settings.get("method_kwargs") or {})

    @property
    def steps_per_rollouts(self) -> float:
        """Optimizer steps that are made on the rollouts of one generation step; 1 on policy."""
        accumulation = self.settings.get("gradient_accumulation_steps", 1)
        batches = self.settings.get("steps_per_generation", accumulation) * self.settings.get("num_iterations", 1)
        return batches / accumulation


@dataclass(frozen=True)
class StoredRun:
    """A record and the output folder that it was read from."""

    folder: Path
    record: RunRecord


@dataclass(frozen=True)
class Runs:
    """The runs of a folder that are done, by grid, cell and seed; `left_out` has a line for each of the others."""

    done: list[StoredRun]
    left_out: list[str]


def write_run(folder: Path, record: RunRecord) -> Path:
    """Write `run.json` at once: a run that is killed leaves the old record or the new one.

    Raises:
        ValueError: If the status is unknown.
        TypeError: If a setting is no JSON value.
    """
    if record.status not in STATUSES:
        raise ValueError(f"status must be one of {list(STATUSES)}, got {record.status!r}.")
    text = json.dumps(asdict(record), indent=1)
    folder.mkdir(parents=True, exist_ok=True)
    beginning = folder / f"{FILE_NAME}.part"
    beginning.write_text(text + "\n", encoding="utf-8")
    return beginning.replace(folder / FILE_NAME)


def read_run(path: Path) -> RunRecord:
    """The record of a `run.json`.

    Raises:
        UnreadableRuns: If the file is no JSON, of another version, or lacks a key.
    """
    try:
        payload = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UnreadableRuns(f"{path} is no JSON: {error}. Remove it or repeat the run.") from error
    if not isinstance(payload, dict) or "version" not in payload:
        raise UnreadableRuns(f"{path} is no record of a run: it has no version. {_REMEDY}")
    if payload["version"] != VERSION:
        raise UnreadableRuns(
            f"{path} has layout {payload['version']!r}, and this report reads layout {VERSION}. Use the version of "
            "the package that wrote it, or repeat the run."
        )
    names = {one.name for one in fields(RunRecord)}
    missing, unknown = sorted(names - payload.keys()), sorted(payload.keys() - names)
    if missing or unknown:
        raise UnreadableRuns(f"{path} is no record of a run: it lacks {missing} and has the unknown {unknown}.")
    _check_kinds(path, payload)
    return RunRecord(**payload)


def _check_kinds(path: Path, payload: Mapping[str, Any]) -> None:
    kinds = {str: ("cell", "model", "method", "engine"), int: ("seed", "num_generations", "max_steps")}
    kinds |= {dict: ("settings", "hardware", "versions"), list: ("log",), float: ("budget",)}
    for kind, names in kinds.items():
        for name in names:
            allowed = (int, float) if kind is float else kind
            if not isinstance(payload[name], allowed) or isinstance(payload[name], bool):
                raise UnreadableRuns(f"{path}: {name} must be of type {kind.__name__}, got {payload[name]!r}.")
    if payload["status"] not in STATUSES:
        raise UnreadableRuns(f"{path}: status must be one of {list(STATUSES)}, got {payload['status']!r}.")
    if not all(isinstance(entry, dict) and isinstance(entry.get("step"), int) for entry in payload["log"]):
        raise UnreadableRuns(f"{path}: every entry of log must be a mapping with its step.")


def read_runs(folder: str | Path) -> Runs:
    """All runs in and below a folder.

    Raises:
        UnreadableRuns: If there is no folder, no `run.json`, no run that is done, one that cannot be read, or a run
            twice.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UnreadableRuns(f"there is no folder {str(folder)!r}. {_REMEDY}")
    paths = sorted(folder.rglob(FILE_NAME))
    if not paths:
        raise UnreadableRuns(f"{str(folder)!r} has no {FILE_NAME}, in no folder below it either. {_REMEDY}")
    found: dict[tuple[str, str, str, int], StoredRun] = {}
    for path in paths:
        record = read_run(path)
        key = (record.grid or "", record.cell, record.model, record.seed)
        if key in found:
            raise UnreadableRuns(
                f"{path} and {found[key].folder / FILE_NAME} are both {record.name} of {record.model}. Move one of "
                "them out of the folder."
            )
        found[key] = StoredRun(path.parent, record)
    runs = [found[key] for key in sorted(found)]
    left_out = [
        f"{one.record.name}: {one.record.status}" + (f" ({one.record.error})" if one.record.error else "")
        for one in runs
        if one.record.status != "done"
    ]
    if len(left_out) == len(runs):
        raise UnreadableRuns(f"no run of {str(folder)!r} is done: {'; '.join(left_out)}.")
    return Runs([one for one in runs if one.record.status == "done"], left_out)


def series(log: Sequence[Mapping[str, Any]], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values at which a metric was logged, in order; entries without it (evaluations, say) are skipped."""
    points = [(entry["step"], entry[key]) for entry in log if entry.get(key) is not None]
    steps, values = zip(*points, strict=True) if points else ((), ())
    return np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64)


def suites(record: RunRecord) -> dict[str, int]:
    """Suites that the run measured, and k of their mean@k; mean@1 stands beside a larger k and is the greedy one."""
    found: dict[str, int] = {}
    for entry in record.log:
        for name in entry:
            if match := _MEAN_AT_K.fullmatch(name):
                found[match[1]] = max(found.get(match[1], 0), int(match[2]))
    return found


def curve(record: RunRecord, suite: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and mean@k in [0, 1] of the measurements of a suite, shape (K,) each; step 0 is the untrained policy.

    Of two measurements of a step, which a resumed run can have, the later one holds. Empty for a suite that was not
    measured.
    """
    k = suites(record).get(suite, 0)
    last = dict(zip(*(values.tolist() for values in series(record.log, f"held_out/{suite}/mean@{k}")), strict=True))
    steps = sorted(last)
    return np.array(steps, dtype=np.int64), np.array([last[step] for step in steps], dtype=np.float64)


def accuracy(record: RunRecord, suite: str, checkpoint: str = "final") -> float | None:
    """mean@k of the last measurement, or of the best one, which selects on the test set; None without one.

    Step 0 is never taken.
    """
    if checkpoint not in CHECKPOINTS:
        raise ValueError(f"checkpoint must be one of {list(CHECKPOINTS)}, got {checkpoint!r}.")
    steps, values = curve(record, suite)
    trained = values[steps > 0]
    if not trained.size:
        return None
    return float(trained[-1] if checkpoint == "final" else trained.max())


def untrained(record: RunRecord, suite: str) -> float | None:
    """mean@k before the first step; None where it was not measured."""
    steps, values = curve(record, suite)
    return float(values[0]) if steps.size and steps[0] == 0 else None


def running_total(record: RunRecord, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and the sum of a per-step metric up to each of them, shape (E,) each.

    An entry of the log is a mean since the entry before it, over optimizer steps (`step_time`) or over generation
    steps (all other metrics), so each counts as many times as there were. Entries are taken to follow each other: a
    run resumed between two of them has forgotten the beginning of the second, whose mean then stands for it.
    """
    spacing = 1.0 if key == "step_time" else record.steps_per_rollouts
    steps, sums, total, before = [], [], 0.0, 0
    for entry in record.log:
        if "step_time" not in entry and key not in entry:
            continue
        count = math.ceil(entry["step"] / spacing) - math.ceil(before / spacing)
        before = entry["step"]
        if entry.get(key) is not None:
            total += entry[key] * count
            steps.append(entry["step"])
            sums.append(total)
    return np.array(steps, dtype=np.int64), np.array(sums, dtype=np.float64)


def generated_tokens(record: RunRecord) -> float | None:
    """Tokens that the whole run generated, prefixes not counted again; None where they were not logged."""
    return _last(running_total(record, "duet/generated_tokens")[1])


def training_seconds(record: RunRecord) -> float | None:
    """Wall-clock seconds of all steps, measurements and saving left out; None where they were not logged."""
    return _last(running_total(record, "step_time")[1])


def step_seconds(record: RunRecord) -> float | None:
    """Mean wall-clock seconds of an optimizer step, its generation included."""
    steps, sums = running_total(record, "step_time")
    return float(sums[-1] / steps[-1]) if sums.size else None


def _last(sums: np.ndarray) -> float | None:
    return float(sums[-1]) if sums.size else None
