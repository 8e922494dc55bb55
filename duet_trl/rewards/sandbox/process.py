# SPDX-License-Identifier: Apache-2.0
"""The outer end of the sandbox: what a check is, and the launcher process that takes checks one at a time."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .codec import MAX_CHECK_BYTES, EndOfData, NotPlainData, frame, read_frame
from .launcher import BOOTSTRAP, SECONDS_TO_END

SECONDS_TO_START = 60.0
SECONDS_OF_GRACE = 10.0
"""What a launcher may take beyond the time that it enforces before it is taken for lost."""


class SandboxError(RuntimeError):
    """The sandbox cannot be had on this machine."""


@dataclass(frozen=True)
class Limits:
    """What the program of a check may use; the judge has the same.

    Attributes:
        cpu_seconds (int): Processor time of the process with its threads.
        wall_seconds (float): Time from start to verdict; for programs that wait. Killing takes a second at most.
        memory_bytes (int): Address space.
        folder_bytes (int): Size of the private folder, and of each file.
        open_files (int): Open descriptors.
        threads (int): Threads. Other processes cannot be started.
    """

    cpu_seconds: int = 3
    wall_seconds: float = 6.0
    memory_bytes: int = 1 << 30
    folder_bytes: int = 16 << 20
    open_files: int = 64
    threads: int = 64

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise ValueError(f"{name} must be positive, got {value}.")
        if self.cpu_seconds != int(self.cpu_seconds):
            raise ValueError(f"cpu_seconds must be a whole number, as the kernel counts it, got {self.cpu_seconds}.")


@dataclass(frozen=True)
class Check:
    """A program and its tests.

    Attributes:
        source (str): The program, which defines `names`.
        names (tuple[str, ...]): What the tests call; only these reach the program.
        tests (tuple[str, ...]): Python code that raises if the program is wrong; run in order, in one namespace.
        setup (tuple[str, ...]): Code that the tests need: imports, helpers.
        preamble (str): Code that comes before the program in its own process, such as the beginning of a function
            whose body the program is.
        reads_input (bool): The program is a script rather than a module of functions: each name is a function from
            its input to what it prints.
    """

    source: str
    names: tuple[str, ...]
    tests: tuple[str, ...]
    setup: tuple[str, ...] = ()
    preamble: str = ""
    reads_input: bool = False

    def message(self) -> dict[str, Any]:
        """What the judge gets."""
        program = {
            "source": self.source,
            "names": self.names,
            "preamble": self.preamble,
            "reads_input": self.reads_input,
        }
        return {"program": program, "tests": self.tests, "setup": self.setup}


class LauncherProcess:
    """One launcher process and the socket on which it takes requests; one check at a time.

    Args:
        isolation (str): Name of the isolation, proven or not.
        limits (Limits): Of each check.
    """

    def __init__(self, isolation: str, limits: Limits) -> None:
        self._config = {"isolation": isolation, "limits": asdict(limits), "bubblewrap": shutil.which("bwrap") or ""}
        self._limits = limits
        self._seconds_to_answer = limits.wall_seconds + SECONDS_TO_END + SECONDS_OF_GRACE
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def check(self, check: Check) -> tuple[bool | None, str]:
        """Verdict and reason; the verdict is None if the launcher was lost twice, or gave no answer in time."""
        reason = ""
        for _ in range(2):
            try:
                if self._process is None:
                    self.start()
                return self._exchange(check)
            except TimeoutError:
                self.close()
                return None, f"the sandbox gave no answer within {self._seconds_to_answer:g} seconds"
            except (OSError, EndOfData, SandboxError) as error:
                reason = f"the sandbox failed twice, {type(error).__name__}: {error}"
                self.close()
        return None, reason

    def start(self) -> None:
        """Start the process.

        Raises:
            SandboxError: If it cannot enter its isolation.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # -S and -P: nothing but the standard library is imported, and not from the current folder.
            # A fixed hash seed: the order of a set must not decide a reward.
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-S", "-P", "-c", BOOTSTRAP.format(entry="main"), str(Path(__file__).parent)],
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PYTHONHASHSEED": "0"},
                cwd="/",
                start_new_session=True,
            )
        self._control = ours
        ours.settimeout(SECONDS_TO_START)
        ours.send(json.dumps(self._config).encode())
        reply = self._receive()
        if "error" in reply:
            self.close()
            raise SandboxError(reply["error"])
        ours.settimeout(self._seconds_to_answer)

    def _exchange(self, check: Check) -> tuple[bool | None, str]:
        try:
            message = frame(check.message(), MAX_CHECK_BYTES)
        except NotPlainData as error:
            return False, f"the program with its tests is too large: {error}"
        ours, channel = socket.socketpair()
        judge_link, program_link = socket.socketpair()
        with ours:
            with channel, judge_link, program_link:
                request = json.dumps({"wall_seconds": self._limits.wall_seconds}).encode()
                ends = [end.fileno() for end in (channel, judge_link, program_link)]
                socket.send_fds(self._control, [request], ends)
            ours.settimeout(self._seconds_to_answer)
            with contextlib.suppress(ConnectionError):  # the judge ended early: the launcher's reply says why
                ours.sendall(message)
            status = self._receive()
            ending = self._ending(*status["program"])
            if status["timed_out"]:
                return False, f"no verdict within {self._limits.wall_seconds:g} seconds{ending}"
            if status["judge"][0] != 0:
                return False, f"the judge ended without a verdict ({status['judge'][0]}){ending}"
            verdict = read_frame(ours.fileno())
        return verdict["passed"], verdict["reason"] + ("" if verdict["passed"] else ending)

    def _ending(self, exit_code: int, cpu_seconds: float) -> str:
        """How the program ended, if that says more than the verdict; a kill may also be the launcher's tidying up."""
        # The kernel enforces the limit in ticks, which on a busy machine run ahead of the seconds that it reports.
        if cpu_seconds > 0.75 * self._limits.cpu_seconds:
            return f" (the program used up its {self._limits.cpu_seconds:g} seconds of processor time)"
        if exit_code < 0 and exit_code != -signal.SIGKILL:
            return f" (the program was ended by {signal.Signals(-exit_code).name})"
        return f" (the program ended with status {exit_code})" if exit_code > 0 else ""

    def _receive(self) -> dict[str, Any]:
        reply = self._control.recv(1 << 16)
        if not reply:
            raise EndOfData("the launcher ended")
        return json.loads(reply)

    def close(self) -> None:
        """End the launcher with all that it forked."""
        if self._process is None:
            return
        process, self._process = self._process, None
        self._control.close()
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
