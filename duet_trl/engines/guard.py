# SPDX-License-Identifier: Apache-2.0
"""A token for every path of a vLLM server, and one permitted remote procedure call.

vLLM's own `--api-key` leaves the development endpoints open, through which weights are sent. Start the server with

    DUET_SERVER_TOKEN=<token> vllm serve <model> --middleware duet_trl.engines.guard.TokenGuard

docs/safety.md#the-server lists what the server exposes.
"""

import glob
import hmac
import json
import os
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

TOKEN_VARIABLE = "DUET_SERVER_TOKEN"
"""Environment variable with the token, on the server and on its clients. Never an argument: `ps` shows those."""

WEIGHTS_VARIABLE = "DUET_WEIGHTS_DIR"
"""Environment variable of the server with the one folder that weights may be reloaded from."""

RPC_PATH = "/collective_rpc"
"""Endpoint that calls any method of vLLM's workers by name."""

MIN_TOKEN_LENGTH = 16
"""Characters."""

MAX_RPC_BYTES = 64 * 1024
"""Longest body read from a request to that endpoint; an allowed one holds little more than a path."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class TokenGuard:
    """ASGI middleware that lets nothing through without `Authorization: Bearer <token>`.

    Every HTTP request and websocket needs the token of `DUET_SERVER_TOKEN`, whatever its path: status 401, or close
    code 1008, without it. With it everything is open except `/collective_rpc`, where only `reload_weights` from a
    folder inside `DUET_WEIGHTS_DIR` passes; the rest is status 403. Both variables are read when the middleware is
    built. Without a usable token the server does not start.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        token = os.environ.get(TOKEN_VARIABLE, "")
        # Not raised here: Starlette builds its middleware inside the first call, where uvicorn takes an exception for
        # a missing lifespan protocol and serves on. `_start` refuses in the way that stops it.
        self._problem = token_problem(token)
        self._token = token.encode("utf-8", "surrogateescape")
        self._weights_dir = os.environ.get(WEIGHTS_VARIABLE) or None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a connection on, or answer it here."""
        if scope["type"] == "lifespan":
            await self._start(scope, receive, send)
        elif self._problem is not None or not self._has_token(scope):
            await _refuse(scope, send, 401, self._problem or _TOKEN_WANTED)
        # Whatever prefix, mount or encoding: a decoded path that reaches the endpoint contains its name.
        elif scope["type"] == "http" and RPC_PATH in scope["path"]:
            await self._reload(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _start(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._problem is None:
            await self._app(scope, receive, send)
        else:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": self._problem})

    def _has_token(self, scope: Scope) -> bool:
        """Whether the one Authorization header carries the token; two of them are ambiguous and count as none."""
        values = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        scheme, _, token = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token, self._token)

    async def _reload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what was checked: the body is rewritten, so that no second parser reads it in another way."""
        try:
            path = checked_path(await _read(receive), self._weights_dir)
        except PermissionError as refusal:
            await _refuse(scope, send, 403, str(refusal))
            return
        body = json.dumps({"method": "reload_weights", "kwargs": {"weights_path": path}}).encode()
        replaced = (b"content-length", b"content-type", b"content-encoding", b"transfer-encoding")
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in replaced]
        headers += [(b"content-length", str(len(body)).encode()), (b"content-type", b"application/json")]
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> MutableMapping[str, Any]:
            return messages.pop() if messages else await receive()

        await self._app({**scope, "headers": headers}, replay, send)


def token_problem(token: str) -> str | None:
    """The fault of a token ("": there is none), and the remedy; None if it has none."""
    if len(token) >= MIN_TOKEN_LENGTH and re.fullmatch(r"[!-~]+", token):
        return None
    found = f"has {len(token)} characters" if token else "is not set"
    return (
        f"{TOKEN_VARIABLE} {found}: the server needs a token of at least {MIN_TOKEN_LENGTH} characters, all of them "
        "visible ASCII. Make one with\n"
        f"    export {TOKEN_VARIABLE}=$(python -c 'import secrets; print(secrets.token_urlsafe(32))')\n"
        "and set the same variable for the training process."
    )


def checked_path(body: bytes, weights_dir: str | None) -> str:
    """Folder of weights that a body of `/collective_rpc` asks for, as it was written: the engine reports it as loaded.

    It must lie in `weights_dir`, or be it; links and `..` are followed in both. PermissionError for all but a
    reload of safetensors.
    """
    if weights_dir is None:
        raise PermissionError(
            f"{RPC_PATH} is closed. To let the trainer reload weights from disk, start the server with "
            f"{WEIGHTS_VARIABLE} set to the folder they are written to."
        )
    try:
        asked = json.loads(body)
        path = asked["kwargs"]["weights_path"]
        only = asked == {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
    except (ValueError, RecursionError, TypeError, KeyError):  # deep nesting ends the parser by RecursionError
        only = False
    if not only:
        raise PermissionError(
            f"{RPC_PATH} is open for one call only: "
            '{"method": "reload_weights", "kwargs": {"weights_path": "<folder>"}} and no other key, at most '
            f"{MAX_RPC_BYTES} bytes."
        )
    try:
        folder = os.path.realpath(path)
    except ValueError:  # a null byte, or half of a surrogate pair
        folder = ""
    root = os.path.realpath(weights_dir)
    # A relative path means something else in every process, and vLLM takes one that does not exist for a Hub name.
    if not os.path.isabs(path) or not folder or os.path.commonpath([root, folder]) != root:
        raise PermissionError(
            f"weights_path must be an absolute path inside {root}, got {path!r}. Write the weights there, or start "
            f"the server with another {WEIGHTS_VARIABLE}."
        )
    # Without safetensors vLLM would look for pickled weights.
    if not glob.glob(os.path.join(glob.escape(folder), "*.safetensors")):
        raise PermissionError(
            f"{path!r} holds no *.safetensors that the server can see. Write the weights before asking for them, to a "
            "file system that both machines share."
        )
    return path


async def _read(receive: Receive) -> bytes:
    """The body of a request; b"" if it is too long or breaks off."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] != "http.request" or len(body) > MAX_RPC_BYTES:
            return b""
        more = message.get("more_body", False)
    return body


_TOKEN_WANTED = (
    "This server requires the header 'Authorization: Bearer <token>' with the token that it was started with; clients "
    f"take it from {TOKEN_VARIABLE}."
)


async def _refuse(scope: Scope, send: Send, status: int, reason: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": "see the documentation of TokenGuard"})
        return
    body = json.dumps({"error": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
