# SPDX-License-Identifier: Apache-2.0
# python recipes/launch.py --model Qwen/Qwen3-1.7B-Base --server_gpus 0-3 --server_dp 4 --train_gpus 4-7 -- \
#     recipes/math_qwen3.py --config recipes/configs/math_qwen3_1.7b_duet_50_8xh100_server.yaml    (8 x H100 80 GB)
"""Serves the policy with vLLM on some GPUs of a node and trains on the others; on two nodes, one serves, one trains:

    node 0:  python recipes/launch.py --only server --host <private address> --model <model> --server_gpus 0-7
    node 1:  python recipes/launch.py --only train --server_host <private address> --train_gpus 0-7 -- <script> ...

with the same DUET_SERVER_TOKEN in both environments. `--server_gpus "" --train_gpus ""` does both on the CPU. Behind
its own arguments the script gets `--use_vllm true --vllm_mode server` and the server's address. The first Ctrl-C or
SIGTERM lets the training step end with a checkpoint, the second stops at once; no process is left behind.
"""

import argparse
import contextlib
import ipaddress
import json
import os
import re
import secrets
import shlex
import socket
import sys
import tempfile
from pathlib import Path

import yaml
from processes import Command, Run

from duet_trl.engines.guard import TOKEN_VARIABLE, WEIGHTS_VARIABLE, token_problem

ACCELERATE = Path(__file__).parent / "accelerate"
SERVE = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]
GATE = ["--logits-processors", "duet_trl.engines.vllm:DUETLogitsProcessor"]
GUARD = ["--middleware", "duet_trl.engines.guard.TokenGuard"]
# The development mode has the endpoints for weights; the Rust front end would not run the guard.
SERVER_VARIABLES = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_USE_RUST_FRONTEND": "0"}
# Pinned threads starve training, and the default share of the machine's memory is more than a small model needs (GiB).
CPU_VARIABLES = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}


def main(argv: list[str]) -> int:
    """Check the arguments, print the commands, run them."""
    args = parse(argv)
    token = token_for(args)
    with contextlib.ExitStack() as stack:
        if args.on_disk and args.weights_dir is None:
            args.weights_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="duet_weights_"))
        serve = None if args.only == "train" else server_command(args, token)
        train = None if args.only == "server" else training_command(args, token)
        for title, command in ((f"server, output in {args.server_log}", serve), ("training", train)):
            if command is not None:
                print(f"{title}:\n    {command.shown(hidden=TOKEN_VARIABLE)}", flush=True)
        if args.dry_run:
            return 0
        address = (args.host if serve else args.server_host or args.host, args.port)
        run = Run(serve, train, address, token, args.server_log, args.server_timeout, args.server_restarts)
        return run(script=args.script[0] if train else "")


def parse(argv: list[str]) -> argparse.Namespace:
    """The launcher's own arguments and, behind `--`, the script with its own."""
    split = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", help="model to serve: a name on the Hub or a folder")
    add("--server_gpus", type=gpu_list, help="GPUs of the server, e.g. 0,1 or 0-1; '' for the CPU")
    add("--train_gpus", type=gpu_list, help="GPUs of the training; '' for the CPU")
    add("--accelerate_config", type=Path, help="default: recipes/accelerate/ddp.yaml; for one GPU single_gpu.yaml")
    add("--server_dp", type=int, default=1, help="copies of the model on the server's GPUs; each is tensor parallel")
    add("--server_args", type=shlex.split, default=[], help="more flags of vllm serve: --server_args='--seed 1'")
    add("--only", choices=("server", "train"), help="start one of the two, for two nodes")
    add("--host", default="127.0.0.1", help="address the server listens on")
    add("--port", type=int, default=8000, help="port the server listens on")
    add("--server_host", help="address of the server as training sees it; default: --host")
    add(
        "--weights_dir",
        help=f"send weights through this folder, not NCCL. On a CPU always; default {WEIGHTS_VARIABLE}",
    )
    add("--server_log", type=Path, default=Path("outputs/vllm_server.log"), help="file for the server's output")
    add("--server_timeout", type=float, default=1800.0, help="seconds until the server must be ready")
    add("--server_restarts", type=int, default=3, help="how often a server that dies under the training is restarted")
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
    return args


def gpu_list(text: str) -> list[str]:
    """GPUs as CUDA_VISIBLE_DEVICES takes them; 2-7 stands for 2,3,4,5,6,7."""
    gpus: list[str] = []
    for part in filter(None, text.split(",")):
        span = re.fullmatch(r"(\d+)-(\d+)", part)
        gpus += map(str, range(int(span[1]), int(span[2]) + 1)) if span else [part]
    return gpus


def token_for(args: argparse.Namespace) -> str:
    """The token of the environment; a new one only where both sides start here and no other machine is let in."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token and args.only is None and is_loopback(args.host):
        return secrets.token_urlsafe(32)
    if problem := token_problem(token):
        sys.exit(f"error: {problem}")
    return token


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address. A name other than localhost may lead anywhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def server_command(args: argparse.Namespace, token: str) -> Command:
    """`vllm serve` with the gate, the guard and the way the weights come."""
    variables = common_variables(args, args.server_gpus, token, args.host) | SERVER_VARIABLES
    size = ["--tensor-parallel-size", str(max(1, len(args.server_gpus) // args.server_dp))]
    size += ["--data-parallel-size", str(args.server_dp)] if args.server_dp > 1 else []
    if not args.server_gpus:
        size = ["--dtype", "float32", "--enforce-eager"]
        variables |= {name: value for name, value in CPU_VARIABLES.items() if name not in os.environ}
    rest = ["--logprobs-mode", "processed_logprobs"]
    rest += [] if args.on_disk else ["--weight-transfer-config", json.dumps({"backend": "nccl"})]
    address = ["--host", args.host, "--port", str(args.port)]
    return Command([*SERVE, args.model, *address, *size, *GATE, *GUARD, *rest, *args.server_args], variables)


def training_command(args: argparse.Namespace, token: str) -> Command:
    """The script under `accelerate launch`, or under plain Python on a CPU, with the server's address."""
    host, count = args.server_host or args.host, len(args.train_gpus)
    variables = common_variables(args, args.train_gpus, token, host)
    launcher = [sys.executable]
    if count:
        config = args.accelerate_config or ACCELERATE / ("ddp.yaml" if count > 1 else "single_gpu.yaml")
        if count > 1 and yaml.safe_load(config.read_text())["distributed_type"] == "NO":
            sys.exit(
                f"error: {config} starts one process for the {count} GPUs of --train_gpus; ddp.yaml starts {count}."
            )
        launcher += ["-m", "accelerate.commands.launch", "--config_file", str(config), "--num_processes", str(count)]
    else:
        variables["ACCELERATE_USE_CPU"] = "true"
    server = ["--vllm_server_host", host, "--vllm_server_port", str(args.port)]
    server += ["--server_weight_sync", "disk"] if args.on_disk else []
    return Command([*launcher, *args.script, "--use_vllm", "true", "--vllm_mode", "server", *server], variables)


def common_variables(args: argparse.Namespace, gpus: list[str], token: str, host: str) -> dict[str, str]:
    """What both sides need in their environment. The token is there and nowhere else: `ps` shows arguments.

    `VLLM_HOST_IP` is where vLLM listens, and the rendezvous for NCCL's weights. By default that is the interface that
    leads to the internet, here it is the one that leads to the server.
    """
    variables = {"CUDA_VISIBLE_DEVICES": ",".join(gpus), TOKEN_VARIABLE: token}
    if args.on_disk:
        variables[WEIGHTS_VARIABLE] = os.path.abspath(args.weights_dir)
    if "VLLM_HOST_IP" not in os.environ:
        try:
            family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as probe:
                probe.connect(address)  # sends nothing
                variables["VLLM_HOST_IP"] = probe.getsockname()[0]
        except OSError as error:
            sys.exit(f"error: no network leads to {host}: {error}. Correct the address.")
    return variables


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
