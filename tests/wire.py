# SPDX-License-Identifier: Apache-2.0
"""The wire between a trainer and a vLLM server, which knows when the server has answered how many batches."""

import socket
import threading
from collections.abc import Callable, Iterator

from tests.server_process import ServerProcess

_PIECE = 1 << 16


class Wire:
    """Passes the bytes of every connection to a server, until that server is to die with an answer on its way.

    Reading the server's metrics instead would leave it to chance whether it is busy when the signal arrives.
    """

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._left: int | None = None
        self._then: Callable[[], object] = lambda: None
        self.struck = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.close()

    def strike(self, answers: int, then: Callable[[], object] = lambda: None) -> None:
        """From now on pass so many answers to completion requests, kill the server with the next one, do `then`."""
        with self._lock:
            self._left, self._then = answers, then

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed at the end of the test
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client:
            try:
                upstream = socket.create_connection(("127.0.0.1", self.server.port))
            except OSError:  # nobody listens there: so it is for the client
                return
            with upstream:
                asked = threading.Event()
                threading.Thread(target=self._requests, args=(client, upstream, asked), daemon=True).start()
                self._answers(upstream, client, asked)

    def _requests(self, client: socket.socket, upstream: socket.socket, asked: threading.Event) -> None:
        for piece in _pieces(client):
            if piece.startswith(b"POST /v1/completions "):
                asked.set()
            try:
                upstream.sendall(piece)
            except OSError:
                break
        _shut(upstream)

    def _answers(self, upstream: socket.socket, client: socket.socket, asked: threading.Event) -> None:
        for piece in _pieces(upstream):
            if asked.is_set():
                asked.clear()
                if self._last():
                    break
            try:
                client.sendall(piece)
            except OSError:
                break
        _shut(client)
        _shut(upstream)

    def _last(self) -> bool:
        """Count an answer; True if it is the one that the server dies with."""
        with self._lock:
            if self._left is None or self._left > 0:
                self._left = None if self._left is None else self._left - 1
                return False
            self._left = None
            self.server.kill()
            self._then()
            self.struck.set()
            return True


def _pieces(end: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            piece = end.recv(_PIECE)
        except OSError:
            return
        if not piece:
            return
        yield piece


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:  # gone already
        pass
