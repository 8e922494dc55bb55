# SPDX-License-Identifier: Apache-2.0
"""What tests of several processes need: their command, their environment, and how they end."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


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
