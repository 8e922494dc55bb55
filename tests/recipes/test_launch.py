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
RECIPES = ROOT / "recipes"
sys.path.insert(0, str(RECIPES))

import launch  # noqa: E402

TOKEN = "a-token-for-these-tests"
PR_SET_CHILD_SUBREAPER = 36
# What the launcher decides on itself, and what an engine in this process may have left for its own children.
VARIABLES = {"DUET_SERVER_TOKEN", "DUET_WEIGHTS_DIR", "VLLM_HOST_IP", "CUDA_VISIBLE_DEVICES"}
VARIABLES |= {"VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_KVCACHE_SPACE", "VLLM_ENABLE_V1_MULTIPROCESSING"}
VARIABLES |= {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}

ONE_NODE = ("--model", "Qwen/Qwen3-1.7B-Base", "--server_gpus", "0,1", "--train_gpus", "2,3,4")
SCRIPT = ("--", "recipes/math_qwen3.py", "--config", "a.yaml")
GATE_AND_GUARD = (
    "--logits-processors duet_trl.engines.vllm:DUETLogitsProcessor --logprobs-mode processed_logprobs "
    "--middleware duet_trl.engines.guard.TokenGuard"
)
NCCL = """--weight-transfer-config '{"backend": "nccl"}'"""


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Variables and command of "server" and "training" that a dry run prints."""

    def dry_run(*arguments: str, **variables: str) -> dict[str, tuple[dict[str, str], list[str]]]:
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert launch.main(["--dry_run", *arguments]) == 0
        printed, commands = capsys.readouterr().out, {}
        assert TOKEN not in printed
        for title, line in re.findall(r"^(server|training).*:\n +(.*)$", printed, flags=re.M):
            words = shlex.split(line)
            first = next(index for index, word in enumerate(words) if "=" not in word)
            commands[title] = (dict(word.split("=", 1) for word in words[:first]), words[first:])
        return commands

    return dry_run


def serve(rest: str) -> list[str]:
    return [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", *shlex.split(rest)]


def accelerate(rest: str) -> list[str]:
    return [sys.executable, "-m", "accelerate.commands.launch", *shlex.split(rest)]


def test_one_node_serves_on_two_gpus_and_trains_on_three(shown) -> None:
    commands = shown(*ONE_NODE, "--accelerate_config", "fsdp2.yaml", "--server_args=--seed 1", *SCRIPT)
    hidden = {"DUET_SERVER_TOKEN": "<hidden>", "VLLM_HOST_IP": "127.0.0.1"}
    development = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_USE_RUST_FRONTEND": "0"}
    size = "--host 127.0.0.1 --port 8000 --tensor-parallel-size 2"
    assert commands["server"] == (
        {"CUDA_VISIBLE_DEVICES": "0,1"} | hidden | development,
        serve(f"Qwen/Qwen3-1.7B-Base {size} {GATE_AND_GUARD} {NCCL} --seed 1"),
    )
    assert commands["training"] == (
        {"CUDA_VISIBLE_DEVICES": "2,3,4"} | hidden,
        accelerate(
            "--num_processes 3 --config_file fsdp2.yaml recipes/math_qwen3.py --config a.yaml --use_vllm true "
            "--vllm_mode server --vllm_server_host 127.0.0.1 --vllm_server_port 8000 --vllm_enable_sleep_mode false"
        ),
    )


def test_two_nodes_share_the_address_and_the_token(shown) -> None:
    private = "127.0.0.2"  # stands for one that a route leads to from every machine that runs this test
    node = ("--host", private, "--model", "M", "--server_gpus", "0,1,2,3", "--server_dp", "2")
    serving = shown("--only", "server", *node, DUET_SERVER_TOKEN=TOKEN)
    training = shown("--only", "train", "--host", private, "--train_gpus", "0", *SCRIPT, DUET_SERVER_TOKEN=TOKEN)
    assert list(serving) == ["server"] and list(training) == ["training"]
    size = f"--host {private} --port 8000 --tensor-parallel-size 2 --data-parallel-size 2"
    assert serving["server"][1] == serve(f"M {size} {GATE_AND_GUARD} {NCCL}")
    assert training["training"][1][:7] == accelerate(
        f"--num_processes 1 --config_file {RECIPES}/accelerate/single_gpu.yaml"
    )
    assert private in training["training"][1]
    for variables, _ in (serving["server"], training["training"]):
        assert variables["VLLM_HOST_IP"].startswith("127.")  # the interface that leads to the server


def test_cpu_serves_and_trains_through_a_folder(shown, tmp_path: Path) -> None:
    commands = shown("--model", "M", "--server_gpus", "", "--train_gpus", "", "--port", "8123", *SCRIPT)
    variables, command = commands["server"]
    assert command == serve(f"M --host 127.0.0.1 --port 8123 --dtype float32 --enforce-eager {GATE_AND_GUARD}")
    assert variables["VLLM_CPU_OMP_THREADS_BIND"] == "nobind" and variables["VLLM_CPU_KVCACHE_SPACE"] == "1"
    training, command = commands["training"]
    assert command[:4] == [sys.executable, *SCRIPT[1:]] and command[-2:] == ["--server_weight_sync", "disk"]
    assert (training["ACCELERATE_USE_CPU"], training["CUDA_VISIBLE_DEVICES"]) == ("true", "")
    assert training["DUET_WEIGHTS_DIR"] == variables["DUET_WEIGHTS_DIR"]
    assert not Path(variables["DUET_WEIGHTS_DIR"]).exists()  # a folder for this run alone
    # on GPUs when asked for only
    commands = shown(*ONE_NODE, "--weights_dir", str(tmp_path), *SCRIPT)
    assert {variables["DUET_WEIGHTS_DIR"] for variables, _ in commands.values()} == {str(tmp_path)}
    assert "--weight-transfer-config" not in commands["server"][1]
    commands = shown(*ONE_NODE, *SCRIPT, DUET_WEIGHTS_DIR=str(tmp_path))
    assert "--weight-transfer-config" in commands["server"][1] and "disk" not in commands["training"][1]


@pytest.mark.parametrize(
    ("arguments", "token", "message"),
    [
        ((*ONE_NODE, "--host", "0.0.0.0", *SCRIPT), "", "DUET_SERVER_TOKEN is not set"),
        ((*ONE_NODE, *SCRIPT), "short", "DUET_SERVER_TOKEN has 5 characters"),
        (("--only", "train", "--train_gpus", "0", *SCRIPT), "", "DUET_SERVER_TOKEN is not set"),
        (("--server_gpus", "0", "--train_gpus", "1", *SCRIPT), "", "the server needs --model and --server_gpus"),
        (ONE_NODE, "", "behind --, a script"),
        (("--model", "M", "--server_gpus", "0,3", "--train_gpus", "3,4", *SCRIPT), "", "share ['3']"),
        ((*ONE_NODE, "--server_dp", "3", *SCRIPT), "", "--server_dp 3 does not divide the 2 GPUs"),
        (("--only", "server", "--model", "M", "--server_gpus", ""), TOKEN, "both sides see with --weights_dir"),
        ((*ONE_NODE, "--host", "no-such-host.invalid", *SCRIPT), TOKEN, "no network leads to no-such-host.invalid"),
    ],
)
def test_wrong_arguments_are_refused_with_the_remedy(arguments, token: str, message: str, shown, capsys) -> None:
    with pytest.raises(SystemExit) as refused:
        shown(*arguments, **({"DUET_SERVER_TOKEN": token} if token else {}))
    assert refused.value.code != 0
    assert message in capsys.readouterr().err + str(refused.value)


@pytest.mark.vllm
def test_vllm_and_accelerate_understand_every_flag(shown) -> None:
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
    assert training.num_processes == 3 and training.training_script == "recipes/math_qwen3.py"
    assert "--vllm_server_port" in training.training_script_args


# ---- A real vLLM server on the CPU ------------------------------------------------------------------------------


def launched(*arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = [sys.executable, str(RECIPES / "launch.py"), *arguments]
    return subprocess.run(command, cwd=ROOT, env=kept, capture_output=True, text=True, timeout=540)


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
    result = launched(*cpu, "--", str(tmp_path / "visitor.py"))
    assert result.returncode == 7, result.stdout + result.stderr
    assert "without the token: 401" in result.stdout and f"with the token: {tiny_path}" in result.stdout


@pytest.mark.slow
@pytest.mark.vllm
def test_a_real_server_that_cannot_start_ends_the_launch_with_its_reason(cpu, tmp_path: Path) -> None:
    cpu[1] = str(tmp_path / "no-such-model")
    result = launched(*cpu, "--", "never_started.py")
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
    result = launched(*cpu, "--", *shlex.split(script))
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "out" / "model.safetensors").exists()
    # new weights before each of the two steps
    assert (tmp_path / "server.log").read_text().count('"POST /collective_rpc HTTP/1.1" 200') == 2
