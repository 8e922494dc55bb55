# SPDX-License-Identifier: Apache-2.0
"""Why a request ended, in vLLM's words, and what its client makes of an answer."""

import logging
import threading

import pytest

from duet_trl.engines import server as server_client
from duet_trl.engines.engine import ServerError, ServerLost
from duet_trl.engines.server import GateServer
from duet_trl.engines.server_answers import Choice
from tests.engines.guarded_app import fastapi, serving


def choice(index: int, ids: list[int], **changes: object) -> dict:
    made = {"index": index, "finish_reason": "stop", "stop_reason": None, "token_ids": ids}
    return made | {"logprobs": {"token_logprobs": [-1.0] * len(ids)}} | changes


def answered(choices: object) -> list[Choice]:
    """Rollouts of two prompts, as a client reads them from such an answer."""
    app = fastapi.FastAPI()
    app.get("/v1/models")(lambda: {"data": [{"id": "tiny"}]})
    app.post("/v1/completions")(lambda: {"choices": choices})
    with serving(app) as port:
        return GateServer(f"http://127.0.0.1:{port}").complete([[65], [66]], {}, [None, None], [])


def test_choices_in_another_order_reach_their_own_prompts():
    rollouts = answered([choice(1, [66, 66], finish_reason="repetition"), choice(0, [65])])
    assert rollouts == [Choice([65], [-1.0], "stop", None), Choice([66, 66], [-1.0, -1.0], "repetition", None)]


FIRST = choice(0, [65])


@pytest.mark.parametrize(
    ("choices", "error", "message"),
    [
        ([FIRST, choice(1, [66], finish_reason="abort")], ServerLost, "'abort'"),
        (
            [FIRST, choice(1, [66], finish_reason="content_filter", stop_reason="because")],
            *(ServerError, "'content_filter'.*'because'.*generation_kwargs"),
        ),
        ([FIRST], ServerError, r"complete 2 prompts and answered with 1 choices, numbered \[0\]"),
        ([FIRST, choice(0, [66])], ServerError, r"with 2 choices, numbered \[0\]"),
        ([FIRST, choice(2, [66])], ServerError, r"numbered \[0, 2\]"),
        ([FIRST, choice(1, [66], logprobs=None)], ServerError, "1 token ids with 0 log-probs"),
        ([FIRST, choice(1, [66, 66], logprobs={"token_logprobs": [-1.0]})], ServerError, "2 token ids with 1 log-p"),
        ([FIRST, choice(1, [66], token_ids=None)], ServerError, "0 token ids with 1 log-probs"),
        (None, ServerError, "not completed by a vLLM server"),
    ],
    ids=["abort", "filter", "few", "twice", "another-number", "no-log-probs", "truncated", "no-ids", "no-choices"],
)
def test_a_reason_is_an_ending_a_lost_server_or_an_error_that_names_it(choices, error, message):
    with pytest.raises(ServerError, match=message) as found:
        answered(choices)
    assert type(found.value) is error  # only a lost server is worth waiting for


def test_a_server_that_is_healthy_and_answers_nothing_is_named(monkeypatch, caplog):
    """The run waits, and says for whom; here the answer comes once that was said."""
    monkeypatch.setattr(server_client, "_SLOW_SECONDS", 0.05)
    app, said, handler = fastapi.FastAPI(), threading.Event(), logging.Handler(logging.WARNING)
    app.get("/v1/models")(lambda: {"data": [{"id": "tiny"}]})
    app.post("/v1/completions")(lambda: said.wait(timeout=60) and {"choices": [FIRST]})
    monkeypatch.setattr(handler, "emit", lambda record: said.set())
    monkeypatch.setattr(server_client.logger, "handlers", [handler])
    with serving(app) as port:
        (rollout,) = GateServer(f"http://127.0.0.1:{port}").complete([[65]], {}, [None], [])
    assert rollout.token_ids == [65]
    assert "has answered none of 1 requests for 0.05 s, though its health check passes" in caplog.text


def test_every_reason_that_vllm_documents_is_known():
    engine = pytest.importorskip("vllm.v1.engine")
    # "error" never arrives as a reason: vLLM answers such a request with status 500.
    assert set(engine.FINISH_REASON_STRINGS) == {"stop", "length", "repetition", "abort", "error"}
