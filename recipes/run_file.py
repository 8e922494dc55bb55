# SPDX-License-Identifier: Apache-2.0
"""The record of a run, `run.json` in its output folder: what it holds, written and read.

<runs>/<cell>/seed_<seed>/run.json    any depth of folders; whatever else lies there is not read
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

FILE_NAME = "run.json"
VERSION = 1
STATUSES = ("running", "done", "failed")
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
    def steps_per_rollouts(self) -> float:
        """Optimizer steps that are made on the rollouts of one generation step; 1 on policy."""
        accumulation = self.settings.get("gradient_accumulation_steps", 1)
        batches = self.settings.get("steps_per_generation", accumulation) * self.settings.get("num_iterations", 1)
        return batches / accumulation


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


def read_runs(folder: str | Path) -> dict[Path, RunRecord]:
    """All runs in and below a folder, whatever their status, by their own folders, in the order of grid, cell, model
    and seed.

    Raises:
        UnreadableRuns: If there is no folder, no `run.json`, one that cannot be read, or a run twice.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UnreadableRuns(f"there is no folder {str(folder)!r}. {_REMEDY}")
    found: dict[tuple[str, str, str, int], tuple[Path, RunRecord]] = {}
    for path in sorted(folder.rglob(FILE_NAME)):
        record = read_run(path)
        key = (record.grid or "", record.cell, record.model, record.seed)
        if key in found:
            raise UnreadableRuns(
                f"{path} and {found[key][0] / FILE_NAME} are both {record.name} of {record.model}. Move one of them "
                "out of the folder."
            )
        found[key] = (path.parent, record)
    if not found:
        raise UnreadableRuns(f"{str(folder)!r} has no {FILE_NAME}, in no folder below it either. {_REMEDY}")
    return dict(found[key] for key in sorted(found))
