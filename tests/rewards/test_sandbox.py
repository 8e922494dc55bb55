# SPDX-License-Identifier: Apache-2.0
"""The sandbox against hostile programs, in every isolation that holds on this machine; and what honest ones may do."""

import datetime
import os
import platform
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.rewards import Check, Limits, Sandbox
from duet_trl.rewards.sandbox import pool
from duet_trl.rewards.sandbox import system_calls as system_call_filter
from duet_trl.rewards.sandbox.codec import NotPlainData, decode, encode
from duet_trl.rewards.sandbox.jail import landlock_version
from duet_trl.rewards.sandbox.pool import STRONG_ISOLATION, WEAK_ISOLATION, default_workers, probe
from tests.rewards.case_files import cases
from tests.rewards.hostile_programs import (
    EVERY_PROGRAM,
    HOLDING,
    SOLUTION,
    TEST,
    Outside,
    descendants,
    left_behind,
    task,
)

LIMITS = Limits(cpu_seconds=1, wall_seconds=2.0)
SLACK_SECONDS = 10.0  # a busy machine
ISOLATIONS = (*STRONG_ISOLATION, WEAK_ISOLATION)
# One of each kind: leaving, pretending, patching, forging, waiting, memory, processes, files, network.
SAMPLE = (
    "hard exit in the call",
    "always equal",
    "code of every function in reach replaced",
    "verdict written to every descriptor",
    "sleeps",
    "memory bomb",
    "daemon",
    "kills a process outside",
    "signal to a process outside by a descriptor",
    "removes a file outside",
    "connects to a port outside",
)


@pytest.fixture(scope="module")
def outside():
    with Outside() as outside:
        yield outside


def machine_allows(isolation: str) -> bool:
    """Asked of the machine, not of the sandbox: an isolation that is broken must fail the tests, not skip them."""
    if isolation == "bubblewrap":
        command = ["bwrap", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "true"]
        return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0
    return platform.machine() in system_call_filter.MACHINES and (isolation == "limits" or landlock_version() > 0)


@pytest.fixture(scope="module")
def strong():
    if not any(map(machine_allows, STRONG_ISOLATION)):
        pytest.skip("this machine allows no strong isolation")
    with Sandbox(workers=1, limits=LIMITS) as sandbox:
        assert sandbox.check(task(SOLUTION)).passed
        yield sandbox


@pytest.fixture(scope="module", params=ISOLATIONS)
def each(request):
    if not machine_allows(request.param):
        pytest.skip(f"this machine has no {request.param}")
    with Sandbox(isolation=request.param, workers=1, limits=LIMITS) as sandbox:
        assert sandbox.check(task(SOLUTION)).passed
        yield sandbox


def assert_contained(sandbox: Sandbox, outside: Outside, hostile) -> None:
    before = descendants()
    begin = time.monotonic()
    verdict = sandbox.check(outside.check(hostile))
    assert time.monotonic() - begin < LIMITS.wall_seconds + SLACK_SECONDS
    assert verdict.passed is False, verdict
    assert verdict.isolation == sandbox.isolation
    assert outside.damage() == []
    assert left_behind(before) == set() and before <= descendants()  # the launcher is the same one


@pytest.mark.parametrize("name", SAMPLE)
def test_hostile_program_neither_scores_nor_harms(each, outside, name):
    assert_contained(each, outside, next(hostile for hostile in EVERY_PROGRAM if hostile.name == name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "hostile", [h for h in EVERY_PROGRAM if h.name not in SAMPLE], ids=lambda hostile: hostile.name
)
def test_no_hostile_program_scores_or_harms(each, outside, hostile):
    if hostile.reads and each.isolation == WEAK_ISOLATION:
        pytest.skip("the weak isolation does not keep a program from reading")
    assert_contained(each, outside, hostile)


def test_there_are_enough_different_hostile_programs():
    sources, names = ({hostile.source for hostile in EVERY_PROGRAM}, {hostile.name for hostile in EVERY_PROGRAM})
    assert len(sources) == len(names) == len(EVERY_PROGRAM) >= 100


@pytest.mark.parametrize("hostile", [h for h in EVERY_PROGRAM if h.fools_naive], ids=lambda hostile: hostile.name)
def test_forgery_would_fool_a_runner_that_trusts_the_exit_status(outside, hostile):
    script = f"{outside.program(hostile)}\n{TEST}\ncheck(total)\n"
    assert subprocess.run([sys.executable, "-c", script], stderr=subprocess.DEVNULL, timeout=60).returncode == 0


@pytest.mark.parametrize("case", cases("code")["verdicts"], ids=lambda case: case["name"])
def test_verdict_is_about_what_the_function_does(strong, case):
    verdict, expected = strong.check(Check(case["source"], ("f",), (case["test"],))), case["expected"]
    assert verdict.passed is (expected is True), verdict
    assert not isinstance(expected, str) or expected in verdict.reason


def test_reasons_name_limits_and_signals(strong):
    with Sandbox(workers=1, limits=Limits(cpu_seconds=1, wall_seconds=100)) as patient:
        spent = patient.check(task("def total(numbers):\n    while True: pass\n"))
    assert "used up its 1 seconds of processor time" in spent.reason
    assert "no verdict within 2 seconds" in strong.check(task("import time\ntime.sleep(99)")).reason
    assert "SIGSEGV" in strong.check(task("import ctypes\nctypes.string_at(0)")).reason


ANSWERS = """
import os, sys, tempfile

def environment(): return dict(os.environ)
def arguments(): return sys.argv[1:]
def descriptors(): return [n for n in range(300) if os.path.exists(f"/proc/self/fd/{n}") or is_open(n)]
def is_open(n):
    try: return bool(os.fstat(n))
    except OSError: return False
def root(): return sorted(os.listdir("/"))
def folder(): return [os.listdir("."), open("mark", "w").write("x"), tempfile.TemporaryFile().write(b"ab")]
def modules():
    import bz2, csv, ctypes, decimal, hashlib, lzma, sqlite3, zlib
    return decimal.Decimal(1) + zlib.crc32(b"")
def packages():
    try: import numpy
    except ImportError: return None
"""


def answers(sandbox: Sandbox, *tests: str) -> None:
    names = tuple(re.findall(r"^def (\w+)\(\)", ANSWERS, flags=re.MULTILINE))
    for test in tests:
        verdict = sandbox.check(Check(ANSWERS, names, (test,)))
        assert verdict.passed, (test, verdict)


def test_program_inherits_nothing(each):
    answers(each, "assert environment() == {}", "assert arguments() == []")
    answers(each, "assert descriptors() == [0, 1, 2, 3]")  # silence three times, and the link to the judge


def test_program_has_the_standard_library_and_no_packages(strong):
    answers(strong, "assert modules() == 1", "assert packages() is None")


def test_private_folder_is_writable_and_new_for_every_check():
    if not machine_allows("bubblewrap"):
        pytest.skip("this machine has no bubblewrap: install it (bwrap)")
    with Sandbox(isolation="bubblewrap", workers=1) as sandbox:
        for _ in range(2):
            answers(sandbox, "assert folder() == [[], 1, 2]")
        answers(sandbox, "assert {'proc', 'sys', 'home', 'root', 'var', 'bin'} & set(root()) <= {'root', 'home'}")


def test_output_goes_nowhere(strong, capfd):
    strong.check(task("import os, sys\nprint('here')\nos.write(2, b'there')\nsys.stderr.write('anywhere')"))
    assert capfd.readouterr() == ("", "")


SEARCHER = """
import ctypes, re
def search(pattern):
    pattern = re.compile(pattern.encode())
    for line in open("/proc/self/maps"):
        span, rights, *_, name = line.split(maxsplit=5)
        if rights.startswith("rw") and "[v" not in name:
            start, end = (int(part, 16) for part in span.split("-"))
            if pattern.search(ctypes.string_at(start, end - start)):
                return True
    return False
"""


def test_no_test_is_in_the_memory_of_the_program():
    # In the weakest isolation, where a program can find out what its memory is. Twice, because what one check left
    # behind in the launcher would be inherited by the next.
    with Sandbox(isolation="limits", workers=1) as sandbox:
        for _ in range(2):
            hidden = Check(SEARCHER, ("search",), ("note = 'secret word'\nassert search('secret[ ]word') is False",))
            assert sandbox.check(hidden).passed
        # The search works: what is in the program itself is found.
        own = Check(SEARCHER + "note = 'secret word'\n", ("search",), ("assert search('secret[ ]word') is True",))
        assert sandbox.check(own).passed


Point = namedtuple("Point", "x y")
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False)
    | st.text(st.characters()) | st.binary() | st.fractions() | st.decimals(allow_nan=False),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)  # fmt: skip


@given(PLAIN)
def test_plain_values_cross_unchanged(value):
    crossed = decode(encode(value))
    assert crossed == value and type(crossed) is type(value) and repr(crossed) == repr(value)


class EqualsAll(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize(
    ("value", "arrives"),
    [(value, value) for value in (
        1 << 100_000, -(1 << 53), float("inf"), -0.0, {1, 2}, frozenset({(1, 2)}), range(2, 9, 3), bytearray(b"x"),
        Counter("aab"), OrderedDict(b=1, a=2), deque([1, 2]), Fraction(1, 3), Decimal("1.50"), {(1, 2): 0}, "\ud800",
        datetime.datetime(2024, 1, 1))]
    # of a subclass the plain value crosses
    + [(Point(1, 2), (1, 2)), (EqualsAll(5), 5), (defaultdict(list, a=[EqualsAll(5)]), {"a": [5]})],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_well_known_types_cross_unchanged(value, arrives):
    crossed = decode(encode(value))
    assert (crossed, type(crossed)) == (arrives, type(arrives))


def test_iterators_cross_as_iterators():
    crossed = decode(encode(n * n for n in range(3)))
    assert crossed != [0, 1, 4] and list(crossed) == [0, 1, 4]


@pytest.mark.parametrize(
    "value",
    [object(), int, len, lambda: 0, sys, [1, object()], type("T", (), {})()]
    + [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)],  # a zone is code
)
def test_anything_else_does_not_cross(value):
    with pytest.raises(NotPlainData):
        encode(value)


@pytest.mark.parametrize(
    "message",
    [{"x": 1}, {}, {"int": 5}, {"tuple": 5}, {"set": [[]]}, {"Fraction": [1, {"int": "0x0"}]}, {"a": 1, "b": 2}],
)
def test_malformed_messages_are_refused(message):
    with pytest.raises(NotPlainData):
        decode(message)


@pytest.mark.parametrize(
    ("tests", "setup"),
    [(("assert f(1 ==",), ()), (("assert f(1)",), ("import no_such_module",)), (("assert f(lambda: 0)",), ()),
     (("assert f(1)",), ("raise SystemExit",)), (("\ud800",), ())],
)  # fmt: skip
def test_tests_that_cannot_run_give_no_verdict(strong, tests, setup):
    verdict = strong.check(Check("def f(x):\n    return 1", ("f",), tests, setup))
    assert verdict.passed is None and verdict.reason.startswith("unusable tests")


def test_program_that_is_too_large_fails_and_the_next_one_passes(strong):
    assert strong.check(task("#" * (65 << 20))).passed is False
    assert strong.check(task(SOLUTION)).passed


def test_checks_come_back_in_order_from_several_workers():
    with Sandbox(isolation="limits", workers=2) as sandbox:
        checks = [Check(f"def f(x):\n    return {n}", ("f",), (f"assert f(0) == {n // 2 * 2}",)) for n in range(20)]
        assert [verdict.passed for verdict in sandbox.check_all(checks)] == [n % 2 == 0 for n in range(20)]


def test_batch_of_programs_that_hang_ends_within_its_bound(strong):
    limits = Limits(cpu_seconds=1, wall_seconds=0.5)
    checks = [task(source) for hostile in HOLDING for source in (hostile.source, SOLUTION)]
    before = descendants()
    with Sandbox(isolation=strong.isolation, workers=4, limits=limits) as sandbox:
        sandbox.check_all([task(SOLUTION)] * 8)  # starts the workers
        begin = time.monotonic()
        verdicts = sandbox.check_all(checks)
        seconds = time.monotonic() - begin
        # 32 programs on 4 workers, 0.5 s and one to be killed in: a worker's eight and one more.
        assert sandbox.longest_seconds(len(checks)) == 1.5 * 9
    assert seconds < 1.5 * 9
    assert [verdict.passed for verdict in verdicts[::2]] == [False] * len(HOLDING)
    in_time = [verdict.passed for verdict in verdicts[1::2] if verdict.seconds < limits.wall_seconds]
    assert in_time == [True] * len(in_time) and len(in_time) > len(HOLDING) // 2  # the machine may be busy
    assert left_behind(before) == set()


def test_launcher_that_gives_no_answer_is_waited_for_once_and_replaced(monkeypatch):
    monkeypatch.setattr(pool, "SECONDS_OF_GRACE", 0.5)
    before = descendants()
    with Sandbox(isolation="limits", workers=1, limits=Limits(cpu_seconds=1, wall_seconds=1.0)) as sandbox:
        assert sandbox.check(task(SOLUTION)).passed
        (launcher,) = descendants() - before
        os.kill(launcher, signal.SIGSTOP)
        verdict = sandbox.check(task(SOLUTION))
        assert verdict.passed is None and "no answer within 2.5 seconds" in verdict.reason
        assert sandbox.check(task(SOLUTION)).passed
    assert descendants() == before


def test_workers_grow_with_the_cores_and_are_shared_between_ranks(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(96)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert default_workers() == 96
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert default_workers() == 12
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "200")
    assert default_workers() == 1


def test_killed_launcher_is_replaced_and_closing_leaves_no_process():
    before = descendants()
    sandbox = Sandbox(isolation="limits", workers=1)
    assert sandbox.check(task(SOLUTION)).passed
    (launcher,) = descendants() - before
    os.kill(launcher, signal.SIGKILL)
    assert sandbox.check(task(SOLUTION)).passed
    assert descendants() - before not in (set(), {launcher})
    sandbox.close()
    assert descendants() == before
    assert sandbox.check(task(SOLUTION)).passed  # starts again
    del sandbox
    assert descendants() == before


def test_launcher_ends_with_its_owner(strong):
    script = (
        "import os, signal\nfrom duet_trl.rewards import Check, Sandbox\n"
        "sandbox = Sandbox(workers=2)\n"
        "checks = [Check(f'def f(x):\\n    return {n}', ('f',), ('assert f(1) is not None',)) for n in range(8)]\n"
        "assert all(verdict.passed for verdict in sandbox.check_all(checks))\n"
        "print(sandbox.isolation, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    with Outside():  # adopts what the script leaves behind
        before = descendants()
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
        assert done.returncode == -signal.SIGKILL, done.stderr
        deadline = time.monotonic() + 30
        while descendants() != before and time.monotonic() < deadline:
            pass
        assert descendants() == before


@pytest.fixture(scope="module")
def with_all_rights():
    return {name: probe(name) for name in ("landlock", "limits")}


@pytest.mark.skipif(os.geteuid() != 0, reason="this user has no rights to give up; the other tests cover it")
@pytest.mark.parametrize(
    "lost", [(21,), (21, 2), (21, 7)], ids=["administration", "and reading any file", "and changing the user"]
)
def test_root_of_a_container_is_isolated_too(lost, with_all_rights):
    script = (
        "import ctypes, os, sys\n"
        f"for right in {lost}: assert ctypes.CDLL(None).prctl(24, right, 0, 0, 0) == 0\n"
        "code = 'from duet_trl.rewards.sandbox.pool import probe\\n"
        "print({name: probe(name) for name in (\"landlock\", \"limits\")})'\n"
        "os.execv(sys.executable, [sys.executable, '-c', code])"
    )  # fmt: skip
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == str(with_all_rights), done.stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls on x86_64")
def test_where_nothing_strong_holds_only_the_weak_isolation_by_name_is_used():
    # As in a container that may neither unshare nor mount and has no Landlock: EPERM for these calls.
    denied = {"unshare": 272, "mount": 165, "landlock_create_ruleset": 444}
    lines = [(0x20, 0, 0, 0)]
    for number in denied.values():
        lines += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050001)]
    program = f"b''.join(struct.pack('HBBI', *line) for line in {[*lines, (0x06, 0, 0, 0x7FFF0000)]})"
    script = (
        "import struct\nfrom duet_trl.rewards import CodeVerifier, SandboxError, code_reward\n"
        f"from duet_trl.rewards.sandbox.jail import _install_seccomp\n_install_seccomp({program})\n"
        "row = {'completions': ['```python\\ndef f(x):\\n    return x\\n```'], 'test_list': [['assert f(1) == 1']]}\n"
        "for refused in (CodeVerifier, lambda: code_reward(**row)):\n"
        "    try: refused()\n"
        "    except SandboxError as error: print(error)\n"
        "    else: raise AssertionError('not refused')\n"
        "verifier = CodeVerifier(isolation='limits')\nprint(verifier(**row), verifier.isolation)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *refusals, graded = done.stdout.splitlines()
    assert graded == "[1.0] limits"
    assert len(refusals) == 2 and all("isolation='limits'" in line for line in refusals)


def test_machine_without_a_filter_is_named(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert "no system-call filter for 'riscv64'" in probe("limits")


def test_a_limit_that_is_none_is_named():
    with pytest.raises(ValueError, match="wall_seconds"):
        Limits(wall_seconds=0)


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "/usr/include/asm-generic/unistd.h")],
)
def test_numbers_of_system_calls_are_those_of_the_kernel_headers(machine, header):
    if not Path(header).exists():
        pytest.skip(f"{header} is not there")
    numbers = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text()))
    numbers.setdefault("newfstatat", numbers.get("fstatat"))
    column, _ = system_call_filter.MACHINES[machine]
    for table in (system_call_filter.ALLOWED, system_call_filter.WRITING):
        for name, number in system_call_filter.system_calls(table, column).items():
            assert numbers[name] == str(number), name


@pytest.mark.parametrize("machine", system_call_filter.MACHINES)
def test_filter_program_is_short_and_never_jumps_beyond_its_end(machine):
    program = system_call_filter.filter_program(machine, 1, writable=False, threads=True)
    program = list(struct.iter_unpack("HBBI", program))
    assert len(program) < 4096  # the kernel's limit
    for place, (_, if_true, if_false, _) in enumerate(program):
        assert place + 1 + max(if_true, if_false) < len(program) or place == len(program) - 1
