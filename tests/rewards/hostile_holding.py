# SPDX-License-Identifier: Apache-2.0
"""Programs that want to hold a worker for longer than their time, by what they wait for or by what they leave behind.

Each goes on until it is killed; what the kernel has to clean up then differs.
"""

from tests.rewards.hostile_kernel import ALL_PROGRAMS
from tests.rewards.hostile_programs import FRAME, SYSTEM_CALL, Hostile, at_load, in_call

HOLDING = (
    Hostile(
        "sleeps with all its memory touched", in_call("hoard = bytearray(900 << 20)\nimport time\ntime.sleep(99)")
    ),
    Hostile(
        "sleeps with sixty files in memory",
        in_call("""
import os, time
for _ in range(60):
    try: os.write(os.memfd_create("x"), bytes(16 << 20))
    except OSError: break
time.sleep(99)
"""),
    ),
    Hostile(
        "sleeps with sixty thousand mappings",
        in_call("""
import mmap, time
hoard = []
try:
    while True: hoard.append(mmap.mmap(-1, 4096, prot=1 + len(hoard) % 2 * 2))
except (OSError, MemoryError): pass
time.sleep(99)
"""),
    ),
    Hostile(
        "sleeps deep in folders and among a thousand files",
        in_call("""
import os, time
try:
    for n in range(400):
        open(f"f{n}", "w").write("x" * 20_000)
        os.mkdir("d")
        os.chdir("d")
except OSError: pass
time.sleep(99)
"""),
    ),
    Hostile(
        "threads that compute without the lock",
        in_call(
            """
def work():
    while True: hashlib.pbkdf2_hmac("sha256", b"x", b"y", 10_000_000)
for _ in range(30):
    try: threading.Thread(target=work).start()
    except RuntimeError: break
work()
""",
            "import hashlib, threading",
        ),
    ),
    Hostile(
        "threads that sleep with every signal blocked",
        in_call(
            """
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
for _ in range(60):
    try: threading.Thread(target=time.sleep, args=(99,)).start()
    except RuntimeError: break
time.sleep(99)
""",
            "import signal, threading, time\nthreading.stack_size(1 << 16)",
        ),
    ),
    Hostile(
        "maps and unmaps all its memory in the kernel",
        in_call(
            """
while True:
    address = libc.mmap(None, 800 << 20, 3, 0x8022, -1, 0)
    libc.munmap(ctypes.c_void_p(address), 800 << 20)
""",
            SYSTEM_CALL
            + "libc.mmap.restype = ctypes.c_void_p\nlibc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]"
            " + [ctypes.c_int] * 3 + [ctypes.c_long]\nlibc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]\n",
        ),
    ),
    Hostile(
        "reads random bytes in the kernel",
        in_call("import os\nwhile True: os.readv(os.open('/dev/urandom', 0), [bytearray(256 << 20)])"),
    ),
    Hostile(
        "waits for a lock that it holds",
        in_call("import threading\nlock = threading.Lock()\nwith lock: lock.acquire()"),
    ),
    Hostile(
        "stops itself with threads that go on",
        in_call(
            """
threading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()
os.kill(os.getpid(), signal.SIGSTOP)
threading.Event().wait()
""",
            "import os, signal, threading",
        ),
    ),
    Hostile(
        "sleeps when it is collected, when it ends and in a handler",
        at_load("""
import atexit, signal, time
class Sleeper:
    def __del__(self): time.sleep(99)
atexit.register(time.sleep, 99)
for number in signal.valid_signals():
    try: signal.signal(number, lambda *_: time.sleep(99))
    except (OSError, ValueError): pass
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
kept = Sleeper()
del kept
"""),
    ),
    Hostile(
        "answers with the largest frame it may send",
        in_call("return [[{'x': [n]} for n in range(4)]] * 200_000"),
    ),
    Hostile(
        "sends a frame a byte at a time",
        in_call(
            'for byte in frame({"value": "x" * 9999}):\n    os.write(3, bytes([byte]))\n    time.sleep(0.05)',
            FRAME + "import time\n",
        ),
    ),
    Hostile(
        "closes the link and sleeps",
        in_call("import os, time\nos.close(3)\ntime.sleep(99)"),
    ),
    Hostile(
        "does not read what it is sent",
        at_load("import time\ntime.sleep(99)"),
    ),
    Hostile(
        "polls a pipe that nobody writes to",
        in_call("import os, select\nends = os.pipe()\nselect.select([ends[0]], [], [])"),
    ),
)
"""Sixteen ways to wait."""

EVERY_PROGRAM = (*ALL_PROGRAMS, *HOLDING)
