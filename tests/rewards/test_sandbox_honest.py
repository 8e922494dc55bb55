# SPDX-License-Identifier: Apache-2.0
"""What the sandbox must leave to honest programs, alone and beside hostile ones, and what tests get to see of them."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from duet_trl.rewards import Check, Limits, Sandbox
from duet_trl.rewards import sandbox as sandbox_module
from tests.rewards.honest_programs import HONEST, NEED_A_FOLDER, SCRIPTS
from tests.rewards.hostile_programs import EVERY_PROGRAM, Outside, in_call, task
from tests.rewards.test_sandbox import ISOLATIONS, machine_allows

REWARDS = Path(sandbox_module.__file__).parents[1]
HAVE_A_FOLDER = ("bubblewrap",)


@pytest.fixture(scope="module", params=ISOLATIONS)
def sandbox(request):
    if not machine_allows(request.param):
        pytest.skip(f"this machine has no {request.param}")
    with Sandbox(isolation=request.param, workers=1) as sandbox:
        yield sandbox


@pytest.mark.parametrize("name", HONEST)
def test_honest_program_passes(sandbox, name):
    if name in NEED_A_FOLDER and sandbox.isolation not in HAVE_A_FOLDER:
        pytest.skip("this isolation has no folder to write to")
    verdict = sandbox.check(HONEST[name])
    assert verdict.passed, verdict


def test_wrong_scripts_fail(sandbox):
    wrong = "import sys\nsys.stdout.write('5')\nprint(6, file=sys.stderr)\nimport os; os.write(2, b'6')"
    for name in ("input and print", "opens descriptor 0"):
        right = SCRIPTS[name]
        assert sandbox.check(Check(wrong, right.names, right.tests, right.setup, reads_input=True)).passed is False


@pytest.mark.parametrize(
    "end", ["raise ValueError", "import os; os._exit(0)", "print('x' * (1 << 24))", "1 / 0", "x ="]
)
def test_script_that_prints_the_answer_and_then_breaks_fails(sandbox, end):
    check = Check(f"print(6, flush=True)\n{end}", ("run",), ("assert '6' in run('')",), reads_input=True)
    assert sandbox.check(check).passed is False


def test_weak_isolation_is_where_the_programs_that_read_would_succeed():
    """The attacks work where nothing stops them: without this, their failure elsewhere would show nothing."""
    if not machine_allows("limits"):
        pytest.skip("this machine has no limits")
    reading = [hostile for hostile in EVERY_PROGRAM if hostile.reads]
    with Outside() as outside, Sandbox(isolation="limits", workers=1) as weak:
        succeed = {hostile.name for hostile in reading if weak.check(outside.check(hostile)).passed}
    assert {"reads a file outside", "lists folders outside"} <= succeed


def test_a_program_with_all_the_threads_it_may_have_leaves_its_neighbour_some(sandbox):
    if sandbox.isolation != "bubblewrap" and os.geteuid() != 0:
        pytest.skip("the kernel counts the threads of one user together")
    hoard = task(
        in_call(
            """
try:
    while True: threading.Thread(target=time.sleep, args=(99,)).start()
except RuntimeError:
    time.sleep(2)
""",
            "import threading, time\nthreading.stack_size(1 << 15)",
        )
    )
    honest = HONEST["threads and a queue"]
    limits = Limits(wall_seconds=60.0)
    with Sandbox(isolation=sandbox.isolation, workers=1, limits=limits) as other:
        verdicts = []
        neighbour = threading.Thread(target=lambda: verdicts.append(other.check(hoard)))
        neighbour.start()
        while neighbour.is_alive():
            verdict = sandbox.check(honest)
            assert verdict.passed, verdict
        neighbour.join()
    assert verdicts[0].passed is False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_ordinary_user_with_many_threads_has_threads_in_the_sandbox(isolation):
    # As in a training process: the kernel counts all threads of the user, of which there are more than the limit.
    if not machine_allows(isolation):
        pytest.skip(f"this machine has no {isolation}")
    python = next((path for path in (sys.executable, "/usr/bin/python3") if is_public(path)), None)
    if python is None:
        pytest.skip("no Python that every user may run")
    script = f"""
import os, sys, threading, types
os.setgroups([]); os.setresgid(12345, 12345, 12345); os.setresuid(12345, 12345, 12345)
stop = threading.Event()
for _ in range(80): threading.Thread(target=stop.wait, daemon=True).start()
package = types.ModuleType("rewards")
package.__path__ = [{str(REWARDS)!r}]
sys.modules["rewards"] = package
from rewards.sandbox import Check, Sandbox
source = "import threading\\ndef f():\\n    t = threading.Thread(target=print)\\n    t.start()\\n    return t.join()"
print(Sandbox(isolation={isolation!r}, workers=1).check(Check(source, ("f",), ("assert f() is None",))))
"""
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=120)
    assert "passed=True" in done.stdout, done.stdout + done.stderr


def is_public(path: str) -> bool:
    """Whether every user may run this Python and read the package."""
    files = (Path(path).resolve(), REWARDS)
    return Path(path).exists() and all(
        folder.stat().st_mode & 0o001 for file in files for folder in (file, *file.parents)
    )
