# SPDX-License-Identifier: Apache-2.0
"""Scripts in processes of their own: in an interpreter, or forked from a server that has made their imports.

TRL with vLLM takes ten to fifteen seconds of a processor to import, most of what a run of two small steps takes. The
server has no engine yet, and no threads. What libraries read from the environment while they are imported is what the
tests have; a script that is tested for that, or for its imports, needs an interpreter.
"""

import importlib.util
import json
import multiprocessing
import os
import random
import runpy
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
IMPORTED = ("tests.runs", "peft")
IMPORTED_OF_VLLM = (
    *("vllm.entrypoints.llm", "vllm.entrypoints.cli.serve", "vllm.entrypoints.openai.api_server"),
    *("vllm.model_executor.models.qwen3", "vllm.v1.worker.cpu_worker"),
)
_CONTEXT = multiprocessing.get_context("forkserver")


def fresh(
    arguments: Sequence[str], *, cwd: Path = ROOT, env: Mapping[str, str] | None = None, timeout: float = 500
) -> subprocess.CompletedProcess[str]:
    """Run a script in an interpreter of its own.

    Args:
        arguments: `-c` and code, or the path of a script; then what it gets.
        cwd: Where it runs.
        env: Its whole environment; None is that of this process, with this checkout to import.
        timeout: Seconds.

    Raises:
        subprocess.TimeoutExpired: If it takes longer; it is killed.
    """
    command, env = [sys.executable, *arguments], env or _environment()
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout)


def forked(
    arguments: Sequence[str],
    *,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    timeout: float = 500,
    processes: int = 1,
) -> subprocess.CompletedProcess[str]:
    """Like `fresh`, with the imports made.

    Args:
        arguments, cwd, env, timeout: As there.
        processes: That many of one group, as torchrun starts them. The first that fails ends all.
    """
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for environment in _group(dict(env or _environment()), processes):
            streams = [str(Path(folder) / f"{name}{len(started)}") for name in ("stdout", "stderr")]
            started.append(launched(arguments, cwd, environment, streams))
        until = time.monotonic() + timeout
        while (running := [process for process in started if process.exitcode is None]) and time.monotonic() < until:
            if any(process.exitcode for process in started):
                break
            wait([process.sentinel for process in running], until - time.monotonic())
        status = next((process.exitcode for process in started if process.exitcode), 0)
        for process in running:
            process.kill()
            process.join()
        if running and not status:
            raise subprocess.TimeoutExpired(list(arguments), timeout)
        stdout, stderr = (
            "".join(path.read_text() for path in sorted(Path(folder).glob(pattern)))
            for pattern in ("stdout*", "stderr*")
        )
    return subprocess.CompletedProcess(list(arguments), status, stdout, stderr)


def launched(
    arguments: Sequence[str], cwd: Path, env: Mapping[str, str], streams: Sequence[str], session: bool = False
) -> BaseProcess:
    """A process that was forked, running a script.

    Args:
        arguments, cwd, env: As for `fresh`.
        streams: Files for stdout and stderr.
        session: It leads a process group of its own.
    """
    imported = IMPORTED + IMPORTED_OF_VLLM * (importlib.util.find_spec("vllm") is not None)
    _CONTEXT.set_forkserver_preload(list(imported))  # of effect once, at the first process
    child = (list(arguments), str(cwd), dict(env), list(streams), imported, session)
    process = _CONTEXT.Process(target=_child, args=child)
    process.start()
    return process


def fork_workers() -> None:
    """From now on vLLM's engines fork their processes; on a CPU it starts interpreters, which import it all again."""
    for name in ("engine.utils", "engine.coordinator", "executor.multiproc_executor"):
        module = importlib.import_module(f"vllm.v1.{name}")
        module.get_mp_context = lambda: multiprocessing.get_context("fork")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def _group(environment: dict[str, str], processes: int) -> list[dict[str, str]]:
    """The environment of each process of a group."""
    if processes == 1:
        return [environment]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(processes))
    return [environment | shared | dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)) for rank in range(processes)]


def _child(
    arguments: list[str],
    cwd: str,
    environment: dict[str, str],
    streams: list[str],
    imported: Sequence[str],
    session: bool,
) -> None:
    if session:
        os.setsid()
    for descriptor, path in enumerate(streams, start=1):
        with open(path, "a") as stream:
            os.dup2(stream.fileno(), descriptor)
    missing = [name for name in imported if name not in sys.modules]
    assert not missing, f"the server that forks has not imported {missing}"
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")


def free_port() -> int:
    """A port to listen on, also again later: below those that the system gives to connections, which would take it."""
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port := random.SystemRandom().randrange(10_000, 32_768)))
            except OSError:  # somebody listens there
                continue
            return port


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


def report(folder: Path, found: Any) -> None:
    """Write what this process has found to `rank0.json`, `rank1.json` ..., and leave the group if there is one."""
    rank = os.environ.get("RANK", "0")
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        leave()


def leave() -> None:
    """End a process of a group without taking the group apart.

    torch waits for gloo's thread when the model is freed at the end, with the interpreter's lock that the same thread
    may need to free the tensors of its last collective: now and then a process hangs there.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
