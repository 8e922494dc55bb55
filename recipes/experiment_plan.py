# SPDX-License-Identifier: Apache-2.0
"""What an experiment runs: the runs of a grid, their commands, what was run before, how long the rest takes."""

import fnmatch
import itertools
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from command_line import parse
from config_files import GRIDS, Grid, read_grid
from rows import check_places
from run_file import FILE_NAME, RunRecord, read_run
from run_record import difference, new_record

RECIPES = Path(__file__).parent
SET_BY_US = ("--cell", "--seed", "--output_dir", "--resume_from_checkpoint")


@dataclass(frozen=True)
class Planned:
    """A run of a grid: a cell with a seed.

    Attributes:
        name (str): `<cell>/seed_<seed>`, also its place below the output folder.
        folder (Path): Its output folder.
        script (str): The recipe.
        words (list[str]): Arguments of the recipe.
        record (RunRecord): What its record says when it begins.
        accelerate (str | None): File below `recipes/accelerate/` that the grid names.
        num_gpus (int): GPUs that its configuration is made for.
    """

    name: str
    folder: Path
    script: str
    words: list[str]
    record: RunRecord
    accelerate: str | None
    num_gpus: int


def plan(grid_name: str, output_dir: Path, only: str, extra: Sequence[str]) -> tuple[list[Planned], Grid]:
    """The runs of a grid, all cells of the first seed before those of the next, and the grid itself.

    Args:
        grid_name (str): Name or path of the grid.
        output_dir (Path): Folder of all runs.
        only (str): Pattern of the names of runs or cells.
        extra (Sequence[str]): Arguments that every run gets.

    Raises:
        ValueError: If a configuration cannot be meant, a file is missing, an argument is the runner's own, or nothing
            matches the pattern.
    """
    if wrong := [word for word in extra if word.partition("=")[0] in SET_BY_US]:
        raise ValueError(f"{wrong[0]} is set for each run by the runner. Leave it out behind '--'.")
    grid, found = read_grid(grid_name), []
    place = grid.name if grid.name == grid_name or Path(grid_name).resolve().parent == GRIDS.resolve() else grid_name
    for seed, cell in itertools.product(grid.seeds or [None], grid.cells):
        words = ["--cell", f"{place}/{cell}"] + ([] if seed is None else ["--seed", str(seed)])
        try:
            arguments, config, model = parse("any", [*words, *extra, "--dry_run"])
            check_places(arguments)
        except ValueError as error:
            raise ValueError(f"{grid.name}/{cell}: {error}") from error
        record = new_record(arguments, config, model)
        name = f"{cell}/seed_{record.seed}"
        words += ["--output_dir", str(output_dir / name), *extra]
        script = os.path.relpath(RECIPES / f"{arguments.recipe}.py")
        accelerate = grid.cells[cell].get("accelerate")
        found.append(Planned(name, output_dir / name, script, words, record, accelerate, arguments.num_gpus))
    chosen = [run for run in found if fnmatch.fnmatch(run.name, only) or fnmatch.fnmatch(run.record.cell, only)]
    if not chosen:
        raise ValueError(f"--only {only!r} matches none of {', '.join(run.name for run in found)}.")
    return chosen, grid


def command(run: Planned, gpus: int, accelerate_config: str | None) -> list[str]:
    """The words that start a run: `accelerate launch` on GPUs, plain Python where there is none."""
    if not gpus:
        return [sys.executable, run.script, *run.words]
    return [sys.executable, "-m", "accelerate.commands.launch", *_launched(run, gpus, accelerate_config)]


def command_line(run: Planned, gpus: int, accelerate_config: str | None) -> str:
    """The same as a line for a shell; without GPUs here it is made for those of the configuration."""
    return shlex.join(["accelerate", "launch", *_launched(run, gpus or run.num_gpus, accelerate_config)])


def _launched(run: Planned, gpus: int, accelerate_config: str | None) -> list[str]:
    file = run.accelerate or ("ddp" if gpus > 1 else "single_gpu")
    config = accelerate_config or os.path.relpath(RECIPES / "accelerate" / f"{file}.yaml")
    words = ["--config_file", config, "--num_processes", str(gpus), "--main_process_port", "0"]
    return [*words, run.script, *run.words]


def slurm_script(runs: Sequence[Planned], call: Sequence[str], folder: Path, hours: float | None, workers: int) -> str:
    """An array script, one run a task: each calls this runner for its own run, so that a task resumes and records.

    Args:
        runs (Sequence[Planned]): The runs.
        call (Sequence[str]): Words that start the runner; behind them `--only`, and what the script is given.
        folder (Path): For the logs of the tasks.
        hours (float | None): Of the longest run; None: not known, and the cluster's own limit holds.
        workers (int): Tasks at a time.
    """
    split = call.index("--") if "--" in call else len(call)
    front, back = shlex.join(call[:split]), shlex.join(call[split:])
    options = [
        f"--job-name={runs[0].record.grid}",
        f"--array=0-{len(runs) - 1}%{workers}",
        "--nodes=1",
        "--ntasks=1",
        f"--gpus-per-node={max(run.num_gpus for run in runs)}",
        f"--output={folder.absolute() / 'slurm_%a.log'}",
        "--open-mode=append",
    ]
    options += [] if hours is None else [f"--time={int(90 * hours) + 1}"]  # minutes, with half as much again
    names = "\n".join(f"    {shlex.quote(run.name)}" for run in runs)
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {option}" for option in options),
            "# Partition and account: sbatch --partition <name> --account <name> <this file>",
            "set -euo pipefail",
            f"cd {shlex.quote(str(Path.cwd()))}",
            f"runs=(\n{names}\n)",
            f'exec {front} --only "${{runs[$SLURM_ARRAY_TASK_ID]}}" "$@" {back}'.rstrip(),
            "",
        ]
    )


# ---- What was run before --------------------------------------------------------------------------------------------


def earlier(run: Planned) -> RunRecord | None:
    """The record that an earlier start of this run left; None without one."""
    path = run.folder / FILE_NAME
    return read_run(path) if path.is_file() else None


def last_checkpoint(run: Planned) -> Path | None:
    """The newest whole checkpoint of a run; the trainer's state is what is written last."""
    found = {
        int(match[1]): path for path in run.folder.glob("*") if (match := re.fullmatch(r"checkpoint-(\d+)", path.name))
    }
    whole = [step for step in sorted(found) if _is_written(found[step] / "trainer_state.json")]
    return found[whole[-1]] if whole else None


def _is_written(path: Path) -> bool:
    """Whether a JSON file is there to its end."""
    try:
        json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return False
    return True


def changed(run: Planned) -> str | None:
    """What differs between the settings of an earlier start and those of the grid; None: nothing that matters."""
    record = earlier(run)
    if record is None or (record.status != "done" and last_checkpoint(run) is None):
        return None
    found = difference(record.settings, run.record.settings)
    return "; ".join(f"{name} was {old!r}, now {new!r}" for name, (old, new) in found.items()) or None


# ---- How long it takes ----------------------------------------------------------------------------------------------


@dataclass
class Pace:
    """Minutes of a full-budget run by model: as the grid says, until runs of the model are measured.

    A run is taken to cost its share of the full budget.
    """

    hours: Mapping[str, float]
    measured: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # minutes and budgets by model

    def add(self, record: RunRecord, minutes: float) -> None:
        """Take note of a run that is done."""
        self.measured.setdefault(record.model, []).append((minutes, record.budget))

    def minutes(self, run: Planned) -> float | None:
        """Expected minutes of a run; None: not known."""
        model = run.record.model
        if model in self.measured:
            spent, budgets = zip(*self.measured[model], strict=True)
            return run.record.budget * sum(spent) / sum(budgets)
        hours = self.hours.get(model, self.hours.get(""))
        return None if hours is None else 60 * hours * run.record.budget

    def total(self, runs: Iterable[Planned], workers: int) -> float | None:
        """Expected minutes of several runs, `workers` at a time; None: not known."""
        each = [self.minutes(run) for run in runs]
        return None if None in each else max([sum(each) / workers, *each], default=0.0)


def recorded_minutes(record: RunRecord) -> float | None:
    """Minutes that a finished run trained and measured, as the trainer logged them."""
    seconds = [entry["train_runtime"] for entry in record.log if "train_runtime" in entry]
    return seconds[-1] / 60 if seconds else None


def duration(minutes: float | None) -> str:
    """Minutes in words."""
    if minutes is None:
        return "not known until the first run is done"
    return f"{minutes:.1f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
