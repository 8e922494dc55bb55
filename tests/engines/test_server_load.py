# SPDX-License-Identifier: Apache-2.0
"""4,096 ragged rollouts at once from a real server, while strangers knock at every path of it."""

import asyncio
import json
import pickle
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch

from duet_trl.engines.server import Choice, _batches
from duet_trl.gate.replay import GateSpec, Outcome, replay, split_sentinel
from tests.engines.tiny_gate import TinyGate, random_prompts
from tests.server_process import ROOT, ServerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

NUM_ROWS = 4096
NUM_STRANGERS = 100
PROMPTS = random_prompts(NUM_ROWS, seed=1, longest=24)
LIMITS = [24 + row // 256 for row in range(NUM_ROWS)]  # tokens
SPECS = [GateSpec(4 + row % 16, 4 + row % 16 + row // 16 % 16, 4, poll_interval=1) for row in range(256)]
MANY_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
TOLERANCE = 2e-3  # nats
CONNECTION_KIB, TOKEN_KIB = 20, 0.25


@dataclass(frozen=True)
class Load:
    """A batch as `GateServer.complete` takes it, and how many HTTP requests it is."""

    work: dict[str, Any]
    requests: int


def batch(gate: TinyGate, num_rows: int, *, gated: bool) -> Load:
    """Gated, no two rows share gate and limit, and every rollout is a request; ungated, every 16 rollouts are one."""
    gates = [gate.request(SPECS[row % 256], False) if gated else None for row in range(num_rows)]
    limits = LIMITS[:num_rows]
    sampling = {"temperature": 1.0, "ignore_eos": not gated}
    names = {"prompts": PROMPTS[:num_rows], "sampling": sampling, "gates": gates, "limits": limits}
    eos_ids = gate.eos_ids if gated else []
    return Load(names | {"eos_ids": eos_ids}, len(_batches(zip(gates, limits, strict=True))))


class Client:
    """The process that asks for a batch."""

    def __init__(self, server: ServerProcess, folder: Path, load: Load, files: int) -> None:
        self.work, self.found = folder / "work.pickle", folder / "found.json"
        self.work.write_bytes(pickle.dumps(load.work))
        command = [sys.executable, "-m", "tests.engines.load_client", server.url, self.work, self.found, str(files)]
        self.process = subprocess.Popen(command, env=server.environment, cwd=ROOT, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.communicate()

    def result(self) -> tuple[list[Choice], int]:
        """Rollouts, and by how many KiB the memory of the process grew at most."""
        _, errors = self.process.communicate(timeout=400)
        assert self.process.returncode == 0, errors[-3000:]
        found = json.loads(self.found.read_text())
        return [Choice(**row) for row in found["rollouts"]], found["growth_kib"]


# Strangers


async def strangers(
    server: ServerProcess, operations: list[tuple[str, str]]
) -> tuple[set[tuple[int, str]], float, int]:
    """What `NUM_STRANGERS` clients got from all operations, how many rollouts ran or waited at most meanwhile, and how
    many answers they had while some did."""
    no_token = {}
    wrong = {"Authorization": "Bearer not-the-servers-token"}
    shorter = {"Authorization": f"Bearer {server.token[:-1]}"}
    other_scheme = {"Authorization": f"Basic {server.token}"}
    body = {"model": str(server.model), "prompt": [65], "max_tokens": 5}
    answers: set[tuple[int, str]] = set()
    answered = 0

    async def stranger(headers: dict[str, str], own: list[tuple[str, str]]) -> None:
        nonlocal answered
        async with aiohttp.ClientSession(headers=headers) as session:
            for method, path in own:
                async with session.request(method, server.url + path, json=body) as response:
                    answers.add((response.status, await response.text()))
                    answered += 1

    async def watch() -> tuple[float, int]:
        most, under_load = 0.0, 0
        while not done.is_set():
            before = answered
            now = await asyncio.to_thread(in_flight, server)
            most, under_load = max(most, now), before if now else under_load
        return most, under_load

    done = asyncio.Event()
    watching = asyncio.create_task(watch())
    kinds = (no_token, wrong, shorter, other_scheme)
    # Every path is tried by 20 of them, 5 with each header.
    told = ((kinds[number % 4], operations[number // 4 % 5 :: 5]) for number in range(NUM_STRANGERS))
    await asyncio.gather(*(stranger(headers, own) for headers, own in told))
    done.set()
    return answers, *(await watching)


def in_flight(server: ServerProcess) -> float:
    return server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting")


def all_operations(server: ServerProcess) -> list[tuple[str, str]]:
    """Every method of every path that the server says it has, and those it does not speak of."""
    paths = server.request("GET", "/openapi.json").json()["paths"]
    named = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    assert {("POST", "/v1/completions"), ("POST", "/collective_rpc"), ("GET", "/health")} <= {*named}
    return [*named, ("GET", "/metrics"), ("GET", "/openapi.json"), ("GET", "/docs"), ("GET", "/nowhere")]


# Whose rollout it is


def surprise(gate: TinyGate, prompts: list[list[int]], rollouts: list[Choice], *, gated: bool) -> np.ndarray:
    """Largest difference of a rollout's log-probs from those of the model after its prompt; shape (N,), nats."""
    largest = []
    for first in range(0, len(prompts), 256):
        rows = list(zip(prompts[first : first + 256], rollouts[first : first + 256], strict=True))
        tokens = torch.zeros(len(rows), max(len(ids) + len(row.token_ids) for ids, row in rows), dtype=torch.long)
        for tokens_of_row, (ids, row) in zip(tokens, rows, strict=True):
            tokens_of_row[: len(ids) + len(row.token_ids)] = torch.tensor([*ids, *row.token_ids])
        with torch.no_grad():
            logits = gate.model(tokens).logits
        if gated:  # the gate forbids its own token, and forces it with a log-prob of 0
            logits[..., gate.sentinel] = -torch.inf
        for logits_of_row, (ids, row) in zip(logits.log_softmax(-1), rows, strict=True):
            length = len(row.token_ids) - (row.token_ids[-1] == gate.sentinel)
            expected = logits_of_row[range(len(ids) - 1, len(ids) - 1 + length), row.token_ids[:length]]
            largest.append((torch.tensor(row.logprobs[:length]) - expected).abs().max().item())
    return np.array(largest)


def assert_own(gate: TinyGate, load: Load, rollouts: list[Choice], *, gated: bool) -> None:
    """Every rollout is that of its own prompt, of its own limit and of its own gate, and there is one of each."""
    prompts, limits = load.work["prompts"], load.work["limits"]
    lengths = [len(row.token_ids) for row in rollouts]
    assert len(rollouts) == len(prompts)
    assert len({(*row.token_ids, *row.logprobs) for row in rollouts}) == len(prompts)
    assert (surprise(gate, prompts, rollouts, gated=gated) < TOLERANCE).all()
    # which tells them apart: it is none of the rollouts of another prompt
    assert (surprise(gate, prompts[:256], rollouts[1:257], gated=gated) > TOLERANCE).mean() > 0.99
    if not gated:
        assert lengths == limits
        return
    ids, stopped = split_sentinel([row.token_ids for row in rollouts], gate.sentinel)
    assert all(len(row) <= limit for row, limit in zip(ids, limits, strict=True))
    outcomes = set()
    for number, spec in enumerate(SPECS):  # raises where the engine did anything else
        rows = slice(number, len(rollouts), len(SPECS))
        keep = np.zeros(len(ids[rows]), bool)
        outcomes |= {*replay(spec, gate.automaton, ids[rows], stopped[rows], keep).outcome.tolist()}
    assert outcomes == {Outcome.NATURAL, Outcome.ANSWERED, Outcome.ABORTED}


@pytest.mark.parametrize("gated", [False, True], ids=["sixteen-rollouts-a-request", "one-rollout-a-request"])
def test_4096_rollouts_at_once_and_nothing_for_strangers(server, tiny_gate, tmp_path, gated):
    load, before = batch(tiny_gate, NUM_ROWS, gated=gated), server.metric("vllm:request_success")
    assert load.requests == (NUM_ROWS if gated else NUM_ROWS // 16)
    operations = all_operations(server)
    begun = time.monotonic()
    with Client(server, tmp_path, load, MANY_FILES) as client:
        while in_flight(server) == 0:
            assert client.process.poll() is None, client.result()
        answers, most, under_load = asyncio.run(strangers(server, operations))
        assert under_load >= NUM_STRANGERS // 4  # whether the load outlasts the last of them is up to the machine
        while client.process.poll() is None:
            most = max(most, in_flight(server))
        rollouts, growth_kib = client.result()
    seconds = time.monotonic() - begun
    ((status, text),) = answers
    assert status == 401 and json.loads(text).keys() == {"error"} and server.token not in text
    # A fast server answers the first of 4,096 requests while the last are written.
    assert most > (NUM_ROWS / 8 if gated else NUM_ROWS / 2)
    assert_own(tiny_gate, load, rollouts, gated=gated)
    assert server.metric("vllm:request_success") == before + NUM_ROWS  # none twice, and none for strangers
    # What it costs is connections, and what came back: an id and a log-prob a token, and its JSON on the way.
    tokens = sum(len(row.token_ids) for row in rollouts)
    print(f"{most=} {under_load=} {growth_kib=} {tokens=} {len(operations)=} {seconds=:.0f}")
    assert growth_kib < load.requests * CONNECTION_KIB + tokens * TOKEN_KIB


def test_more_requests_than_open_files_wait_for_each_other(server, tiny_gate, tmp_path):
    load = batch(tiny_gate, 600, gated=True)
    assert load.requests == 600
    with Client(server, tmp_path, load, 256) as client:
        rollouts, _ = client.result()
    assert_own(tiny_gate, load, rollouts, gated=True)
