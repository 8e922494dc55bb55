# SPDX-License-Identifier: Apache-2.0
"""Nothing passes the guard of the server without its token, and everything but the remote call passes with it."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duet_trl.engines.guard import TOKEN_VARIABLE, WEIGHTS_VARIABLE, TokenGuard
from tests.engines.guarded_app import BEARER, RPC, TOKEN, Behind, call, reload_request, serving, weights_below

testclient = pytest.importorskip("starlette.testclient")

GOOD = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    monkeypatch.setenv(WEIGHTS_VARIABLE, str(weights_below(tmp_path)))


PATHS = ["/health", "/metrics", "/metrics/", "/docs", "/openapi.json", "/v1/completions", "/", "/no"]


@pytest.mark.parametrize(
    "values",
    [
        *([], [b"Bearer"], [b"Bearer "], [b"Bearer wrong"], [TOKEN.encode()], [b"Basic " + TOKEN.encode()]),
        *([BEARER[:-1]], [BEARER.replace(b" ", b"  ")], [BEARER + b"x"], [b"Bearer " + TOKEN.upper().encode()]),
        *(["Bearer élan vital ünd so".encode("latin-1")], ["Bearer élan vital".encode()], [b"\xff\x00\xfe"]),
        *([b"Bearer wrong", BEARER], [BEARER, BEARER]),
    ],
)
def test_wrong_or_ambiguous_token_is_refused(values: list[bytes]) -> None:
    behind = Behind()
    status, headers, body = call(behind.app, "GET", "/health", [(b"authorization", value) for value in values])
    assert (status, headers[b"www-authenticate"], behind.seen) == (401, b"Bearer", [])
    assert TOKEN_VARIABLE in json.loads(body)["error"] and TOKEN not in body.decode()


@pytest.mark.parametrize("scheme", [b"Bearer", b"bearer", b"BEARER"])
@pytest.mark.parametrize("path", PATHS)
def test_with_the_token_the_application_answers_as_without_a_guard(path: str, scheme: bytes) -> None:
    behind, bare = Behind(), Behind()
    bare.app.user_middleware = [m for m in bare.app.user_middleware if m.cls is not TokenGuard]
    headers = [(b"authorization", scheme + b" " + TOKEN.encode()), (b"host", b"localhost")]
    for method in ("GET", "POST"):
        assert call(behind.app, method, path, headers) == call(bare.app, method, path, headers)
    assert behind.seen == bare.seen == [path, path]


headers_at_random = st.lists(
    st.tuples(
        st.sampled_from([b"authorization", b"Authorization", b"x-authorization", b"cookie", b"proxy-authorization"]),
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from([b"Bearer", b"Basic", TOKEN.encode()]),
            st.tuples(st.sampled_from([b"Bearer ", b"bearer\t", b"Token "]), st.binary(max_size=40)).map(b"".join),
        ),
    ),
    max_size=3,
)
paths_at_random = st.lists(
    st.sampled_from(["/", RPC, "/health", "/metrics", "..", ".", "%2e", "%2f", "?", "//", "é", "x"]), max_size=6
).map(lambda parts: "/" + "".join(parts))


@settings(max_examples=300, deadline=None)
@given(paths_at_random, st.sampled_from(["GET", "POST", "OPTIONS", "PUT", "TRACE"]), headers_at_random)
def test_nothing_without_the_right_token_gets_through(path: str, method: str, headers: list) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TOKEN_VARIABLE, TOKEN)
        reached = []
        guard = TokenGuard(lambda scope, receive, send: reached.append(scope))
        assert call(guard, method, path, headers, reload_request("/"))[0] == 401
    assert reached == []


def test_websocket_is_closed_before_it_is_accepted() -> None:
    behind = Behind()
    client = testclient.TestClient(behind.app)
    with client.websocket_connect("/v1/realtime", headers=GOOD) as websocket:
        assert websocket.receive_text() == "hello"
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(testclient.WebSocketDisconnect) as closed:
            client.websocket_connect("/v1/realtime", headers=headers).__enter__()
        assert closed.value.code == 1008
    assert behind.seen == ["/v1/realtime"]


def test_start_and_stop_of_the_application_pass_through() -> None:
    behind = Behind()
    with testclient.TestClient(behind.app) as client:
        assert client.get("/health", headers=GOOD).json() == {"answer": 42}
    assert behind.seen == ["start", "/health", "stop"]


@pytest.mark.parametrize("token", [None, "", "fifteen-letters", "sixteen letters!", "ünicode-in-a-long-token"])
def test_server_without_a_usable_token_does_not_start(token, monkeypatch, caplog) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE)
    if token is not None:
        monkeypatch.setenv(TOKEN_VARIABLE, token)
    behind = Behind()
    with serving(behind.app, expected_to_start=False):
        pass
    assert TOKEN_VARIABLE in caplog.text and "secrets.token_urlsafe" in caplog.text
    # and where no lifespan protocol stops it, it answers nothing
    assert call(behind.app, "GET", "/health", [(b"authorization", f"Bearer {token}".encode())])[0] == 401
    assert behind.seen == []
