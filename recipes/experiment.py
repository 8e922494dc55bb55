# SPDX-License-Identifier: Apache-2.0
# python recipes/experiment.py --grid table6                           (8 x H100 80 GB: one run after the other)
# python recipes/experiment.py --grid smoke                            (two CPU cores, no network: about seven minutes)
"""Runs a grid: every cell with every seed, each in a process of its own, into `<output_dir>/<cell>/seed_<seed>/`.

Called again it skips what is done, and an unfinished run resumes from its last checkpoint. A failed run does not stop
the others; its log stays and the exit status is 1. Several runners may share a folder: none takes a run that another
one has. Arguments behind `--` go to every run. The first Ctrl-C or SIGTERM lets the running steps end with a
checkpoint, the second stops at once.

    python recipes/paper_report.py outputs/experiments/<grid>
"""

import argparse
import fcntl
import functools
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import torch
from experiment_plan import (
    Pace,
    Planned,
    changed,
    command,
    command_line,
    duration,
    earlier,
    last_checkpoint,
    plan,
    recorded_minutes,
    slurm_script,
)
from launch import PR_SET_CHILD_SUBREAPER, end_all, end_with, prctl, script_processes, seen
from run_file import UnreadableRuns, write_run

LOG = "output.log"
LAST_LINES = 15
"""Of the log of a failed run: shown, and kept in its record."""


def main(argv: Sequence[str]) -> int:
    """Check every run, then show or run them. Exit status: 1 if one failed."""
    split = list(argv).index("--") if "--" in argv else len(argv)
    args, extra = arguments(argv[:split]), list(argv[split + 1 :])
    try:
        runs, grid = plan(args.grid, args.output_dir, args.only, extra)
        args.workers = grid.workers if args.workers is None else args.workers
        gpus = visible_gpus()
        if args.workers < 1 or 0 < len(gpus) < args.workers:
            raise ValueError(f"--workers must be at least 1 and at most the GPUs, {len(gpus)}, got {args.workers}.")
        if args.print_commands:
            for run in runs:
                print(command_line(run, len(gpus) // args.workers, args.accelerate_config))
            return 0
        if args.slurm:
            return write_slurm(args, runs, extra, Pace(grid.hours))
        refused = [f"{run.name}: {found}" for run in runs if (found := changed(run))]
    except (ValueError, UnreadableRuns) as error:
        sys.exit(f"error: {error}")
    if refused and not args.again:
        sys.exit(
            "error: these runs were made with other settings than the grid has now:\n  "
            + "\n  ".join(refused)
            + "\nUndo the change, choose another --output_dir, or run them --again (what is there is moved aside)."
        )
    return Runner(args, runs, Pace(grid.hours), gpus).work()


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The runner's own arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--grid", required=True, help="name below recipes/grids/, or the path of a grid of yours")
    add("--output_dir", type=Path, help="default: outputs/experiments/<grid>")
    add("--only", default="*", metavar="PATTERN", help="cells or runs of these names: 'grpo_*', '*/seed_42'")
    add("--workers", type=int, help="runs at a time, which share the GPUs evenly; default: the grid's, else 1")
    add("--accelerate_config", help="file for accelerate launch; default: the grid's, else ddp or single_gpu")
    add("--again", action="store_true", help="run again what was made with other settings; move the old folder aside")
    add("--print_commands", action="store_true", help="print the command of each run and end")
    add("--slurm", action="store_true", help="write <output_dir>/array.sh, a job array with one run a task, and end")
    args = parser.parse_args(argv)
    args.output_dir = args.output_dir or Path("outputs", "experiments", Path(args.grid).stem)
    return args


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(number) for number in range(count)]


def cpu_variables(workers: int) -> dict[str, str]:
    """Environment of a run without a GPU; the cores are shared out."""
    threads = max(1, len(os.sched_getaffinity(0)) // workers)
    return {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}


def write_slurm(args: argparse.Namespace, runs: Sequence[Planned], extra: Sequence[str], pace: Pace) -> int:
    """Write the array script and say how to submit it."""
    args.output_dir.mkdir(parents=True, exist_ok=True)
    call = [sys.executable, str(Path(__file__).resolve()), "--grid", args.grid]
    call += ["--output_dir", str(args.output_dir)]
    call += ["--accelerate_config", args.accelerate_config] if args.accelerate_config else []
    call += ["--", *extra] if extra else []
    longest = pace.total(runs, len(runs))
    script = args.output_dir / "array.sh"
    hours = None if longest is None else longest / 60
    script.write_text(slurm_script(runs, call, args.output_dir, hours, args.workers))
    print(f"sbatch {script}")
    return 0


@dataclass
class Running:
    """A run that was started.

    Attributes:
        run (Planned): What it is.
        process (subprocess.Popen): Its process.
        lock (IO): Held as long as this runner or the process lives.
        gpus (list[str]): Of this run alone.
        begin (float): Seconds of `time.monotonic`.
        checkpoint (Path | None): What it resumes from.
    """

    run: Planned
    process: subprocess.Popen
    lock: IO[str]
    gpus: list[str]
    begin: float
    checkpoint: Path | None


class Runner:
    """Runs what is left to do, `workers` at a time."""

    def __init__(self, args: argparse.Namespace, runs: Sequence[Planned], pace: Pace, gpus: Sequence[str]) -> None:
        self.args, self.runs, self.pace = args, list(runs), pace
        share = len(gpus) // args.workers
        self.free = [list(gpus[share * n : share * (n + 1)]) for n in range(args.workers)]
        self.running: list[Running] = []
        self.waiting = list(runs)
        self.ended: dict[str, list[str]] = {"done": [], "failed": [], "stopped": [], "another runner's": []}
        self.asked: list[int] = []

    def work(self) -> int:
        """Run everything; exit status."""
        (self.args.output_dir / ".locks").mkdir(parents=True, exist_ok=True)
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # `end_all` finds what a killed launcher leaves behind
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self.stop)
        self.skip_done()
        left = duration(self.pace.total(self.waiting, self.args.workers))
        print(f"{len(self.runs)} runs, {len(self.ended['done'])} of them done; projected time of the others: {left}")
        try:
            while self.running or (self.waiting and not self.asked):
                while self.waiting and self.free and not self.asked:
                    self.start(self.waiting.pop(0))
                self.collect()
        finally:
            end_all()
        return self.summary()

    def skip_done(self) -> None:
        """Leave out what is done, and learn from it how long a run takes."""
        for run in self.runs:
            record = earlier(run)
            if record is None or record.status != "done" or changed(run):
                continue
            self.waiting.remove(run)
            self.ended["done"].append(run.name)
            if minutes := recorded_minutes(record):
                self.pace.add(record, minutes)

    def start(self, run: Planned) -> None:
        """Start a run, unless another runner has it or has done it meanwhile."""
        lock = (self.args.output_dir / ".locks" / run.name.replace("/", "_")).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return self.say(run, "another runner's")
        record, checkpoint = earlier(run), last_checkpoint(run)
        if record is not None and record.status == "done" and not changed(run):
            lock.close()
            return self.say(run, "done", "by another runner")
        if run.folder.exists() and (checkpoint is None or changed(run)):
            move_aside(run, self.args.output_dir)
            checkpoint = None
        gpus = self.free.pop()
        words = command(run, len(gpus), self.args.accelerate_config)
        words += [] if checkpoint is None else ["--resume_from_checkpoint", str(checkpoint)]
        variables = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else cpu_variables(self.args.workers)
        run.folder.mkdir(parents=True, exist_ok=True)
        with (run.folder / LOG).open("a") as log:
            process = subprocess.Popen(
                words,
                env=os.environ | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # the terminal's Ctrl-C is for the runner alone
                pass_fds=(lock.fileno(),),  # the lock outlives a runner that is killed, if the run does
                preexec_fn=functools.partial(end_with, os.getpid()),
            )
        self.running.append(Running(run, process, lock, gpus, time.monotonic(), checkpoint))
        resumed = "" if checkpoint is None else f" from {checkpoint.name}"
        print(f"{self.place()} {run.name}: started{resumed}, output in {run.folder / LOG}", flush=True)

    def collect(self) -> None:
        """Wait a moment, then take in the runs that ended."""
        if self.running:
            try:
                self.running[0].process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                pass
        for one in [one for one in self.running if one.process.poll() is not None]:
            self.running.remove(one)
            self.free.append(one.gpus)
            self.finish(one)
            one.lock.close()

    def finish(self, one: Running) -> None:
        """Say how a run ended; mark it if it failed."""
        run, record, minutes = one.run, earlier(one.run), (time.monotonic() - one.begin) / 60
        if one.process.returncode == 0 and record is not None and record.status == "done":
            if one.checkpoint is None:  # a part of a run says little
                self.pace.add(run.record, minutes)
            return self.say(run, "done", f"{minutes:.1f} min")
        if self.asked:
            return self.say(run, "stopped", f"{minutes:.1f} min")
        text = (run.folder / LOG).read_text(errors="replace")
        error = "\n".join(text.rstrip().splitlines()[-LAST_LINES:]) or f"exit status {one.process.returncode}"
        write_run(run.folder, replace(record or run.record, status="failed", error=error))
        self.say(run, "failed", f"exit status {one.process.returncode}, {minutes:.1f} min")
        print("\n".join(f"    {line}" for line in error.splitlines()), flush=True)

    def say(self, run: Planned, status: str, detail: str = "") -> None:
        """The progress line of a run that is over."""
        self.ended[status].append(run.name)
        left = duration(self.pace.total([*self.waiting, *(one.run for one in self.running)], self.args.workers))
        detail = f", {detail}" if detail else ""
        print(f"{self.place()} {run.name}: {status}{detail}; rest: {left}", flush=True)

    def place(self) -> str:
        """How many runs are over, of how many."""
        return f"[{sum(map(len, self.ended.values()))}/{len(self.runs)}]"

    def stop(self, number: int, _: Any) -> None:
        """The first signal lets the steps end with a checkpoint, the second ends the runner and all below it."""
        scripts = {one.run.script for one in self.running}
        ranks = [] if self.asked else [rank for script in scripts for rank in script_processes(script)]
        if not ranks:
            raise SystemExit(128 + number)
        self.asked.append(number)
        print("the runs end after this step, with a checkpoint; once more stops them at once", flush=True)
        for rank in ranks:
            seen(rank.terminate, None)

    def summary(self) -> int:
        """The last line, and the exit status."""
        print(", ".join(f"{len(names)} {status}" for status, names in self.ended.items() if names))
        for name in self.ended["failed"]:
            print(f"failed: {name}, see {self.args.output_dir / name / LOG}. The same command runs it again.")
        return 128 + self.asked[0] if self.asked else int(bool(self.ended["failed"]))


def move_aside(run: Planned, output_dir: Path) -> None:
    """Keep what an earlier start left, outside the folder that reports read."""
    place = output_dir.with_name(f"{output_dir.name}_earlier") / run.name
    place.parent.mkdir(parents=True, exist_ok=True)
    number = len(list(place.parent.glob(f"{place.name}_*"))) + 1
    run.folder.rename(place.with_name(f"{place.name}_{number}"))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main(sys.argv[1:]))
