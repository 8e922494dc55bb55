# SPDX-License-Identifier: Apache-2.0
"""Makes runs, each in a process of its own, several side by side."""

import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from recipes.tiny_math.cpu import ENVIRONMENT

from .cell import run as run_here
from .entrants import REFERENCE
from .profiles import PROFILES
from .records import Run, append
from .schedule import Cell, Plan, hours, ready


class FailedRun(RuntimeError):
    """A run ended with an error."""


def run_all(
    plan: Plan, runs: list[Run], profile: str, path: Path, jobs: int, minutes: float | None = None
) -> list[Cell]:
    """Make every run of a plan that is not on record; each finished one is written at once.

    Args:
        plan (Plan): What is asked for.
        runs (list[Run]): Finished ones; those that follow are added.
        profile (str): Its profile's name.
        path (Path): The records.
        jobs (int): Runs side by side.
        minutes (float | None): No run starts later than that.

    Returns:
        list[Cell]: Runs that failed. The others go on; asked for again, a failed one is tried again.
    """
    # The processes of the runs inherit it; torch and vLLM read it when they are imported.
    os.environ.update(ENVIRONMENT | os.environ)
    began = time.monotonic()
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
                left = hours(plan, runs, jobs)[0] - len(failed)
                if left and not late:
                    print(
                        f"{left} runs wait for what this call leaves out: the tuning of their entrants, or runs of "
                        f"{REFERENCE} with their seeds. Ask for these too, with --stages and --entrants.",
                        flush=True,
                    )
                return failed
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell = running.pop(future)
                try:
                    run = future.result()
                except FailedRun as error:
                    failed.append(cell)
                    print(f"FAILED {cell}: {str(error)[-3000:]}", flush=True)
                    continue
                append(path, run)
                runs.append(run)
                last = run.measurements[-1]
                right = sum(last.last) / last.samples / len(last.last)
                print(f"{cell}: {right:.3f}, {last.generated_tokens / 1e3:.0f}k tokens, {run.took:.0f} s", flush=True)


def run_cell(cell: Cell, profile: str, folder: Path) -> Run:
    """One run in a process of its own.

    Raises:
        FailedRun: If it fails, with what it wrote.
    """
    with tempfile.TemporaryDirectory() as scratch:
        output, log = Path(scratch, "run.json"), Path(scratch, "log.txt")
        process = _CONTEXT.Process(target=_child, args=(cell, profile, folder, output, log))
        process.start()
        process.join()
        if process.exitcode != 0:
            raise FailedRun(f"exit status {process.exitcode}\n{log.read_text() if log.exists() else ''}")
        return Run.from_json(output.read_text())


def _child(cell: Cell, profile: str, folder: Path, output: Path, log: Path) -> None:
    with log.open("w") as written:
        os.dup2(written.fileno(), sys.stdout.fileno())
        os.dup2(written.fileno(), sys.stderr.fileno())
    output.write_text(run_here(cell, PROFILES[profile], folder).to_json())


# The server imports once what takes every run fifteen seconds, and forks. It has no threads yet, and no engine.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "benchmarks.arena.measuring",
        "benchmarks.arena.tasks",
        "duet_trl.trainer",
        "vllm.entrypoints.llm",
        "vllm.model_executor.models.qwen3",
        "vllm.v1.worker.cpu_worker",
        "datasets",
    ]
)
