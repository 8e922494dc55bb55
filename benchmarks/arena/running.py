# SPDX-License-Identifier: Apache-2.0
"""Makes runs one after the other, each in a separate process, with all cores."""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from .cell import run as run_here
from .profiles import PROFILES
from .records import Run, append
from .schedule import Asked, Cell, Plan, ready

ENVIRONMENT = {
    "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),  # without a number vLLM would leave torch a single thread
    # vLLM would otherwise pin its threads to cores that training uses as well.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the default reserves a share of the machine's memory
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in the training process
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}


def run_all(asked: Asked, runs: list[Run], plan: Plan, profile: str, path: Path, minutes: float | None) -> list[Cell]:
    """Make every run that is asked for and not on record; each finished one is written at once.

    Args:
        asked (Asked): What is asked for.
        runs (list[Run]): Finished ones; those that follow are added.
        plan (Plan): Of reported runs.
        profile (str): Its profile's name.
        path (Path): The records.
        minutes (float | None): No run starts later than that.

    Returns:
        list[Cell]: Runs that failed. The others continue; asked for again, a failed one is tried again.
    """
    began, failed = time.monotonic(), []
    while minutes is None or time.monotonic() - began < 60 * minutes:
        tried = {cell.key for cell in failed}
        waiting = [cell for cell in ready(asked, runs, plan) if cell.key not in tried]
        if not waiting:
            break
        cell = waiting[0]
        print(f"==> {cell}", flush=True)
        run = run_cell(cell, profile)
        if run is None:
            failed.append(cell)
            print(f"FAILED {cell}", flush=True)
            continue
        append(path, run)
        runs.append(run)
        last = run.measurements[-1]
        scores = ", ".join(f"{k} {s.accuracy:.3f}" for k, s in last.servings.items())
        print(f"{cell}: {scores}, {last.generated_tokens / 1e3:.1f}k tokens, {run.took:.0f} s", flush=True)
    return failed


def run_cell(cell: Cell, profile: str) -> Run | None:
    """One run in a separate process, which prints meanwhile; None if it fails."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch, "run.json")
        command = [sys.executable, "-m", __name__, json.dumps(asdict(cell)), profile, str(output)]
        subprocess.run(command, env=ENVIRONMENT | os.environ, check=False)
        return Run.from_json(output.read_text()) if output.exists() else None


if __name__ == "__main__":
    about, chosen, place = sys.argv[1:]
    Path(place).write_text(run_here(Cell(**json.loads(about)), PROFILES[chosen]).to_json())
