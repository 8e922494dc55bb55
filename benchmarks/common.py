# SPDX-License-Identifier: Apache-2.0
"""What every benchmark needs beside `duet_trl.report`: its arguments and a result file."""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from duet_trl.methods.duet_settings import DuetOptions

ROOT = Path(__file__).parents[1]
RESULTS = Path("outputs/bench")
OPTIONS = frozenset(option.name for option in fields(DuetOptions))


def argument_parser(description: str) -> argparse.ArgumentParser:
    """A parser with the arguments that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="exit with an error if a target is missed")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def grouped(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a configuration from fields and options of `duet` side by side; the options go to `method_kwargs`."""
    options = {name: value for name, value in values.items() if name in OPTIONS}
    rest = {name: value for name, value in values.items() if name not in OPTIONS}
    return rest | ({"method_kwargs": rest.get("method_kwargs", {}) | options} if options else {})


def open_engine(path: Path, max_model_length: int, seed: int = 0) -> Any:
    """vLLM (`vllm.LLM`) in this process for a tiny policy, in float32, with room for so many tokens."""
    from vllm import LLM

    return LLM(
        str(path),
        dtype="float32",
        max_model_len=max_model_length,
        seed=seed,
        enforce_eager=True,
        gpu_memory_utilization=0.2,
        logprobs_mode="processed_logprobs",  # of the distribution that is sampled
    )


def write_result(name: str, payload: dict[str, Any]) -> Path:
    """Write the figures of a benchmark to outputs/bench/<name>.json, which is never there in part."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(payload, indent=2) + "\n")
    partial.replace(path)
    return path


def python_command(processes: int) -> list[str]:
    """The interpreter, or torchrun before so many processes of it.

    `accelerate launch --cpu --num_processes 2` silently starts one process.
    """
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    return [sys.executable, *torchrun * (processes > 1)]


def process_environment() -> dict[str, str]:
    """Environment of processes that train on CPUs, one thread each, and import this checkout."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def leave() -> None:
    """End a process of a group without taking the group apart.

    torch waits for gloo's thread when the model is freed at the end, with the interpreter's lock that the same thread
    may need to free the tensors of its last collective: now and then a process hangs there.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
