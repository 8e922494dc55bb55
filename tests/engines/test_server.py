# SPDX-License-Identifier: Apache-2.0
"""The gate over HTTP, in a real `vllm serve` so small that it preempts requests and splits prefills."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from duet_trl.engines.engine import ServerError, ServerLost
from duet_trl.engines.server import GateServer
from duet_trl.engines.server_answers import Choice
from duet_trl.engines.server_engine import ServerEngine
from duet_trl.exchange import Exchange
from duet_trl.gate.automaton import compile_automaton
from duet_trl.gate.markers import get_marker
from duet_trl.gate.parameters import gate_parameters
from duet_trl.gate.replay import GateSpec, Outcome, replay, split_sentinel
from duet_trl.gate.thoughts import Delimiters
from duet_trl.seams.weight_folder import WeightFolder
from tests.engines.tiny_gate import SPECS, TinyGate, assert_algorithm_1, assert_continues, random_prompts, replay_all
from tests.server_process import ServerProcess, free_port

pytestmark = pytest.mark.vllm

CAP = 60
NUM_ROWS = 1000
SAMPLING = {"temperature": 1.0, "max_tokens": CAP}
SPEC_OF_ROW = [SPECS[row % len(SPECS)] for row in range(NUM_ROWS)]
KEEP = np.random.default_rng(0).random(NUM_ROWS) < 0.4
MARKERS = ("math", "code", "qa", "4...2")


def token_ids(rollouts: list[Choice]) -> list[list[int]]:
    return [rollout.token_ids for rollout in rollouts]


def mixed(server: ServerProcess, gate: TinyGate, seed: int) -> list[tuple[list[int], GateSpec, bool, str | None]]:
    """A batch in which specs, coins, markers and rollouts without a gate are dealt out at random."""
    random = np.random.default_rng(seed)
    specs = [SPECS[row] for row in random.integers(len(SPECS), size=NUM_ROWS)]
    keep = random.random(NUM_ROWS) < 0.4
    markers = random.choice([*MARKERS, None], size=NUM_ROWS)
    rows = zip(specs, keep, markers, strict=True)
    parameters = [None if marker is None else gate.request(spec, coin, marker) for spec, coin, marker in rows]
    ids = token_ids(server.client.complete(random_prompts(NUM_ROWS, seed), SAMPLING, parameters, gate.eos_ids))
    return list(zip(ids, specs, keep, markers, strict=True))


def test_rollouts_are_stopped_where_algorithm_1_stops_them_despite_preemptions(server, tiny_gate):
    prompts, before = random_prompts(400, seed=5), server.metric("vllm:num_preemptions")
    parameters = [tiny_gate.request(spec, coin) for spec, coin in zip(SPEC_OF_ROW[:400], KEEP[:400], strict=True)]
    rollouts = server.client.complete(prompts, SAMPLING, parameters, tiny_gate.eos_ids)
    assert server.metric("vllm:num_preemptions") > before + 10
    ids = token_ids(rollouts)
    replay_all(tiny_gate, ids, SPEC_OF_ROW[:400], KEEP[:400])
    assert_algorithm_1(tiny_gate, prompts[:150], ids[:150], SPEC_OF_ROW[:150], KEEP[:150])
    for rollout in rollouts:
        assert len(rollout.logprobs) == len(rollout.token_ids)
        if rollout.token_ids[-1] == tiny_gate.sentinel:
            assert (rollout.finish_reason, rollout.stop_reason) == ("stop", tiny_gate.sentinel)
            assert rollout.logprobs[-1] == 0.0  # exactly: the forced stop was certain
        elif rollout.token_ids[-1] in tiny_gate.eos_ids:
            assert rollout.finish_reason == "stop" and rollout.stop_reason in (None, *tiny_gate.eos_ids)
        else:
            assert (rollout.finish_reason, len(rollout.token_ids)) == ("length", CAP)
    assert {rollout.finish_reason for rollout in rollouts} == {"stop", "length"}
    assert any(rollout.token_ids[-1] in tiny_gate.eos_ids for rollout in rollouts)


def test_prefixes_are_continued_under_gates_of_their_own_to_lengths_of_their_own(server, tiny_gate):
    def turn(prompts: list[list[int]]) -> tuple[list[list[int]], list[list[float]]]:
        _, ids, logprobs, _ = engine.complete(prompts, None, 1)
        return ids, [[value for (value,) in row] for row in logprobs]

    engine = ServerEngine(
        *(turn, tiny_gate.setup, tiny_gate.eos_ids, CAP, lambda sampling: nullcontext()),
        connection=SimpleNamespace(gate=server.client, weights=""),
        sampling=lambda: SAMPLING,
        send=lambda: None,
        exchange=Exchange(Accelerator(cpu=True)),
        process=0,
        timeout=60.0,
    )
    # No seed reaches the server: enough rows that each kind of end is there, whichever tokens it samples.
    assert_continues(tiny_gate, engine, CAP, num_rows=240)


def test_rollouts_that_repeat_themselves_are_ended_by_the_engine_and_still_replay(server, tiny_gate):
    detection = {"repetition_detection": {"max_pattern_size": 4, "min_count": 3}}
    parameters = [tiny_gate.request(spec, coin) for spec, coin in zip(SPEC_OF_ROW, KEEP, strict=True)][:200]
    rollouts = server.client.complete(random_prompts(200, seed=2), SAMPLING | detection, parameters, tiny_gate.eos_ids)
    repeated = [rollout.token_ids for rollout in rollouts if rollout.finish_reason == "repetition"]
    assert len(repeated) > 10 and all(len(ids) < CAP for ids in repeated)
    for ids in repeated:
        assert any(ids[-3 * size :] == ids[-size:] * 3 for size in range(1, 5))
    replay_all(tiny_gate, token_ids(rollouts), SPEC_OF_ROW[:200], KEEP[:200])


def test_markers_and_ungated_requests_share_a_batch(server, tiny_gate):
    rows = mixed(server, tiny_gate, seed=1)
    for name in MARKERS:
        automaton, outcomes = compile_automaton(get_marker(name), tiny_gate.vocabulary), set()
        for spec in SPECS:
            own = [row for row in rows if row[1] is spec and row[3] == name]
            ids, stopped = split_sentinel([row[0] for row in own], tiny_gate.sentinel)
            outcomes |= set(replay(spec, automaton, ids, stopped, np.array([row[2] for row in own])).outcome.tolist())
        # A code block hardly ever closes here; the other markers meet every fate.
        assert outcomes >= set(Outcome) - ({Outcome.ANSWERED} if name == "code" else set()), name
    ungated = [ids for ids, _, _, marker in rows if marker is None]
    assert len(ungated) > 100
    assert all(len(ids) == CAP or ids[-1] in tiny_gate.eos_ids for ids in ungated)


def test_complete_can_be_called_from_a_running_event_loop(server, tiny_gate):
    async def cell() -> list[Choice]:
        return server.client.complete([[65], [66]], {**SAMPLING, "temperature": 0.0}, [None, None], tiny_gate.eos_ids)

    inside = asyncio.run(cell())
    again = server.client.complete([[66], [65]], {**SAMPLING, "temperature": 0.0}, [None, None], tiny_gate.eos_ids)
    assert token_ids(inside) == token_ids(again)[::-1]  # in the order of the prompts


# What a request may ask for


def ask(server: ServerProcess, gate: TinyGate, changes: dict, **body) -> tuple[int, str, list[int]]:
    """Status, text and tokens of a raw request whose JSON is written as Python writes it."""
    asked = {**json.loads(gate_parameters(gate.request(SPECS[0], False))["duet_gate"]), **changes}
    body = {
        "model": str(server.model),
        "prompt": [65, 66, 67],
        "max_tokens": 20,
        "temperature": 0.0,  # a draw may be an EOS
        "return_token_ids": True,
        "stop_token_ids": [*gate.eos_ids, gate.sentinel],
        "vllm_xargs": {"duet_gate": json.dumps(asked)},
        **body,
    }
    answer = server.request("POST", "/v1/completions", data=json.dumps(body))
    if answer.status_code != 200:
        return answer.status_code, answer.json()["error"]["message"], []
    return 200, "", answer.json()["choices"][0]["token_ids"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 99}, "same duet_trl for trainer and engine"),
        ({"k1": 3}, "cannot be read"),
        ({"spec": {"poll_threshold": 4, "abort_threshold": 1, "grace_window": 0}}, "K2=1 and K1=4"),
        ({"keep": 0}, "keep of a gate must be true or false, got 0"),
        ({"marker": "regex:4"}, "unknown marker"),
        ({"marker": 3000 * "a" + "..."}, "at most 127 fit"),
        ({"sentinel": 300}, "sentinel 300 must be in stop_token_ids"),
    ],
    ids=lambda value: None if isinstance(value, str) else json.dumps(value, default=str)[:40],
)
def test_bad_parameters_are_refused_with_our_text_and_the_server_lives_on(server, tiny_gate, changes, message):
    status, text, _ = ask(server, tiny_gate, changes)
    assert status == 400 and message in text, (status, text)
    assert ask(server, tiny_gate, {})[0] == 200


def test_the_servers_own_text_reaches_the_caller(server, tiny_gate):
    bad = tiny_gate.request(SPECS[0], False, "maths")
    with pytest.raises(ServerError, match="status 400: .*unknown marker 'maths'.*three dots") as refused:
        server.client.complete([[65]], SAMPLING, [bad], tiny_gate.eos_ids)
    assert type(refused.value) is ServerError  # no reason to wait for another server


# Whether the server is the right one


def test_probe_passes_for_every_marker_and_finds_another_tokenizer_and_other_weights(server, tiny_gate):
    ends = tiny_gate.sentinel, tiny_gate.eos_ids
    for name in MARKERS:
        fingerprint = compile_automaton(get_marker(name), tiny_gate.vocabulary).fingerprint
        assert server.client.probe(name, fingerprint, *ends) is None
    with pytest.raises(ServerError, match="another tokenizer or vocabulary size") as found:
        server.client.probe("math", "0" * 32, *ends)
    assert type(found.value) is ServerError
    with pytest.raises(ServerLost, match="has not loaded the weights in /elsewhere"):
        server.client.probe("math", tiny_gate.automaton.fingerprint, *ends, "/elsewhere")


def test_probe_passes_for_thoughts_that_only_the_request_names(server, tiny_gate):
    thought, ends = Delimiters("<think>", "</think>"), (tiny_gate.sentinel, tiny_gate.eos_ids)
    fingerprint = compile_automaton(get_marker("math", thought), tiny_gate.vocabulary).fingerprint
    assert server.client.probe("math", fingerprint, *ends, delimiters=thought) is None
    with pytest.raises(ServerError, match="to another automaton"):
        server.client.probe("math", fingerprint, *ends)


def test_no_server_is_said_within_the_timeout_with_the_line_that_starts_one():
    port, started = free_port(), time.monotonic()
    url = f"http://127.0.0.1:{port}"
    with pytest.raises(ServerLost, match=f"(?s){url} after 1 s.*--port {port} --logits-processors duet_trl"):
        GateServer(url).wait(1.0)
    assert time.monotonic() - started < 10
    with pytest.raises(ServerLost, match=url):
        GateServer(url).complete([[65]], SAMPLING, [None], [])


def test_a_server_that_is_no_vllm_is_said_to_be_none():
    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>Jupyter</html>")

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as other, ThreadPoolExecutor(1) as pool:
        pool.submit(other.serve_forever)
        try:
            with pytest.raises(ServerError, match="not answered by a vLLM server but with '<html>Jupyter"):
                GateServer(f"http://127.0.0.1:{other.server_port}").wait(1.0)
        finally:
            other.shutdown()


@pytest.mark.parametrize("token", [None, "not-the-servers-token"])
def test_without_its_token_the_guard_opens_nothing(server, token):
    assert server.request("POST", "/v1/completions", token=token, json={}).status_code == 401
    with pytest.raises(ServerError, match="401.*DUET_SERVER_TOKEN") as refused:
        GateServer(server.url, token).wait(60.0)
    assert type(refused.value) is ServerError  # said at once: waiting gives no token


# Weights


def logits_under(gate: TinyGate, parameters: dict[str, torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tokens: torch.func.functional_call(gate.model, parameters, (tokens,)).logits


def test_reloaded_weights_are_the_ones_that_are_sampled_from(server, tiny_gate, server_weights, tmp_path):
    prompt, new = random_prompts(1, seed=9)[0], tiny_gate.changed()
    policy = logits_under(tiny_gate, new)
    # vLLM's own server would load them from anywhere
    with pytest.raises(ServerError, match=f"403.*inside {server.weights}.*DUET_WEIGHTS_DIR"):
        server.client.reload_weights(str(WeightFolder(tmp_path).write(new.items())))
    assert server.distance(policy, prompt) > 0.05
    version = str(server_weights.write(new.items()))
    server.client.reload_weights(version)
    assert server.distance(policy, prompt) < 1e-3

    asked = tiny_gate.automaton.fingerprint, tiny_gate.sentinel, tiny_gate.eos_ids
    server.client.probe("math", *asked, weights=version)
    old, now = (replace(tiny_gate.request(SPECS[0], False), weights=path) for path in (str(server.model), version))
    rollouts = server.client.complete([prompt] * 8, SAMPLING, [old, now] * 4, tiny_gate.eos_ids)
    assert token_ids(rollouts)[::2] == [[tiny_gate.sentinel]] * 4
    assert all(ids[0] != tiny_gate.sentinel for ids in token_ids(rollouts)[1::2])


def test_nothing_computed_under_old_weights_outlives_them_while_a_request_runs(server, tiny_gate, server_weights):
    prompt, new = list(range(40, 140)), tiny_gate.changed()  # three full blocks of the prefix cache
    policy = logits_under(tiny_gate, new)
    old, version = (str(server_weights.write(w)) for w in (tiny_gate.model.named_parameters(), new.items()))
    # Eight rollouts of 250 tokens leave room in the cache for the blocks of the prompt, and preempt no one.
    body = {"model": str(server.model), "prompt": [65], "n": 8, "max_tokens": 250, "ignore_eos": True, "stream": True}
    enough = threading.Event()

    def keep_running() -> None:  # one request after the other: on a busy machine one ends before the weights arrive
        while not enough.is_set():
            with server.request("POST", "/v1/completions", json=body, stream=True) as running:
                assert [line for line in running.iter_lines() if line][-1] == b"data: [DONE]"

    with ThreadPoolExecutor(1) as pool:
        requests = pool.submit(keep_running)
        try:
            for _ in range(20):  # between two requests nothing runs
                server.client.reload_weights(old)
                server.distance(policy, prompt)
                before = server.metric("vllm:num_preemptions")
                server.client.reload_weights(version)
                assert server.distance(policy, prompt) < 1e-3
                restarted = server.metric("vllm:num_preemptions") > before  # some ran, and were made to start anew
                if restarted:
                    break
        finally:
            enough.set()
        requests.result(timeout=60)
    assert restarted
