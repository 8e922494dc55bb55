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


class Worker:
    """A process that leads a session. A subclass starts it (`_process`) and exchanges a request for an answer."""

    lost_by: tuple[type[Exception], ...] = (BrokenPipeError,)
    """Exceptions of `start` and `exchange` where the process was lost."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[Any] | None = None

    def ask(self, request: Any) -> Any:
        """The answer; the error in its place if the process was lost twice, or gave no answer in time."""
        for tries_left in (1, 0):
            try:
                if self._process is None:
                    self.start()
                return self.exchange(request)
            except self.lost_by as error:
                self.close()
                if tries_left == 0 or isinstance(error, TimeoutError):
                    return error

    def end(self) -> None:
        """Kill the process with everything it forked."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End the process; it starts again with the next request."""
        if self._process is None:
            return
        self.end()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._process = None


class Workers:
    """As many workers as asked for, None: the default."""

    def __init__(self, make: Callable[[], Worker], count: int | None, default: int) -> None:
        if count is not None and count < 1:
            raise ValueError(f"workers must be at least 1, got {count}. Use None for one per core.")
        self.all = [make() for _ in range(count or default)]
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self.all:
            self._idle.put(worker)
        weakref.finalize(self, _close_all, self.all, os.getpid())

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


def _close_all(workers: list[Worker], owner: int) -> None:
    # A forked copy of the training process has no right to its workers.
    if os.getpid() == owner:
        for worker in workers:
            worker.close()
