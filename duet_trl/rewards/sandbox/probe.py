# SPDX-License-Identifier: Apache-2.0
"""Finds out by trying which isolation holds on this machine: a program that wants out is run in each."""

import logging
import os
import secrets
import socket
import tempfile
from functools import cache
from pathlib import Path

from .codec import EndOfData
from .process import Check, LauncherProcess, Limits, SandboxError

STRONG_ISOLATION = ("namespaces", "bubblewrap", "landlock")
"""Ways to keep a program from files, network and processes, in the order in which "auto" tries them."""
WEAK_ISOLATION = "limits"
"""The same without a bar on reading files: only on request."""

logger = logging.getLogger(__name__)

PROBE = '''
import os, socket

def reach(file, word, folder, port, process):
    """What can be reached of a file, its folder, a listening port, a process, and the environment."""
    def read():
        return word in open(file).read()
    def write():
        return open(file, "a").write("x")
    def create():
        return open(folder + "/created", "w").write("x")
    def remove():
        return os.remove(file) is None
    def connect():
        return socket.create_connection(("127.0.0.1", port), timeout=2)
    def signal():
        return process != os.getpid() and os.kill(process, 0) is None
    def environment():
        return dict(os.environ)
    reached = []
    for attempt in (read, write, create, connect, signal, environment, remove):
        try:
            if attempt():
                reached.append(attempt.__name__)
        except OSError:
            pass
    return reached
'''
READING = "read"


@cache
def find_isolation(isolation: str) -> str:
    """The isolation to use, proven by a trial run; remembered for this process.

    Args:
        isolation (str): "auto", or the name of one.

    Returns:
        str: Its name, never "auto".

    Raises:
        ValueError: If there is none of that name.
        SandboxError: If it does not hold here; for "auto", if no strong one does.
    """
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
        f"no isolation for programs under test holds on this machine. Tried {defects}. Install bubblewrap (bwrap), "
        "allow user namespaces, or use a kernel with Landlock. On a machine where programs may read your files, ask "
        f"for the weak one by its name: isolation={WEAK_ISOLATION!r}."
    )


def probe(isolation: str) -> str | None:
    """What keeps an isolation from being used on this machine; None if nothing does.

    Args:
        isolation (str): Its name. All must keep a program from writing files, from the network, from other processes
            and from the environment; all but "limits" also from reading files.

    Returns:
        str | None: One line, or None.
    """
    allowed = [READING] if isolation == WEAK_ISOLATION else []
    word = secrets.token_hex(8)
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        file = Path(folder) / "file"
        file.write_text(word)
        # Open to all: only the isolation stands before them.
        os.chmod(folder, 0o777)
        os.chmod(file, 0o666)
        arguments = (str(file), word, folder, server.getsockname()[1], os.getpid())
        call = f"reached = reach{arguments!r}"
        test = f"reached = [way for way in reached if way not in {allowed!r}]\nassert not reached, reached"
        check = Check(PROBE, ("reach",), (call, test))
        launcher = LauncherProcess(isolation, Limits())
        try:
            launcher.start()
            passed, reason = launcher.check(check)
        except (SandboxError, EndOfData, OSError) as error:
            return str(error)
        finally:
            launcher.close()
        if passed and file.read_text() != word:
            return "a file outside was changed"
    return None if passed else reason
