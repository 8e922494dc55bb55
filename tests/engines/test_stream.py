# SPDX-License-Identifier: Apache-2.0
"""The gate on a stream, against a server that is no vLLM: where rollouts stop, what is lost, and what is refused."""

import json
import math
import resource
import time
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.engines import server as server_client
from duet_trl.engines.engine import Request, ServerError, ServerLost
from duet_trl.engines.server_answers import Choice
from duet_trl.engines.stream import StreamServer
from duet_trl.engines.stream_engine import StreamEngine
from duet_trl.engines.stream_rollout import GATE, Events, entropy_bound
from duet_trl.exchange import Exchange
from duet_trl.gate.replay import GateSpec, Outcome, replay
from duet_trl.gate.streaming import GateRequest, GateSetup
from duet_trl.seams.checkpoint import round_trip
from tests.engines.stream_server import THRESHOLD, Script, StreamPeer, toy_vocabulary
from tests.gate.oracle import EOS, Rollout, continued, toy_ends

PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "max_tokens": 60}
AUTOMATON = toy_vocabulary()
SPECS = (
    GateSpec(8, 16, 4, poll_interval=4),
    GateSpec(4, 20, 6, poll_interval=3, entropy_threshold=THRESHOLD),
    GateSpec(8, 12, 0, poll_interval=5, trim=False),
    GateSpec(8, 16, 4, poll_interval=4, abort=False, window=6, entropy_threshold=THRESHOLD),
)
TEXT = ("ab", [1, 2])


def client(peer: StreamPeer) -> StreamServer:
    server = StreamServer(peer.url)
    server.automaton = AUTOMATON
    return server


def gate_of(row: int, begun: int = 0) -> GateRequest:
    return GateRequest(SPECS[row % 4], row % 3 == 0, "toy", 63, frozenset({EOS}), prefix_length=begun)


def asked(rows: int) -> tuple[list[list[int]], list[GateRequest], list[int]]:
    """Prompts, gates and limits; some continue the first tokens of their script."""
    scripts = [Script(row, 60).ids for row in range(rows)]
    begun = [len(ids) * (row % 7) // 8 if row % 5 else 0 for row, ids in enumerate(scripts)]
    prompts = [[row, EOS, *scripts[row][: begun[row]]] for row in range(rows)]
    return prompts, [gate_of(*one) for one in enumerate(begun)], [60 - count for count in begun]


def expected(row: int, begun: int, early: bool = True) -> Rollout:
    """What algorithm 1 makes of a row; without `early` the entropy is no reason to stop."""
    script, request = Script(row, 60), gate_of(row)
    entropy = script.entropy if early else np.full(len(script.entropy), np.inf)
    return continued(request.spec, script.ids, request.keep, entropy, toy_ends(script.ids), begun)


def assert_oracle(prompts: list[list[int]], found: list[Choice]) -> list[Outcome]:
    outcomes = []
    for row, (prompt, choice) in enumerate(zip(prompts, found, strict=True)):
        begun, spec = len(prompt) - 2, SPECS[row % 4]
        rollout, stopped = expected(row, begun), choice.finish_reason == GATE
        assert ([*prompt[2:], *choice.token_ids], stopped) == (rollout.ids, rollout.stopped), row
        assert choice.logprobs == Script(row, 60).logprobs[begun : len(rollout.ids)]
        ids, keep, prefix = [rollout.ids], np.array([row % 3 == 0]), np.array([begun])
        replayed = replay(spec, AUTOMATON, ids, np.array([stopped]), keep, prefix_length=prefix)
        outcomes.append(Outcome(replayed.outcome[0]))
        assert outcomes[-1] == rollout.outcome
    return outcomes


def test_rollouts_stop_where_algorithm_1_stops_them_and_continue_prefixes():
    prompts, gates, limits = asked(400)
    with StreamPeer().running() as peer:
        found = client(peer).complete(prompts, PLAIN, gates, [EOS], limits)
    outcomes = assert_oracle(prompts, found)
    assert set(outcomes) == set(Outcome) and min(map(outcomes.count, Outcome)) > 10
    at_once = [row for row, choice in enumerate(found) if not choice.token_ids]
    overdue = [row for row in at_once if not SPECS[row % 4].entropy_threshold]
    assert len(overdue) > 3 and not any(peer.began[row] for row in overdue)  # nothing to ask for
    assert {choice.finish_reason for choice in found} == {GATE, "stop", "length"}


def test_4096_ragged_streams_through_refusals_none_is_lost_and_none_comes_twice():
    prompts, gates, limits = asked(4096)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with StreamPeer(refuses=300).running() as peer:
        found = client(peer).complete(prompts, PLAIN, gates, [EOS], limits)
    # KiB: 50 for both ends of a stream, where the likeliest tokens alone would be more if they were kept.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 4096
    assert_oracle(prompts, found)
    own = [choice.logprobs[0] for choice in found if choice.logprobs]
    assert len(own) == len(set(own)) > 3000 and len(peer.began) >= len(own) and set(peer.began.values()) == {1}


def test_a_stop_hangs_up_at_once_and_what_was_generated_behind_it_is_waste(caplog):
    prompts, gates, limits = asked(100)
    pauses = {}
    for row, begun in enumerate(len(prompt) - 2 for prompt in prompts):
        rollout = expected(row, begun)
        if rollout.stopped and len(rollout.ids) > begun:  # seen before the next token, but for a stop by its entropy
            pauses[row] = len(rollout.ids) - begun + (rollout != expected(row, begun, early=False))
    with StreamPeer(pauses=pauses).running() as peer:
        server = client(peer)
        server.complete(prompts, PLAIN, gates, [EOS], limits)
        assert peer.hung_up == pauses.keys()
        assert 0 < server.waste < 0.1 and not caplog.records  # a token or two for each stop
        peer.goes_on = True
        server.complete(prompts, PLAIN, gates, [EOS], limits)
        assert server.waste > 0.2 and "keeps connections that the client has left" in caplog.text


def test_streams_that_a_proxy_buffers_are_named_with_the_remedy(caplog):
    prompts, gates, limits = asked(200)
    with StreamPeer(buffers=True).running() as peer:
        server = client(peer)
        for _ in range(2):
            assert_oracle(prompts, server.complete(prompts, PLAIN, gates, [EOS], limits))
    assert len(caplog.records) == 1 and "proxy_buffering off" in caplog.text and server.waste > 0.1


def test_a_server_too_busy_for_its_health_is_not_lost_while_it_streams(monkeypatch):
    monkeypatch.setattr(server_client, "_HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(server_client, "_HEARTBEATS_MISSED", 10)
    prompts, gates, limits = asked(400)
    with StreamPeer(busy=True).running() as peer:
        assert_oracle(prompts, client(peer).complete(prompts, PLAIN, gates, [EOS], limits))
        with pytest.raises(ServerLost, match="fell silent"):
            peer.pauses = {0: 1}
            client(peer).complete([[0, EOS]], PLAIN, [None], [EOS])


@pytest.mark.parametrize(("row", "how"), [(3, "ended a stream after"), (6, "broke a stream after")])
def test_a_stream_that_breaks_off_loses_the_batch(row, how):
    with StreamPeer(breaks={row: 1}).running() as peer, pytest.raises(ServerLost, match=how):
        client(peer).complete([[row, EOS] for row in range(8)], PLAIN, [None] * 8, [EOS])


def test_a_server_without_room_is_given_up_with_its_eighth_refusal():
    started = time.monotonic()
    with (
        StreamPeer(refuses=8, last_wait=30).running() as peer,
        pytest.raises(ServerLost, match="refused 8 times.*503: busy"),
    ):
        client(peer).complete([[1, EOS]], PLAIN, [None], [EOS])
    assert time.monotonic() - started < 20  # nothing is asked again, so nothing is waited for


def test_a_server_that_is_away_is_started_where_it_was_looked_for():
    for url, port in (("http://127.0.0.1:1", "1"), ("http://localhost.invalid", "<port>")):
        with pytest.raises(ServerLost, match=f"Start it: vllm serve <model> --host 127.0.0.1 --port {port} "):
            StreamServer(url).wait(0.0)


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        (
            {"changes": {"token_ids": None, "logprobs": None}},
            "streamed 0 token ids with 0 log-probs.*return_token_ids",
        ),
        ({"changes": {"token_ids": None, "logprobs": {"tokens": ["a"]}}}, "names a token by its text, 'a'"),
        ({"changes": {"logprobs": None}}, "1 token ids with 0 log-probs"),
        ({"changes": {"logprobs": {"token_logprobs": [math.nan]}}}, "the log-probability nan .*--dtype bfloat16"),
        ({"changes": {"logprobs": {"token_logprobs": [-math.inf]}}}, "the log-probability -inf"),
        ({"changes": {"prompt_token_ids": [0, 1]}}, r"completed \[0, 1\]... instead of the prompt"),
        ({"changes": {"finish_reason": "stop", "token_ids": [5]}}, r"after \[5\], which is not one of the end tokens"),
        ({"changes": {"finish_reason": "content_filter"}}, "'content_filter'.*generation_kwargs"),
        ({"raw": b'{"choices": []}'}, "asked for a stream and answered with"),
        ({"raw": b"<html>\n"}, "answered with b'<html>"),
        ({"raw": b'data: {"choices": [null]}\n\n'}, "a chunk of another form .*return_token_ids"),
        ({"raw": b"data: {\n\n"}, "an event that is not a JSON object"),
        ({"raw": b'data: {"error": {"code": 400, "message": "too long"}}\n\n'}, "with an error.*too long"),
        ({"others": {"/tokenize": {"ids": [1]}}}, r"reads 'ab' as None instead of \[1, 2\]"),
        ({"others": {"/v1/models": {"data": []}}}, r"/v1/models names no model: .*Serve the one that is trained"),
        ({"others": {"/tokenize": {"tokens": [1]}}}, r"another tokenizer: it reads 'ab' as \[1\] instead of \[1, 2\]"),
    ],
)
def test_a_server_that_cannot_serve_is_found_before_training(faults, message):
    with StreamPeer(**faults).running() as peer, pytest.raises(ServerError, match=message) as found:
        client(peer).try_out(PLAIN, [EOS], *TEXT)
    assert not isinstance(found.value, ServerLost)  # waiting would not help


def test_log_probs_from_before_the_temperature_are_refused():
    answer = {"choices": [{"logprobs": {"top_logprobs": [{"a": -1.0}]}}]}
    with StreamPeer(others={"/tokenize": None, "/v1/completions": answer}).running() as peer:
        client(peer).try_out(PLAIN, [EOS], *TEXT)  # no difference, and no /tokenize
        with pytest.raises(ServerError, match="--logprobs-mode processed_logprobs"):
            client(peer).try_out(PLAIN | {"temperature": 0.7}, [EOS], *TEXT)


def test_without_likeliest_tokens_or_at_another_temperature_the_entropy_is_no_reason_to_stop(caplog):
    prompts, gates = [[row, EOS] for row in range(50)], [gate_of(row) for row in range(50)]
    with StreamPeer().running() as peer:
        found = client(peer).complete(prompts, PLAIN | {"temperature": 0.7}, gates, [EOS])
        assert "entropy_threshold is about those of the policy" in caplog.text
        for row, choice in enumerate(found):
            assert choice.token_ids == expected(row, 0, early=False).ids
        peer.changes = {"logprobs": {"token_logprobs": [-1.0]}}
        with pytest.raises(ServerError, match="entropy_threshold"):
            client(peer).complete(prompts, PLAIN, gates, [EOS])


def test_ids_may_come_as_texts_of_log_probs():
    with StreamPeer(changes={"token_ids": None}).running() as peer:
        (found,) = client(peer).complete([[1, EOS]], PLAIN, [None], [EOS])
    assert found.token_ids == Script(1, 60).ids


EVENTS = "".join(f"data: {json.dumps({'choices': [{'text': t}]}, ensure_ascii=False)}\n\n" for t in "aé€𝄞").encode()


def test_events_may_be_cut_anywhere():
    for cut in range(len(EVENTS) + 1):
        events = Events()
        found = events.feed(EVENTS[:cut]) + events.feed(EVENTS[cut:] + b": ping\r\n\r\ndata:[DONE]\n\n")
        assert [choice["text"] for choice in found] == list("aé€𝄞")


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=40), st.integers(1, 6))
def test_no_distribution_with_these_log_probs_has_a_larger_entropy(masses, known):
    p = np.sort(np.array(masses) / sum(masses))[::-1]
    entropy = -(p * np.log(p)).sum()
    bound = entropy_bound(np.log(p[:known]).tolist(), len(p))
    assert bound >= entropy - 1e-9
    if known < len(p):  # reached where the rest is even
        p[known:] = p[known:].mean()
        np.testing.assert_allclose(bound, -(p * np.log(p)).sum(), atol=1e-9)


class Connection(SimpleNamespace):
    """What a trainer holds of a server; weights are sent by another way."""

    weights = ""

    def reconnect(self) -> None:
        """Nothing to do."""

    check_reload = reconnect


def engine_of(peer: StreamPeer, sent: list[str], reports: list[dict]) -> StreamEngine:
    def turn(prompts: list[list[int]]) -> tuple[list[list[int]], list[list[float]]]:
        _, ids, logprobs, _ = engine.complete(prompts, None, 1)
        return ids, [[value for (value,) in row] for row in logprobs]

    engine = StreamEngine(
        *(turn, GateSetup("toy", AUTOMATON, 63, (EOS,)), [EOS], 60, lambda sampling: nullcontext()),
        connection=Connection(gate=StreamServer(peer.url)),
        sampling=lambda: PLAIN,
        send=lambda: sent.append(peer.version),
        exchange=Exchange(Accelerator(cpu=True)),
        process=0,
        timeout=10.0,
        text=TEXT,
        report=reports.append,
    )
    return engine


def test_a_lost_or_restarted_server_gets_the_weights_and_the_whole_batch_again(caplog):
    requests = [Request([row, EOS], (), 60, SPECS[row % 4], row % 3 == 0, number=row) for row in range(40)]
    sent, reports = [], []
    with StreamPeer().running() as peer:
        engine = engine_of(peer, sent, reports)
        engine.sync_weights()
        peer.began.clear()
        peer.breaks = {5: 1}
        done = engine.generate(requests)
        assert peer.began[5] == 2 and len(sent) == 2
        peer.version = "default"  # as after a restart
        again = engine.generate(requests)
    assert caplog.text.count("was lost") == 2 and "was restarted" in caplog.text
    assert done == again and len(sent) == 3 and reports[-1].keys() == {"waste_share"}
    for row, one in enumerate(done):
        rollout = expected(row, 0)
        assert (one.token_ids, one.finish == "gate") == (rollout.ids, rollout.stopped)


def test_the_waste_of_rollouts_that_were_begun_is_reported_with_them_also_behind_a_checkpoint():
    requests = [Request([row, EOS], (), 60, SPECS[row % 4], row % 3 == 0, number=row) for row in range(40)]
    reports = []
    with StreamPeer(buffers=True).running() as peer:
        engine = engine_of(peer, [], reports)
        engine.begin(requests)
        state = round_trip("engine", engine.begun_state())
        resumed = engine_of(peer, [], reports)  # whose server has generated for nobody else yet
        resumed.load_begun(state)
        engine.sample([[0, EOS]], PLAIN)  # an evaluation, which wastes nothing
        peer.began.clear()
        assert engine.generate(requests) == resumed.generate(requests) and not peer.began
    rollouts = [(Script(row, 60).ids, expected(row, 0).ids) for row in range(40)]
    whole, kept = (sum(map(len, ids)) for ids in zip(*rollouts, strict=True))
    assert [one["waste_share"] for one in reports] == [pytest.approx(1 - kept / whole)] * 2 and kept < whole


@pytest.mark.parametrize(("refuses", "is_lost"), [(8 + 4, False), (8 + 8 + 8 - 1, False), (3 * 8, True)])
def test_a_healthy_server_that_refuses_where_it_is_probed_too_has_three_attempts(refuses, is_lost):
    requests = [Request([1, EOS], (), 60, None, True, number=0)]
    with StreamPeer().running() as peer:
        engine = engine_of(peer, [], [])
        peer.refuses = refuses  # eight of one request lose the server; it is probed by one request
        if is_lost:
            with pytest.raises(ServerError, match="was lost 3 times in one batch; last: .*refused 8 times"):
                engine.generate(requests)
        else:
            assert len(engine.generate(requests)) == 1
        assert peer.refuses == 0


def test_a_request_that_is_not_understood_and_an_address_with_a_version_have_a_remedy():
    with StreamPeer(status=422).running() as peer, pytest.raises(ServerError, match="status 422: .*return_token_ids"):
        client(peer).try_out(PLAIN, [EOS], *TEXT)
    with StreamPeer().running() as peer, pytest.raises(ServerError, match="leave /v1 out of vllm_server_base_url='"):
        StreamServer(f"{peer.url}/v1").wait(1.0)


def test_a_server_without_development_endpoints_is_told_how_to_have_them():
    with StreamPeer(others={}).running() as peer, pytest.raises(ServerError, match="404.*VLLM_SERVER_DEV_MODE=1"):
        client(peer).configuration()


@pytest.mark.parametrize("answer", [{}, {"vllm_config": None}, {"vllm_config": {"model_config": {}}}, [1]])
def test_a_configuration_that_is_none_of_vllm_is_named(answer):
    with StreamPeer(others={"/server_info": answer}).running() as peer:
        with pytest.raises(ServerError, match="/server_info is not that of a vLLM server: .*VLLM_SERVER_DEV_MODE=1"):
            client(peer).configuration()
        peer.others["/server_info"] = {"vllm_config": {"model_config": {"logprobs_mode": "x"}}}
        assert client(peer).configuration() == {"model_config": {"logprobs_mode": "x"}}
