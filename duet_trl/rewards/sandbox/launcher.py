# SPDX-License-Identifier: Apache-2.0
"""The launcher: a process that forks judges and programs, and ends them. It never holds a test or an answer.

A request is a descriptor over a socket of packets (descriptor 0): the channel of the check, handed on to the judge.
What is checked passes the launcher by, so that a program finds nothing in the memory that it was forked from.
"""

import contextlib
import gc
import importlib
import json
import os
import secrets
import select
import signal
import socket
import sys
import time
from typing import Any

from . import jail
from .codec import Caught, Link
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
"""Longest wait for killed processes; the kernel may take longer over their memory, and is then not waited for."""
FIRST_OWN_ID, NUM_OWN_IDS = 0x70000000, 1 << 27
"""Users that belong to nobody and nothing. Where root starts them, the programs of every launcher have their
own: the kernel counts threads per user, so that a program with many would leave none to its neighbours."""
LINK, CHANNEL = 3, 4
"""Descriptors of a confined process: the link between judge and program, and the judge's channel to the outside. In a
program's process two files in memory follow on the link."""
BOOTSTRAP = (
    "import sys, types; sandbox = types.ModuleType('sandbox'); sandbox.__path__ = [sys.argv[1]]; "
    "sys.modules['sandbox'] = sandbox; from sandbox.launcher import main; main()"
)
"""Makes this folder a separate package: the packages above the real one import torch."""


def main() -> None:
    """Run one check after the other until the other side closes the socket."""
    control = socket.socket(fileno=0)
    isolation, limits = sys.argv[2], json.loads(sys.argv[3])
    for name in PRELOADED:
        importlib.import_module(name)
    user = FIRST_OWN_ID + secrets.randbelow(NUM_OWN_IDS)
    jail.prctl(jail.DUMPABLE, 0)
    gc.collect()
    gc.freeze()
    control.send(b"ready")
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 64, 1)
        if not request:
            return
        control.send(json.dumps(run(isolation, limits, user, *descriptors)).encode())


def run(isolation: str, limits: dict[str, Any], user: int, channel: int) -> dict[str, Any]:
    """Run one check to its end or deadline and kill what is left of it, in SECONDS_TO_END more at most.

    Returns whether time ran out, the judge's exit status, and that of the program with its processor seconds.
    """
    deadline = time.monotonic() + limits["wall_seconds"]
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:  # what took too long to end in earlier checks
            pass
    ends = socket.socketpair()
    confinement = (isolation, limits["cpu_seconds"], user, os.getpid())
    judge_process = _start(ends[0].fileno(), channel, confinement)
    program_process = _start(ends[1].fileno(), None, confinement)
    os.close(channel)
    for end in ends:
        end.close()
    finished = _has_ended(judge_process, deadline)
    for process in (program_process, judge_process):
        os.kill(process, signal.SIGKILL)
    until = time.monotonic() + SECONDS_TO_END
    ended = {"program": _end(program_process, until), "judge": _end(judge_process, until)[0]}
    return {"timed_out": not finished, **ended}


def _end(process: int, until: float) -> tuple[int, float]:
    """How a killed process ended, and its processor seconds; unknown where it takes longer than `until`."""
    if not _has_ended(process, until):
        return -signal.SIGKILL, 0.0
    _, status, usage = os.wait4(process, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime


def _has_ended(process: int, deadline: float) -> bool:
    """Whether a child ends before the deadline; it is not reaped."""
    watch = os.pidfd_open(process)
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    ended = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
    os.close(watch)
    return bool(ended)


def _start(link: int, channel: int | None, confinement: tuple[str, int, int, int]) -> int:
    """Fork the judge, which has the channel, or the program."""
    child = os.fork()
    if child != 0:
        return child
    with Caught() as outcome:
        _place_descriptors(link, channel)
        sys.argv = ["program.py"]  # the launcher's own are files for a script that takes their names from there
        jail.confine(*confinement)
        if channel is None:
            work(_link(LINK))
        else:
            judge(_link(CHANNEL), _link(LINK))
        os._exit(0)
    with Caught():  # nobody may be there to read it
        if channel is not None:
            _link(CHANNEL).send({"passed": None, "reason": f"the sandbox failed: {outcome.error}"})
    os._exit(channel is None)


def _link(descriptor: int) -> Link:
    return Link(socket.socket(fileno=descriptor))


def _place_descriptors(link: int, channel: int | None) -> None:
    """Nothing to read, nowhere to write, the link, then the channel or a script's files; every other one closed."""
    silence = os.open(os.devnull, os.O_RDWR)
    others = [channel] if channel is not None else [os.memfd_create("script") for _ in (INPUT, OUTPUT)]
    wanted = [silence, silence, silence, link, *others]
    high = [os.dup2(descriptor, 100 + place) for place, descriptor in enumerate(wanted)]
    for place, descriptor in enumerate(high):
        os.dup2(descriptor, place)
    os.closerange(len(wanted), 1 << 20)
