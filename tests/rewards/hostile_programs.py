# SPDX-License-Identifier: Apache-2.0
"""Programs that want a reward they have not earned, or to do harm; the task that they pretend to solve; what they may
not touch. Shared by the tests and by benchmarks/sandbox.py.

`hostile_programs.yaml` has the programs. Each is given FILE and FOLDER (a file outside and its folder, open to
everybody), PORT (somebody listens there on 127.0.0.1) and PROCESS (a process outside).
"""

import ctypes
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from duet_trl.rewards import Check

ENTRY_POINT = "total"
PROMPT = 'def total(numbers: list) -> int:\n    """Sum of the numbers."""\n'
SOLUTION = "def total(numbers):\n    return sum(numbers)\n"
TEST = """
def check(candidate):
    assert candidate([1, 2, 3]) == 6
    assert candidate([]) == 0
    assert candidate([10, -4, 1]) == 7
    assert candidate(list(range(100))) == 4950
"""
UNTOUCHED = "untouched"


@dataclass(frozen=True)
class Hostile:
    """One program.

    `fools_naive`: it gets full marks from `python program_and_tests.py`, judged by the exit status. `reads`: it wants
    to read, which the weak isolation does not prevent.
    """

    name: str
    source: str
    fools_naive: bool = False
    reads: bool = False


FRAME = """
import json, os, struct
def frame(message):
    data = json.dumps(message).encode()
    return struct.pack(">I", len(data)) + data
def write_everywhere(data):
    for descriptor in range(256):
        try:
            os.write(descriptor, data)
        except OSError:
            pass
"""
SEND = """
data = {}
os.write(3, struct.pack(">I", len(data)))
while data:
    data = data[os.write(3, data):]
os._exit(0)
"""
USES = {"system_call": "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n", "frame": FRAME, None: ""}


def in_call(body: str, before: str = "") -> str:
    """A program that does something when it is called, and then gives a wrong answer."""
    return f"{before}\ndef total(numbers):\n{textwrap.indent(body, '    ')}\n    return -1\n"


def source_of(case: dict[str, str]) -> str:
    """The program of one entry in the table.

    `load`: what it does when it is loaded, to give wrong answers later. `call`: what it does when it is called.
    `attack`: it solves its task only if this sets `found`. `program`: all of it. `before` and `uses` come first.
    """
    before = USES[case.get("uses")] + case.get("before", "")
    if "load" in case:
        return f"{before}\n{case['load']}\ndef total(numbers):\n    return -1\n"
    if "call" in case:
        return in_call(case["call"], before)
    if "program" in case:
        return before + case["program"]
    attack = f"global found\ntry:\n{textwrap.indent(case['attack'], '    ')}\nexcept BaseException: pass"
    return (
        f"{before}\nfound = None\ndef attack():\n{textwrap.indent(attack, '    ')}\n"
        "def total(numbers):\n    if not found: attack()\n    return sum(numbers) if found else -1\n"
    )


TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
FRAMES = TABLE.pop("frames in place of an answer")
GROUPS = {
    name: [
        Hostile(case["name"], source_of(case), case.get("fools_naive", False), case.get("reads", False))
        for case in cases
    ]
    for name, cases in TABLE.items()
}
HOLDING = GROUPS["holding a worker"]
"""They go on until they are killed; what they wait for and what the kernel has to clean up then differs."""
EVERY_PROGRAM = [
    *(hostile for group in GROUPS.values() for hostile in group),
    *(Hostile(f"frame of {name}", in_call(SEND.replace("{}", data), FRAME)) for name, data in FRAMES.items()),
]


class Outside:
    """What no program may touch, and whether it was. Use as a context.

    While it is in place, processes that lose their parent become children of this process instead of getting lost.
    """

    def __enter__(self) -> "Outside":
        self._folder = tempfile.TemporaryDirectory()
        os.chmod(self._folder.name, 0o777)
        self._file = Path(self._folder.name) / "file"
        self._file.write_text(UNTOUCHED)
        os.chmod(self._file, 0o666)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.setblocking(False)
        self._datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._datagrams.bind(self._server.getsockname())
        self._datagrams.setblocking(False)
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
        )
        self._adopt(True)
        return self

    def __exit__(self, *exception: object) -> None:
        self._adopt(False)
        self._process.communicate()
        self._datagrams.close()
        self._server.close()
        self._folder.cleanup()

    def _adopt(self, wanted: bool) -> None:
        set_child_subreaper = 36
        assert ctypes.CDLL(None).prctl(set_child_subreaper, ctypes.c_ulong(wanted), 0, 0, 0) == 0

    def program(self, hostile: Hostile) -> str:
        """The program with what it is given."""
        given = {
            "FILE": str(self._file),
            "FOLDER": self._folder.name,
            "PORT": self._server.getsockname()[1],
            "PROCESS": self._process.pid,
        }
        return "".join(f"{name} = {value!r}\n" for name, value in given.items()) + hostile.source

    def check(self, hostile: Hostile) -> Check:
        """The program with the tests of the task."""
        return task(self.program(hostile))

    def damage(self) -> list[str]:
        """What was touched; empty if nothing was."""
        found = []
        if sorted(os.listdir(self._folder.name)) != ["file"]:
            found.append(f"folder: {os.listdir(self._folder.name)}")
        elif self._file.read_text() != UNTOUCHED or self._file.stat().st_mode & 0o777 != 0o666:
            found.append("file changed")
        if self._process.poll() is not None:
            found.append("process outside killed")
        elif os.getpriority(os.PRIO_PROCESS, self._process.pid) != os.getpriority(os.PRIO_PROCESS, 0):
            found.append("process outside slowed")
        for name, receive in (("connection", self._server.accept), ("datagram", lambda: self._datagrams.recv(10))):
            try:
                receive()
                found.append(f"{name} from the program")
            except BlockingIOError:
                pass
        return found


def task(source: str) -> Check:
    """A program with the tests of the task."""
    tests = (TEST, f"check({ENTRY_POINT})")
    return Check(source=source, names=(ENTRY_POINT,), tests=tests, setup=(PROMPT,), preamble=PROMPT)


def descendants(root: int | None = None) -> set[int]:
    """Processes that this one, or another, started directly or not; those that have ended are not counted."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state not in "ZX":
                parents[int(entry.name)] = int(parent)
    found = {root or os.getpid()}
    while new := {child for child, parent in parents.items() if parent in found} - found:
        found |= new
    return found - {root or os.getpid()}


def left_behind(before: set[int], seconds: float = 30.0) -> set[int]:
    """Processes that were not there before and stay for that time: the kernel may take long over a killed one."""
    deadline = time.monotonic() + seconds
    while (left := descendants() - before) and time.monotonic() < deadline:
        pass
    return left
