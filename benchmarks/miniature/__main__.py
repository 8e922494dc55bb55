# SPDX-License-Identifier: Apache-2.0
# python -m benchmarks.miniature                   everything: 20 seeds of GRPO at 100% and DUET at 50% (5 hours)
# python -m benchmarks.miniature --task products   on a task of another shape, at 3 seeds
# python -m benchmarks.miniature --arms grpo_100,duet_50 --seeds 100-101 --profile fast            (quarter of an hour)
# python -m benchmarks.miniature --arms duet_50 --seeds 100-104 --name wide --overrides '{"num_rollouts_max": 32}'
"""DUET against GRPO on a tiny task, on real vLLM, over seeds, at equal optimizer steps.

Cells (an arm and a seed) run in processes of their own, two side by side on two cores, the arms of a seed one after
the other, so that a busy machine hurts all alike. Each finished cell is one line of a file: an interrupted run goes
on where it was. The table is printed at the end, or at once with --report.
"""

import argparse
import concurrent.futures
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.miniature.arms import ARMS, seeds_of
from benchmarks.miniature.cell import PROFILES
from benchmarks.miniature.report import write_report
from benchmarks.miniature.tasks import MATH, TASKS
from recipes.tiny_math.cpu import ENVIRONMENT

RECORDS = Path("outputs/bench/miniature")
GUESS = {"full": 420.0, "fast": 110.0, "smoke": 40.0}
"""Seconds of a cell before any has finished."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default=MATH.name)
    parser.add_argument("--arms", default=",".join(ARMS), help="separated by commas; by default all")
    parser.add_argument(
        "--seeds",
        help="such as 0-19 or 3,5; by default 0-19 for the headline and 0-2 for the others; decisions are made on "
        "others: 100 and up",
    )
    parser.add_argument("--profile", choices=PROFILES, default="full")
    parser.add_argument("--overrides", type=json.loads, default={}, help="JSON: fields that an experiment changes")
    parser.add_argument("--name", default="", help="of the experiment, where --overrides are given")
    parser.add_argument("--jobs", type=int, default=2, help="cells side by side")
    parser.add_argument("--report", action="store_true", help="only print what there is")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--check", action="store_true", help="exit with an error if a target is missed")
    args = parser.parse_args()
    args.arms = args.arms.split(",")
    unknown = [arm for arm in args.arms if arm not in ARMS]
    if unknown:
        parser.error(f"unknown arms {', '.join(unknown)}. Choose of {', '.join(ARMS)}.")
    if bool(args.overrides) != bool(args.name):
        parser.error("--overrides and --name belong together: an experiment has a name.")
    if args.name.partition("_")[0] in TASKS:
        parser.error(f"--name {args.name} begins like a task, whose records it would be taken for.")
    args.cells = planned(args)
    return args


def planned(args: argparse.Namespace) -> list[tuple[str, int]]:
    """Cells that were asked for, all arms of a seed before those of the next."""
    if args.seeds is None:
        cells = [(arm, seed) for arm in args.arms for seed in seeds_of(arm, args.task == MATH.name)]
    else:
        first, _, last = args.seeds.partition("-")
        seeds = range(int(first), int(last) + 1) if last else [int(seed) for seed in args.seeds.split(",")]
        cells = [(arm, seed) for arm in args.arms for seed in seeds]
    return sorted(cells, key=lambda cell: cell[1])


def read_records(path: Path) -> list[dict[str, Any]]:
    """Finished cells; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def label(args: argparse.Namespace) -> str:
    """What tells the records of a task and an experiment from others of the profile; empty for neither."""
    return "_".join(part for part in ("" if args.task == MATH.name else args.task, args.name) if part)


_given: set[int] = set()


def free_port() -> int:
    """A port for an engine that no other cell of this run was given: two that start together would find the same."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if port not in _given:
            _given.add(port)
            return port


def run_cell(arm: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """One cell in a process of its own.

    Raises:
        RuntimeError: If it fails; the text has the end of its output.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "record.json")
        command = [sys.executable, "-m", "benchmarks.miniature.cell", arm, str(seed), args.profile, str(output)]
        done = subprocess.run(
            [*command, "--task", args.task, "--overrides", json.dumps(args.overrides)],
            env=ENVIRONMENT | os.environ | {"MASTER_PORT": str(free_port())},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{arm}, seed {seed} failed:\n{done.stdout[-3000:]}")
        return json.loads(output.read_text())


def run_all(args: argparse.Namespace, path: Path) -> None:
    """Run what is not on record yet; each finished cell is written at once."""
    records = read_records(path)
    done = {(record["arm"], record["seed"]) for record in records}
    wanted = [cell for cell in args.cells if cell not in done]
    known = [record["seconds"] for record in records if record["arm"] in args.arms]
    each = statistics.median(known) if known else GUESS[args.profile]
    basis = f"{len(known)} finished ones" if known else "a guess"
    print(f"{len(wanted)} cells to run, {len(args.cells) - len(wanted)} on record in {path}")
    print(f"about {len(wanted) * each / args.jobs / 3600:.1f} hours ({each:.0f} s a cell, from {basis})", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        running = {pool.submit(run_cell, arm, seed, args): (arm, seed) for arm, seed in wanted}
        for number, future in enumerate(concurrent.futures.as_completed(running), start=1):
            record = future.result()
            with path.open("a") as lines:
                lines.write(json.dumps(record) + "\n")
            arm, seed = running[future]
            print(f"[{number}/{len(wanted)}] {arm}, seed {seed}: {record['seconds']:.0f} s", flush=True)


def main() -> None:
    """Run, then report."""
    args = arguments()
    name = label(args)
    path = RECORDS / f"{'_'.join(filter(None, (args.profile, name)))}.jsonl"
    if not args.report:
        run_all(args, path)
    records = [r for r in read_records(path) if (r["arm"], r["seed"]) in args.cells]
    if not records:
        sys.exit(f"no finished cell of these arms and seeds in {path}")
    title = "".join(f"_{part}" for part in ("" if args.profile == "full" else args.profile, name) if part)
    missed = write_report(records, title, args.markdown)
    if args.check and missed:
        sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
