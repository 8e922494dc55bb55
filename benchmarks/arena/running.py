# SPDX-License-Identifier: Apache-2.0
"""Makes runs, each in a process of its own, several side by side."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path

from recipes.tiny_math.cpu import ENVIRONMENT

from .records import Run, append, read
from .schedule import Cell, Plan, ready


def run_all(plan: Plan, profile: str, path: Path, jobs: int, minutes: float | None = None) -> list[Cell]:
    """Make every run of a plan that is not on record; each finished one is written at once.

    Args:
        plan (Plan): What is asked for.
        profile (str): Its profile's name.
        path (Path): The records.
        jobs (int): Runs side by side.
        minutes (float | None): No run starts later than that.

    Returns:
        list[Cell]: Runs that failed. The others go on; asked for again, a failed one is tried again.
    """
    began, runs = time.monotonic(), read(path)
    running: dict[Future, Cell] = {}
    failed: list[Cell] = []
    folder = path.parent / "checkpoints" / profile
    with ThreadPoolExecutor(jobs) as pool:
        while True:
            taken = {cell.key for cell in (*running.values(), *failed)}
            late = minutes is not None and time.monotonic() - began > 60 * minutes
            waiting = [] if late else [cell for cell in ready(plan, runs) if cell.key not in taken]
            for cell in waiting[: jobs - len(running)]:
                running[pool.submit(run_cell, cell, profile, folder)] = cell
            if not running:
                return failed
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell = running.pop(future)
                try:
                    run = future.result()
                except subprocess.CalledProcessError as error:
                    failed.append(cell)
                    print(f"FAILED {cell}\n{error.stdout[-3000:]}", flush=True)
                    continue
                append(path, run)
                runs.append(run)
                last = run.measurements[-1]
                right = sum(last.last) / last.samples / len(last.last)
                print(f"{cell}: {right:.3f}, {last.generated_tokens / 1e3:.0f}k tokens, {run.took:.0f} s", flush=True)


def run_cell(cell: Cell, profile: str, folder: Path) -> Run:
    """One run in a process of its own.

    Raises:
        subprocess.CalledProcessError: If it fails; `stdout` has all it wrote.
    """
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch, "run.json")
        command = [sys.executable, "-m", "benchmarks.arena.cell", json.dumps(asdict(cell)), profile, str(output)]
        subprocess.run(
            [*command, "--checkpoints", str(folder)],
            env=ENVIRONMENT | os.environ | {"MASTER_PORT": str(_free_port())},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
        return Run.from_json(output.read_text())


_given: set[int] = set()


def _free_port() -> int:
    """A port that no other run of this arena was given: two that start together would find the same."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if port not in _given:
            _given.add(port)
            return port
