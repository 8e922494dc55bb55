# SPDX-License-Identifier: Apache-2.0
"""A server and a training that uses it, as child processes that end with their parent, whatever ends it (Linux)."""

import contextlib
import ctypes
import functools
import http.client
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SECONDS_TO_END = 30.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Command:
    """A command line and what it adds to the environment."""

    arguments: list[str]
    variables: dict[str, str]

    def shown(self, hidden: str) -> str:
        """As a line for the shell, with the value of one variable hidden."""
        variables = {name: "<hidden>" if name == hidden else shlex.quote(v) for name, v in self.variables.items()}
        return " ".join([*(f"{name}={value}" for name, value in variables.items()), shlex.join(self.arguments)])

    def start(self, log: Path | None = None) -> subprocess.Popen:
        """Start it in a session of its own, where the terminal's Ctrl-C does not reach it; output to `log`."""
        output = None
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            output = log.open("a")
        return subprocess.Popen(
            self.arguments,
            env=os.environ | self.variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=functools.partial(_end_with, os.getpid()),
        )


def _end_with(parent: int) -> None:
    """Have this process told when its parent ends, even if the parent is killed and cannot tell it."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it was killed before that
        os.kill(os.getpid(), signal.SIGTERM)


class Run:
    """Starts the server, waits until it is ready, starts the training, and ends both.

    Args:
        serve (Command | None): The server; None: it runs elsewhere.
        train (Command | None): The training; None: it runs elsewhere.
        address (tuple[str, int]): Host and port of the server.
        token (str): What the server asks for.
        log (Path): The server's output is appended to it.
        timeout (float): Seconds until the server must be ready.
        restarts (int): How often a server that dies during the training is started again.
    """

    def __init__(
        self,
        serve: Command | None,
        train: Command | None,
        address: tuple[str, int],
        token: str,
        log: Path,
        timeout: float,
        restarts: int,
    ) -> None:
        self._serve, self._train, self._address, self._token = serve, train, address, token
        self._log, self._timeout, self._restarts = log, timeout, restarts
        self._server: subprocess.Popen | None = None
        self._training: subprocess.Popen | None = None
        self._script = ""
        self._asked_to_stop = False

    def __call__(self, script: str) -> int:
        """Exit status of the training; where it runs elsewhere, of the server."""
        self._script = script
        # What children leave behind becomes a child of this process, where `end_all` finds it.
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in SIGNALS:
            signal.signal(number, self._stop)
        self._log.unlink(missing_ok=True)
        try:
            self._start_server()
            self._wait_for_server()
            if self._train is None:
                return exit_status(self._server.wait())
            self._training = self._train.start()
            return exit_status(self._watch())
        finally:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            end_all([process for process in (self._training, self._server) if process is not None])

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._asked_to_stop or self._training is None or not stop_script(self._training, self._script):
            raise SystemExit(128 + number)
        self._asked_to_stop = True
        say("the training ends after this step, with a checkpoint; once more stops it at once")

    def _start_server(self) -> None:
        if self._serve is None:
            return
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        try:
            socket.create_server(self._address, family=family).close()
        except OSError as error:
            sys.exit(f"error: cannot listen at {self._address}: {error}. Choose another --host or --port.")
        self._server = self._serve.start(self._log)

    def _wait_for_server(self) -> None:
        deadline = time.monotonic() + self._timeout
        while (status := health(self._address, self._token)) != 200:
            if self._server is not None and self._server.poll() is not None:
                sys.exit(f"error: the server ended before it was ready.\n{tail(self._log)}")
            if status == 401:
                sys.exit(f"error: the server at {self._address} has another token than this environment.")
            if time.monotonic() > deadline:
                sys.exit(f"error: no server at {self._address} after {self._timeout:.0f} s; see --server_timeout.")
            time.sleep(0.5)
        say(f"the server at {self._address} is ready")

    def _watch(self) -> int:
        """Wait for the training, which for its part waits for a server that died to be started again."""
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._training.wait(timeout=1)
            if self._server is not None and self._server.poll() is not None and self._restarts > 0:
                self._restarts -= 1
                say(f"the server died and is started again. {tail(self._log)}")
                send(session(self._server.pid), signal.SIGKILL)  # an engine that outlived it holds its memory
                self._start_server()


def health(address: tuple[str, int], token: str) -> int:
    """HTTP status of /health; 0 if nothing answers. Never through a proxy, which would see the token."""
    connection = http.client.HTTPConnection(*address, timeout=5)
    try:
        connection.request("GET", "/health", headers={"Authorization": f"Bearer {token}"})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def end_all(children: list[subprocess.Popen]) -> None:
    """End every process below this one: the children politely, after half a minute all of them by force."""
    for child in children:
        if child.poll() is None:
            child.terminate()
    deadline = time.monotonic() + SECONDS_TO_END
    while left := below(os.getpid()):
        if time.monotonic() > deadline:
            send(left, signal.SIGKILL)
        time.sleep(0.1)


def stop_script(process: subprocess.Popen, script: str) -> bool:
    """Send SIGTERM to the processes that run a script, not to the launchers above them or the workers below them.

    A launcher would pass the signal on and then wait half a minute, which is less than a training step may take.

    Args:
        process (subprocess.Popen): The script, or what launched it.
        script (str): Its path, as it stands in the command line.

    Returns:
        bool: Whether there is such a process.
    """
    found = {pid for pid in (process.pid, *below(process.pid)) if runs_script(pid, script)}
    workers = {pid for rank in found for pid in below(rank)}
    send(found - workers, signal.SIGTERM)
    return bool(found)


def below(root: int) -> list[int]:
    """Ids of the running processes that descend from one."""
    parents, found = {pid: parent for pid, (parent, _) in running().items()}, [root]
    for above in found:  # grows as it is read
        found += [pid for pid, parent in parents.items() if parent == above]
    return found[1:]


def session(leader: int) -> list[int]:
    """Ids of the running processes of a session."""
    return [pid for pid, (_, leading) in running().items() if leading == leader]


def running() -> dict[int, tuple[int, int]]:
    """Parent and session of every process that has not ended."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # the name before them, in parentheses, may hold anything
            state, parent, _, leader = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
            if state not in "ZX":
                found[int(pid)] = (int(parent), int(leader))
    return found


def runs_script(pid: int, script: str) -> bool:
    """Whether a process is `python [-option] script ...`; a launcher is `python -m module ... script ...`."""
    arguments: list[str] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[1:]
    while arguments and arguments[0].startswith("-"):
        del arguments[0]
    return arguments[:1] == [script]


def send(pids: set[int] | list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.kill(pid, number)


def exit_status(returncode: int) -> int:
    """Exit status as a shell reports it: 128 + N for a process that signal N ended."""
    return returncode if returncode >= 0 else 128 - returncode


def tail(log: Path, lines: int = 30) -> str:
    """The end of a log."""
    return "\n".join([f"The end of {log}:", *log.read_text(errors="replace").splitlines()[-lines:]])


def say(text: str) -> None:
    print(f"launch: {text}", flush=True)
