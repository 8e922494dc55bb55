# SPDX-License-Identifier: Apache-2.0
"""An application behind the server's guard, and ways to send it bytes that no client library has tidied up."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from duet_trl.engines.guard import TokenGuard

# They come with vLLM, which serves through them.
fastapi = pytest.importorskip("fastapi")
uvicorn = pytest.importorskip("uvicorn")
responses = pytest.importorskip("starlette.responses")

TOKEN = "correct-horse-battery-staple"
BEARER = b"Bearer " + TOKEN.encode()
RPC = "/collective_rpc"


class Behind:
    """An application with the kinds of paths that vLLM's has, and a record of what reached it."""

    def __init__(self, root_path: str = "") -> None:
        self.rpc: list[tuple[bytes, dict]] = []
        self.seen: list[str] = []
        self.app = fastapi.FastAPI(root_path=root_path, lifespan=self.lifespan)
        self.app.post(RPC)(self.collective_rpc)
        self.app.post("/v1/completions")(self.answer)
        self.app.get("/health")(self.answer)
        self.app.mount("/metrics", responses.PlainTextResponse("metrics"))
        self.app.websocket("/v1/realtime")(self.realtime)
        self.app.add_middleware(self.note)
        self.app.add_middleware(TokenGuard)

    def note(self, app):
        async def noted(scope, receive, send):
            if scope["type"] != "lifespan":
                self.seen.append(scope["path"])
            await app(scope, receive, send)

        return noted

    @contextlib.asynccontextmanager
    async def lifespan(self, app) -> None:
        self.seen.append("start")
        yield
        self.seen.append("stop")

    # FastAPI reads the annotations
    async def collective_rpc(self, request: fastapi.Request) -> dict:
        self.rpc.append((await request.body(), dict(request.headers)))
        return {"results": [(await request.json())["method"]]}

    async def answer(self) -> dict:
        return {"answer": 42}

    async def realtime(self, websocket: fastapi.WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("hello")
        await websocket.close()


def weights_below(path: Path) -> Path:
    """A folder of weights with one version in it, and some that are not to be reached."""
    for name in ("weights/1", "weights-evil", "elsewhere"):
        (path / name).mkdir(parents=True)
        (path / name / "model.safetensors").touch()
    (path / "weights" / "pickled").mkdir()
    (path / "weights" / "pickled" / "pytorch_model.bin").touch()
    (path / "weights" / "out").symlink_to(path / "elsewhere")
    (path / "in").symlink_to(path / "weights")
    return path / "weights"


def reload_request(path: object) -> bytes:
    return json.dumps({"method": "reload_weights", "kwargs": {"weights_path": str(path)}}).encode()


def call(app, method: str, target: str, headers: list[tuple[bytes, bytes]], *body: bytes, closed: bool = False):
    """Status, headers and body of a request in the form in which a server hands it over; `closed` before its end."""
    path, _, query = target.partition("?")
    scope = {"type": "http", "http_version": "1.1", "method": method, "scheme": "http", "root_path": ""}
    scope |= {"path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(), "headers": headers}
    received = [{"type": "http.request", "body": part, "more_body": True} for part in body or [b""]]
    received[-1]["more_body"] = closed
    received.append({"type": "http.disconnect"})
    sent = []

    async def receive():
        return received.pop(0)

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    content = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], dict(sent[0]["headers"]), content


@contextlib.contextmanager
def serving(app, *, expected_to_start: bool = True, **options) -> Iterator[int]:
    """A real uvicorn on a free port of the loopback interface. Connections queue up until it is ready."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, **options))

    def run() -> None:
        with contextlib.suppress(SystemExit):  # how uvicorn ends when its application does not start
            server.run(sockets=[listener])

    thread = threading.Thread(target=run)
    thread.start()
    try:
        if not expected_to_start:
            thread.join(timeout=30)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(timeout=30)
        listener.close()
    assert server.started == expected_to_start


def exchange(port: int, *raw: bytes) -> int:
    """Status of the answer to bytes as they are, which no client library has tidied up."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"".join(raw))
        return int(connection.makefile("rb").readline().split()[1])
