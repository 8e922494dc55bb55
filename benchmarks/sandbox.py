# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/sandbox.py [--check]: are hostile programs contained, right ones passed, and how many per second.

--check ends with code 1 if a program escapes, a right one fails, an empty one passes, or the speed misses its target.

* hostile: the programs of tests/rewards/hostile_programs.yaml, one after the other. One is contained if its verdict is
  "failed" within the limits, nothing outside was touched and no process of it is left.
* batch: as many programs that hang as right ones, under the default limits: seconds against the bound that
  `Sandbox.longest_seconds` states.
* right: programs of unusual style (tests/rewards/honest_programs.yaml), and HumanEval's own solutions, each as a whole
  function and as a continuation of its prompt; the same with empty functions, which must fail.
* labelled: real model outputs, where the file is there: agreement with their labels, graded by the last fenced block
  (as the labels were made) and by the first (which the gate stops at).
* speed: right programs with two assertions each, all different, over as many workers as there are cores, in every
  isolation that holds on this machine. Each run is two fresh processes.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from common import argument_parser, finish
from datasets import load_dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from duet_trl.report.tables import text_table
from duet_trl.rewards import Check, CodeVerifier, Limits, Sandbox
from duet_trl.rewards.sandbox.pool import STRONG_ISOLATION, WEAK_ISOLATION, probe
from tests.rewards.honest_programs import HONEST, NEED_A_FOLDER
from tests.rewards.hostile_programs import (
    EVERY_PROGRAM,
    HOLDING,
    SOLUTION,
    Outside,
    descendants,
    left_behind,
    task,
)

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
LABELLED = DATA / "model_outputs_code.jsonl"
HOSTILE_LIMITS = Limits(cpu_seconds=1, wall_seconds=3.0)
SLACK_SECONDS = 10.0
BATCH = 64
SPEED_RUNS = 200
LEAST_RUNS_PER_SECOND = 10.0


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def humaneval() -> list[dict[str, Any]]:
    """The tasks, from the local copy or from the Hub."""
    local = DATA / "humaneval_test.jsonl"
    return read_rows(local) if local.exists() else load_dataset("openai/openai_humaneval", split="test").to_list()


def measure_hostile(isolation: str) -> dict[str, Any]:
    """Run every hostile program; names of those that scored or did harm."""
    escaped = {}
    # the weak isolation does not keep a program from reading, and does not claim to
    programs = [hostile for hostile in EVERY_PROGRAM if isolation != WEAK_ISOLATION or not hostile.reads]
    with Outside() as outside, Sandbox(isolation=isolation, workers=1, limits=HOSTILE_LIMITS) as sandbox:
        assert sandbox.check(task(SOLUTION)).passed
        before = descendants()
        for hostile in programs:
            begin = time.monotonic()
            verdict = sandbox.check(outside.check(hostile))
            seconds = time.monotonic() - begin
            found = outside.damage() + [f"process {process} left" for process in left_behind(before)]
            if verdict.passed is not False:
                found.append(f"verdict {verdict.passed}: {verdict.reason}")
            if seconds > HOSTILE_LIMITS.wall_seconds + SLACK_SECONDS:
                found.append("took too long")
            if found:
                escaped[hostile.name] = found
            before = descendants()
    return {"programs": len(programs), "contained": len(programs) - len(escaped), "escaped": escaped}


def measure_batch(isolation: str, workers: int) -> dict[str, Any]:
    """A batch in which every other program hangs."""
    hanging = [task(HOLDING[number % len(HOLDING)].source) for number in range(BATCH // 2)]
    right = [task(f"{SOLUTION}# {number}") for number in range(BATCH // 2)]
    checks = [check for pair in zip(hanging, right, strict=True) for check in pair]
    with Sandbox(isolation=isolation, workers=workers) as sandbox:
        sandbox.check_all(right[: 2 * workers])  # starts the workers
        begin = time.monotonic()
        verdicts = sandbox.check_all(checks)
        seconds = time.monotonic() - begin
        return {
            "programs": BATCH,
            "hanging": len(hanging),
            "wrong_verdicts": sum(v.passed is not (place % 2 == 1) for place, v in enumerate(verdicts)),
            "seconds": seconds,
            "longest_program": max(verdict.seconds for verdict in verdicts),
            "wall_limit": sandbox.limits.wall_seconds,
            "bound": sandbox.longest_seconds(BATCH),
        }


def measure_honest(isolation: str) -> dict[str, Any]:
    """Run the right programs of unusual style that this isolation has the means for."""
    beyond = () if isolation == "bubblewrap" else NEED_A_FOLDER
    checks = {name: check for name, check in HONEST.items() if name not in beyond}
    with Sandbox(isolation=isolation, workers=1) as sandbox:
        verdicts = {name: sandbox.check(check) for name, check in checks.items()}
    failed = {name: verdict.reason for name, verdict in verdicts.items() if verdict.passed is not True}
    return {"programs": len(checks), "passed": len(checks) - len(failed), "failed": failed}


def measure_solutions(verifier: CodeVerifier, tasks: list[dict[str, Any]]) -> dict[str, Any]:
    """Rewards of the solutions and of empty functions, in both forms."""
    columns = {"test": "test", "entry_point": "entry_point", "code_prompt": "prompt"}
    columns = {column: [row[name] for row in tasks] * 2 for column, name in columns.items()}

    def rewards(body: str | None) -> list[float | None]:
        bodies = [row["canonical_solution"] if body is None else body for row in tasks]
        wholes = [row["prompt"] + source for row, source in zip(tasks, bodies, strict=True)]
        return verifier([f"```python\n{source}\n```" for source in wholes + bodies], **columns)

    right, empty = rewards(None), rewards("    pass\n")
    return {"solutions": len(right), "passed": right.count(1.0), "stubs": len(empty), "failed": empty.count(0.0)}


def measure_labelled(isolation: str, tasks: list[dict[str, Any]]) -> dict[str, Any]:
    """Agreement with the labels of real outputs."""
    rows = [row for row in read_rows(LABELLED) if row["label"] is not None]
    by_id = {row["task_id"]: row for row in tasks}
    agreement = {"outputs": len(rows)}
    for which in ("last", "first"):
        verifier = CodeVerifier(isolation=isolation, which=which, fenced=False)
        columns = {
            column: [by_id[row["task_id"]][name] for row in rows]
            for column, name in (("test", "test"), ("entry_point", "entry_point"), ("code_prompt", "prompt"))
        }
        rewards = verifier([row["text"] for row in rows], **columns)
        verifier.close()
        agreement[which] = sum(reward == row["label"] for reward, row in zip(rewards, rows, strict=True))
    return agreement


def measure_speed(isolation: str, workers: int) -> float:
    """Right programs per second."""
    checks = [
        Check(f"def f(x):\n    return x + {n}\n", ("f",), (f"assert f(1) == {n + 1}", f"assert f(-1) == {n - 1}"))
        for n in range(SPEED_RUNS)
    ]
    with Sandbox(isolation=isolation, workers=workers) as sandbox:
        sandbox.check_all(checks[: 2 * workers])  # starts the workers
        begin = time.monotonic()
        verdicts = sandbox.check_all(checks)
        seconds = time.monotonic() - begin
    assert all(verdict.passed for verdict in verdicts)
    return len(checks) / seconds


def main() -> int:
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--isolation", default="auto", help="isolation of everything but the speeds")
    arguments = parser.parse_args()
    workers = len(os.sched_getaffinity(0))
    verifier = CodeVerifier(isolation=arguments.isolation, workers=workers)
    isolation = verifier.isolation
    tasks = humaneval()
    solutions = measure_solutions(verifier, tasks)
    verifier.close()
    hostile = measure_hostile(isolation)
    honest = measure_honest(isolation)
    batch = measure_batch(isolation, workers)
    labelled = measure_labelled(isolation, tasks) if LABELLED.exists() else None
    defects = {name: probe(name) for name in (*STRONG_ISOLATION, WEAK_ISOLATION)}
    speeds = {name: measure_speed(name, workers) for name, defect in defects.items() if defect is None}
    rows = [
        ["hostile programs contained", f"{hostile['contained']} of {hostile['programs']}"],
        ["right programs of unusual style passed", f"{honest['passed']} of {honest['programs']}"],
        [
            "HumanEval solutions passed, whole and as continuations",
            f"{solutions['passed']} of {solutions['solutions']}",
        ],
        ["empty functions failed", f"{solutions['failed']} of {solutions['stubs']}"],
        [
            f"seconds for {batch['programs']} programs, {batch['hanging']} of them hanging",
            f"{batch['seconds']:.0f} (bound {batch['bound']:.0f}; longest program {batch['longest_program']:.1f})",
        ],
    ]
    if labelled:
        for which in ("last", "first"):
            agreed = f"{labelled[which]} of {labelled['outputs']}"
            rows.append([f"labels agreed with, by the {which} fenced block", agreed])
    else:
        rows.append(["labels agreed with", f"not here: no {LABELLED.name}"])
    for name, defect in defects.items():
        target = f" (target {LEAST_RUNS_PER_SECOND:.0f})" if name == isolation else ""
        measured = f"{speeds[name]:.0f}{target}" if name in speeds else f"not here: {defect}"
        rows.append([f"runs per second, {name}", measured])
    print(text_table([f"isolation: {isolation}, {workers} workers", ""], rows))
    for name, found in hostile["escaped"].items():
        print(f"NOT CONTAINED: {name}: {found}")
    for name, reason in honest["failed"].items():
        print(f"NOT PASSED: {name}: {reason}")
    met = {
        "hostile programs contained": not hostile["escaped"],
        "right programs of unusual style passed": not honest["failed"],
        "HumanEval's solutions passed": solutions["passed"] == solutions["solutions"],
        "empty functions failed": solutions["failed"] == solutions["stubs"],
        "hanging programs within the bound": batch["seconds"] <= batch["bound"] and batch["wrong_verdicts"] == 0,
        f"{LEAST_RUNS_PER_SECOND:.0f} runs per second": speeds[isolation] >= LEAST_RUNS_PER_SECOND,
    }
    payload = {
        "isolation": isolation,
        "hostile": hostile,
        "honest": honest,
        "batch": batch,
        "solutions": solutions,
        "labelled": labelled,
        "runs_per_second": speeds,
        "not_here": {name: defect for name, defect in defects.items() if defect is not None},
        "workers": workers,
    }
    return finish("sandbox", payload, met, arguments, "duet-trl")


if __name__ == "__main__":
    sys.exit(main())
