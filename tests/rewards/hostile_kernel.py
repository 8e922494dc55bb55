# SPDX-License-Identifier: Apache-2.0
"""More hostile programs: tricks of the kernel, of the file system and of the network.

Most solve their task only if their attack has worked: the verdict measures the attack.
"""

from tests.rewards.hostile_interpreter import INTERPRETER_PROGRAMS, if_it_can
from tests.rewards.hostile_programs import PROGRAMS, SYSTEM_CALL, Hostile, in_call

KERNEL = (
    Hostile(
        "memory of the parent by ptrace",
        if_it_can(
            "found = libc.ptrace(16, os.getppid() or 1, 0, 0) == 0 or libc.ptrace(0, 0, 0, 0) == 0", SYSTEM_CALL
        ),
    ),
    Hostile(
        "writes to another process",
        if_it_can(r'found = libc.process_vm_writev(PROCESS, b"\0" * 16, 1, b"\0" * 16, 1, 0) >= 0', SYSTEM_CALL),
    ),
    Hostile(
        "namespaces of its own",
        if_it_can(
            """
found = any(libc.unshare(bit) == 0 for bit in (1 << 28, 1 << 17, 1 << 29, 1 << 30, 1 << 27, 1 << 25))
""",
            SYSTEM_CALL,
        ),
    ),
    Hostile(
        "namespaces of another process",
        if_it_can('found = libc.setns(os.open("/proc/1/ns/mnt", 0), 0) == 0', SYSTEM_CALL),
    ),
    Hostile(
        "visible to others, and outliving its parent",
        if_it_can(
            """
found = any(
    libc.prctl(o, v, 0, 0, 0) == 0 for o, v in ((4, 1), (1, 0), (0x59616D61, -1), (36, 1), (8, 1))
)
""",
            SYSTEM_CALL,
        ),
    ),
    Hostile(
        "user and groups of root",
        if_it_can(
            """
found = (
    os.getuid() != 0
    and any(f(0) == 0 for f in (libc.setuid, libc.setgid, libc.seteuid))
    or libc.setgroups(0, 0) == 0
)
""",
            SYSTEM_CALL,
        ),
    ),
    Hostile(
        "capabilities back",
        if_it_can(r'found = libc.capset(b"\x22\x05\x08\x20" + bytes(4), b"\xff" * 24) == 0', SYSTEM_CALL),
    ),
    Hostile(
        "rings of the kernel's own queue",
        if_it_can("found = libc.syscall(425, 8, bytes(120)) >= 0", SYSTEM_CALL),
    ),
    Hostile(
        "keys of the kernel",
        if_it_can(
            """
found = libc.syscall(250, 0, -3, 1, 0, 0) >= 0 or libc.syscall(248, b"user", b"x", b"x", 1, -3) >= 0
""",
            SYSTEM_CALL,
        ),
    ),
    Hostile(
        "events of files outside",
        if_it_can("found = libc.inotify_init() >= 0 or libc.fanotify_init(0, 0) >= 0", SYSTEM_CALL),
    ),
    Hostile(
        "file in memory that is a program",
        if_it_can(
            """
d = libc.memfd_create(b"x", 0)
found = d >= 0 and libc.fexecve(d, 0, 0) == 0
""",
            SYSTEM_CALL,
        ),
    ),
    Hostile(
        "memory shared with other processes",
        if_it_can(
            """
found = (
    libc.shmget(7, 4096, 0o1666) >= 0
    or libc.semget(7, 1, 0o1666) >= 0
    or libc.msgget(7, 0o1666) >= 0
    or libc.mq_open(b"/x", 66, 0o666, 0) >= 0
)
""",
            SYSTEM_CALL,
        ),
    ),
    Hostile(
        "child by every way there is",
        if_it_can(
            """
stack = ctypes.create_string_buffer(1 << 16)
found = 0
for flags in (17, 0x4111, 0x8011, 0x11 | 0x100, 0x1200011, 0x00800011):
    child = libc.syscall(56, flags, 0, 0, 0, 0)
    if child == 0:
        libc._exit(0)
    found = found or child > 0
found = found or libc.syscall(435, bytes(64), 64) > 0 or libc.syscall(58) > 0
""",
            SYSTEM_CALL,
        ),
    ),
    Hostile(
        "system calls of 32 bits",
        in_call(
            """
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("b802000000cd80c3"))
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
while True:
    pass
""",
            "import ctypes, mmap",
        ),
    ),
    Hostile(
        "system calls of the third kind",
        if_it_can(
            "found = libc.syscall(0x40000000 | 57) > 0 or libc.syscall(0x40000000 | 41, 2, 1, 0) >= 0", SYSTEM_CALL
        ),
    ),
    Hostile(
        "core dump",
        in_call("""
import os, resource

try:
    resource.setrlimit(resource.RLIMIT_CORE, (-1, -1))
except (OSError, ValueError):
    pass
os.abort()
"""),
    ),
    Hostile(
        "real-time priority, another core, nicer",
        if_it_can(
            """
attempts = (
    lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
    lambda: os.nice(-5),
    lambda: os.sched_setaffinity(0, range(64)),
    lambda: os.setpriority(os.PRIO_USER, 0, -5),
)
for attempt in attempts:
    try:
        attempt()
        found = True
    except OSError:
        pass
""",
            "import os",
        ),
    ),
    Hostile(
        "clock, name, modules and power of the machine",
        if_it_can(
            """
found = any(
    libc.syscall(*c) >= 0
    for c in (
        (170, b"x", 1),
        (164, 0, 0),
        (175, 0, 0, b""),
        (169, 0xFEE1DEAD, 672274793, 0),
        (246, 0, 0, 0, 0),
        (163, b"x"),
        (167, b"/x", 0),
        (103, 5, 0, 0),
        (172, 3),
        (154, 0, 0, 0),
    )
)
""",
            SYSTEM_CALL,
        ),
    ),
    Hostile(
        "pushes characters into a terminal",
        if_it_can(r"""
import fcntl

found = any(
    fcntl.ioctl(n, request, b"x\0\0\0") is not None
    for n in range(6)
    for request in (0x5412, 0x540E, 0x8901, 0x8902)
)
"""),
    ),
    Hostile(
        "lease and notices on files",
        if_it_can(
            """
import fcntl

found = (
    fcntl.fcntl(os.open("/usr/lib", 0), 1026, 1) == 0
    or fcntl.fcntl(os.open("/dev/null", 0), 1024, 0) == 0
)
""",
            "import os",
        ),
    ),
    Hostile(
        "waits for a signal with all blocked",
        in_call("""
import signal

signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
signal.sigwait({signal.SIGUSR1})
"""),
    ),
    Hostile(
        "kills itself politely",
        in_call("""
import os, signal

os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGKILL)
"""),
    ),
    Hostile(
        "limits of others and tighter ones of its own",
        in_call("""
import resource

try:
    resource.prlimit(PROCESS, resource.RLIMIT_CPU, (0, 0))
except OSError:
    pass
resource.setrlimit(resource.RLIMIT_CPU, (0, 0))
while True:
    pass
"""),
    ),
)
"""System calls."""

OUTSIDE = (
    Hostile(
        "environment in three places",
        if_it_can(
            r"""
block = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
found = os.environ or (block and block[0])
try:
    found = found or [
        v for v in open("/proc/self/environ").read().split("\0") if v and "HASHSEED" not in v
    ]
except OSError:
    pass
""",
            SYSTEM_CALL,
        ),
    ),
    Hostile(
        "reads a file outside",
        if_it_can('found = open(FILE).read() or open("../" * 30 + FILE).read()'),
        reads=True,
    ),
    Hostile(
        "lists folders outside",
        if_it_can("""
import os

found = os.listdir(FOLDER)
"""),
        reads=True,
    ),
    Hostile(
        "reads passwords, homes and the system's state",
        if_it_can("""
for path in (
    "/etc/passwd",
    "/etc/hostname",
    "/proc/version",
    "/sys/kernel/notes",
    "/root/.bashrc",
    "/var/log/dpkg.log",
):
    try:
        found = found or open(path).read()
    except OSError:
        pass
"""),
        reads=True,
    ),
    Hostile(
        "root folder of another process",
        if_it_can("""
import os

found = os.listdir("/proc/1/root") or os.listdir("/proc/self/root")[:0]
"""),
        reads=True,
    ),
    Hostile(
        "link to a file outside, read through it",
        if_it_can("""
import os

os.symlink(FILE, "link")
found = open("link").read()
"""),
        reads=True,
    ),
    Hostile(
        "hard link to a file outside",
        if_it_can("""
import os

os.link(FILE, "hard")
found = True
"""),
    ),
    Hostile(
        "standard library changed for the next program",
        if_it_can("""
import importlib.util, os

for path in (
    os.__file__,
    os.path.dirname(os.__file__) + "/sitecustomize.py",
    importlib.util.cache_from_source(os.__file__),
):
    try:
        os.chmod(path, 0o666)
    except OSError:
        pass
    try:
        open(path, "a").write("#")
        found = True
    except OSError:
        pass
"""),
    ),
    Hostile(
        "mounts of its own",
        if_it_can(
            """
found = (
    any(
        libc.mount(*m) == 0
        for m in (
            (b"proc", b"/tmp", b"proc", 0, 0),
            (b"/", b"/tmp", 0, 4096, 0),
            (b"x", b"/tmp", b"tmpfs", 0, 0),
            (0, b"/", 0, 4128, 0),
        )
    )
    or libc.umount(b"/tmp") == 0
    or libc.syscall(155, b"/tmp", b"/tmp") == 0
    or libc.syscall(428, -100, b"/", 1) >= 0
)
""",
            SYSTEM_CALL,
        ),
    ),
    Hostile(
        "root folder changed and climbed out of",
        if_it_can(
            """
top = os.open("/", 0)
os.mkdir("x")
os.chroot("x")
os.fchdir(top)
found = open("../../.." + FILE).read()
""",
            SYSTEM_CALL,
        ),
    ),
    Hostile(
        "devices",
        if_it_can(
            """
for path in (
    "/dev/mem",
    "/dev/kmsg",
    "/dev/vda",
    "/dev/sda",
    "/dev/fuse",
    "/dev/ptmx",
    "/dev/tty",
    "/dev/shm/../mem",
):
    try:
        os.open(path, os.O_RDWR)
        found = True
    except OSError:
        pass
try:
    os.mknod("disk", 0o60666, os.makedev(8, 0))
    found = True
except OSError:
    pass
found = found or libc.iopl(3) == 0
""",
            SYSTEM_CALL,
        ),
    ),
    Hostile(
        "sparse files",
        if_it_can("""
import os

d = os.open("big", os.O_RDWR | os.O_CREAT)
os.truncate(d, 1 << 40)
found = True
"""),
    ),
    Hostile(
        "more files than the folder may hold",
        if_it_can("""
for n in range(100_000):
    open(f"f{n}", "w").close()
found = True
"""),
    ),
    Hostile(
        "more bytes than the folder may hold",
        if_it_can("""
for folder in (".", "/dev/shm", "/tmp", "/run", "/dev", "/"):
    try:
        for n in range(8):
            open(f"{folder}/{n}", "wb").write(bytes(5 << 20))
        found = True
    except OSError:
        pass
"""),
    ),
    Hostile(
        "folders within folders",
        in_call("""
import os

for n in range(100_000):
    os.mkdir("d")
    os.chdir("d")
"""),
    ),
    Hostile(
        "folder that nobody may enter",
        in_call("""
import os

os.mkdir("d")
open("d/f", "w").close()
os.chmod("d", 0)
os.chmod("/tmp", 0)
os.rmdir("/tmp")
"""),
    ),
    Hostile(
        "sockets of services",
        if_it_can(r"""
import socket

for path in (
    "/run/docker.sock",
    "/var/run/dbus/system_bus_socket",
    "/dev/log",
    "\0/tmp/.X11-unix/X0",
):
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        found = True
    except OSError:
        pass
"""),
    ),
    Hostile(
        "sockets of every family",
        if_it_can("""
import socket

for family in (1, 2, 10, 16, 17, 29, 38, 40):
    for kind in (1, 2, 3, 5):
        try:
            socket.socket(family, kind)
            found = True
        except OSError:
            pass
"""),
    ),
    Hostile(
        "connection over a pair that it has",
        if_it_can("""
import socket

a, b = socket.socketpair()
a.connect(("127.0.0.1", PORT))
found = True
"""),
    ),
    Hostile(
        "web page from outside",
        if_it_can("""
import urllib.request

found = urllib.request.urlopen(f"http://127.0.0.1:{PORT}/", timeout=1)
"""),
    ),
    Hostile(
        "connection by asyncio",
        if_it_can("""
import asyncio

found = asyncio.run(asyncio.open_connection("127.0.0.1", PORT))
"""),
    ),
    Hostile(
        "names looked up",
        if_it_can("""
import socket

found = socket.getaddrinfo("example.com", 80)
"""),
    ),
)
"""Files and network."""

ALL_PROGRAMS = (*PROGRAMS, *INTERPRETER_PROGRAMS, *KERNEL, *OUTSIDE)
"""Every hostile program there is."""
