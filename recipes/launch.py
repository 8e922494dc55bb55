# SPDX-License-Identifier: Apache-2.0
# python recipes/launch.py --model Qwen/Qwen3-1.7B-Base --server_gpus 0,1,2,3 --server_dp 4 --train_gpus 4,5,6,7 -- \
#     recipes/math_qwen3.py --config server_8xh100 --model qwen3_1.7b --method duet    (8 x H100 80 GB)
"""`vllm serve` with the gate on some GPUs, `accelerate launch` on the others; both end, whatever happens.

Two nodes: `--only server --host <private address>` on one, `--only train --host <that address>` on the other, with the
same DUET_SERVER_TOKEN. `--server_gpus "" --train_gpus ""` does both on the CPU. The first Ctrl-C or SIGTERM lets the
training step end with a checkpoint, the second stops at once.
"""

import argparse
import contextlib
import ctypes
import functools
import http.client
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from duet_trl.engines.guard import TOKEN_VARIABLE, WEIGHTS_VARIABLE, token_problem

GATE = "--logits-processors duet_trl.engines.vllm:DUETLogitsProcessor --logprobs-mode processed_logprobs"
GUARD = "--middleware duet_trl.engines.guard.TokenGuard"
# The development mode has the endpoints for weights; the Rust front end would not run the guard.
SERVER_VARIABLES = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_USE_RUST_FRONTEND": "0"}
# Pinned threads starve training, and the default share of the machine's memory is more than a small model needs (GiB).
CPU_VARIABLES = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
SECONDS_TO_END = 30.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
prctl = ctypes.CDLL(None).prctl
Command = tuple[list[str], dict[str, str]]  # the words, and what is added to the environment


def main(argv: list[str]) -> int:
    """Check the arguments, print the commands, run them."""
    args = parse(argv)
    with contextlib.ExitStack() as stack:
        if args.on_disk and args.weights_dir is None:
            args.weights_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="duet_weights_"))
        server = None if args.only == "train" else server_command(args)
        training = None if args.only == "server" else training_command(args)
        for title, command in ((f"server, output in {args.server_log}", server), ("training", training)):
            if command is not None:
                shown = command[1] | {TOKEN_VARIABLE: "<hidden>"}
                print(f"{title}:\n    {' '.join(f'{k}={v}' for k, v in shown.items())} {shlex.join(command[0])}")
        return 0 if args.dry_run else run(args, server, training)


def parse(argv: list[str]) -> argparse.Namespace:
    """The launcher's own arguments and, behind `--`, the script with its own."""
    split = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", help="model to serve: a name on the Hub or a folder")
    add("--server_gpus", type=lambda text: text.split(",") if text else [], help="of the server, 0,1; '': the CPU")
    add("--train_gpus", type=lambda text: text.split(",") if text else [], help="of the training; '': the CPU")
    add("--accelerate_config", help="default: recipes/accelerate/ddp.yaml; for one GPU single_gpu.yaml")
    add("--server_dp", type=int, default=1, help="copies of the model on the server's GPUs; each is tensor parallel")
    add("--server_args", type=shlex.split, default=[], help="more flags of vllm serve: --server_args='--seed 1'")
    add("--only", choices=("server", "train"), help="start one of the two, for two nodes")
    add("--host", default="127.0.0.1", help="address of the server")
    add("--port", type=int, default=8000, help="port of the server")
    add("--weights_dir", help=f"send weights through this folder, not NCCL; CPU: always, default {WEIGHTS_VARIABLE}")
    add("--server_log", type=Path, default=Path("outputs/vllm_server.log"), help="file for the server's output")
    add("--server_timeout", type=float, default=1800.0, help="seconds until the server must be ready")
    add("--dry_run", action="store_true", help="print the commands and stop")
    args = parser.parse_args(argv[:split])
    args.script = argv[split + 1 :]
    serves, trains = args.only != "train", args.only != "server"
    if serves and (args.model is None or args.server_gpus is None):
        parser.error("the server needs --model and --server_gpus ('' for the CPU)")
    if trains and (args.train_gpus is None or not args.script):
        parser.error("training needs --train_gpus ('' for the CPU) and, behind --, a script with its arguments")
    if serves and trains and (shared := {*args.server_gpus} & {*args.train_gpus}):
        parser.error(f"--server_gpus and --train_gpus share {sorted(shared)}")
    if serves and (args.server_dp < 1 or len(args.server_gpus) % args.server_dp):
        parser.error(f"--server_dp {args.server_dp} does not divide the {len(args.server_gpus)} GPUs of --server_gpus")
    args.on_disk = args.weights_dir is not None or [] in (args.server_gpus, args.train_gpus)
    args.weights_dir = args.weights_dir or os.environ.get(WEIGHTS_VARIABLE)
    if args.on_disk and args.weights_dir is None and args.only is not None:
        parser.error("on a CPU weights go through a folder: name one that both sides see with --weights_dir")
    args.token = os.environ.get(TOKEN_VARIABLE, "")
    if args.only is None and args.host in ("127.0.0.1", "::1", "localhost"):
        args.token = args.token or secrets.token_urlsafe(32)  # both sides start here, no other machine is let in
    if problem := token_problem(args.token):
        parser.error(problem)
    return args


def server_command(args: argparse.Namespace) -> Command:
    """`vllm serve` with the gate, the guard and the way the weights come."""
    variables, size = SERVER_VARIABLES, f"--tensor-parallel-size {len(args.server_gpus) // args.server_dp}"
    size += f" --data-parallel-size {args.server_dp}" if args.server_dp > 1 else ""
    if not args.server_gpus:
        size = "--dtype float32 --enforce-eager"
        variables = variables | {name: value for name, value in CPU_VARIABLES.items() if name not in os.environ}
    weights = "" if args.on_disk else """--weight-transfer-config '{"backend": "nccl"}'"""
    words = [sys.executable, *shlex.split("-m vllm.entrypoints.cli.main serve"), args.model]
    words += shlex.split(f"--host {args.host} --port {args.port} {size} {GATE} {GUARD} {weights}")
    return [*words, *args.server_args], environment(args, args.server_gpus) | variables


def training_command(args: argparse.Namespace) -> Command:
    """The script under `accelerate launch`, on a CPU plain Python, with the server's address."""
    count, words, variables = len(args.train_gpus), [sys.executable], environment(args, args.train_gpus)
    if count:
        default = Path(__file__).parent / "accelerate" / ("ddp.yaml" if count > 1 else "single_gpu.yaml")
        words += shlex.split(f"-m accelerate.commands.launch --num_processes {count} --config_file")
        words.append(args.accelerate_config or str(default))
    else:
        variables["ACCELERATE_USE_CPU"] = "true"
    words += [*args.script, *shlex.split(f"--use_vllm true --vllm_mode server --vllm_server_host {args.host}")]
    words += ["--vllm_server_port", str(args.port), "--vllm_enable_sleep_mode", "false"]
    return words + (["--server_weight_sync", "disk"] if args.on_disk else []), variables


def environment(args: argparse.Namespace, gpus: list[str]) -> dict[str, str]:
    """What both sides need. The token stands nowhere else: `ps` shows arguments."""
    variables = {"CUDA_VISIBLE_DEVICES": ",".join(gpus), TOKEN_VARIABLE: args.token}
    if args.on_disk:
        variables[WEIGHTS_VARIABLE] = os.path.abspath(args.weights_dir)
    if "VLLM_HOST_IP" not in os.environ:
        # Where vLLM and the rendezvous of NCCL listen: by default the interface that leads to the internet.
        try:
            with socket.socket(socket.AF_INET6 if ":" in args.host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((args.host, 9))  # sends nothing
                variables["VLLM_HOST_IP"] = probe.getsockname()[0]
        except OSError as error:
            sys.exit(f"error: no network leads to {args.host}: {error}. Correct the address.")
    return variables


def run(args: argparse.Namespace, server: Command | None, training: Command | None) -> int:
    """Start the server, wait until it is ready, start the training, end both. Exit status of the last one started."""
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what children leave behind becomes a child of this process
    asked: list[int] = []

    def stop(number: int, _: object) -> None:
        ranks = [] if asked or training is None else script_processes(args.script[0])
        if not ranks:
            raise SystemExit(128 + number)
        asked.append(number)
        print("launch: the training ends after this step, with a checkpoint; once more stops it at once", flush=True)
        for rank in ranks:
            seen(rank.terminate, None)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        serving = None if server is None else start(server, args.server_log)
        wait_for_server(args, serving)
        last = serving if training is None else start(training)
        while last.poll() is None:
            if last is not serving and serving is not None and serving.poll() is not None:
                sys.exit(f"error: the server died under the training.\n{tail(args.server_log)}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                last.wait(timeout=0.5)
        return last.returncode if last.returncode >= 0 else 128 - last.returncode  # as a shell reports a signal
    finally:
        end_all()


def start(command: Command, log: Path | None = None) -> subprocess.Popen:
    """Start it in a session of its own, which the terminal's Ctrl-C does not reach; it ends with this process."""
    output = None
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        output = log.open("w")
    return subprocess.Popen(
        command[0],
        env=os.environ | command[1],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=functools.partial(end_with, os.getpid()),
    )


def end_with(parent: int) -> None:
    """Have this process told when its parent ends, even if the parent is killed and cannot tell it."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it was killed before that
        os.kill(os.getpid(), signal.SIGTERM)


def wait_for_server(args: argparse.Namespace, serving: subprocess.Popen | None) -> None:
    """Ask for /health until it answers. Never through a proxy, which would see the token."""
    address, deadline, status = (args.host, args.port), time.monotonic() + args.server_timeout, 0
    while status != 200:
        if serving is not None and serving.poll() is not None:
            sys.exit(f"error: the server ended before it was ready.\n{tail(args.server_log)}")
        if status == 401:
            sys.exit(f"error: the server at {address} has another token than this environment.")
        if time.monotonic() > deadline:
            sys.exit(f"error: no server at {address} after {args.server_timeout:.0f} s; see --server_timeout.")
        time.sleep(0.5)
        with contextlib.closing(http.client.HTTPConnection(*address, timeout=5)) as connection:
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("GET", "/health", headers={"Authorization": f"Bearer {args.token}"})
                status = connection.getresponse().status
    print(f"launch: the server at {address} is ready", flush=True)


def script_processes(script: str) -> list[psutil.Process]:
    """Those that run the script: neither their launchers, which would cut the step short, nor their workers."""
    found = {process.pid: process for process in below() if script in seen(process.cmdline, [])[1:3]}
    return [process for process in found.values() if seen(process.ppid, 0) not in found]


def below() -> list[psutil.Process]:
    """Processes that descend from this one and have not ended."""
    found = psutil.Process().children(recursive=True)
    return [process for process in found if seen(process.status, psutil.STATUS_ZOMBIE) != psutil.STATUS_ZOMBIE]


def seen(question: Callable[[], Any], ended: Any) -> Any:
    """What a process answers, or `ended` if it has ended meanwhile."""
    try:
        return question()
    except psutil.NoSuchProcess:
        return ended


def end_all() -> None:
    """End every process below this one: the two children politely, after half a minute all of them by force."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for child in psutil.Process().children():
        seen(child.terminate, None)
    deadline = time.monotonic() + SECONDS_TO_END
    while left := below():
        for process in left if time.monotonic() > deadline else ():
            seen(process.kill, None)
        time.sleep(0.1)


def tail(log: Path) -> str:
    return "\n".join([f"The end of {log}:", *log.read_text(errors="replace").splitlines()[-30:]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
