# SPDX-License-Identifier: Apache-2.0
"""The experiment runner: what a grid expands to, the commands, and runs that are done, failed, killed or shared.

Fast tests run a script of a few lines in the place of a recipe, in real processes of a real runner; slow ones train.
"""

import argparse
import json
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest
import yaml

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes"
# recipes/ is a folder of scripts that import each other by their file names.
sys.path.insert(0, str(RECIPES))

import experiment  # noqa: E402
from command_line import parse  # noqa: E402
from config_files import read_cell, read_grid  # noqa: E402
from experiment_plan import Pace, Planned, plan  # noqa: E402
from run_file import RunRecord, read_run, read_runs, write_run  # noqa: E402
from run_record import difference, new_record  # noqa: E402

POOL = RECIPES / "tiny_math" / "data" / "pool.jsonl"
OWN = {
    "model": "tiny_math",
    "dataset_name": str(POOL),
    "seeds": [3, 5],
    "bf16": False,
    "use_cpu": True,
    "num_generations": 8,
}


def grid(folder: Path, **content) -> str:
    place = folder / "own.yaml"
    place.write_text(yaml.safe_dump(OWN | content, sort_keys=False))
    return str(place)


def own_product(folder: Path) -> str:
    methods = {"grpo": None, "ours": {"method": "paper", "budgets": [1.0, 0.25]}}
    return grid(folder, budgets=[0.5], methods=methods, cells={"line": {"method": "grpo", "beta": 0.1}})


# ---- What a grid expands to -----------------------------------------------------------------------------------------


def test_a_product_is_every_model_with_every_method_at_every_budget_of_it(tmp_path):
    methods = {"grpo": None, "ours": {"method": "paper", "budgets": [0.25]}, "dapo": {"epsilon_high": 0.28}}
    models = {"tiny_math": None, "qwen3_4b": {"accelerate": "fsdp2"}}
    cells = {"line": {"method": "grpo", "num_generations": 2}}
    read = read_grid(grid(tmp_path, models=models, methods=methods, budgets=[1.0, 0.5], cells=cells))
    shares = ("grpo_100", "grpo_50", "ours_25", "dapo_100", "dapo_50")
    assert list(read.cells) == [f"{model}_{one}" for model in models for one in shares] + ["line"]
    assert read.seeds == [3, 5] and {line["full_generations"] for line in read.cells.values()} == {8}
    for name, fields in {
        "tiny_math_grpo_50": {"method": "grpo", "num_generations": 4, "model": "tiny_math"},
        "qwen3_4b_ours_25": {"method": "paper", "budget_fraction": 0.25, "num_generations": 8, "accelerate": "fsdp2"},
        "tiny_math_dapo_100": {"method": "dapo", "num_generations": 8, "epsilon_high": 0.28},
        "line": {"method": "grpo", "num_generations": 2, "model": "tiny_math"},
    }.items():
        assert fields.items() <= read.cells[name].items()


def test_parts_that_a_grid_does_not_cross_are_not_in_the_names(tmp_path):
    assert list(read_grid(grid(tmp_path, methods=["grpo", "pods"])).cells) == ["grpo", "pods"]
    assert list(read_grid(grid(tmp_path, methods=["grpo"], budgets=[0.5])).cells) == ["grpo_50"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "has no cells"),
        ({"models": ["tiny_math"]}, "no `methods:` to cross"),
        ({"methods": ["grpo"], "budgets": [1.5]}, r"must be a list of shares in \(0, 1\], got \[1.5\]"),
        ({"methods": ["grpo"], "budgets": 0.5}, "must be a list of shares"),
        ({"methods": ["grop"], "budgets": [0.5]}, "names the method 'grop'. Choose from duet"),
        ({"methods": ["grpo"], "budgets": [0.3]}, "whole number of at least 2"),
        ({"methods": ["grpo"], "budgets": [0.5], "num_generations": None}, "budgets but no num_generations"),
        ({"methods": "grpo"}, "must be a list of names or a mapping"),
        ({"cells": {"a": 1}}, "'a' must have fields and their values, got 1"),
        ({"cells": {"a/b": {}}}, "may hold no '/'"),
        ({"methods": ["a"], "cells": {"a": {}}}, "has the cell 'a' twice"),
        ({"cells": {"a": {}}, "seeds": [1.5]}, r"must be a list of integers from 0, got \[1.5\]"),
        ({"cells": {"a": {}}, "hours": {"x": 0}}, "must be positive numbers, got 0"),
        ({"cells": {"a": {}}, "workers": 0}, "workers of .* must be an integer from 1, got 0"),
    ],
)
def test_a_grid_that_cannot_be_meant_is_refused(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        read_grid(grid(tmp_path, **content))


def test_options_of_the_gate_block_and_of_a_cell_add_up():
    own, block = read_cell("smoke/k_warmup_2")["method_kwargs"], read_cell("smoke/k_warmup_2")["gate"]["method_kwargs"]
    config = parse("math_qwen3", ["--cell", "smoke/k_warmup_2", "--dry_run"])[1]
    assert own["surrogate_warmup"] == 2 and block == {"poll_interval": 4} and config.method_kwargs == block | own


# ---- Commands -------------------------------------------------------------------------------------------------------


def printed_commands(capsys, *options: str) -> list[list[str]]:
    assert experiment.main([*options[:2], "--print_commands", *options[2:]]) == 0
    return [shlex.split(line) for line in capsys.readouterr().out.splitlines()]


def test_each_printed_command_builds_what_the_grid_says(capsys):
    read = read_grid("table1")
    lines = printed_commands(capsys, "--grid", "table1")
    assert len(lines) == len(read.cells) * len(read.seeds)
    expected = [(cell, seed) for seed in read.seeds for cell in read.cells]
    for words, (cell, seed) in zip(lines, expected, strict=True):
        assert words[words.index("--seed") + 1] == str(seed)
        if seed != read.seeds[0]:  # the others differ in nothing else
            continue
        script = words.index("recipes/math_qwen3.py")
        arguments, config, model = parse("math_qwen3", [*words[script + 1 :], "--dry_run"])
        assert (arguments.cell, config.seed) == (cell, seed)
        assert config.output_dir == f"outputs/experiments/table1/{cell}/seed_{seed}"
        name, method, percent = cell.rsplit("_", 2)
        record = new_record(arguments, config, model)
        assert (record.model, record.grid, record.cell) == (name, "table1", cell)
        assert record.method == {"duet": "paper"}.get(method, method) and record.budget == int(percent) / 100
        assert words[:2] == ["accelerate", "launch"] and words[words.index("--num_processes") + 1] == "8"
        launched = "fsdp2" if name in ("qwen3_4b", "llama3_3b") else "ddp"
        assert words[words.index("--config_file") + 1] == f"recipes/accelerate/{launched}.yaml"


def test_arguments_behind_two_dashes_go_to_every_run_and_only_chooses(tmp_path, capsys):
    place = own_product(tmp_path)
    lines = printed_commands(capsys, "--grid", place, "--only", "ours_*", "--output_dir", "x", "--", "--beta", "0.5")
    assert [words[words.index("--output_dir") + 1] for words in lines] == [
        f"x/ours_{share}/seed_{seed}" for seed in (3, 5) for share in (100, 25)
    ]
    assert all(words[-2:] == ["--beta", "0.5"] for words in lines)
    assert len(printed_commands(capsys, "--grid", place, "--only", "*/seed_5")) == 4


def test_share_of_the_budget_is_what_the_method_reads(tmp_path):
    place = own_product(tmp_path)
    runs, _ = plan(place, tmp_path, "*", [])
    shares = {run.record.cell: (run.record.budget, run.record.num_generations) for run in runs}
    assert shares == {"grpo_50": (0.5, 4), "ours_100": (1.0, 8), "ours_25": (0.25, 8), "line": (1.0, 8)}


def test_the_array_script_is_one_task_for_each_run(tmp_path, capsys):
    options = ["--grid", own_product(tmp_path), "--output_dir", str(tmp_path / "runs"), "--workers", "3", "--slurm"]
    assert experiment.main([*options, "--", "--beta", "0.5"]) == 0
    script = tmp_path / "runs" / "array.sh"
    assert capsys.readouterr().out == f"sbatch {script}\n"
    lines = script.read_text().splitlines()
    sbatch = dict(line.removeprefix("#SBATCH --").split("=") for line in lines if line.startswith("#SBATCH"))
    runs, _ = plan(options[1], tmp_path, "*", [])
    assert sbatch["array"] == f"0-{len(runs) - 1}%3" and "time" not in sbatch  # the grid has no hours
    assert Path(sbatch["output"]).parent == tmp_path / "runs"
    begin = lines.index("runs=(")
    assert [shlex.split(line)[0] for line in lines[begin + 1 : begin + 1 + len(runs)]] == [run.name for run in runs]
    assert subprocess.run(["bash", "-n", script]).returncode == 0


@pytest.mark.slow
def test_a_task_of_the_array_runs_the_command_of_its_line(tmp_path, capsys):
    place, folder = own_product(tmp_path), tmp_path / "runs"
    more = ["--", "--learning_rate", "0.5"]
    experiment.main(["--grid", place, "--output_dir", str(folder), "--slurm", *more])
    capsys.readouterr()
    lines = printed_commands(capsys, "--grid", place, "--output_dir", str(folder), *more)
    task = subprocess.run(
        ["bash", folder / "array.sh", "--print_commands"],
        env=os.environ | {"SLURM_ARRAY_TASK_ID": "5"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [shlex.split(line) for line in task.stdout.splitlines()] == [lines[5]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--only", "absent"), "matches none of grpo_50/seed_3"),
        (("--workers", "0"), "--workers must be at least 1"),
        (("--", "--seed", "1"), "--seed is set for each run"),
        (("--", "--output_dir=x"), "--output_dir=x is set for each run"),
        (("--", "--dataset_name", "absent.jsonl"), "there is no file 'absent.jsonl'"),
        (("--", "--eval_suites", "mine"), "unknown suite 'mine'"),
        (("--", "--keep_probability", "2"), "keep_probability"),
    ],
)
def test_mistakes_end_the_runner_before_anything_runs(tmp_path, options, message):
    with pytest.raises(SystemExit, match=message):
        experiment.main(["--grid", own_product(tmp_path), "--output_dir", str(tmp_path / "runs"), *options])
    assert not (tmp_path / "runs").exists()


# ---- Settings that changed ------------------------------------------------------------------------------------------


def test_a_done_run_whose_settings_changed_is_named_with_the_remedy(tmp_path):
    folder = tmp_path / "runs"
    place = grid(tmp_path, cells={"one": {"method": "paper", "grace_window": 9}})
    for run in plan(place, folder, "*", [])[0]:
        write_run(run.folder, replace(run.record, status="done"))
    grid(tmp_path, cells={"one": {"method": "paper", "grace_window": 7}})
    with pytest.raises(SystemExit) as found:
        experiment.main(["--grid", place, "--output_dir", str(folder)])
    said = str(found.value)
    assert "one/seed_3: grace_window was 9, now 7" in said and "--again" in said


def test_the_number_of_processes_is_no_difference_and_an_option_of_the_method_is():
    settings = {"prompts_per_step": 8, "gradient_accumulation_steps": 4, "steps_per_generation": 4}
    old = settings | {"method_kwargs": {"surrogate_warmup": 1}}
    new = settings | {"gradient_accumulation_steps": 1, "steps_per_generation": 1, "method_kwargs": {}}
    assert difference(old, old) == {} and difference(old, new) == {"method_kwargs.surrogate_warmup": (1, None)}
    fixed = {"gradient_accumulation_steps": 4, "method_kwargs": {}}
    other = fixed | {"gradient_accumulation_steps": 2}
    assert difference(fixed, other) == {"gradient_accumulation_steps": (4, 2)}


# ---- Time -----------------------------------------------------------------------------------------------------------


def planned(name: str, budget: float = 1.0, model: str = "small") -> Planned:
    cell, _, seed = name.partition("/seed_")
    record = RunRecord(
        cell=cell,
        seed=int(seed or 0),
        model=model,
        method="grpo",
        budget=budget,
        num_generations=8,
        settings={"method_kwargs": {}},
        engine="none",
        hardware={},
        versions={},
        status="running",
        max_steps=1,
    )
    return Planned(name, Path(name), "", [], record, None, 8)


def test_projected_time_is_the_grids_until_runs_of_the_model_are_measured():
    pace = Pace({"small": 2.0, "": 10.0})
    half, whole, large = planned("a", 0.5), planned("b"), planned("c", 0.25, "large")
    assert pace.total([half, whole, large], 1) == 60 + 120 + 150
    # Two at a time, but not faster than the longest of them.
    assert pace.total([half, whole, large], 2) == 165 and pace.total([half, whole], 2) == 120
    pace.add(half.record, 10.0)
    pace.add(whole.record, 35.0)  # 45 minutes for 1.5 full budgets
    assert pace.total([half, whole, large], 1) == 15 + 30 + 150
    assert Pace({"small": 2.0}).total([whole, large], 1) is None


# ---- Runs, with a script in the place of the recipe -----------------------------------------------------------------

STAND_IN = """
import json, os, signal, sys
from pathlib import Path
work = Path(__file__).parent
folder = Path(sys.argv[sys.argv.index("--output_dir") + 1])
name = "/".join(folder.parts[-2:])
with (work / "starts").open("a") as starts:
    starts.write(name + (" resumed" if "--resume_from_checkpoint" in sys.argv else "") + "\\n")
if "fails" in name:
    print("line before")
    sys.exit("what went wrong")
if "blocks" in name and "--resume_from_checkpoint" not in sys.argv:
    (folder / "checkpoint-2").mkdir()
    (folder / "checkpoint-2" / "trainer_state.json").write_text("{}")
    (folder / "checkpoint-10").mkdir()  # was being written
    (folder / "checkpoint-11").mkdir()
    (folder / "checkpoint-11" / "trainer_state.json").write_text('{"epoch": 1.')  # the same, later
    (work / "ready").open("w").write(str(os.getpid()))
    (work / "go").open().read()
record = json.loads((work / "record.json").read_text())
(folder / "run.json").write_text(json.dumps(record | {"cell": folder.parts[-2], "status": "done"}))
"""


class Work:
    """A folder with the stand-in for a recipe, and runners on it."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        (folder / "recipe.py").write_text(STAND_IN)
        (folder / "record.json").write_text(json.dumps(asdict(planned("x").record)))
        for fifo in ("ready", "go"):
            os.mkfifo(folder / fifo)
        self.runs = [self.run(name) for name in names]

    def run(self, name: str) -> Planned:
        words = ["--output_dir", str(self.folder / "runs" / name)]
        place, script = self.folder / "runs" / name, str(self.folder / "recipe.py")
        return replace(planned(name), folder=place, script=script, words=words)

    def start(self, log: str, runs: Sequence[Planned] | None = None) -> multiprocessing.Process:
        """A runner in a process of its own, which has the modules already."""
        runs = self.runs if runs is None else runs
        process = multiprocessing.get_context("fork").Process(target=self._work, args=(log, runs))
        process.start()
        return process

    def finish(self, log: str, runs: Sequence[Planned] | None = None) -> tuple[int, str]:
        process = self.start(log, runs)
        process.join()
        return process.exitcode, self.said(log)

    def said(self, log: str) -> str:
        return (self.folder / log).read_text()

    def starts(self) -> list[str]:
        return (self.folder / "starts").read_text().splitlines()

    def _work(self, log: str, runs: Sequence[Planned]) -> None:
        with (self.folder / log).open("w") as output:
            sys.stdout = output
            args = argparse.Namespace(output_dir=self.folder / "runs", workers=1, accelerate_config=None)
            status = experiment.Runner(args, runs, Pace({}), []).work()
        os._exit(status)


def test_a_failed_run_is_kept_and_shown_and_the_others_go_on(tmp_path):
    work = Work(tmp_path, "fails/seed_0", "works/seed_0")
    status, said = work.finish("first")
    assert status == 1 and "[1/2] fails/seed_0: failed, exit status 1" in said and "[2/2] works/seed_0: done" in said
    assert "    line before\n    what went wrong" in said and "1 done, 1 failed" in said
    record = read_run(tmp_path / "runs" / "fails" / "seed_0" / "run.json")
    assert (record.status, record.error) == ("failed", "line before\nwhat went wrong")
    # Called again: what is done is left alone, what failed is tried again, its first log kept outside the folder.
    status, said = work.finish("second")
    assert status == 1 and work.starts() == ["fails/seed_0", "works/seed_0", "fails/seed_0"]
    assert "2 runs, 1 of them done" in said
    kept = tmp_path / "runs_earlier" / "fails" / "seed_0_1" / "output.log"
    assert kept.read_text().endswith("what went wrong\n")


def test_two_runners_on_one_folder_never_run_the_same_cell(tmp_path):
    work = Work(tmp_path, "blocks/seed_0", "a/seed_0", "b/seed_0")
    first = work.start("first")
    (tmp_path / "ready").read_text()  # the first runner is in the first run
    status, said = work.finish("second")
    assert status == 0 and "blocks/seed_0: another runner's" in said and "2 done, 1 another runner's" in said
    (tmp_path / "go").write_text("")
    first.join()
    assert first.exitcode == 0 and "[3/3] b/seed_0: done, by another runner" in work.said("first")
    assert work.starts() == ["blocks/seed_0", "a/seed_0", "b/seed_0"]


def test_a_killed_run_resumes_from_its_last_whole_checkpoint(tmp_path):
    work = Work(tmp_path, "blocks/seed_0")
    runner = work.start("first")
    process = psutil.Process(int((tmp_path / "ready").read_text()))
    runner.kill()
    runner.join()
    process.wait(timeout=60)  # it does not outlive its runner
    status, said = work.finish("second")
    assert status == 0 and "blocks/seed_0: started from checkpoint-2" in said
    assert work.starts() == ["blocks/seed_0", "blocks/seed_0 resumed"]


def test_a_changed_run_that_is_asked_for_again_moves_the_old_one_aside(tmp_path):
    work = Work(tmp_path, "works/seed_0")
    work.finish("first")
    other = replace(work.runs[0].record, settings={"beta": 0.1, "method_kwargs": {}})
    status, _ = work.finish("second", [replace(work.runs[0], record=other)])
    assert status == 0 and len(work.starts()) == 2
    assert (tmp_path / "runs_earlier" / "works" / "seed_0_1" / "run.json").is_file()
    (record,) = read_runs(tmp_path / "runs").values()
    assert record.status == "done"


# ---- Real training --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_run_that_is_stopped_resumes_and_is_done(tmp_path):
    command = [sys.executable, "recipes/experiment.py", "--grid", "smoke", "--only", "grpo_25/seed_1"]
    command += ["--output_dir", str(tmp_path), "--", "--save_strategy", "steps", "--save_steps", "1"]
    first = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)
    checkpoint = tmp_path / "grpo_25" / "seed_1" / "checkpoint-1" / "trainer_state.json"
    while not checkpoint.exists():
        with pytest.raises(subprocess.TimeoutExpired):  # it has not ended
            first.wait(timeout=0.2)
    first.send_signal(signal.SIGTERM)
    said = first.communicate(timeout=120)[0]
    assert first.returncode == 128 + signal.SIGTERM and "1 stopped" in said, said
    second = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    assert second.returncode == 0 and "started from checkpoint-" in second.stdout, second.stdout
    (record,) = read_runs(tmp_path).values()
    assert record.status == "done" and record.max_steps == 4 and record.budget == 0.25 and record.model == "tiny_math"
    trained = [entry["step"] for entry in record.log if "step_time" in entry]
    assert trained == [1, 2, 3, 4]
    third = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    assert third.returncode == 0 and "1 runs, 1 of them done" in third.stdout
