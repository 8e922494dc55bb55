# SPDX-License-Identifier: Apache-2.0
"""Programs that want a reward they have not earned, or to do harm; the task that they pretend to solve; what they may
not touch. Shared by the tests and by benchmarks/sandbox.py.

Each is given FILE and FOLDER (a file outside and its folder, open to everybody), PORT (somebody listens there on
127.0.0.1) and PROCESS (a process outside).
"""

import ctypes
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

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


def in_call(body: str, before: str = "") -> str:
    """A program that does something when it is called, and then gives a wrong answer."""
    lines = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    return f"{before}\ndef total(numbers):\n{lines}    return -1\n"


def at_load(body: str) -> str:
    """A program that does something when it is loaded, and gives wrong answers later."""
    return f"{body}\ndef total(numbers):\n    return -1\n"


SYSTEM_CALL = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
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
ALWAYS_EQUAL = """
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
"""

PROGRAMS = (
    # Leaving before the tests can fail.
    Hostile("exit at load", at_load("import sys; sys.exit(0)"), True),
    Hostile("hard exit at load", at_load("import os; os._exit(0)"), True),
    Hostile("SystemExit at load", at_load("raise SystemExit(0)"), True),
    Hostile("exit in the call", in_call("import sys; sys.exit(0)"), True),
    Hostile("hard exit in the call", in_call("import os; os._exit(0)"), True),
    Hostile("SystemExit in the call", in_call("raise SystemExit"), True),
    Hostile("KeyboardInterrupt in the call", in_call("raise KeyboardInterrupt")),
    Hostile("GeneratorExit in the call", in_call("raise GeneratorExit")),
    Hostile("exit by a hook for exceptions", at_load("import os, sys; sys.excepthook = lambda *_: os._exit(0)"), True),
    Hostile("exit by atexit", at_load("import atexit, os; atexit.register(os._exit, 0)"), True),
    Hostile("exit by a thread", at_load("import os, threading; threading.Timer(0.01, os._exit, (0,)).start()")),
    Hostile(
        "exit by a signal handler",
        in_call(
            "signal.raise_signal(signal.SIGUSR1)",
            "import os, signal; signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))",
        ),
        True,
    ),
    # Objects that pretend.
    Hostile("always equal", f"class Equal:{ALWAYS_EQUAL}\ndef total(numbers):\n    return Equal()\n", True),
    Hostile(
        "always equal integer", f"class Equal(int):{ALWAYS_EQUAL}\ndef total(numbers):\n    return Equal(5)\n", True
    ),
    Hostile("always equal list", f"class Equal(list):{ALWAYS_EQUAL}\ndef total(numbers):\n    return Equal()\n", True),
    Hostile(
        "an object that says it is an integer",
        f"""
class Liar:{ALWAYS_EQUAL}
    __class__ = int
    def __int__(self): return 6
    def __reduce__(self): return (print, ())
def total(numbers):
    return Liar()
""",
        True,
    ),
    Hostile(
        "metaclass with the name of a plain type",
        f"""
class Meta(type):{ALWAYS_EQUAL}
Fake = Meta("int", (), {{"__eq__": lambda self, other: True, "__hash__": lambda self: 0}})
def total(numbers):
    return Fake()
""",
        True,
    ),
    Hostile(
        "exception that breaks when it is shown",
        """
class Evil(Exception):
    def __str__(self): raise SystemExit(0)
    __repr__ = __str__
def total(numbers):
    raise Evil
""",
    ),
    Hostile(
        "nested a hundred thousand deep", in_call("value = []\nfor _ in range(100_000): value = [value]\nreturn value")
    ),
    Hostile("a list within itself", in_call("value = []\nvalue.append(value)\nreturn value")),
    Hostile("an endless generator", in_call("import itertools\nreturn (number for number in itertools.count())")),
    Hostile("a string of 256 MB", in_call("return 'x' * (1 << 28)")),
    Hostile("a set that is slow to build", in_call("return {n * ((1 << 61) - 1) for n in range(1, 60_000)}")),
    Hostile("a number with a million digits", in_call("return 1 << 3_300_000")),
    Hostile("a coroutine", "async def total(numbers):\n    return sum(numbers)\n"),
    # Looking for the tests, or changing what runs them.
    Hostile(
        "expected value from the caller's constants",
        """
import dis, sys
def total(numbers):
    frame = sys._getframe(1)
    for line in dis.get_instructions(frame.f_code):
        if line.offset > frame.f_lasti and line.opname == "LOAD_CONST" and isinstance(line.argval, int):
            return line.argval
    return -1
""",
        True,
    ),
    Hostile(
        "code of every function in reach replaced",
        in_call("""
import gc, types
empty = (lambda *arguments, **options: True).__code__
for found in gc.get_objects():
    if isinstance(found, types.FunctionType) and found.__name__ in ("check", "judge", "_verdict", "run", "encode"):
        found.__code__ = empty
"""),
    ),
    Hostile(
        "globals of every frame rewritten",
        in_call("""
import sys
frame = sys._getframe()
while frame:
    for name in list(frame.f_globals):
        if name in ("check", "_verdict", "encode", "_answer", "write_frame"):
            frame.f_globals[name] = lambda *arguments, **options: {"passed": True, "value": 6}
    frame = frame.f_back
"""),
    ),
    Hostile(
        "expected value searched in memory",
        in_call("""
import gc
for found in gc.get_objects():
    if isinstance(found, dict) and "tests" in found or isinstance(found, str) and "candidate" in found:
        return found
"""),
    ),
    Hostile(
        "modules and built-ins replaced",
        at_load("""
import builtins, json, os, sys
class Anything:
    def __getattr__(self, name): return lambda *arguments, **options: b'{"passed": true, "value": true}'
json.dumps = lambda *arguments, **options: '{"passed": true, "reason": "", "value": true, "loaded": true}'
for name in ("json", "unittest", "_pytest", "pytest"): sys.modules[name] = Anything()
builtins.AssertionError = builtins.isinstance = builtins.len = lambda *arguments: True
"""),
    ),
    Hostile(
        "trace function that jumps over assertions",
        at_load("""
import sys, threading
def trace(frame, event, argument):
    if event == "exception" or frame.f_code.co_name == "check":
        try: frame.f_lineno += 1
        except ValueError: pass
    return trace
sys.settrace(trace)
threading.settrace(trace)
"""),
    ),
    Hostile(
        "its own check", SOLUTION.replace("sum(numbers)", "-1") + "def check(candidate): pass\ncheck.passed = True\n"
    ),
    Hostile(
        "small integers rewritten in memory",
        in_call(
            """
for number in (0, 6, 7, 4950):
    ctypes.c_uint32.from_address(id(number) + 24).value = 5
return 5
""",
            "import ctypes",
        ),
    ),
    # The channel of the verdict.
    Hostile(
        "prints what success looks like",
        at_load('print(\'{"passed": true, "reason": "all tests passed"}\\nOK\\n1 passed in 0.01s\', flush=True)'),
    ),
    Hostile(
        "verdict written to every descriptor",
        at_load(FRAME + 'write_everywhere(frame({"passed": True, "reason": "all tests passed"}))\nos._exit(0)'),
    ),
    Hostile(
        "answers written to every descriptor",
        at_load(
            FRAME
            + 'write_everywhere(frame({"loaded": True}) + frame({"value": True, "passed": True}) * 9)\nos._exit(0)'
        ),
    ),
    Hostile(
        "always equal value written to the link",
        in_call('write_everywhere(frame({"value": {"object": "always equal"}}))', FRAME),
    ),
    Hostile(
        "the length of a frame without the frame",
        in_call('write_everywhere(bytes.fromhex("ffffffff"))\nos._exit(0)', FRAME),
    ),
    Hostile("every descriptor closed", in_call("import os\nos.closerange(0, 1 << 16)")),
    Hostile(
        "output without end", at_load("import os\nwhile True: os.write(1, b'x' * 65536); os.write(2, b'y' * 65536)")
    ),
    Hostile("flood on every descriptor", at_load(FRAME + "while True: write_everywhere(bytes(65536))")),
    # Time and memory.
    Hostile("endless loop at load", at_load("while True: pass")),
    Hostile("endless loop in the call", in_call("while True: pass")),
    Hostile("endless arithmetic in C", in_call("return 9 ** 9 ** 9 % 7")),
    Hostile("sleeps", in_call("import time\ntime.sleep(10_000)")),
    Hostile("waits for input", in_call("return input()")),
    Hostile(
        "ignores every signal and loops",
        at_load("""
import signal
for number in signal.valid_signals():
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True:
    try:
        while True: pass
    except BaseException: pass
"""),
    ),
    Hostile("stops itself", in_call("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nsignal.pause()")),
    Hostile("expression that backtracks for ever", in_call("import re\nre.match('(a*)*b', 'a' * 50)")),
    Hostile("memory bomb", in_call("hoard = []\nwhile True: hoard.append(bytearray(1 << 24))")),
    Hostile(
        "memory bomb that goes on after errors",
        in_call("hoard = []\nwhile True:\n    try: hoard.append(bytearray(1 << 20))\n    except MemoryError: pass"),
    ),
    Hostile(
        "memory outside the address space",
        in_call("""
import mmap, os
kept = []
while True:
    try: descriptor = os.memfd_create("x")
    except OSError: descriptor = os.open("x", os.O_RDWR | os.O_CREAT)
    os.truncate(descriptor, 1 << 34)
    kept.append(mmap.mmap(descriptor, 1 << 34))
"""),
    ),
    Hostile("recursion without end", in_call("import sys\nsys.setrecursionlimit(1 << 30)\nreturn total(numbers)")),
    Hostile("crash", in_call("import ctypes\nctypes.string_at(0)")),
    Hostile("abort", in_call("import os\nos.abort()")),
    Hostile(
        "raises its own limits",
        in_call("""
import resource
for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
    resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""),
    ),
    # Processes.
    Hostile("fork bomb", at_load("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")),
    Hostile("forked parent that leaves with success", at_load("import os\nif os.fork(): os._exit(0)"), True),
    Hostile(
        "daemon",
        at_load("""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(10_000)
    os._exit(0)
"""),
    ),
    Hostile(
        "program started in a session of its own",
        at_load(
            'import subprocess, sys\nsubprocess.Popen([sys.executable, "-c", "import time; time.sleep(10_000)"],'
            " start_new_session=True)"
        ),
    ),
    Hostile("shell", at_load('import os\nassert os.system("sleep 10000 &") == 0')),
    Hostile(
        "multiprocessing",
        at_load(
            'import multiprocessing as mp, time\nmp.get_context("fork").Process(target=time.sleep, args=(99,)).start()'
        ),
    ),
    Hostile(
        "thread bomb",
        at_load(
            "import threading, time\nthreading.stack_size(1 << 15)\n"
            "while True: threading.Thread(target=time.sleep, args=(10_000,)).start()"
        ),
    ),
    Hostile(
        "replaces itself by another program", at_load('import os, sys\nos.execv(sys.executable, ["python", "-c", ""])')
    ),
    Hostile("kills a process outside", at_load("import os, signal\nos.kill(PROCESS, signal.SIGKILL)")),
    Hostile("kills its parent", at_load("import os, signal\nos.kill(os.getppid() or PROCESS, signal.SIGKILL)")),
    Hostile("kills everything", at_load("import os, signal\nos.kill(-1, signal.SIGKILL)")),
    Hostile("kills its process group", at_load("import os, signal\nos.killpg(0, signal.SIGKILL)")),
    Hostile(
        "signal to a process outside by a descriptor",
        at_load("""
import fcntl, os, signal
reader, writer = os.pipe()
fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
fcntl.fcntl(reader, 10, signal.SIGKILL)
fcntl.fcntl(reader, fcntl.F_SETOWN, PROCESS)
os.write(writer, b"x")
"""),
    ),
    Hostile("slows a process outside", at_load("import os\nos.setpriority(os.PRIO_PROCESS, PROCESS, 19)")),
    Hostile("traces a process outside", in_call("assert libc.ptrace(16, PROCESS, None, None) == 0", SYSTEM_CALL)),
    Hostile(
        "reads the memory of a process outside",
        in_call(
            """
for process in (PROCESS, os.getppid(), 1):
    for name in ("mem", "environ", "cmdline", "maps"):
        try: print(open(f"/proc/{process}/{name}", "rb").read(100))
        except OSError: pass
local = ctypes.create_string_buffer(8)
class Span(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
span = Span(ctypes.addressof(local), 8)
assert libc.process_vm_readv(PROCESS, ctypes.byref(span), 1, ctypes.byref(span), 1, 0) == 8
""",
            SYSTEM_CALL,
        ),
    ),
    # Files.
    Hostile("writes a file outside", at_load('open(FILE, "w").write("changed")')),
    Hostile("appends to a file outside", at_load('open(FILE, "a").write("changed")')),
    Hostile("removes a file outside", at_load("import os\nos.remove(FILE)")),
    Hostile("removes everything outside", at_load("import shutil\nshutil.rmtree(FOLDER)")),
    Hostile(
        "renames and links a file outside",
        at_load("""
import os
for attempt in (os.rename, os.link, os.symlink):
    try: attempt(FILE, FOLDER + "/new")
    except OSError: pass
"""),
    ),
    Hostile(
        "truncates and chmods a file outside",
        at_load("""
import os
for attempt in (lambda: os.truncate(FILE, 0), lambda: os.chmod(FILE, 0), lambda: os.utime(FILE, (0, 0))):
    try: attempt()
    except OSError: pass
"""),
    ),
    Hostile(
        "writes through a symbolic link in an archive",
        at_load("""
import io, os, tarfile
data = io.BytesIO()
with tarfile.open(fileobj=data, mode="w") as archive:
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, FOLDER
    archive.addfile(link)
    file = tarfile.TarInfo("link/file")
    file.size = 7
    archive.addfile(file, io.BytesIO(b"changed"))
data.seek(0)
tarfile.open(fileobj=data).extractall(".")
"""),
    ),
    Hostile("climbs out by ..", at_load('import os\nopen("../" * 30 + FILE, "w").write("changed")')),
    Hostile(
        "fills the disk",
        at_load("""
import itertools, os
for number in itertools.count():
    for folder in (".", "/tmp", "/dev/shm", "/var/tmp", FOLDER):
        try: open(f"{folder}/fill{number}", "wb").write(bytes(1 << 24))
        except OSError: pass
    if number > 40: raise SystemExit(0)
"""),
    ),
    Hostile("opens every descriptor it can", at_load('kept = []\nwhile True: kept.append(open("/dev/null"))')),
    Hostile(
        "leaves the root folder",
        in_call(
            """
for attempt in (lambda: os.chroot("."), lambda: libc.mount(b"/", b"/tmp", None, 4096, None),
                lambda: libc.unshare(0x10000000), lambda: libc.setns(0, 0), lambda: os.mknod("disk", 0o60666, 0xfe00)):
    try: assert attempt() != 0
    except OSError: pass
open("../" * 30 + FILE, "w").write("changed")
""",
            SYSTEM_CALL,
        ),
    ),
    # Network and the kernel.
    Hostile(
        "connects to a port outside",
        at_load('import socket\nsocket.create_connection(("127.0.0.1", PORT)).send(b"hi")'),
    ),
    Hostile(
        "sends a datagram",
        at_load('import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"hi", ("127.0.0.1", PORT))'),
    ),
    Hostile("listens", at_load('import socket\nsocket.create_server(("0.0.0.0", 0)).accept()')),
    Hostile(
        "abstract socket",
        at_load(
            "import socket\nserver = socket.socket(socket.AF_UNIX)\n"
            'server.bind("\\0duet")\nserver.listen()\nserver.accept()'
        ),
    ),
    Hostile(
        "calls of the kernel that sandboxes forget",
        in_call(
            """
denied = {"io_uring_setup": 425, "bpf": 321, "userfaultfd": 323, "perf_event_open": 298, "keyctl": 250,
          "open_by_handle_at": 304, "pidfd_open": 434, "kcmp": 312, "clone3": 435, "personality": 135}
reached = [name for name, number in denied.items() if libc.syscall(number, 0, 0, 0, 0, 0) >= 0]
if not reached: raise ValueError("none")
return 6
""",
            SYSTEM_CALL,
        ),
    ),
)


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
