# SPDX-License-Identifier: Apache-2.0
"""Why a request ended, in vLLM's words, and what its client makes of it."""

import logging
import threading
from collections.abc import Iterator

import pytest

from duet_trl.engines import server as server_client
from duet_trl.engines.engine import ServerError, ServerLost
from duet_trl.engines.server import GateServer
from tests.engines.guarded_app import fastapi, serving


@pytest.fixture(params=["repetition", "abort", "content_filter"])
def ending(request) -> Iterator[tuple[str, GateServer]]:
    """A server whose every request ends for one reason."""
    app = fastapi.FastAPI()
    choice = {"index": 0, "finish_reason": request.param, "stop_reason": "because", "token_ids": [65, 66, 65, 66]}
    choice["logprobs"] = {"token_logprobs": [-1.0, -2.0, -0.5, -0.25]}
    app.get("/v1/models")(lambda: {"data": [{"id": "tiny"}]})
    app.post("/v1/completions")(lambda: {"choices": [choice]})
    with serving(app) as port:
        yield request.param, GateServer(f"http://127.0.0.1:{port}")


def test_a_reason_is_an_ending_a_lost_server_or_an_error_that_names_it(ending):
    reason, client = ending
    if reason == "repetition":
        (rollout,) = client.complete([[65]], {}, [None], [])
        assert (rollout.token_ids, rollout.finish_reason) == ([65, 66, 65, 66], "repetition")
        assert rollout.logprobs == [-1.0, -2.0, -0.5, -0.25]
    elif reason == "abort":
        with pytest.raises(ServerLost, match="'abort'"):
            client.complete([[65]], {}, [None], [])
    else:
        with pytest.raises(ServerError, match="'content_filter'.*'because'.*generation_kwargs") as found:
            client.complete([[65]], {}, [None], [])
        assert type(found.value) is ServerError  # waiting for the server would not help


def choice(index: int, ids: list[int], **changes: object) -> dict:
    logprobs = {"token_logprobs": [-1.0] * len(ids)}
    return {
        "index": index,
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": ids,
        "logprobs": logprobs,
    } | changes


def answered(choices: object) -> list[list[int]]:
    """Rollouts of two prompts, as a client reads them from such an answer."""
    app = fastapi.FastAPI()
    app.get("/v1/models")(lambda: {"data": [{"id": "tiny"}]})
    app.post("/v1/completions")(lambda: {"choices": choices})
    with serving(app) as port:
        client = GateServer(f"http://127.0.0.1:{port}")
        return [one.token_ids for one in client.complete([[65], [66]], {}, [None, None], [])]


def test_choices_in_another_order_reach_their_own_prompts():
    assert answered([choice(1, [66, 66]), choice(0, [65])]) == [[65], [66, 66]]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([choice(0, [65])], r"complete 2 prompts and answered with 1 choices, numbered \[0\]"),
        ([choice(0, [65]), choice(0, [66])], r"with 2 choices, numbered \[0\]"),
        ([choice(0, [65]), choice(2, [66])], r"numbered \[0, 2\]"),
        ([choice(0, [65]), choice(1, [66], logprobs=None)], "1 token ids with 0 log-probs"),
        ([choice(0, [65]), choice(1, [66, 66], logprobs={"token_logprobs": [-1.0]})], "2 token ids with 1 log-probs"),
        ([choice(0, [65]), choice(1, [66], token_ids=None)], "0 token ids with 1 log-probs"),
        (None, "not answered by a vLLM server but with"),
    ],
    ids=["too-few", "twice-the-same", "another-number", "no-log-probs", "truncated", "no-ids", "no-choices"],
)
def test_an_answer_that_is_not_what_was_asked_for_ends_the_batch(choices, message):
    with pytest.raises(ServerError, match=message) as found:
        answered(choices)
    assert type(found.value) is ServerError  # every process hears of it, and waiting for the server would not help


def test_a_server_that_is_healthy_and_answers_nothing_is_named(monkeypatch, caplog):
    """The run waits, and says for whom; here the answer comes once that was said."""
    monkeypatch.setattr(server_client, "_SLOW_SECONDS", 0.05)
    app = fastapi.FastAPI()
    app.get("/v1/models")(lambda: {"data": [{"id": "tiny"}]})
    said = threading.Event()

    class Said(logging.Handler):
        def emit(self, record):
            said.set()

    @app.post("/v1/completions")
    def complete() -> dict:
        assert said.wait(timeout=60)
        return {"choices": [choice(0, [65])]}

    handler = Said(logging.WARNING)
    server_client.logger.addHandler(handler)
    try:
        with serving(app) as port:
            (rollout,) = GateServer(f"http://127.0.0.1:{port}").complete([[65]], {}, [None], [])
    finally:
        server_client.logger.removeHandler(handler)
    assert rollout.token_ids == [65]
    assert "has answered none of 1 requests for 0.05 s, though it says that it is healthy" in caplog.text


def test_every_reason_that_vllm_documents_is_known():
    engine = pytest.importorskip("vllm.v1.engine")
    # "error" never arrives as a reason: vLLM answers such a request with status 500.
    assert set(engine.FINISH_REASON_STRINGS) == {"stop", "length", "repetition", "abort", "error"}
