# SPDX-License-Identifier: Apache-2.0
"""The miniature benchmark: what its arms have in common, its arithmetic, its resumption, and one cell for real."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.miniature.__main__ import arguments
from benchmarks.miniature.arms import ARMS, PROMPTS_PER_STEP, configuration
from benchmarks.miniature.cell import PROFILES
from benchmarks.miniature.grading import AnswerReward, is_right
from benchmarks.miniature.pool import ALWAYS, MIDDLE, NEVER, ROLLOUTS, arrange, kind_of, load_pool
from benchmarks.miniature.tasks import MATH, TASKS
from duet_trl import DUETGRPOConfig
from duet_trl.gate.markers import first_marker_end, get_marker
from recipes.tiny_math.problems import HELD_OUT, TRAIN
from recipes.tiny_math.task import Problem
from recipes.tiny_math.task import split_of as split_of_expression
from recipes.tiny_products.task import split_of as split_of_product

ROOT = Path(__file__).parents[2]
SPLIT_OF = {"math": split_of_expression, "products": split_of_product}
EACH_TASK = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


@pytest.mark.parametrize("arm", ARMS.values(), ids=ARMS)
def test_an_arm_differs_from_the_others_by_its_method_and_budget_only(arm, tmp_path):
    fields = configuration(arm, tmp_path, 4, 0, {})
    config = DUETGRPOConfig(**fields | {"use_cpu": True, "use_vllm": False})
    assert config.num_prompts == PROMPTS_PER_STEP
    assert config.generation_batch_size == config.per_device_train_batch_size * config.gradient_accumulation_steps
    rollouts = config.budget_fraction * config.num_generations
    assert rollouts == 8 * arm.budget
    assert config.options.drop_zero_advantage is True
    assert (config.duet_active is False) == (arm.method == "grpo")
    for name in ("learning_rate", "max_completion_length", "temperature", "beta", "loss_type", "num_iterations"):
        assert config.__dict__[name] == DUETGRPOConfig(**_base(tmp_path)).__dict__[name], name


def _base(folder: Path) -> dict:
    fields = configuration(ARMS["grpo_100"], folder, 4, 0, {})
    return fields | {"use_cpu": True, "use_vllm": False}


def test_an_experiment_has_the_last_word(tmp_path):
    fields = configuration(ARMS["duet_50"], tmp_path, 4, 0, {"aborted_rollouts": "failure", "budget_fraction": 0.7})
    assert (fields["method_kwargs"]["aborted_rollouts"], fields["budget_fraction"]) == ("failure", 0.7)
    fields = configuration(ARMS["duet_25"], tmp_path, 4, 0, {"prompts_per_step": 32, "num_generations": 4})
    assert DUETGRPOConfig(**fields | {"use_cpu": True, "use_vllm": False}).num_prompts == 32


@EACH_TASK
@pytest.mark.parametrize("arm", ARMS.values(), ids=ARMS)
def test_a_task_decides_its_limit_and_marker_in_every_arm_and_nothing_else(arm, task, tmp_path):
    own, bare = (configuration(arm, tmp_path, 4, 0, fields) for fields in (task.fields, {}))
    config = DUETGRPOConfig(**own | {"use_cpu": True, "use_vllm": False})
    assert config.max_completion_length == task.max_completion_length
    assert config.marker == (task.marker if config.gated else "math")
    assert {name for name in own if own[name] != bare.get(name)} <= {"marker", "max_completion_length"}
    if task is MATH and arm.method != "paper":  # the settings' limit and duet's marker; the paper's is another
        reference = DUETGRPOConfig(**bare | {"use_cpu": True, "use_vllm": False})
        assert (config.marker, config.max_completion_length) == (reference.marker, reference.max_completion_length)


@EACH_TASK
def test_a_task_grades_the_answer_at_which_its_marker_stops_a_rollout(task):
    answer = {"math": "so \\boxed{%d}.", "products": "\n```\n%d\n```"}[task.name]
    text = "7*6+0=42" + answer % 42 + "\nWait, check again.\n" + answer % 43
    stopped = text[: first_marker_end(get_marker(task.marker), text)]
    assert len(stopped) < len(text)
    for completion, which, right in (
        (text, "first", 42),
        (text, "last", 43),
        (stopped, "first", 42),
        (stopped, "last", 42),
        (stopped[:-1], "first", None),  # the marker's last character is what closes the answer
    ):
        rewards = [
            AnswerReward(which, task.marker)([[{"role": "assistant", "content": completion}]], [value])[0]
            for value in (42, 43)
        ]
        assert rewards == [float(right == 42), float(right == 43)], (completion, which)
        assert is_right(completion, 42, which, task.marker) == (right == 42)


@EACH_TASK
def test_the_pool_has_its_mix_in_every_prefix_and_nothing_that_is_held_out(task):
    for profile in PROFILES.values():
        pool = load_pool(task, profile.pool)
        assert len({p.expression for p in pool}) == profile.pool
        assert all(eval(p.expression) == p.answer for p in pool)
        assert {SPLIT_OF[task.name](p.expression) for p in pool} == {TRAIN}
        held_out = {p.expression for p in task.sample_problems(HELD_OUT, profile.held_out_end, 1)}
        assert not held_out & {p.expression for p in pool}
    entries = json.loads(task.pool.read_text())["problems"]
    assert len(entries) == task.pool_size
    for size in (20, 160, 320, task.pool_size):
        kinds = Counter(kind_of(entry["right"]) for entry in entries[:size])
        assert kinds == {ALWAYS: 3 * size // 20, NEVER: 3 * size // 20, MIDDLE: 14 * size // 20}


def test_a_pool_that_lacks_a_kind_is_refused():
    problems = [Problem(f"1+1+{i}", 1, 2 + i) for i in range(40)]
    with pytest.raises(ValueError, match="3 problems are to be never solved, 0 are"):
        arrange(problems, [ROLLOUTS, 5] * 20, 20)


@EACH_TASK
def test_checkpoint_and_pool_of_a_task_are_of_that_task(task):
    assert json.loads((task.checkpoint / "config.json").read_text())["model_type"] == "qwen3"
    others = [other for other in TASKS.values() if other is not task]
    assert not {task.checkpoint, task.pool} & {path for other in others for path in (other.checkpoint, other.pool)}
    assert (
        load_pool(task, 1)[0]
        .messages[0]["content"]
        .startswith({"math": "Compute $", "products": "Multiply "}[task.name])
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "full"),
        (["--profile", "fast"], "fast"),
        (["--name", "eps", "--overrides", '{"eps_abort": 0.1}'], "full_eps"),
        (["--task", "products"], "full_products"),
        (["--task", "products", "--profile", "fast", "--name", "eps", "--overrides", '{"a": 1}'], "fast_products_eps"),
    ],
)
def test_each_task_profile_and_experiment_has_records_of_its_own(arguments, expected, tmp_path):
    command = [sys.executable, "-m", "benchmarks.miniature", "--report", *arguments]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.endswith(
        f"no finished cell of these arms and seeds in outputs/bench/miniature/{expected}.jsonl\n"
    )


def cells_of(*options: str) -> list[tuple[str, int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["miniature", *options])
        return arguments().cells


def test_the_benchmark_has_more_seeds_where_a_target_is_at_stake_and_goes_seed_by_seed():
    cells = cells_of()
    more = dict.fromkeys(("grpo_100", "duet_50"), 20) | dict.fromkeys(("duet_100", "duet_25"), 10)
    assert Counter(arm for arm, _ in cells) == dict.fromkeys(ARMS, 3) | more
    assert [seed for _, seed in cells] == sorted(seed for _, seed in cells)
    assert set(cells_of("--task", "products")) <= set(cells)
    assert Counter(arm for arm, _ in cells_of("--task", "products"))["duet_50"] == 3


def test_arms_and_seeds_of_the_command_line_are_run_and_no_others():
    chosen = ("--arms", "duet_50,trim_50")
    assert cells_of(*chosen, "--seeds", "100-101") == [(a, s) for s in (100, 101) for a in ("duet_50", "trim_50")]
    assert cells_of("--arms", "duet_50", "--seeds", "3,5") == [("duet_50", 3), ("duet_50", 5)]
    assert Counter(arm for arm, _ in cells_of(*chosen)) == {"duet_50": 20, "trim_50": 3}


def test_an_experiment_cannot_take_the_name_of_a_task(tmp_path):
    command = [
        sys.executable,
        "-m",
        "benchmarks.miniature",
        "--report",
        "--name",
        "products",
        "--overrides",
        '{"a": 1}',
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "--name products begins like a task" in done.stderr


@pytest.mark.vllm
@pytest.mark.slow
@EACH_TASK
def test_cells_run_for_real_are_recorded_and_taken_up_again(task, tmp_path):
    command = [sys.executable, "-m", "benchmarks.miniature", "--profile", "smoke", "--seeds", "3", "--jobs", "1"]
    command += ["--arms", "grpo_100,duet_50"]
    command += [] if task is MATH else ["--task", task.name]
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 500}
    options["env"] = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    path = tmp_path / "outputs" / "bench" / "miniature" / f"smoke{'' if task is MATH else '_' + task.name}.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert {r["arm"] for r in records} == {"grpo_100", "duet_50"}
    for found in records:
        assert found["task"] == task.name
        assert [point["step"] for point in found["evaluations"]] == [0, 2]
        assert [len(point["right_first"]) for point in found["evaluations"]] == [4, 6]
        assert sum(found["curves"]["generated_tokens"]) > 1000
        assert found["evaluations"][-1]["processor_seconds"] > 0
    grpo, duet = sorted(records, key=lambda r: r["arm"], reverse=True)
    assert grpo["evaluations"][0]["right_first"] == duet["evaluations"][0]["right_first"]  # the same policy and noise
    assert "duet_50 - grpo_100" in done.stdout
    again = subprocess.run(command, **options)
    assert "0 cells to run, 2 on record" in again.stdout
    assert path.read_text().count("\n") == 2
