# SPDX-License-Identifier: Apache-2.0
# python recipes/experiment.py --grid recipes/grids/table6.yaml        (8 x H100 80 GB)
# python recipes/experiment.py --grid recipes/grids/smoke.yaml         (two CPU cores, no network)
"""Runs a grid, one run after the other, each into `<output_dir>/<cell>/seed_<seed>/`.

Called again it skips what is done, and an unfinished run resumes from its last checkpoint. A failed run does not stop
the others; the exit status is 1. A first Ctrl-C lets the running step end with a checkpoint.

    python recipes/paper_report.py outputs/experiments/<grid>

A grid is a YAML file. What its `runs` change is on their lines; everything else at the top is for all of them:

    script: recipes/math_qwen3.py       of one run or of all, as the next two
    config: recipes/configs/paper.yaml  what the run would name as --config
    accelerate: fsdp2                   file below recipes/accelerate/; default: ddp, on one GPU single_gpu
    seeds: [42, 43]                     every run of the first before those of the next
    beta: 0.0                           any other field
    runs: {grpo: {method: grpo}, half: {method: duet, budget_fraction: 0.5}}
"""

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from run_file import FILE_NAME, read_run
from script_arguments import parse, read_fields

from duet_trl.mistakes import mistakes

RECIPES = Path(__file__).parent
CONFIG = "config.yaml"


class Run(NamedTuple):
    """A run of a grid: a cell with a seed."""

    name: str  # <cell>/seed_<seed>
    folder: Path
    script: str
    accelerate: str | None  # file below recipes/accelerate/
    fields: dict[str, Any]  # its whole configuration

    @property
    def is_done(self) -> bool:
        """Whether its result exists."""
        place = self.folder / FILE_NAME
        return place.is_file() and read_run(place).status == "done"

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is something to resume from."""
        return any(self.folder.glob("checkpoint-*"))


def plan(grid: Path, output_dir: Path, only: str = "*") -> list[Run]:
    """The runs of a grid whose names, or names of cells, match a pattern.

    Raises:
        ValueError: If the grid has no runs or another form, a name leads out of the folder, or nothing matches.
    """
    shared = read_fields(grid)
    cells, seeds = shared.pop("runs", None) or {}, shared.pop("seeds", [42])
    if not isinstance(cells, dict) or not isinstance(seeds, list):
        raise ValueError(f"{grid} needs runs, a mapping, and seeds, a list; got {cells!r} and {seeds!r}.")
    if wrong := [cell for cell in cells if "/" in cell or cell in (".", "..")]:
        raise ValueError(f"a run of {grid} is called {wrong[0]!r}: its name may hold no '/' and be neither . nor ..")
    runs = []
    for seed in seeds:
        for cell, line in cells.items():
            if not isinstance(fields := line or {}, dict) or "script" not in (fields := shared | fields):
                raise ValueError(f"run {cell!r} of {grid} needs a script, such as script: recipes/math_qwen3.py")
            script, accelerate = fields.pop("script"), fields.pop("accelerate", None)
            config = fields.pop("config", None)
            fields = ({} if config is None else read_fields(Path(config))) | fields
            name = f"{cell}/seed_{seed}"
            fields |= {"seed": seed, "run_name": f"{grid.stem}/{cell}", "output_dir": str(output_dir / name)}
            runs.append(Run(name, output_dir / name, script, accelerate, fields))
    chosen = [run for run in runs if fnmatch(run.name, only) or fnmatch(run.folder.parent.name, only)]
    if not chosen:
        raise ValueError(f"--only {only!r} matches none of {', '.join(run.name for run in runs) or 'no runs'}.")
    return chosen


def prepare(run: Run) -> None:
    """Check the configuration of a run and write it.

    Raises:
        ValueError: If it is invalid, or differs from that of an earlier start.
    """
    place = run.folder / CONFIG
    if run.is_done or run.has_checkpoint:
        earlier = read_fields(place)
        if names := sorted(name for name in earlier | run.fields if earlier.get(name) != run.fields.get(name)):
            raise ValueError(f"{place} has other values of {', '.join(names)}. Remove {run.folder} to repeat it.")
    run.folder.mkdir(parents=True, exist_ok=True)
    checked = place.with_suffix(".part")
    checked.write_text(yaml.safe_dump(run.fields))
    parse(["--config", str(checked)])
    checked.replace(place)


def command(run: Run, gpus: int) -> list[str]:
    """The command that starts or resumes a run: `accelerate launch` on GPUs, plain Python where there is none."""
    words = [sys.executable]
    if gpus:
        file = run.accelerate or ("ddp" if gpus > 1 else "single_gpu")
        words += ["-m", "accelerate.commands.launch", "--num_processes", str(gpus)]
        words += ["--config_file", str(RECIPES / "accelerate" / f"{file}.yaml")]
    words += [run.script, "--config", str(run.folder / CONFIG)]
    return [*words, "--resume_from_checkpoint", "true"] if run.has_checkpoint else words


def main(argv: Sequence[str] | None = None) -> int:
    """Check every configuration, then make what is not done yet. Exit status: 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", type=Path, required=True, help="YAML file")
    parser.add_argument("--output_dir", type=Path, help="default: outputs/experiments/<grid>")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="runs of these names: 'grpo_*', '*/seed_42'")
    args = parser.parse_args(argv)
    with mistakes():
        runs = plan(args.grid, args.output_dir or Path("outputs", "experiments", args.grid.stem), args.only)
        for run in runs:
            prepare(run)
        waiting = [run for run in runs if not run.is_done]
    print(f"{len(runs)} runs, {len(runs) - len(waiting)} of them done", flush=True)
    failed, stopped = [], []
    # The terminal sends Ctrl-C to the run too, which then saves; the runner only starts no other.
    before = signal.signal(signal.SIGINT, lambda *_: stopped.append(True))
    try:
        for run in waiting:
            if stopped:
                break
            print(f"{run.name}: output in {run.folder / 'output.log'}", flush=True)
            with (run.folder / "output.log").open("a") as log:
                status = subprocess.run(command(run, torch.cuda.device_count()), stdout=log, stderr=log).returncode
            if not run.is_done:
                failed.append(run.name)
                print(f"{run.name}: failed with exit status {status}", flush=True)
    finally:
        signal.signal(signal.SIGINT, before)
    return int(bool(failed or stopped))


if __name__ == "__main__":
    sys.exit(main())
