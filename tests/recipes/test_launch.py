# SPDX-License-Identifier: Apache-2.0
"""The launcher's commands for every documented layout, what it refuses, and a real server with a real training."""

import ctypes
import importlib.metadata
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAUNCH = str(ROOT / "recipes" / "launch.py")
TOKEN = "a-token-for-these-tests"
PR_SET_CHILD_SUBREAPER = 36
# What the launcher decides on itself, and what an engine in this process may have left for its own children.
VARIABLES = {"DUET_SERVER_TOKEN", "DUET_WEIGHTS_DIR", "VLLM_HOST_IP", "CUDA_VISIBLE_DEVICES"}
VARIABLES |= {"VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_KVCACHE_SPACE", "VLLM_ENABLE_V1_MULTIPROCESSING"}
VARIABLES |= {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}

GATE_AND_GUARD = (
    "--logits-processors duet_trl.engines.vllm:DUETLogitsProcessor "
    "--middleware duet_trl.engines.guard.TokenGuard --logprobs-mode processed_logprobs"
)
NCCL = """--weight-transfer-config '{"backend": "nccl"}'"""


def launch(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = [sys.executable, LAUNCH, *arguments]
    return subprocess.run(command, cwd=ROOT, env=kept | variables, capture_output=True, text=True, timeout=540)


def shown(*arguments: str, **variables: str) -> dict[str, tuple[dict[str, str], list[str]]]:
    """Variables and command of "server" and "training" that a dry run prints."""
    result = launch("--dry_run", *arguments, **variables)
    assert result.returncode == 0, result.stderr
    commands = {}
    for title, line in re.findall(r"^(server|training).*:\n +(.*)$", result.stdout, flags=re.M):
        words = shlex.split(line)
        first = next(index for index, word in enumerate(words) if "=" not in word)
        commands[title] = (dict(word.split("=", 1) for word in words[:first]), words[first:])
    assert commands
    return commands


def serve(rest: str) -> list[str]:
    return [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", *shlex.split(rest)]


def accelerate(rest: str) -> list[str]:
    return [sys.executable, "-m", "accelerate.commands.launch", *shlex.split(rest)]


ONE_NODE = ("--model", "Qwen/Qwen3-1.7B-Base", "--server_gpus", "0,1", "--train_gpus", "2-7")
SCRIPT = ("--", "recipes/math_qwen3.py", "--config", "a.yaml")


def test_one_node_serves_on_two_gpus_and_trains_on_six() -> None:
    commands = shown(*ONE_NODE, "--accelerate_config", "recipes/accelerate/fsdp2.yaml", *SCRIPT)
    hidden = {"DUET_SERVER_TOKEN": "<hidden>", "VLLM_HOST_IP": "127.0.0.1"}
    development = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_USE_RUST_FRONTEND": "0"}
    assert commands["server"] == (
        {"CUDA_VISIBLE_DEVICES": "0,1"} | hidden | development,
        serve(f"Qwen/Qwen3-1.7B-Base --host 127.0.0.1 --port 8000 --tensor-parallel-size 2 {GATE_AND_GUARD} {NCCL}"),
    )
    assert commands["training"] == (
        {"CUDA_VISIBLE_DEVICES": "2,3,4,5,6,7"} | hidden,
        accelerate(
            "--config_file recipes/accelerate/fsdp2.yaml --num_processes 6 recipes/math_qwen3.py --config a.yaml "
            "--use_vllm true --vllm_mode server --vllm_server_host 127.0.0.1 --vllm_server_port 8000"
        ),
    )


def test_two_nodes_share_the_private_address_and_the_token() -> None:
    private = "127.0.0.2"  # stands for one that a route leads to from every machine that runs this test
    serving = shown(
        *("--only", "server", "--host", private, "--model", "M", "--server_gpus", "0-7", "--server_dp", "2"),
        DUET_SERVER_TOKEN=TOKEN,
    )
    training = shown(
        "--only", "train", "--server_host", private, "--train_gpus", "0-7", *SCRIPT, DUET_SERVER_TOKEN=TOKEN
    )
    assert list(serving) == ["server"] and list(training) == ["training"]
    variables, command = serving["server"]
    assert command == serve(
        f"M --host {private} --port 8000 --tensor-parallel-size 4 --data-parallel-size 2 {GATE_AND_GUARD} {NCCL}"
    )
    assert variables["VLLM_HOST_IP"].startswith("127.")  # the interface that leads to the server
    variables, command = training["training"]
    assert command[-8:] == shlex.split(
        f"--use_vllm true --vllm_mode server --vllm_server_host {private} --vllm_server_port 8000"
    )
    assert command[:7] == accelerate(f"--config_file {ROOT}/recipes/accelerate/ddp.yaml --num_processes 8")
    assert variables["VLLM_HOST_IP"].startswith("127.")


def test_cpu_serves_and_trains_through_a_folder() -> None:
    commands = shown("--model", "M", "--server_gpus", "", "--train_gpus", "", "--port", "8123", *SCRIPT)
    variables, command = commands["server"]
    assert command == serve(f"M --host 127.0.0.1 --port 8123 --dtype float32 --enforce-eager {GATE_AND_GUARD}")
    assert variables["VLLM_CPU_OMP_THREADS_BIND"] == "nobind" and variables["VLLM_CPU_KVCACHE_SPACE"] == "1"
    training, command = commands["training"]
    assert command == [sys.executable, *SCRIPT[1:]] + shlex.split(
        "--use_vllm true --vllm_mode server --vllm_server_host 127.0.0.1 --vllm_server_port 8123 "
        "--server_weight_sync disk"
    )
    assert training["ACCELERATE_USE_CPU"] == "true" and training["CUDA_VISIBLE_DEVICES"] == ""
    assert training["DUET_WEIGHTS_DIR"] == variables["DUET_WEIGHTS_DIR"]
    assert not Path(variables["DUET_WEIGHTS_DIR"]).exists()  # a folder for this run alone


def test_weights_through_a_folder_on_gpus_when_asked_for_only(tmp_path: Path) -> None:
    commands = shown(*ONE_NODE, "--weights_dir", str(tmp_path), *SCRIPT)
    assert {variables["DUET_WEIGHTS_DIR"] for variables, _ in commands.values()} == {str(tmp_path)}
    assert "--weight-transfer-config" not in commands["server"][1]
    assert commands["training"][1][-2:] == ["--server_weight_sync", "disk"]
    commands = shown(*ONE_NODE, *SCRIPT, DUET_WEIGHTS_DIR=str(tmp_path))
    assert "--weight-transfer-config" in commands["server"][1]
    assert "--server_weight_sync" not in commands["training"][1]
    commands = shown("--model", "M", "--server_gpus", "", "--train_gpus", "", *SCRIPT, DUET_WEIGHTS_DIR=str(tmp_path))
    assert {variables["DUET_WEIGHTS_DIR"] for variables, _ in commands.values()} == {str(tmp_path)}


def test_one_training_gpu_takes_the_configuration_for_one() -> None:
    _, command = shown("--model", "M", "--server_gpus", "0", "--train_gpus", "1", *SCRIPT)["training"]
    assert command[4].endswith("single_gpu.yaml") and command[6] == "1"


def test_more_flags_of_the_server_come_last() -> None:
    _, command = shown(*ONE_NODE, "--server_args=--max-model-len 4096 --seed 1", *SCRIPT)["server"]
    assert command[-4:] == ["--max-model-len", "4096", "--seed", "1"]


def test_the_token_is_shown_nowhere() -> None:
    result = launch("--dry_run", *ONE_NODE, *SCRIPT, DUET_SERVER_TOKEN=TOKEN)
    assert result.returncode == 0 and TOKEN not in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("arguments", "token", "message"),
    [
        ((*ONE_NODE, "--host", "0.0.0.0", *SCRIPT), "", "DUET_SERVER_TOKEN is not set"),
        ((*ONE_NODE, "--host", "192.0.2.7", *SCRIPT), "", "DUET_SERVER_TOKEN is not set"),
        ((*ONE_NODE, "--host", "localhost.example.org", *SCRIPT), "", "DUET_SERVER_TOKEN is not set"),
        ((*ONE_NODE, *SCRIPT), "short", "DUET_SERVER_TOKEN has 5 characters"),
        (("--only", "server", "--model", "M", "--server_gpus", "0"), "", "DUET_SERVER_TOKEN is not set"),
        (("--only", "train", "--train_gpus", "0", *SCRIPT), "", "DUET_SERVER_TOKEN is not set"),
        (("--server_gpus", "0", "--train_gpus", "1", *SCRIPT), "", "the server needs --model"),
        (("--model", "M", "--train_gpus", "1", *SCRIPT), "", "the server needs --model and --server_gpus"),
        (("--model", "M", "--server_gpus", "0", *SCRIPT), "", "training needs --train_gpus"),
        (ONE_NODE, "", "behind --, a script"),
        (("--model", "M", "--server_gpus", "0-3", "--train_gpus", "3,4", *SCRIPT), "", "share ['3']"),
        ((*ONE_NODE, "--server_dp", "3", *SCRIPT), "", "--server_dp 3 does not divide the 2 GPUs"),
        (
            (*ONE_NODE, "--accelerate_config", "recipes/accelerate/single_gpu.yaml", *SCRIPT),
            "",
            "starts one process for the 6 GPUs",
        ),
        (
            ("--only", "server", "--model", "M", "--server_gpus", ""),
            TOKEN,
            "name one that both sides see with --weights_dir",
        ),
        (
            (*ONE_NODE, "--server_host", "no-such-host.invalid", *SCRIPT),
            "",
            "no network leads to no-such-host.invalid",
        ),
    ],
)
def test_wrong_arguments_are_refused_with_the_remedy(arguments, token: str, message: str) -> None:
    result = launch("--dry_run", *arguments, **({"DUET_SERVER_TOKEN": token} if token else {}))
    assert result.returncode != 0 and result.stdout == ""
    assert message in result.stderr


@pytest.mark.vllm
def test_vllm_and_accelerate_understand_every_flag() -> None:
    from accelerate.commands.launch import launch_command_parser
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    commands = shown(*ONE_NODE, "--server_dp", "2", *SCRIPT)
    server = make_arg_parser(FlexibleArgumentParser()).parse_args(commands["server"][1][4:])
    assert (server.model_tag, server.host, server.port) == ("Qwen/Qwen3-1.7B-Base", "127.0.0.1", 8000)
    assert server.tensor_parallel_size == 1 and server.data_parallel_size == 2
    assert server.middleware == ["duet_trl.engines.guard.TokenGuard"]
    assert server.weight_transfer_config.backend == "nccl"
    training = launch_command_parser().parse_args(commands["training"][1][3:])
    assert training.num_processes == 6 and training.training_script == "recipes/math_qwen3.py"
    assert training.training_script_args[-4:] == ["--vllm_server_host", "127.0.0.1", "--vllm_server_port", "8000"]


# A real vLLM server on the CPU


@pytest.fixture
def cpu(tiny_path: Path, tmp_path: Path) -> Iterator[list[str]]:
    """Arguments of a launch on the CPU; afterwards none of its processes is left and its port is free."""
    psutil = pytest.importorskip("psutil")
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("no distribution called vllm is installed, which `vllm serve` asks for: run `make install`")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    arguments = ["--model", str(tiny_path), "--server_gpus", "", "--train_gpus", "", "--port", str(port)]
    before = psutil.Process().children(recursive=True)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what the launcher leaves behind becomes a child of this process
    yield [*arguments, "--server_log", str(tmp_path / "server.log"), "--server_args=--max-model-len 512"]
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    left = [child for child in psutil.Process().children(recursive=True) if child not in before]
    assert [child for child in left if child.status() != psutil.STATUS_ZOMBIE] == []
    socket.create_server(("127.0.0.1", port)).close()


VISITOR = """
import json, os, sys, urllib.error, urllib.request
address = dict(zip(sys.argv[1::2], sys.argv[2::2]))
url = f"http://{address['--vllm_server_host']}:{address['--vllm_server_port']}/v1/models"
try:
    urllib.request.urlopen(url)
except urllib.error.HTTPError as error:
    print("without the token:", error.code)
request = urllib.request.Request(url, headers={"Authorization": "Bearer " + os.environ["DUET_SERVER_TOKEN"]})
print("with the token:", json.load(urllib.request.urlopen(request))["data"][0]["id"])
sys.exit(7)
"""


@pytest.mark.slow
@pytest.mark.vllm
def test_a_real_server_asks_for_the_token_and_ends_with_the_training(cpu, tiny_path: Path, tmp_path: Path) -> None:
    (tmp_path / "visitor.py").write_text(VISITOR)
    result = launch(*cpu, "--", str(tmp_path / "visitor.py"))
    assert result.returncode == 7, result.stdout + result.stderr
    assert "without the token: 401" in result.stdout and f"with the token: {tiny_path}" in result.stdout


@pytest.mark.slow
@pytest.mark.vllm
def test_a_real_server_that_cannot_start_ends_the_launch_with_its_reason(cpu, tmp_path: Path) -> None:
    cpu[1] = str(tmp_path / "no-such-model")
    result = launch(*cpu, "--", "never_started.py")
    assert result.returncode == 1
    assert "the server ended before it was ready" in result.stderr and "no-such-model" in result.stderr


@pytest.mark.slow
@pytest.mark.vllm
def test_the_math_recipe_trains_on_a_real_server(cpu, tiny_path: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(
        "".join(json.dumps({"question": f"What is 1+{i}?", "answer": str(1 + i)}) + "\n" for i in range(8))
    )
    script = f"""recipes/math_qwen3.py --config recipes/configs/math_tiny_smoke.yaml --model_name_or_path {tiny_path}
        --dataset_name {data} --output_dir {tmp_path / "out"} --vllm_importance_sampling_correction false"""
    result = launch(*cpu, "--", *shlex.split(script))
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "out" / "model.safetensors").exists()
    # new weights before each of the two steps
    assert (tmp_path / "server.log").read_text().count('"POST /collective_rpc HTTP/1.1" 200') == 2
