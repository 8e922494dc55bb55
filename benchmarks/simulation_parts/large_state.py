# SPDX-License-Identifier: Apache-2.0
"""What a pool of ten million prompts takes: memory, time of a step, and a checkpoint.

Run as a program, so that the peak memory is its own: METHOD and PROMPTS are its arguments.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from duet_trl.allocate.statistics import PromptStatistics
from duet_trl.report.simulate import method_of
from duet_trl.seams.checkpoint import ARRAYS_FILE, STATE_FILE, read_state, write_state
from duet_trl.simulation.course import Course, peak_memory
from duet_trl.simulation.population import Population

BATCH, GENERATIONS, LIMIT = 128, 8, 3072
FILLED = 100_000
"""Prompts that are filled in at a time."""
STEPS = 40


def statistics_of(method: Any) -> PromptStatistics:
    """Where a method remembers prompts."""
    return method.allocator.statistics if "allocator" in vars(method) else method.statistics


def fill(method: Any, name: str, num_prompts: int) -> None:
    """Every prompt has been visited once, with one rollout: what the method keeps of it, in every column it uses."""
    statistics, random, place = statistics_of(method), np.random.default_rng(0), np.arange(FILLED)
    everything = np.ones(FILLED, dtype=bool)
    for first in range(0, num_prompts, FILLED):
        keys = [str(number) for number in range(first, first + FILLED)]
        length = random.integers(100, LIMIT, FILLED)
        statistics.observe_lengths(keys, place, length, length, everything)
        statistics.observe_rewards(keys, place, random.integers(0, 2, FILLED).astype(np.float64), everything)
        if name == "paper":
            statistics.observe_sigma(keys, random.lognormal(3.0, 1.0, FILLED))


def measure(name: str, num_prompts: int) -> dict[str, Any]:
    """Figures of a method whose pool has been seen; bytes, seconds."""
    sizes = SimpleNamespace(
        num_generations=GENERATIONS, batch=BATCH, max_completion_length=LIMIT, budget_fraction=None, seed=0
    )
    method, restored = method_of(name, sizes), method_of(name, sizes)
    memory = [peak_memory()]
    fill(method, name, num_prompts)
    memory.append(peak_memory())
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter(), time.process_time()
        write_state(Path(folder), method.state_dict(), {})
        write = time.perf_counter() - begin[0], time.process_time() - begin[1]
        memory.append(peak_memory())
        size = sum((Path(folder) / one).stat().st_size for one in (STATE_FILE, ARRAYS_FILE))
        # The first writes into blocks that the checkpoint held copy them.
        course = Course(method, Population(num_prompts, LIMIT, STEPS), BATCH)
        begin = time.perf_counter(), 0.0
        for _ in course.run(STEPS):
            pass
        wall = (time.perf_counter() - begin[0]) / STEPS
        del method, course.method
        begin = time.perf_counter(), 0.0
        restored.load_state_dict(read_state(Path(folder), {}))
        read = time.perf_counter() - begin[0]
    return {
        "method": name,
        "prompts": num_prompts,
        "libraries_bytes": memory[0],
        "state_bytes": memory[1] - memory[0],
        "state_bytes_with_checkpoint": memory[2] - memory[0],
        "step_seconds": float(np.median(course.seconds)),
        "longest_step_seconds": max(course.seconds),
        "simulated_step_wall_seconds": wall,
        "checkpoint_seconds": write[0],
        "checkpoint_processor_seconds": write[1],
        "checkpoint_bytes": size,
        "restore_seconds": read,
        "restored_prompts": len(statistics_of(restored)),
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
