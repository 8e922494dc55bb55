# SPDX-License-Identifier: Apache-2.0
"""Runs programs that nobody has read against unit tests, shut in, with a verdict that they cannot forge.

Two processes per check. The *program* runs in one and answers calls; the *judge* runs the tests in the other and sees
stand-ins for the program's functions. Only plain values pass between them (`codec.py`), so that leaving early,
objects that equal everything, patched assertions or a search through the interpreter's memory gain nothing: what
decides is not where the program is. Both processes are shut in (`jail.py`) and end with the check.
"""

import os
import queue
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from .launcher import SECONDS_TO_END
from .probe import STRONG_ISOLATION, WEAK_ISOLATION, find_isolation
from .process import Check, LauncherProcess, Limits, SandboxError

__all__ = ["STRONG_ISOLATION", "WEAK_ISOLATION", "Check", "Limits", "Sandbox", "SandboxError", "Verdict"]


@dataclass(frozen=True)
class Verdict:
    """Outcome of a check.

    Attributes:
        passed (bool | None): Whether all tests passed; None if it could not be found out: the tests do not run, or
            the sandbox broke.
        reason (str): One line.
        isolation (str): The isolation that the check ran in.
        seconds (float): Wall-clock time of the check.
    """

    passed: bool | None
    reason: str
    isolation: str
    seconds: float = field(compare=False)


class Sandbox:
    """Checks programs, several at a time.

    Args:
        isolation (str): "auto" takes the first of "namespaces", "bubblewrap" and "landlock" that a trial run proves to
            hold on this machine. "limits" has the same resource limits and system-call filter, but lets programs read
            the files of the user. docs/operations.md describes them.
        limits (Limits): Of each check.
        workers (int | None): Checks that run at a time. None: one per core of this process, the cores of a machine
            shared between its ranks.

    Raises:
        ValueError: If an argument is out of its range.
        SandboxError: If that isolation does not hold on this machine.
    """

    def __init__(self, *, isolation: str = "auto", limits: Limits | None = None, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}. Use None for one per core.")
        self.isolation = find_isolation(isolation)
        self.limits = limits or Limits()
        count = workers or default_workers()
        self._launchers = [LauncherProcess(self.isolation, self.limits) for _ in range(count)]
        self._idle: queue.SimpleQueue[LauncherProcess] = queue.SimpleQueue()
        for launcher in self._launchers:
            self._idle.put(launcher)
        self._finalizer = weakref.finalize(self, _close_all, self._launchers, os.getpid())

    def check(self, check: Check) -> Verdict:
        """Verdict on one program; blocks until a worker is free. May be called from any thread."""
        launcher = self._idle.get()
        begin = time.monotonic()
        try:
            passed, reason = launcher.check(check)
        finally:
            self._idle.put(launcher)
        return Verdict(passed, reason, self.isolation, time.monotonic() - begin)

    def check_all(self, checks: Sequence[Check]) -> list[Verdict]:
        """Verdicts in the order of the checks."""
        with ThreadPoolExecutor(len(self._launchers)) as pool:
            return list(pool.map(self.check, checks))

    def longest_seconds(self, num_checks: int) -> float:
        """Wall-clock time within which that many checks end, whatever the programs do.

        A worker has a check for its wall-clock limit and the second in which it is killed, and the last of a batch
        begins at the latest when the others, shared out evenly, have ended: (limit + 1 s) x (checks / workers + 1).

        Args:
            num_checks (int): Checks of one batch.

        Returns:
            float: Seconds, without those in which the workers start.
        """
        return (self.limits.wall_seconds + SECONDS_TO_END) * (num_checks / len(self._launchers) + 1)

    def close(self) -> None:
        """End the workers; they start again with the next check."""
        _close_all(self._launchers, os.getpid())

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def default_workers() -> int:
    """One for each core that this process may use, shared with the other ranks that a launcher started here."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # torchrun and accelerate set it
    return max(1, len(os.sched_getaffinity(0)) // ranks)


def _close_all(launchers: list[LauncherProcess], owner: int) -> None:
    # A forked copy of the training process has no right to them.
    if os.getpid() == owner:
        for launcher in launchers:
            launcher.close()
