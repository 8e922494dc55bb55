# SPDX-License-Identifier: Apache-2.0
"""Why a request ended, in vLLM's words, and what its client makes of it."""

from collections.abc import Iterator

import pytest

from duet_trl.engines.errors import ServerError, ServerLost
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


def test_every_reason_that_vllm_documents_is_known():
    engine = pytest.importorskip("vllm.v1.engine")
    # "error" never arrives as a reason: vLLM answers such a request with status 500.
    assert set(engine.FINISH_REASON_STRINGS) == {"stop", "length", "repetition", "abort", "error"}
