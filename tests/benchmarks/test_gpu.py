# SPDX-License-Identifier: Apache-2.0
"""The script for one GPU: no step stops the next one, what was measured is on disk, a CPU runs all but the kernel."""

import ast
import json
import os
import sys
from pathlib import Path

import pytest

from benchmarks.common import write_result
from benchmarks.gpu import Step, all_steps, run_all
from tests.processes import ROOT, fresh

COMMON = {"device": "a machine", "seed": 0}
NEVER_ENDS = ["sh", "-c", "echo begun; tail -f /dev/null"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "outputs" / "bench"


def written(folder: Path) -> dict:
    return json.loads((folder / "gpu.json").read_text())


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_step_that_outlives_its_limit_is_recorded_and_the_next_one_runs(folder):
    found = run_all([Step("long", NEVER_ENDS, 0.5), Step("short", ["echo", "here"], 60)], COMMON)
    assert found["long"]["status"] == "out of time" and found["long"]["last_lines"] == ["begun"]
    assert 0.5 <= found["long"]["seconds"] < 30
    assert found["short"]["status"] == "done"
    assert written(folder) == {**COMMON, "steps": found}


def test_a_step_that_fails_says_how_and_the_next_one_runs(folder):
    failing = Step("failing", python("for i in range(30): print(i)\nraise SystemExit('no such model')"), 60)
    found = run_all([failing, Step("short", ["echo"], 60)], COMMON)
    assert found["failing"]["status"] == "failed" and found["failing"]["exit_status"] == 1
    assert found["failing"]["last_lines"] == [*map(str, range(11, 30)), "no such model"]
    assert found["short"]["status"] == "done"


def test_a_step_leaves_what_it_measured_before_its_time_was_over_and_nothing_of_an_earlier_run(folder):
    write_result("part", {"batches": [1, 2, 3]})
    measures = ["sh", "-c", "echo '{\"batches\": [4]}' > outputs/bench/part.json; tail -f /dev/null"]
    assert run_all([Step("partly", measures, 0.5, "part")], COMMON)["partly"]["result"] == {"batches": [4]}
    assert run_all([Step("partly", ["echo"], 60, "part")], COMMON)["partly"]["result"] is None


def test_steps_of_several_commands_are_kept_only_if_nothing_else_differs(folder):
    run_all([Step("first", ["echo"], 60)], COMMON)
    run_all([Step("second", ["echo"], 60)], COMMON)
    assert list(written(folder)["steps"]) == ["first", "second"]
    run_all([Step("third", ["echo"], 60)], {**COMMON, "seed": 1})
    assert list(written(folder)["steps"]) == ["third"]


def test_all_steps_take_less_than_ten_minutes():
    assert sum(step.seconds for step in all_steps(ROOT, 0, quick=False)) < 600


def test_the_kernel_is_measured_before_anything_but_torch_and_triton_is_installed():
    code = "import sys; sys.path.insert(0, 'benchmarks'); import benchmarks.gpu, gpu_gate; print(sorted(sys.modules))"
    done = fresh(["-c", code])
    assert done.returncode == 0, done.stderr
    loaded = set(ast.literal_eval(done.stdout))
    assert "triton" in loaded and not loaded & {"transformers", "trl", "datasets", "accelerate", "peft"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_cpu_runs_all_but_the_kernel(tiny_path, folder):
    script = str(ROOT / "benchmarks" / "gpu.py")
    command = [script, "--quick", "--check", "--limit_scale", "10", "--model", str(tiny_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = fresh(command, cwd=folder.parents[1], env=environment, timeout=3300)
    assert done.returncode == 0, done.stdout + done.stderr + (folder / "gpu.json").read_text()
    steps = written(folder)["steps"]
    assert list(steps) == ["gate_kernel", "swap_duet", "swap_grpo", "mixed_135m"]
    assert steps["gate_kernel"]["status"] == "skipped" and "There is no GPU" in steps["gate_kernel"]["why"]
    for name in ("swap_duet", "swap_grpo"):
        figures = steps[name]["result"]
        assert steps[name]["status"] == "done" and all(figures["targets_met"].values())
        (batch,) = figures["batches"]
        assert figures["medians"]["tokens_per_second"] == batch["tokens"] / batch["seconds_generate"] > 0
        assert 0.2 < figures["peak_memory_gib"] < 64
    gate = steps["swap_duet"]["result"]["gate"]
    assert gate["gate_share"] == 1 - gate["step_ms"] / gate["gated_step_ms"]
    # Half of the rollouts, which the gate may stop before the 16 tokens at which the others are cut.
    assert steps["swap_duet"]["result"]["batches"][0]["tokens"] <= 8 * 16
    mixed = steps["mixed_135m"]["result"]
    assert steps["mixed_135m"]["status"] == "done" and all(mixed["targets_met"].values())
    assert list(mixed["methods"]) == ["grpo_8_stop", "duet_stop"]
    for figures in mixed["methods"].values():
        assert figures["batch"] == len(figures["curves"]["reward"]) == 1
        assert figures["tokens_per_second"] == figures["generated_tokens"] / figures["phases"]["generate"] > 0
        assert 0 < sum(figures["phases"].values()) < figures["seconds"]
        assert figures["after"].keys() == mixed["before"].keys()
    # Two prompts, eight rollouts of each or half of them, cut at 48 tokens.
    assert mixed["methods"]["grpo_8_stop"]["generated_tokens"] <= 2 * 8 * 48
    assert mixed["methods"]["duet_stop"]["generated_tokens"] <= 2 * 4 * 48
