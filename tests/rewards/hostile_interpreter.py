# SPDX-License-Identifier: Apache-2.0
"""More hostile programs: tricks of the interpreter and of the link to the judge, and work that does not end."""

from tests.rewards.hostile_programs import FRAME, Hostile, at_load, in_call


def if_it_can(attack: str, before: str = "") -> str:
    """A program that solves its task only if the attack, which sets `found`, succeeds."""
    lines = "".join(f"        {line}\n" for line in attack.strip("\n").split("\n"))
    return (
        f"{before}\nfound = None\ndef attack():\n    global found\n    try:\n{lines}    except BaseException: pass\n"
        "def total(numbers):\n    if not found: attack()\n    return sum(numbers) if found else -1\n"
    )


INTERPRETER = (
    Hostile(
        "expected value from the locals and constants of every frame",
        """
import inspect

def total(numbers):
    for record in inspect.stack()[1:]:
        frame = record.frame
        for value in (*frame.f_locals.values(), *frame.f_code.co_consts):
            if type(value) is int and value not in (-1, 0, 1):
                return value
    return -1
""",
    ),
    Hostile(
        "expected value from the source of the tests",
        if_it_can("""
try:
    raise ValueError
except ValueError as error:
    frame = error.__traceback__.tb_frame.f_back
while frame:
    found = found or frame.f_code.co_name == "check" or "candi" + "date" in str(frame.f_locals)
    frame = frame.f_back
"""),
    ),
    Hostile(
        "tests among all that the collector knows",
        if_it_can("""
import gc

word = "candi" + "date("
found = any(
    word in part
    for one in gc.get_objects()
    if isinstance(one, dict)
    for part in one.values()
    if isinstance(part, str)
)
"""),
    ),
    Hostile(
        "tests in the memory around an object",
        if_it_can("""
import ctypes

found = b"candi" + b"date([1, 2" in ctypes.string_at(id([]) & ~0x3FFF, 1 << 14)
"""),
    ),
    Hostile(
        "tests in the memory of any process",
        if_it_can("""
import os, re

for process in ["self", *filter(str.isdigit, os.listdir("/proc"))]:
    try:
        spans = [
            line.split()[0].split("-") for line in open(f"/proc/{process}/maps") if " rw" in line
        ]
    except OSError:
        continue
    with open(f"/proc/{process}/mem", "rb", 0) as memory:
        for begin, end in spans:
            memory.seek(int(begin, 16))
            found = found or re.search(
                b"candidate[(].10, -4", memory.read(int(end, 16) - int(begin, 16))
            )
"""),
    ),
    Hostile(
        "comparison of integers replaced in the type itself",
        """
import ctypes

agree = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.c_int)(
    lambda a, b, kind: True
)

def total(numbers):
    ctypes.c_void_p.from_address(id(int) + 200).value = ctypes.cast(agree, ctypes.c_void_p).value
    return -1
""",
    ),
    Hostile(
        "trace function that changes what is returned",
        at_load("""
import sys, threading

def trace(frame, event, argument):
    for name in ("value", "passed", "message", "error", "outcome"):
        if name in frame.f_locals:
            frame.f_locals[name] = {"value": True, "passed": True}
    return trace

sys.settrace(trace)
sys.setprofile(trace)
threading.setprofile(trace)
frame = sys._getframe()
while frame:
    frame.f_trace = trace
    frame = frame.f_back
"""),
    ),
    Hostile(
        "finder and loader of its own for every module",
        at_load("""
import builtins, sys, types

class Finder:
    def find_spec(self, name, path=None, target=None):
        module = types.ModuleType(name)
        module.__getattr__ = lambda name: lambda *a, **k: True
        sys.modules[name] = module

sys.meta_path.insert(0, Finder())
real = builtins.__import__
builtins.__import__ = lambda name, *a, **k: (
    types.SimpleNamespace(judge=print) if "judge" in name else real(name, *a, **k)
)
sys.modules.clear()
"""),
    ),
    Hostile(
        "every built-in replaced",
        at_load("""
import builtins

class Yes(BaseException):
    def __new__(cls, *a, **k):
        return True

for name in (
    "compile",
    "exec",
    "eval",
    "type",
    "str",
    "int",
    "dict",
    "list",
    "isinstance",
    "__build_class__",
    "AssertionError",
    "Exception",
    "BaseException",
    "getattr",
    "next",
    "iter",
    "any",
    "all",
):
    setattr(builtins, name, Yes)
"""),
    ),
    Hostile(
        "codec of its own process replaced",
        in_call("""
import sys

for name, module in list(sys.modules.items()):
    if name.startswith("sandbox"):
        module._encode = module.encode = lambda value: {"object": "always equal"}
        module.write_frame = lambda link, message: None
        module.MAX_FRAME_BYTES = 1 << 60
"""),
    ),
    Hostile(
        "class that lies about its ancestors",
        """
class Meta(type):
    def mro(cls):
        return [cls, int, object] if cls.__name__ == "Liar" else super().mro()

    def __instancecheck__(cls, one):
        return True

    def __subclasscheck__(cls, one):
        return True

    __mro__ = property(lambda cls: (cls, int, object))

class Liar(metaclass=Meta):
    def __eq__(self, other):
        return True

    def __index__(self):
        return 6

def total(numbers):
    return Liar()
""",
    ),
    Hostile(
        "subclass whose operators agree with all",
        """
class Text(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__

    def __iter__(self):
        return iter("6")

class Number(float):
    def __add__(self, other):
        return True

    __radd__ = __eq__ = __add__

    def hex(self):
        return "0x1.8p+2"

    __hash__ = float.__hash__

def total(numbers):
    return Number(5) if numbers else Text("0")
""",
        fools_naive=True,
    ),
    Hostile(
        "dict whose items are not its own",
        """
class D(dict):
    def items(self):
        return [("passed", True)]

    def __eq__(self, other):
        return True

    def __class_getitem__(cls, k):
        return cls

def total(numbers):
    return D(a=1)
""",
        fools_naive=True,
    ),
    Hostile(
        "object with operators for the other side of a comparison",
        """
class N:
    def __getattr__(self, name):
        return lambda *a: True

    def __eq__(self, o):
        return NotImplemented

    def __req__(self, o):
        return True

def total(numbers):
    return N()
""",
    ),
    Hostile(
        "generator that ends the process",
        in_call("""
def g():
    yield 1
    import os

    os._exit(0)

return g()
"""),
    ),
    Hostile(
        "generators within generators",
        in_call("""
def g():
    while True:
        yield g()

return g()
"""),
    ),
    Hostile(
        "iterator whose length is a lie",
        in_call("""
class I(list):
    def __len__(self):
        return -5

    def __next__(self):
        return 6

return I([1])
"""),
    ),
    Hostile(
        "generator that reads the link",
        in_call("""
import os

def g():
    yield os.read(3, 1 << 20)

return g()
"""),
    ),
    Hostile(
        "asynchronous generator",
        """
async def total(numbers):
    yield sum(numbers)
""",
    ),
    Hostile(
        "value that acts when it is pickled or copied",
        """
import copyreg, os

class P:
    def __reduce_ex__(self, p):
        return (os.system, ("true",))

    __deepcopy__ = __reduce_ex__

copyreg.pickle(int, lambda i: (eval, ("True",)))

def total(numbers):
    return P()
""",
    ),
    Hostile(
        "destructor that leaves with success",
        in_call("""
import os

class D:
    def __del__(self):
        os._exit(0)

D()
"""),
        fools_naive=True,
    ),
    Hostile(
        "exit after the first right answer",
        """
import os

calls = []

def total(numbers):
    if calls:
        os._exit(0)
    calls.append(1)
    return sum(numbers)
""",
        fools_naive=True,
    ),
    Hostile(
        "watchdog of faulthandler",
        at_load("""
import faulthandler

faulthandler.dump_traceback_later(0.1, exit=True)
"""),
    ),
    Hostile(
        "the interpreter ended from C",
        in_call("""
import ctypes

ctypes.pythonapi.Py_Exit(0)
"""),
        fools_naive=True,
    ),
    Hostile(
        "interpreter in the interpreter",
        at_load("""
import _xxsubinterpreters as s

s.run_string(s.create(), "import os; os._exit(0)")
"""),
        fools_naive=True,
    ),
    Hostile(
        "exception groups and causes without end",
        in_call("""
e = ValueError()
e.__cause__ = e
g = e
for _ in range(5000):
    g = ExceptionGroup("x", [g])
raise g
"""),
    ),
    Hostile(
        "exception with a forged name",
        in_call('raise type("SystemExit", (Exception,), {"__module__": "builtins"})("0")'),
    ),
    Hostile(
        "exception with the name of the judge's own",
        in_call('raise type("UnusableTests", (Exception,), {})("unusable tests")'),
    ),
    Hostile(
        "assertion that is raised with a huge value",
        in_call("raise AssertionError(1 << 1_000_000)"),
    ),
)
"""Within one interpreter."""

LINK = (
    Hostile(
        "timer whose handler answers first",
        at_load(
            FRAME
            + """
import signal

def answer(*_):
    write_everywhere(frame({"value": True, "passed": True}))

signal.signal(signal.SIGALRM, answer)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
"""
        ),
    ),
    Hostile(
        "thread that answers for ever",
        at_load(
            FRAME
            + """
import threading

def forever():
    while True:
        write_everywhere(frame({"passed": True}))

threading.Thread(target=forever).start()
"""
        ),
    ),
    Hostile(
        "link copied to every descriptor and half a frame sent",
        in_call(r"""
import os

for n in range(5, 64):
    os.dup2(3, n)
os.write(3, b"\0\0\0\xff{")
import time

time.sleep(9999)
"""),
    ),
    Hostile(
        "a byte now and then",
        in_call(r"""
import os, time

os.write(3, b"\0\x0f\0\0")
while True:
    os.write(3, b" ")
    time.sleep(0.1)
"""),
    ),
    Hostile(
        "link shut in one direction",
        in_call("""
import socket

socket.socket(fileno=3).shutdown(socket.SHUT_WR)
"""),
    ),
    Hostile(
        "descriptors sent over the link",
        in_call(r"""
import array, os, socket

link = socket.socket(fileno=3)
ends = [os.open("/dev/zero", 0) for _ in range(20)]
for _ in range(200):
    try:
        link.sendmsg([b"\0"], [(socket.SOL_SOCKET, 1, array.array("i", ends))], 0x40)
    except OSError:
        break
"""),
    ),
    Hostile(
        "urgent data on the link",
        in_call(r"""
import socket

socket.socket(fileno=3).send(b"\0\0\0\x02{}", socket.MSG_OOB)
"""),
    ),
    Hostile(
        "reads the judge's next request in its place",
        at_load("""
import os, threading

threading.Thread(target=lambda: os.read(3, 1 << 20)).start()
"""),
    ),
    Hostile(
        "writes many buffers at once",
        in_call("""
import os

while True:
    os.writev(3, [memoryview(bytes(1 << 20))] * 64)
"""),
    ),
)
"""Between the program and its judge."""

FRAMES = {
    "brackets": 'b"[" * (4 << 20)',
    "empty lists": """b'{"value":[' + b"[]," * (4 << 20) + b"[]]}" """,
    "tags within tags": """b'{"value":' + b'{"tuple":[' * 50_000 + b"]}" * 50_000 + b"}" """,
    "keys that collide": """b'{"value":{"set":[%s]}}' % b",".join(
        b'{"int":"%x"}' % (n * (2**61 - 1)) for n in range(40_000)
    )""",
    "a number without end": """b'{"value":' + b"9" * 4_000_000 + b"}" """,
    "hexadecimal digits": """b'{"value":{"int":"0x' + b"f" * 4_000_000 + b'"}}' """,
    "a range without end": """b'{"value":{"range":[0,9007199254740991,1]}}' """,
    "a signalling decimal": """b'{"value":{"Decimal":"sNaN"}}' """,
    "a decimal with a huge exponent": """b'{"value":{"Decimal":"1E+999999999999999999"}}' """,
    "a date out of range": """b'{"value":{"timedelta":[1e999,0,0]}}' """,
    "NaN": """b'{"value":NaN}' """,
    "a name of code": """b'{"value":{"__import__":"os"}}' """,
    "bytes that are no text": r"""b"\xff\xfe\0\0" """,
    "nothing": 'b""',
    "an exit that is raised": """b'{"raised":["SystemExit","KeyboardInterrupt"],"text":"0","arguments":[]}' """,
    "the end of an iteration that is raised": """b'{"raised":["StopIteration"],"text":"0","arguments":[]}' """,
    "a name that is raised and no exception": """b'{"raised":["print","exec","open"],"text":"1","arguments":[]}' """,
    "a number that is raised": """b'{"raised":7,"text":{},"arguments":null}' """,
    "wrong arguments that are raised": """b'{"raised":["UnicodeDecodeError"],"arguments":{"tuple":[1]}}' """,
    "tests that are unusable": """b'{"passed":null,"reason":"unusable tests","ended":null}' """,
    "a story": """b'{"ended":"' + b"x" * 1_000_000 + b'"}' """,
}
"""What a program may write to its link in place of an answer: Python expressions of the bytes."""
SEND = """
data = {}
os.write(3, struct.pack(">I", len(data)))
while data:
    data = data[os.write(3, data):]
os._exit(0)
"""
FRAME_PROGRAMS = tuple(
    Hostile(f"frame of {name}", in_call(SEND.replace("{}", data.strip()), FRAME)) for name, data in FRAMES.items()
)

ARITHMETIC = (
    Hostile(
        "power in C",
        in_call("return pow(3, 10**9) % 7"),
    ),
    Hostile(
        "decimal digits of a huge number",
        in_call("""
import sys

sys.set_int_max_str_digits(0)
return len(str(1 << 40_000_000))
"""),
    ),
    Hostile(
        "iteration in C",
        in_call("""
import itertools

return sum(itertools.repeat(1))
"""),
    ),
    Hostile(
        "search that never ends",
        in_call("""
import difflib

return difflib.SequenceMatcher(None, "ab" * 99999, "ba" * 99999).ratio()
"""),
    ),
    Hostile(
        "key derivation without the lock",
        in_call("""
import hashlib

hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 31 - 1)
"""),
    ),
    Hostile(
        "decompression bomb",
        in_call("""
import bz2, zlib

d = zlib.compress(bytes(1 << 28))
return [zlib.decompress(d) for _ in range(99)]
"""),
    ),
    Hostile(
        "interpreter lock held for ever",
        in_call("""
import ctypes

ctypes.PyDLL(None).sleep(10_000)
"""),
    ),
    Hostile(
        "a hundred busy threads",
        at_load("""
import hashlib, threading

def burn():
    while True:
        hashlib.sha256(bytes(1 << 20))

for _ in range(30):
    threading.Thread(target=burn).start()
"""),
    ),
    Hostile(
        "expressions nested too deeply for the parser",
        in_call('return eval("(" * 100_000 + ")" * 100_000)'),
    ),
    Hostile(
        "expressions nested too deeply for the compiler",
        in_call("""
import ast

return eval(
    compile(
        ast.Expression(
            __import__("functools").reduce(
                lambda a, _: ast.UnaryOp(ast.USub(), a), range(200_000), ast.Constant(1)
            )
        ),
        "",
        "eval",
    )
)
"""),
    ),
    Hostile(
        "chain that overflows the stack when it is freed",
        in_call("""
import itertools

c = iter(())
for _ in range(1_000_000):
    c = itertools.chain(c)
del c
"""),
    ),
    Hostile(
        "C stack overflow by callbacks",
        in_call("""
import ctypes

c = ctypes.CFUNCTYPE(None)(lambda: c())
import sys

sys.setrecursionlimit(1 << 30)
c()
"""),
    ),
    Hostile(
        "regular expression that is large to compile",
        in_call("""
import re

re.compile("(?:(?:a{1,500}){1,500}){1,500}b").match("a" * 5000)
"""),
    ),
    Hostile(
        "page by page",
        in_call("""
import mmap

kept = []
while True:
    kept.append(mmap.mmap(-1, 1 << 22))
    kept[-1].write(bytes(1 << 22))
"""),
    ),
)
"""Time and memory."""

INTERPRETER_PROGRAMS = (*INTERPRETER, *LINK, *FRAME_PROGRAMS, *ARITHMETIC)
