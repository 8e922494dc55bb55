# SPDX-License-Identifier: Apache-2.0
"""vLLM servers that were started otherwise, that die, or that fall silent: each is a process of its own."""

import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from duet_trl.engines import server as server_client
from duet_trl.engines.engine import ServerError, ServerLost
from tests.engines.tiny_gate import TinyGate
from tests.server_process import GATE, ServerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture(scope="module")
def without_gate(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tiny_path, tmp_path_factory.mktemp("without_gate")) as server:
        yield server


def assert_started_otherwise(server: ServerProcess, gate: TinyGate, message: str) -> None:
    with pytest.raises(ServerError, match=message) as found:
        server.client.probe("math", gate.automaton.fingerprint, gate.sentinel, gate.eos_ids)
    assert type(found.value) is ServerError  # waiting would not help


def test_probe_finds_a_server_that_says_other_log_probs(tiny_path, tiny_gate, tmp_path):
    with ServerProcess(tiny_path, tmp_path, *GATE, logprobs_mode="raw_logprobs") as other:
        assert_started_otherwise(other, tiny_gate, "Restart it with --logprobs-mode processed_logprobs")


def test_probe_finds_a_server_that_does_not_run_the_gate(without_gate, tiny_gate):
    assert_started_otherwise(without_gate, tiny_gate, "does not run the gate")


def running(pool: ThreadPoolExecutor, server: ServerProcess) -> Future:
    """A batch of which some rollouts have finished on the server while others run."""
    while any(server.metric(f"vllm:num_requests_{state}") for state in ("running", "waiting")):
        # What an earlier batch left behind ends by itself, and the numbers are those of the latest step.
        server.client.complete([[65]], {"max_tokens": 1}, [None], [])
    before = server.metric("vllm:request_success")
    rollouts = pool.submit(server.client.complete, [[65]] * 400, {"max_tokens": 240}, [None] * 400, [])
    while server.metric("vllm:request_success") == before or server.metric("vllm:num_requests_running") == 0:
        assert not rollouts.done()
    return rollouts


def test_a_server_that_falls_silent_and_one_that_dies_lose_the_whole_batch(without_gate, monkeypatch):
    server = without_gate
    with ThreadPoolExecutor(1) as pool:
        rollouts = running(pool, server)
        server.signal(signal.SIGSTOP)  # as a machine that vanishes: no connection is closed
        try:
            with monkeypatch.context() as impatient:  # only now: under load a live server may answer as late
                impatient.setattr(server_client, "_HEARTBEAT_SECONDS", 0.3)
                impatient.setattr(server_client, "_HEARTBEATS_MISSED", 2)
                with pytest.raises(ServerLost, match="fell silent"):
                    rollouts.result(timeout=30)
        finally:
            server.signal(signal.SIGCONT)
        server.client.wait(60.0)

        rollouts = running(pool, server)
        server.kill()
        with pytest.raises(ServerLost, match="/v1/completions failed"):
            rollouts.result(timeout=30)
        with pytest.raises(ServerLost, match="no healthy vLLM server"):
            server.client.wait(0.0)
