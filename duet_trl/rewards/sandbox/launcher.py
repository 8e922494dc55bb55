# SPDX-License-Identifier: Apache-2.0
"""The launcher: a process that forks judges and programs, and ends them. It never holds a test or an answer.

Requests come over a socket of packets (descriptor 0): three descriptors, which are handed on to the two processes of
the check. What is checked goes through those descriptors, past the launcher, so that a program finds
nothing in the memory that it was forked from.
"""

import contextlib
import gc
import importlib
import json
import os
import platform
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from . import jail, kernel
from .codec import Caught, write_frame
from .filter import has_filter
from .judge import judge
from .worker import INPUT, OUTPUT, work

PRELOADED = (
    "abc array ast base64 bisect calendar cmath collections contextlib copy dataclasses datetime decimal difflib enum "
    "fractions functools hashlib heapq inspect io itertools json math numbers operator pprint queue random re "
    "statistics string struct textwrap threading time traceback types typing unicodedata uuid encodings.ascii "
    "encodings.idna encodings.latin_1"
).split()
"""Standard library that programs use most; loaded once, inherited by every fork."""
SECONDS_TO_END = 1.0
"""Longest wait for killed processes; the kernel may take longer over their memory, and then nobody waits."""
BOOTSTRAP = (
    "import sys, types; sandbox = types.ModuleType('sandbox'); sandbox.__path__ = [sys.argv[1]]; "
    "sys.modules['sandbox'] = sandbox; from sandbox.launcher import {entry}; {entry}()"
)
"""Makes this folder a package of its own: the packages above the real one import torch."""


def main() -> None:
    """Serve requests until the other side closes the socket."""
    control = socket.socket(fileno=0)
    config = json.loads(control.recv(1 << 16))
    with Caught() as outcome:
        launcher = Launcher(config)
    if outcome.error is not None:
        control.send(json.dumps({"error": str(outcome.error) or type(outcome.error).__name__}).encode())
        return
    control.send(json.dumps({"ready": True}).encode())
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 3)
        if not request:
            return
        reply = launcher.run(*descriptors)
        control.send(json.dumps(reply).encode())


def confined_main() -> None:
    """Entry point inside bubblewrap: one judge or one program."""
    role, limits = sys.argv[2:]
    _run_role(role, "bubblewrap", json.loads(limits), os.getppid(), jail.UNPRIVILEGED_ID)


class Launcher:
    """Forks the two processes of a check in the isolation that was asked for."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._isolation: str = config["isolation"]
        if self._isolation in ("landlock", "limits") and not has_filter():
            raise OSError(f"there is no system-call filter for {platform.machine()}, which {self._isolation!r} needs")
        if self._isolation == "bubblewrap" and not config["bubblewrap"]:
            raise OSError("bubblewrap (bwrap) is not installed")
        self._limits: dict[str, Any] = config["limits"]
        self._bubblewrap: str = config["bubblewrap"]
        self._folder = os.path.dirname(os.path.abspath(__file__))
        self._own_ids: int | None = None
        self._leaving: list[int] = []
        if self._isolation != "bubblewrap":
            for name in PRELOADED:
                importlib.import_module(name)
        else:
            kernel.prctl(kernel.CHILD_SUBREAPER, 1)
        # Where memory runs out, the kernel's choice is a sandbox and not the training.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
        jail.prepare(self._isolation)
        self._user = jail.choose_user()
        if self._isolation == "namespaces":
            self._own_ids = jail.enter()
            if os.geteuid() != 0:  # in a user namespace, which has one user
                self._user = jail.UNPRIVILEGED_ID
        kernel.prctl(kernel.DUMPABLE, 0)
        gc.collect()
        gc.freeze()

    def run(self, channel: int, judge_link: int, program_link: int) -> dict[str, Any]:
        """Run one check to its end or to its deadline, and kill what is left of it; takes SECONDS_TO_END more at most.

        How judge and program ended is [exit status, negative for a signal; processor seconds].
        """
        deadline = time.monotonic() + self._limits["wall_seconds"]
        self._leaving = [process for process in self._leaving if os.waitpid(process, os.WNOHANG)[0] == 0]
        judge_process = self._start("judge", judge_link, channel)
        program_process = self._start("program", program_link, None)
        for descriptor in (channel, judge_link, program_link):
            os.close(descriptor)
        finished = _has_ended(judge_process, deadline)
        for process in (program_process, judge_process):
            _kill(process)
        until = time.monotonic() + SECONDS_TO_END
        ended = {"program": self._end(program_process, until), "judge": self._end(judge_process, until)}
        if self._isolation == "bubblewrap":
            self._end_orphans(until)
        return {"timed_out": not finished, **ended}

    def _end(self, process: int, until: float) -> tuple[int, float]:
        """How a killed process ended, and its processor seconds; unknown where it takes longer than `until`."""
        if not _has_ended(process, until):
            self._leaving.append(process)
            return -signal.SIGKILL, 0.0
        _, status, usage = os.wait4(process, 0)
        return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime

    def _end_orphans(self, until: float) -> None:
        """End what a killed bubblewrap leaves: its own child, the first process of the namespace it made."""
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        while orphans := set(map(int, children.read_text().split())) - set(self._leaving):
            for orphan in orphans:
                os.kill(orphan, signal.SIGKILL)
                self._end(orphan, until)

    def _start(self, role: str, link: int, channel: int | None) -> int:
        parent = 0 if self._isolation == "namespaces" else os.getpid()
        limits = self._limits
        if self._isolation in ("landlock", "limits") and os.geteuid() != 0:
            limits = limits | {"threads": limits["threads"] + jail.num_tasks_of_user()}
        child = jail.fork(self._own_ids)
        if child != 0:
            return child
        with Caught() as outcome:
            os.setsid()
            _place_descriptors(link, channel)
            if self._isolation == "bubblewrap":
                self._execute_bubblewrap(role)
            _run_role(role, self._isolation, limits, parent, self._user)
        if channel is not None:
            write_frame(jail.CHANNEL, {"passed": None, "reason": f"the sandbox failed: {outcome.error}"})
        os._exit(channel is None)

    def _execute_bubblewrap(self, role: str) -> None:
        """Replace this process by bubblewrap, which runs `confined_main`."""
        arguments = [self._bubblewrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        arguments += ["--clearenv", "--setenv", "PYTHONHASHSEED", "0", "--hostname", "sandbox"]
        arguments += ["--size", str(self._limits["folder_bytes"]), "--tmpfs", jail.PRIVATE_FOLDER]
        arguments += ["--uid", str(jail.UNPRIVILEGED_ID), "--gid", str(jail.UNPRIVILEGED_ID)]
        # not its --dev, a file system in memory that takes all the memory there is, with terminals
        for device in jail.DEVICES:
            arguments += ["--dev-bind", device, device]
        arguments += ["--symlink", jail.PRIVATE_FOLDER, jail.SHARED_MEMORY]
        interpreter = os.path.realpath(sys.executable)
        for path in (*jail.readable_paths(), interpreter, self._folder):
            arguments += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
        for folder in jail.package_folders():
            arguments += ["--tmpfs", folder, "--remount-ro", folder]
        arguments += ["--remount-ro", "/", "--chdir", "/", "--", interpreter, "-s", "-S", "-P"]
        arguments += ["-c", BOOTSTRAP.format(entry="confined_main"), self._folder, role, json.dumps(self._limits)]
        os.execv(arguments[0], arguments)


def _place_descriptors(link: int, channel: int | None) -> None:
    """Nothing to read, nowhere to write, the link, the channel if there is one; every other descriptor closed."""
    silence = os.open(os.devnull, os.O_RDWR)
    moved = [os.dup2(descriptor, 100 + place) for place, descriptor in enumerate((silence, link, channel or silence))]
    for place in (0, 1, 2):
        os.dup2(moved[0], place)
    os.dup2(moved[1], jail.LINK)
    os.dup2(moved[2], jail.CHANNEL)
    os.closerange(jail.CHANNEL + (channel is not None), 1 << 20)


def _has_ended(process: int, deadline: float) -> bool:
    """Whether a child ends before the deadline; it is not reaped."""
    watch = os.pidfd_open(process)
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    ended = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
    os.close(watch)
    return bool(ended)


def _kill(process: int) -> None:
    """Kill a process and its group."""
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(process, signal.SIGKILL)


def _run_role(role: str, isolation: str, limits: dict[str, Any], parent: int, user: int) -> None:
    """Shut this process in, play the role, end."""
    if role == "program":
        for place in (INPUT, OUTPUT):
            os.dup2(os.memfd_create("script"), place)  # it is at that place already where nothing else is open
    sys.argv = [f"{role}.py"]  # the launcher's own are files for a script that takes their names from there
    jail.confine(isolation, limits, parent, user)
    if role == "judge":
        judge(jail.CHANNEL, jail.LINK)
    else:
        work(jail.LINK)
    os._exit(0)
