# SPDX-License-Identifier: Apache-2.0
"""Right programs of unusual style, which must pass: what the sandbox takes from hostile ones, honest ones do not need.

Functions come with assertions, scripts with pairs of input and output. Shared by the tests and benchmarks/sandbox.py.
"""

from duet_trl.rewards import Check
from duet_trl.rewards.code_tests import SAME_OUTPUT, SCRIPT_NAME


def module(source: str, *tests: str, names: tuple[str, ...] = ("f",), setup: tuple[str, ...] = ()) -> Check:
    """Functions and the assertions about them."""
    return Check(source, names, tests, setup)


def script(source: str, *pairs: tuple[str, str]) -> Check:
    """A script and what it must print for each input."""
    tests = tuple(f"assert same_output({SCRIPT_NAME}({given!r}), {wanted!r})" for given, wanted in pairs)
    return Check(source, (SCRIPT_NAME,), tests, (SAME_OUTPUT,), reads_input=True)


SUM = ("3\n1 2 3\n", "6\n"), ("1\n-5\n", "-5\n"), ("4\n10 20 30 40", "100\n")
"""Pairs of the task: a count, then as many numbers; print their sum."""

FUNCTIONS = {
    "recursion below the usual limit": module(
        "def f(n):\n    return 0 if n == 0 else 1 + f(n - 1)", "assert f(900) == 900", "assert f(0) == 0"
    ),
    "recursion with a limit of its own": module(
        "import sys\nsys.setrecursionlimit(200_000)\ndef f(n):\n    return 0 if n == 0 else 1 + f(n - 1)",
        "assert f(100_000) == 100_000",
    ),
    "recursion in a thread with a large stack": module(
        """
import sys, threading
sys.setrecursionlimit(1 << 20)
threading.stack_size(1 << 28)
def f(n):
    found = []
    def down(k): return 0 if k == 0 else 1 + max([down(k - 1)], key=lambda x: x)
    thread = threading.Thread(target=lambda: found.append(down(n)))
    thread.start()
    thread.join()
    return found[0]
""",
        "assert f(20_000) == 20_000",
    ),
    "stack limit raised": module(
        "import resource\nresource.setrlimit(resource.RLIMIT_STACK, (1 << 26, resource.getrlimit(3)[1]))\n"
        "def f(n):\n    return n",
        "assert f(1) == 1",
    ),
    "generator": module(
        "def f(n):\n    a, b = 0, 1\n    for _ in range(n):\n        yield a\n        a, b = b, a + b",
        "assert list(f(6)) == [0, 1, 1, 2, 3, 5]",
    ),
    "iterator of a class of its own": module(
        "class Down:\n    def __init__(self, n): self.n = n\n    def __iter__(self): return self\n"
        "    def __next__(self):\n        if not self.n: raise StopIteration\n        self.n -= 1\n"
        "        return self.n\n"
        "f = Down",
        "assert list(f(3)) == [2, 1, 0]",
    ),
    "iterators of itertools": module(
        "import itertools\ndef f(kind, *parts):\n    return getattr(itertools, kind)(*parts)",
        "assert list(f('chain', [1], [2])) == [1, 2]",
        "assert set(f('permutations', 'ab')) == {('a', 'b'), ('b', 'a')}",
        "assert sorted(f('accumulate', [1, 2, 3])) == [1, 3, 6]",
    ),
    "views of a dict": module(
        "def f(kind):\n    return getattr({'a': 1, 'b': 2}, kind)()",
        "assert f('keys') == {'a', 'b'} and sorted(f('keys')) == ['a', 'b']",
        "assert sorted(f('values')) == [1, 2] and len(f('values')) == 2",
        "assert f('items') == {('a', 1), ('b', 2)} and dict(f('items')) == {'a': 1, 'b': 2}",
    ),
    "a class whose method is the function": module(
        "class Solution:\n    def __init__(self): self.calls = 0\n    def run(self, x):\n        self.calls += 1\n"
        "        return x + self.calls\nf = Solution().run",
        "assert [f(1), f(1)] == [2, 3]",
    ),
    "a callable object, a partial and a cached function": module(
        "import functools\nclass Call:\n    def __call__(self, x): return x * 2\nf = Call()\n"
        "g = functools.partial(pow, 2)\n@functools.lru_cache(None)\ndef h(n): return n if n < 2 else h(n-1) + h(n-2)",
        "assert (f(3), g(5), h(80)) == (6, 32, 23416728348467685)",
        names=("f", "g", "h"),
    ),
    "lambda and nested closures": module(
        "f = (lambda g: (lambda x: g(g, x)))(lambda g, x: 1 if x < 2 else x * g(g, x - 1))",
        "assert f(20) == 2432902008176640000",
    ),
    "metaclass, descriptor, data class, enumeration": module(
        """
from dataclasses import dataclass, astuple
from enum import IntEnum
class Meta(type):
    def __call__(cls, *a): return super().__call__(*a)
class Colour(IntEnum):
    RED = 1
@dataclass(order=True)
class Point(metaclass=Meta):
    x: int
    y: int
    @property
    def colour(self): return Colour.RED
def f(x): return [astuple(Point(x, x)), Point(1, 2) < Point(2, 1), Point(0, 0).colour]
""",
        "assert f(3) == [(3, 3), True, 1]",
    ),
    "named tuple and default dict": module(
        "from collections import *\nP = namedtuple('P', 'x y')\ndef f(x):\n    d = defaultdict(list)\n"
        "    d[x].append(P(x, x))\n    return d",
        "assert f(1) == {1: [(1, 1)]}",
    ),
    "very large integers": module(
        "import sys\nsys.set_int_max_str_digits(0)\ndef f(n): return [3 ** n, -(7 ** n), len(str(2 ** n))]",
        "assert f(5000)[:2] == [3 ** 5000, -(7 ** 5000)]",
        "assert f(100_000)[2] == 30103",
    ),
    "floats that are not numbers": module(
        "def f(): return [float('nan'), float('inf'), -float('inf'), -0.0, 5e-324, 1.7976931348623157e308]",
        "import math\nv = f()\nassert math.isnan(v[0]) and v[1:3] == [math.inf, -math.inf]",
        "assert math.copysign(1, f()[3]) == -1 and f()[4:] == [5e-324, 1.7976931348623157e308]",
    ),
    "numbers of other kinds": module(
        "from fractions import Fraction as F\nfrom decimal import *\ngetcontext().prec = 50\n"
        "def f(): return [F(1, 3) + F(1, 6), Decimal(2).sqrt(), (1 + 2j) ** 2, True + True, 0x_ff, 1_0e-1]",
        "from fractions import Fraction\nfrom decimal import Decimal\n"
        "assert f()[0] == Fraction(1, 2) and f()[2:] == [-3 + 4j, 2, 255, 1.0]",
        "assert str(f()[1]).startswith('1.41421356237309504880168872420969807856967187537')",
    ),
    "dates": module(
        "import datetime as d\ndef f(day, days): return [day + d.timedelta(days), d.timedelta(days), "
        "d.datetime.combine(day, d.time(1, 2)), d.time(1, 2, 3)]",
        "from datetime import *\nassert f(date(2024, 2, 28), 2) == "
        "[date(2024, 3, 1), timedelta(2), datetime(2024, 2, 28, 1, 2), time(1, 2, 3)]",
    ),
    "names and text beyond ASCII": module(
        "import unicodedata\ndef f(größe): return unicodedata.normalize('NFC', größe[::-1]) + '\\U0001f600\\u202e\\0'",
        "assert f('äbc') == 'cbä\\U0001f600\\u202e\\0'",
        "assert f('a\\u0308') == '\\u0308a\\U0001f600\\u202e\\0'",
    ),
    "byte order mark, tabs and carriage returns": module(
        "\ufeffdef f(x):\r\n\tif x:\r\n\t\treturn x\r\n", "assert f(2) == 2"
    ),
    "future import, doc string, type hints": module(
        '"""A module."""\nfrom __future__ import annotations\nfrom typing import *\nT = TypeVar("T")\n'
        "def f(x: Undefined[T] | None = None) -> Nowhere: return x",
        "assert f(x=3) == 3",
    ),
    "prints, logs and warns a lot": module(
        "import logging, sys, warnings\ndef f(x):\n    for n in range(20_000): print('x' * 100)\n"
        "    logging.error('no')\n    warnings.warn('no')\n    sys.stderr.write('no')\n    sys.stdout.flush()\n"
        "    return x",
        "assert f(1) == 1",
    ),
    "threads and a queue": module(
        """
import queue, threading
from concurrent.futures import ThreadPoolExecutor
def f(n):
    todo = queue.Queue()
    with ThreadPoolExecutor(8) as pool: list(pool.map(todo.put, range(n)))
    return sum(todo.get() for _ in range(n))
""",
        "assert f(100) == 4950",
    ),
    "a pool of threads from multiprocessing": module(
        "from multiprocessing.pool import ThreadPool\nimport multiprocessing.dummy\ndef f(n):\n"
        "    with ThreadPool(4) as pool: return sum(pool.map(abs, range(n)))",
        "assert f(10) == 45",
    ),
    "asyncio": module(
        "import asyncio\nasync def half(x):\n    await asyncio.sleep(0.001)\n    return x / 2\n"
        "async def all_of(xs): return await asyncio.gather(*map(half, xs))\ndef f(xs): return asyncio.run(all_of(xs))",
        "assert f([1, 2]) == [0.5, 1.0]",
    ),
    "exec, eval, and a module made by hand": module(
        "import types\nm = types.ModuleType('m')\nexec('def g(x): return eval(\"x+1\")', m.__dict__)\nf = m.g",
        "assert f(1) == 2",
    ),
    "pickle, copy, json, regular expressions": module(
        "import copy, json, pickle, re\ndef f(x): return json.loads(json.dumps(pickle.loads(pickle.dumps("
        "copy.deepcopy({k: re.sub(r'\\d+', lambda m: str(int(m[0]) + 1), v) for k, v in x.items()})))))",
        "assert f({'a': 'x9y'}) == {'a': 'x10y'}",
    ),
    "time zones, locale and the machine's names": module(
        "import getpass, locale, os, platform, time, zoneinfo, datetime\ndef f():\n"
        "    platform.platform(); os.cpu_count()\n"
        "    locale.getpreferredencoding(); time.localtime(); os.path.expanduser('~')\n"
        "    when = datetime.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Berlin'))\n"
        "    return when.utcoffset().total_seconds()",
        "assert f() == 7200",
    ),
    "raises what the tests expect": module(
        "class TooSmall(ValueError): pass\ndef f(x):\n    if x < 0: raise TooSmall('negative')\n    return x",
        "try: f(-1)\nexcept ValueError: pass\nelse: assert False",
    ),
    "slow but within the limit": module(
        "def f(n):\n    total = 0\n    for k in range(n): total += k * k\n    return total",
        "assert f(3_000_000) == 8999995500000500000",
    ),
    "a long list": module(
        "def f(n):\n    s = bytearray([1]) * n\n    s[:2] = b'\\0\\0'\n    for i in range(2, int(n ** 0.5) + 1):\n"
        "        if s[i]: s[i * i::i] = bytes(len(range(i * i, n, i)))\n    return [i for i in range(n) if s[i]]",
        "assert len(f(10_000_000)) == 664_579",
    ),
    "a long generator": module("def f(n): yield from range(n)", "assert sum(f(300_000)) == 44999850000"),
    "uses a great deal of memory": module(
        "def f(n): return sum(bytearray(n)) + len([0] * (n // 10))", "assert f(100_000_000) == 10_000_000"
    ),
    "seeded random numbers": module(
        "import random\ndef f(seed): return random.Random(seed).sample(range(100), 3)",
        "import random\nassert f(1) == random.Random(1).sample(range(100), 3)",
    ),
    "ends by main under its guard": module(
        "def f(x): return x\nif __name__ == '__main__':\n    import sys\n    sys.exit(f(1))", "assert f(2) == 2"
    ),
    "temporary files": module(
        "import os, shelve, sqlite3, tempfile, zipfile\ndef f(x):\n    with tempfile.TemporaryDirectory() as d:\n"
        "        with open(os.path.join(d, 'ü'), 'w') as out: out.write(x)\n        db = sqlite3.connect(d + '/db')\n"
        "        db.execute('create table t (x)'); db.execute('insert into t values (?)', (x,)); db.commit()\n"
        "        with zipfile.ZipFile(d + '/z', 'w') as z: z.write(d + '/ü', 'x')\n"
        "        return [open(d + '/ü').read(), db.execute('select * from t').fetchall(), "
        "zipfile.ZipFile(d + '/z').read('x')]",
        "assert f('é') == ['é', [('é',)], 'é'.encode()]",
    ),
}
"""Modules of functions."""
NEED_A_FOLDER = ("temporary files", "a pool of threads from multiprocessing")
"""The C library keeps the semaphores of such a pool in files."""
NEED_THREADS = (
    "recursion in a thread with a large stack",
    "threads and a queue",
    "runs in a thread with a large stack",
    "thread that nobody waits for",
)

SCRIPTS = {
    "input and print": script("n = int(input())\nprint(sum(map(int, input().split())))", *SUM),
    "under a main guard, with exit": script(
        "def main():\n    input()\n    print(sum(map(int, input().split())))\n    exit(0)\n"
        "if __name__ == '__main__':\n    main()",
        *SUM,
    ),
    "quit without a value": script("input()\nprint(sum(map(int, input().split())))\nquit()\nprint('never')", *SUM),
    "sys.exit with a message": script(
        "import sys\nprint(sum(map(int, sys.stdin.read().split()[1:])))\nsys.exit()", *SUM
    ),
    "reads sys.stdin line by line": script(
        "import sys\nnext(sys.stdin)\n"
        "for line in sys.stdin: sys.stdout.write(str(sum(map(int, line.split()))) + '\\n')",
        *SUM,
    ),
    "reads bytes, writes bytes": script(
        "import sys\ninput = sys.stdin.buffer.readline\ninput()\n"
        "sys.stdout.buffer.write(b'%d\\n' % sum(map(int, input().split())))",
        *SUM,
    ),
    "files named on the command line, or standard input": script(
        "import fileinput, sys\nlines = list(fileinput.input())\nassert len(sys.argv) == 1\n"
        "print(sum(map(int, lines[1].split())))",
        *SUM,
    ),
    "opens descriptor 0": script("print(sum(map(int, open(0).read().split()[1:])))", *SUM),
    "reads descriptor 0 by its size": script(
        "import io, os, sys\ninput = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline\ninput()\n"
        "os.write(1, str(sum(map(int, input().split()))).encode())",
        *SUM,
    ),
    "fast input and output of contests": script(
        """
import os, sys
from io import BytesIO, IOBase
class FastIO(IOBase):
    newlines = 0
    def __init__(self, file):
        self._fd, self.buffer = file.fileno(), BytesIO()
        self.writable = "x" in file.mode or "r" not in file.mode
        self.write = self.buffer.write if self.writable else None
    def readline(self):
        while self.newlines == 0:
            b = os.read(self._fd, max(os.fstat(self._fd).st_size, 8192))
            self.newlines = b.count(b"\\n") + (not b)
            ptr = self.buffer.tell()
            self.buffer.seek(0, 2), self.buffer.write(b), self.buffer.seek(ptr)
        self.newlines -= 1
        return self.buffer.readline()
    def flush(self):
        if self.writable:
            os.write(self._fd, self.buffer.getvalue())
            self.buffer.truncate(0), self.buffer.seek(0)
class IOWrapper(IOBase):
    def __init__(self, file):
        self.buffer = FastIO(file)
        self.flush, self.writable = self.buffer.flush, self.buffer.writable
        self.write = lambda s: self.buffer.write(s.encode("ascii"))
        self.readline = lambda: self.buffer.readline().decode("ascii")
sys.stdin, sys.stdout = IOWrapper(sys.stdin), IOWrapper(sys.stdout)
input = lambda: sys.stdin.readline().rstrip("\\r\\n")
input()
print(sum(map(int, input().split())))
""",
        *SUM,
    ),
    "output gathered and written at exit": script(
        "import atexit, io, sys\nbuffer = io.StringIO()\nsys.stdout = buffer\n"
        "@atexit.register\ndef write(): sys.__stdout__.write(buffer.getvalue())\n"
        "input()\nprint(sum(map(int, input().split())))",
        *SUM,
    ),
    "standard output put away and back": script(
        "import contextlib, io, sys\ninput()\n"
        "with contextlib.redirect_stdout(io.StringIO()) as hidden: print('hidden')\n"
        "print(sum(map(int, input().split())), file=sys.stdout, flush=True)",
        *SUM,
    ),
    "complains on standard error": script(
        "import sys\nprint('debug', file=sys.stderr)\ninput()\nprint(sum(map(int, input().split())))", *SUM
    ),
    "reads until the end of the input": script(
        "total = []\nwhile True:\n    try: total += map(int, input().split())\n    except EOFError: break\n"
        "print(sum(total[1:]))",
        *SUM,
    ),
    "runs in a thread with a large stack": script(
        "import sys, threading\nsys.setrecursionlimit(1 << 20)\nthreading.stack_size(1 << 27)\n"
        "def down(xs, i): return 0 if i == len(xs) else xs[i] + down(xs, i + 1)\n"
        "def main():\n    input()\n    print(down(list(map(int, input().split())), 0))\n"
        "thread = threading.Thread(target=main)\nthread.start()\nthread.join()",
        *SUM,
    ),
    "thread that nobody waits for": script(
        "import threading, time\ndef main():\n    input()\n    time.sleep(0.05)\n"
        "    print(sum(map(int, input().split())))\n"
        "threading.Thread(target=main).start()",
        *SUM,
    ),
    "text beyond ASCII": script(
        "print(input()[::-1] + ' \U0001f600')", ("äöü", "üöä \U0001f600"), ("\n", " \U0001f600")
    ),
    "prompts and carriage returns": script(
        "name = input('Name? ')\nprint('Hello,', name, end='\\r\\n')", ("Ada\r\n", "Name? Hello, Ada\n")
    ),
    "empty input, no output": script("import sys\nassert sys.stdin.read() == ''", ("", ""), ("", "\n\n")),
    "a megabyte of output": script("for n in range(150_000): print(n)", ("", "\n".join(map(str, range(150_000))))),
    "nothing of the last run is left": script(
        "import sys\nassert not hasattr(sys, 'seen')\nseen = globals().setdefault('runs', 0) + 1\n"
        "text = sys.stdin.read()\nprint(seen, len(text))",
        ("a" * 1000, "1 1000"),
        ("a", "1 1"),
    ),
}
"""Scripts that read and print."""

HONEST = {**FUNCTIONS, **SCRIPTS}
