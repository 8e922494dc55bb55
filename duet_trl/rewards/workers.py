# SPDX-License-Identifier: Apache-2.0
"""Worker processes of a verifier: each takes one request at a time, and all end with the verifier."""

import contextlib
import os
import queue
import signal
import subprocess
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class Workers:
    """As many workers as asked for, None: the default; each has `ask(request)` and `close()`."""

    def __init__(self, make: Callable[[], Any], count: int | None, default: int) -> None:
        if count is not None and count < 1:
            raise ValueError(f"workers must be at least 1, got {count}. Use None for one per core.")
        self.all = [make() for _ in range(count or default)]
        self._idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for worker in self.all:
            self._idle.put(worker)
        weakref.finalize(self, _close_all, self.all, os.getpid())

    def __len__(self) -> int:
        return len(self.all)

    def ask(self, request: Any) -> Any:
        """The answer of the first worker that is free. May be called from any thread."""
        worker = self._idle.get()
        try:
            return worker.ask(request)
        finally:
            self._idle.put(worker)

    def ask_all(self, requests: Sequence[Any]) -> list[Any]:
        """Answers in the order of the requests, several worked on at a time."""
        with ThreadPoolExecutor(len(self.all)) as pool:
            return list(pool.map(self.ask, requests))

    def close(self) -> None:
        """End the processes; they start again with the next request."""
        _close_all(self.all, os.getpid())


def end_session(process: subprocess.Popen[Any]) -> None:
    """Kill a process that leads a session, with all that it forked."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _close_all(workers: list[Any], owner: int) -> None:
    # A forked copy of the training process has no right to its workers.
    if os.getpid() == owner:
        for worker in workers:
            worker.close()
