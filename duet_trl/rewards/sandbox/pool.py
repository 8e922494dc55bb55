# SPDX-License-Identifier: Apache-2.0
"""Runs untrusted programs against unit tests, isolated, with a verdict that they cannot forge.

Two processes per check. The *program* answers calls in one; the *judge* runs the tests in the other and sees stand-ins
for the program's functions. Only plain values pass between them (`codec.py`), so the verdict is out of reach.
Both are isolated (`jail.py`) and end with the check.
"""

import contextlib
import json
import logging
import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path

from ..workers import Worker, Workers
from .codec import MAX_CHECK_BYTES, EndOfData, Link, NotPlainData, framed
from .jail import bubblewrap_command
from .launcher import BOOTSTRAP, SECONDS_TO_END
from .system_calls import MACHINES

STRONG_ISOLATION = ("bubblewrap", "landlock")
"""Ways to keep a program from files, network and processes, in the order in which "auto" tries them."""
WEAK_ISOLATION = "limits"
"""The same without a bar on reading files: only on request."""
SECONDS_TO_START = 60.0
SECONDS_OF_GRACE = 10.0
"""Time that a launcher may take beyond the limit that it enforces before it counts as lost."""
SHELL = 'echo 1000 >/proc/$$/oom_score_adj; exec /usr/bin/env -i PYTHONHASHSEED=0 "$@"'
"""Where memory runs out, the kernel's choice is a sandbox and not the training. No environment, not even the shell's;
the order of a set must not decide a reward."""

logger = logging.getLogger(__name__)


class SandboxError(RuntimeError):
    """The sandbox cannot be had on this machine."""


@dataclass(frozen=True)
class Limits:
    """Limits of the program of a check; the judge has the same. Memory, files and threads: see `jail.py`."""

    cpu_seconds: int = 3  # processor time of the process with its threads
    wall_seconds: float = 6.0  # from start to verdict, for programs that wait; killing takes a second at most

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise ValueError(f"{name} must be positive, got {value}.")
        if self.cpu_seconds != int(self.cpu_seconds):
            raise ValueError(f"cpu_seconds must be a whole number, as the kernel counts it, got {self.cpu_seconds}.")


@dataclass(frozen=True)
class Check:
    """A program and its tests."""

    source: str  # the program, which defines `names`
    names: tuple[str, ...]  # what the tests call; only these reach the program
    tests: tuple[str, ...]  # code that raises if the program is wrong; run in order, in one namespace
    setup: tuple[str, ...] = ()  # code that the tests need: imports, helpers
    preamble: str = ""  # code before the program, such as the beginning of a function whose body it is
    reads_input: bool = False  # it is a script: each name is a function from its input to what it prints


@dataclass(frozen=True)
class Verdict:
    """Outcome of a check."""

    passed: bool | None  # whether all tests passed; None if the tests do not run, or the sandbox broke
    reason: str  # one line
    isolation: str  # that the check ran in
    seconds: float = field(compare=False)  # wall-clock time of the check


class Sandbox:
    """Checks programs, several at a time.

    Args:
        isolation (str): "auto" takes the first of "bubblewrap" and "landlock" that a trial run proves to hold here.
            "limits" lets programs read the files of the user. docs/safety.md describes them.
        limits (Limits): Of each check.
        workers (int | None): Checks that run at a time. None: one per core, shared between a machine's ranks.

    Raises:
        ValueError: If an argument is out of its range.
        SandboxError: If that isolation does not hold on this machine.
    """

    def __init__(self, *, isolation: str = "auto", limits: Limits | None = None, workers: int | None = None) -> None:
        self.limits = limits or Limits()
        self.isolation = find_isolation(isolation)
        launcher = partial(LauncherProcess, self.isolation, self.limits)
        self._workers = Workers(launcher, workers, default_workers())

    def check(self, check: Check) -> Verdict:
        """Verdict on one program; blocks until a worker is free. May be called from any thread."""
        return self._workers.ask(check)

    def check_all(self, checks: Sequence[Check]) -> list[Verdict]:
        """Verdicts in the order of the checks."""
        return self._workers.ask_all(checks)

    def longest_seconds(self, num_checks: int) -> float:
        """Wall-clock seconds within which that many checks end, whatever the programs do, once the workers run.

        (limit + 1 s) x (checks / workers + 1): a check is killed within a second, and the last one begins when the
        others, shared out evenly, have ended.
        """
        return (self.limits.wall_seconds + SECONDS_TO_END) * (num_checks / len(self._workers.all) + 1)

    def close(self) -> None:
        """End the workers; they start again with the next check."""
        self._workers.close()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def default_workers() -> int:
    """One for each core that this process may use, shared with the other ranks that a launcher started here."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # torchrun and accelerate set it
    return max(1, len(os.sched_getaffinity(0)) // ranks)


class LauncherProcess(Worker):
    """One launcher process in an isolation, proven or not, and the socket on which it takes one check at a time."""

    lost_by = (OSError, EndOfData, SandboxError)

    def __init__(self, isolation: str, limits: Limits) -> None:
        super().__init__()
        self._isolation = isolation
        self._limits = limits
        self._seconds_to_answer = limits.wall_seconds + SECONDS_TO_END + SECONDS_OF_GRACE

    def ask(self, request: Check) -> Verdict:
        """Its `passed` is None if the launcher was lost twice, or gave no answer in time."""
        begin = time.monotonic()
        answer = super().ask(request)
        if isinstance(answer, TimeoutError):
            answer = None, f"the sandbox gave no answer within {self._seconds_to_answer:g} seconds"
        elif isinstance(answer, Exception):
            answer = None, f"the sandbox failed twice, {type(answer).__name__}: {answer}"
        return Verdict(*answer, self._isolation, time.monotonic() - begin)

    def start(self) -> None:
        """Start the process; SandboxError if it cannot enter its isolation."""
        folder = str(Path(__file__).parent)
        python = [sys.executable]
        if self._isolation == "bubblewrap":
            python = bubblewrap_command(shutil.which("bwrap") or "", folder)
        # -S and -P: nothing but the standard library is imported, and not from the current folder.
        code = [*python, "-s", "-S", "-P", "-c", BOOTSTRAP, folder, self._isolation, json.dumps(asdict(self._limits))]
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            pipes = {"stdin": theirs, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
            command = ["/bin/sh", "-c", SHELL, "sh", *code]
            self._process = subprocess.Popen(command, env={}, cwd="/", start_new_session=True, **pipes)
        self._control.settimeout(SECONDS_TO_START)
        self._receive()
        self._control.settimeout(self._seconds_to_answer)

    def _receive(self) -> bytes:
        """The launcher's answer; SandboxError, with its message, if it has ended."""
        if reply := self._control.recv(1 << 16):
            return reply
        self.end()
        said = self._process.stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
        self.close()
        raise SandboxError(f"the launcher ended: {said[:300]}")

    def exchange(self, request: Check) -> tuple[bool | None, str]:
        """Whether the program passed, and why."""
        try:
            message = framed(asdict(request), MAX_CHECK_BYTES)
        except NotPlainData as error:
            return False, f"the program with its tests is too large: {error}"
        ours, channel = socket.socketpair()
        with ours:
            with channel:
                socket.send_fds(self._control, [b"check"], [channel.fileno()])
            ours.settimeout(self._seconds_to_answer)
            with contextlib.suppress(ConnectionError):  # the judge ended early: the launcher's reply states why
                ours.sendall(message)
            status = json.loads(self._receive())
            ending = self._ending(*status["program"])
            if status["timed_out"]:
                return False, f"no verdict within {self._limits.wall_seconds:g} seconds{ending}"
            if status["judge"] != 0:
                return False, f"the judge ended without a verdict ({status['judge']}){ending}"
            verdict = Link(ours).receive()
        return verdict["passed"], verdict["reason"] + ("" if verdict["passed"] else ending)

    def _ending(self, exit_code: int, cpu_seconds: float) -> str:
        """How the program ended, if that tells more than the verdict; a kill may also be the launcher's tidying up."""
        # The kernel enforces the limit in ticks, which on a busy machine run ahead of the seconds that it reports.
        if cpu_seconds > 0.75 * self._limits.cpu_seconds:
            return f" (the program used up its {self._limits.cpu_seconds:g} seconds of processor time)"
        if exit_code < 0 and exit_code != -signal.SIGKILL:
            return f" (the program was ended by {signal.Signals(-exit_code).name})"
        return f" (the program ended with status {exit_code})" if exit_code > 0 else ""

    def close(self) -> None:
        """End the launcher with everything it forked."""
        if self._process is not None:
            self._control.close()
        super().close()


PROBE = """
import os, socket
import colorsys  # not loaded yet: the library can be read

def reach(file, word, folder, port, process):
    attempts = {
        "read": lambda: word in open(file).read(),
        "write": lambda: open(file, "a").write("x"),
        "create": lambda: open(folder + "/created", "w").write("x"),
        "connect": lambda: socket.create_connection(("127.0.0.1", port), timeout=2),
        "signal": lambda: process != os.getpid() and os.kill(process, 0) is None,
        "environment": lambda: dict(os.environ),
        "remove": lambda: os.remove(file) is None,
    }
    return [name for name, attempt in attempts.items() if succeeds(attempt)]

def succeeds(attempt):
    try:
        return attempt()
    except OSError:
        return False
"""
"""Reports which are reachable: a file, its folder, a listening port, a process, the environment."""


@cache
def find_isolation(isolation: str) -> str:
    """The isolation to use, proven by a trial run and remembered; SandboxError if it (or for "auto" any) fails."""
    names = (*STRONG_ISOLATION, WEAK_ISOLATION)
    if isolation not in ("auto", *names):
        raise ValueError(f"isolation must be 'auto' or one of {', '.join(names)}, got {isolation!r}.")
    defects = {}
    for name in STRONG_ISOLATION if isolation == "auto" else (isolation,):
        defect = probe(name)
        if defect is None:
            logger.info("Programs under test are isolated by: %s", name)
            return name
        defects[name] = defect
    raise SandboxError(
        f"no isolation for programs under test holds on this machine. Tried {defects}. Install bubblewrap (bwrap) "
        "where user namespaces are allowed, or use a kernel with Landlock. On a machine where programs may read your "
        f"files, ask for the weak one by its name: isolation={WEAK_ISOLATION!r}."
    )


def probe(isolation: str) -> str | None:
    """Why an isolation cannot be used on this machine, in one line; None if it can.

    A program must reach no file, network, other process or environment; with "limits" it may read files.
    """
    if platform.machine() not in MACHINES:
        return f"there is no system-call filter for {platform.machine()!r}, only for {', '.join(MACHINES)}"
    if isolation == "bubblewrap" and shutil.which("bwrap") is None:
        return "bubblewrap (bwrap) is not installed"
    allowed = ["read"] if isolation == WEAK_ISOLATION else []
    word = secrets.token_hex(8)
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        file = Path(folder) / "file"
        file.write_text(word)
        # Open to all: only the isolation protects them.
        os.chmod(folder, 0o777)
        os.chmod(file, 0o666)
        arguments = (str(file), word, folder, server.getsockname()[1], os.getpid())
        call = f"reached = reach{arguments!r}"
        test = f"reached = [way for way in reached if way not in {allowed!r}]\nassert not reached, reached"
        launcher = LauncherProcess(isolation, Limits())
        try:
            launcher.start()
            verdict = launcher.ask(Check(PROBE, ("reach",), (call, test)))
        except (SandboxError, OSError) as error:
            return str(error)
        finally:
            launcher.close()
        if verdict.passed and file.read_text() != word:
            return "a file outside was changed"
    return None if verdict.passed else verdict.reason
