# SPDX-License-Identifier: Apache-2.0
"""A real `vllm serve` of the tiny policy, in a process group of its own."""

import importlib.metadata
import os
import re
import secrets
import signal
import socket
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import requests
import torch

from duet_trl.engines.colocated import PROCESSOR
from duet_trl.engines.engine import ServerLost
from duet_trl.engines.server import GateServer
from tests.processes import ROOT, free_port, launched

START_SECONDS = 240.0

SERVE = """
from vllm.entrypoints.cli.main import main

from tests.processes import fork_workers

fork_workers()
main()
"""
"""The command `vllm serve`, but for the imports that its processes need not make."""

GATE = ("--logits-processors", PROCESSOR)
GUARD = ("--middleware", "duet_trl.engines.guard.TokenGuard")

# So few blocks of so few tokens that 48 rollouts of full length preempt each other, and prompts of up to 60 tokens are
# prefilled in chunks.
SMALL = (
    *("--max-num-seqs", "48", "--max-num-batched-tokens", "96"),
    *("--block-size", "32", "--num-gpu-blocks-override", "72"),
)


class ServerProcess:
    """A vLLM server on 127.0.0.1 that can be killed, silenced and started again on the same port.

    Args:
        model: Folder of the model it starts with.
        folder: For its log and the weights it may read.
        *arguments: Further arguments of `vllm serve`; with `GUARD` it asks for `token`.
    """

    def __init__(self, model: Path, folder: Path, *arguments: str, logprobs_mode: str = "processed_logprobs") -> None:
        try:
            importlib.metadata.version("vllm")
        except importlib.metadata.PackageNotFoundError:
            pytest.skip("no distribution called vllm is installed, which `vllm serve` asks for: run `make install`")
        self.model = model
        self.weights = folder / "weights"
        self.log = folder / "server.log"
        self.token = secrets.token_urlsafe(32) if GUARD[1] in arguments else None
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = GateServer(self.url, self.token)
        self.weights.mkdir()
        self._command = ["-c", SERVE, "serve", str(model)]
        self._command += ["--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32", "--enforce-eager"]
        self._command += ["--max-model-len", "256", "--gpu-memory-utilization", "0.1"]
        self._command += ["--logprobs-mode", logprobs_mode, *arguments]
        self._process: BaseProcess | None = None

    def __enter__(self) -> "ServerProcess":
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    @property
    def environment(self) -> dict[str, str]:
        """For the server, and for a trainer that talks to it."""
        # What an engine or a trainer in the test's own process has set there is not meant for another one.
        foreign = {"VLLM_ENABLE_V1_MULTIPROCESSING", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
        kept = {name: value for name, value in os.environ.items() if name not in foreign}
        path = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
        token = {} if self.token is None else {"DUET_SERVER_TOKEN": self.token}
        return {**kept, **token, "PYTHONPATH": path, "DUET_WEIGHTS_DIR": str(self.weights)}

    def launch(self) -> None:
        """Start the process without waiting for it."""
        self._wait_for_port()
        # A server too busy to read for five seconds takes a connection in use for an idle one, and closes it.
        environment = {**self.environment, "VLLM_SERVER_DEV_MODE": "1", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60"}
        # Killed with its whole group, which takes the engine's processes along.
        self._process = launched(self._command, self.log.parent, environment, [str(self.log)] * 2, session=True)

    def start(self) -> None:
        """Start the process unless it runs, and wait until it is healthy."""
        if self._process is None:
            self.launch()
        for _ in range(int(START_SECONDS)):
            try:
                self.client.wait(1.0)
                return
            except ServerLost:
                if self._process.exitcode is not None:
                    break
        self.kill()
        raise RuntimeError(f"vllm serve did not become healthy:\n{self.log.read_text()[-4000:]}")

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the server."""
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """End all of them at once, as a machine that fails does."""
        if self._process is not None:
            try:
                self.signal(signal.SIGKILL)
            except ProcessLookupError:  # it has died already, with all its children
                pass
            self._process.join()
            self._process = None

    def _wait_for_port(self) -> None:
        """Until it can be listened on: the engine's processes hold its socket too, and die after the first."""
        until = time.monotonic() + 60
        while True:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", self.port))
                    return
                except OSError as error:
                    if time.monotonic() > until:
                        raise RuntimeError(f"port {self.port} is still in use after 60 s") from error

    def request(self, method: str, path: str, *, token: str | None = "", **kwargs: Any) -> requests.Response:
        """A plain HTTP request; `token` None sends none, "" the right one."""
        token = self.token if token == "" else token
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return requests.request(method, self.url + path, headers=headers, timeout=60, **kwargs)

    def complete(self, **body: Any) -> requests.Response:
        """A completion request with nothing added to it but the model's name."""
        return self.request("POST", "/v1/completions", json={"model": str(self.model), **body})

    def metric(self, name: str) -> float:
        """Sum over the engines of one of the numbers under /metrics."""
        text = self.request("GET", "/metrics").text
        values = re.findall(rf"^{re.escape(name)}(?:_total)?{{[^}}]*}} (\S+)$", text, re.MULTILINE)
        assert values, f"no {name} in:\n{text[:2000]}"
        return sum(map(float, values))

    def distance(self, logits: Callable[[torch.Tensor], torch.Tensor], prompt: list[int]) -> float:
        """Largest difference in log-probability, over a sampled rollout, between the server and a policy.

        `logits` gives those of the policy, shape (1, L, V), for token ids of shape (1, L).
        """
        sampling = {"temperature": 1.0, "max_tokens": 60, "ignore_eos": True}
        (rollout,) = self.client.complete([prompt], sampling, [None], [])
        with torch.no_grad():
            expected = logits(torch.tensor([prompt + rollout.token_ids]))[0, len(prompt) - 1 : -1].log_softmax(-1)
        expected = expected[range(len(rollout.token_ids)), rollout.token_ids]
        return (torch.tensor(rollout.logprobs) - expected).abs().max().item()
