# SPDX-License-Identifier: Apache-2.0
"""A cell's arithmetic against TRL's trainer, rows that are counted offline, and what a dry run says and loads."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import Dataset

from duet_trl import DUETGRPOTrainer

ROOT = Path(__file__).parents[2]
# recipes/ is a folder of scripts that import each other by their file names.
sys.path.insert(0, str(ROOT / "recipes"))

from command_line import parse  # noqa: E402
from dry_run import Run, measured_steps, optimizer_steps, print_run, resolve, start_line  # noqa: E402

CELL = "table1/qwen3_1.7b_duet_50"


def run_of(cell: str, *options: str) -> Run:
    """A cell with options of the command line."""
    return resolve(*parse("math_qwen3", ["--cell", cell, *options, "--dry_run"]))


def write_jsonl(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


# ---- Steps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_rows", "options"),
    [
        (10, {"gradient_accumulation_steps": 4, "num_train_epochs": 2}),  # 4 prompts a step: 2 rows of 10 left away
        (9, {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2}),
        (11, {"gradient_accumulation_steps": 3, "steps_per_generation": 2, "num_train_epochs": 1.5}),
        (12, {"gradient_accumulation_steps": 4, "max_steps": 2}),
    ],
)
def test_optimizer_steps_are_those_of_the_trainer(num_rows: int, options: dict, tiny_path, tmp_path) -> None:
    settings = {"output_dir": tmp_path, "per_device_train_batch_size": 2, "num_generations": 2, "budget_fraction": 1}
    settings |= {
        "max_completion_length": 4,
        "use_cpu": True,
        "bf16": False,
        "save_strategy": "no",
        "report_to": "none",
    }
    argv = [str(word) for name, value in (settings | options).items() for word in (f"--{name}", value)]
    arguments, config, model = parse(
        "math_qwen3", [*argv, "--model_name_or_path", str(tiny_path), "--eval_every", "0"]
    )
    rows = Dataset.from_list([{"prompt": f"{number}+1="} for number in range(num_rows)])
    trainer = DUETGRPOTrainer(
        model=str(tiny_path), reward_funcs=lambda completions, **_: [len(c) % 2.0 for c in completions],
        args=config, train_dataset=rows,
    )  # fmt: skip
    cell = resolve(arguments, config, model, num_rows=num_rows)
    trainer.train()
    assert cell.optimizer_steps == trainer.state.max_steps == trainer.state.global_step
    assert cell.prompts_per_step == trainer.args.num_prompts
    assert cell.num_processes == 1


def test_papers_cells_take_232_steps_with_and_without_the_length_filter() -> None:
    _, config, _ = parse("math_qwen3", ["--cell", CELL, "--dry_run"])
    assert optimizer_steps(7496, 128, 32, 32, config) == optimizer_steps(7431, 128, 32, 32, config) == (58, 232)


def test_rows_that_fill_no_step_are_an_error(tmp_path) -> None:
    path = write_jsonl(tmp_path / "few.jsonl", [{"question": "Q?", "answer": "1"}] * 100)
    with pytest.raises(ValueError, match="100 rows do not fill one step of 128 prompts. Lower prompts_per_step"):
        run_of(CELL, "--dataset_name", path)


def test_gpus_that_cannot_share_the_batch_are_an_error() -> None:
    # 1,024 rollouts / (6 GPUs x 4)
    with pytest.raises(ValueError, match="= 1024 rollouts cannot be shared by 6 processes with micro-batches of 4"):
        run_of(CELL, "--num_gpus", "6")


def test_measured_steps_are_the_first_every_nth_and_the_last() -> None:
    arguments, _, _ = parse("math_qwen3", ["--use_cpu", "true", "--eval_suites", "gsm8k", "--eval_every", "30"])
    assert measured_steps(arguments, 232) == [0, 30, 60, 90, 120, 150, 180, 210, 232]
    assert measured_steps(arguments, 60) == [0, 30, 60]
    assert measured_steps(arguments, None) == []
    arguments.eval_every = 0
    assert measured_steps(arguments, 232) == [0, 232]
    arguments.eval_suites = ["mmlu"]
    with pytest.raises(ValueError, match="unknown suite 'mmlu'"):
        measured_steps(arguments, 232)


# ---- Batches and tokens -----------------------------------------------------------------------------------------


def test_batch_and_tokens_of_a_cell() -> None:
    cell = run_of("table6/duet_25", "--num_gpus", "4", "--per_device_train_batch_size", "8")
    assert (cell.prompts_per_step, cell.full_rollouts, cell.max_rollouts) == (128, 1024, 1024)
    assert (cell.num_processes, cell.accumulation_steps) == (4, 1024 // (4 * 8))
    assert cell.planned_rollouts == 256
    assert cell.max_tokens == 256 * 3072
    assert run_of("table6/grpo_25").planned_rollouts == 256
    assert run_of("table2/abort_only").max_rollouts == 512  # four for every prompt
    assert run_of(CELL, "--max_rollouts", "700").max_rollouts == 700


def test_budget_in_tokens_is_the_bound() -> None:
    tokens = ("--config", "paper", "--model", "qwen3_1.7b", "--budget_reading", "tokens", "--dry_run")
    for budget, bound in (("100000", 100_000), ("1e9", 1024 * 3072)):
        run = resolve(*parse("math_qwen3", [*tokens, "--budget_tokens", budget]))
        assert (run.planned_rollouts, run.max_tokens) == (None, bound)


def test_without_prompts_per_step_the_batch_is_that_of_this_launch() -> None:
    run = resolve(*parse("math_qwen3", ["--config", "math_tiny", "--dry_run"]))  # 32 x 4 rollouts, 8 per prompt
    assert (run.num_processes, run.prompts_per_step, run.accumulation_steps) == (1, 16, 4)


# ---- Rows -------------------------------------------------------------------------------------------------------

MATH_ROWS = [
    {"question": "word " * 2000, "answer": "1"},
    {"question": "Empty?", "answer": ""},
    *({"question": f"What is ${n}+1$?", "answer": str(n + 1)} for n in range(300)),
]


def test_rows_of_a_local_file_are_counted_and_filtered_if_the_tokenizer_is_here(tiny_path, tmp_path, caplog) -> None:
    path = write_jsonl(tmp_path / "math.jsonl", MATH_ROWS)
    there = run_of(CELL, "--dataset_name", path, "--model_name_or_path", str(tiny_path)).rows
    assert there.num_rows == 300 and there.source == f"counted in {path}, prompts over 512 tokens left out"
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text((tiny_path / "config.json").read_text())
    for name in ("Qwen/Qwen3-1.7B-Base", str(tmp_path / "model")):
        away = run_of(CELL, "--dataset_name", path, "--model_name_or_path", name).rows
        assert away.num_rows == 301 and f"tokenizer of {name} is not on this machine" in away.source
    assert "overlap" not in caplog.text


def test_rows_of_a_local_held_out_file_are_left_out(tmp_path) -> None:
    path = write_jsonl(tmp_path / "math.jsonl", MATH_ROWS)
    held = [{"problem": f"What is ${n}+1$?", "answer": "1"} for n in (5, 7)]
    heldout = write_jsonl(tmp_path / "held.jsonl", held)
    assert run_of(CELL, "--dataset_name", path, "--heldout", heldout).rows.num_rows == 299
    kept = run_of(CELL, "--dataset_name", path, "--heldout", heldout, "--drop_overlap", "false")
    assert kept.rows.num_rows == 301
    with pytest.raises(ValueError, match="there is no file 'gone.jsonl'"):
        run_of(CELL, "--dataset_name", path, "--heldout", "gone.jsonl")


def test_rows_are_measured_with_the_arguments_of_the_chat_template(tiny_path, tmp_path) -> None:
    model = shutil.copytree(tiny_path, tmp_path / "model")
    template = model / "chat_template.jinja"
    template.write_text("{{ filler }}" + template.read_text())
    path = write_jsonl(tmp_path / "math.jsonl", MATH_ROWS)
    options = ("--dataset_name", path, "--model_name_or_path", str(model))
    assert run_of(CELL, *options).rows.num_rows == 300
    with pytest.raises(ValueError, match="no row of .* is left"):
        run_of(CELL, *options, "--chat_template_kwargs", json.dumps({"filler": "long " * 512}))


def test_rows_of_local_code_and_short_answers(tmp_path) -> None:
    task = {"task_id": 1, "text": "Double it.", "test_list": ["assert double(2) == 4"], "test_setup_code": ""}
    code = write_jsonl(tmp_path / "code.jsonl", [task] * 40 + [task | {"test_list": ["assert True"]}])
    assert run_of("tasks/code_duet_50", "--dataset_name", code).rows.num_rows == 40
    answers = [{"question": "Q?", "correct_answer": "a"}] * 130 + [{"question": "Q?", "correct_answer": " "}]
    qa = write_jsonl(tmp_path / "qa.jsonl", answers)
    assert run_of("tasks/qa_duet_50", "--dataset_name", qa).rows.num_rows == 130


def test_missing_files_are_errors_and_unknown_names_are_unknown() -> None:
    with pytest.raises(ValueError, match="there is no file"):
        run_of(CELL, "--dataset_name", "gone.jsonl")
    with pytest.raises(ValueError, match="there is no file 'gone.json'"):
        run_of(CELL, "--eval_sources", "gsm8k=gone.json")
    with pytest.raises(ValueError, match="eval_sources takes 'suite=place'"):
        run_of(CELL, "--eval_sources", "gsm9k=someone/something")
    cell = run_of(CELL, "--dataset_name", "someone/something")
    assert (cell.rows.num_rows, cell.optimizer_steps, cell.measured_steps) == (None, None, [])
    fixed = run_of(CELL, "--dataset_name", "someone/something", "--max_steps", "31")
    assert (fixed.optimizer_steps, fixed.measured_steps) == (31, [0, 30, 31])


# ---- Models and words -------------------------------------------------------------------------------------------


def test_a_cell_without_a_model_says_how_to_name_one(capsys) -> None:
    print_run(resolve(*parse("math_qwen3", ["--config", "math_tiny_smoke", "--dry_run"])))
    assert "none is named: give --model" in capsys.readouterr().out


def test_printed_cell_says_everything(capsys) -> None:
    print_run(run_of(CELL))
    printed = capsys.readouterr().out
    for words in (
        "Qwen/Qwen3-1.7B-Base: all parameters trained; float32 weights, computes in bf16",
        "7,496 prompts: gradable rows recorded of EleutherAI/hendrycks_math",
        "128 prompts x 8 = 1,024 rollouts per step at full budget; planned: 512, maximum: 1,024",
        "= 4 per micro-batch x 8 GPUs or processes x 32 accumulation steps",
        "232 optimizer steps, 58 per epoch",
        "maximum 1,572,864 generated per step, 364,904,448 over the run",  # 512 x 3,072; x 232
        "never above 3,145,728 in a step",  # 1,024 x 3,072
        "after steps 0, 30, 60, 90, 120, 150, 180, 210, 232",
        "2,211 problems",  # 500 + 1,319 + 30 + 164 + 198
    ):
        assert words in printed


def test_start_line_has_the_rows_and_processes_of_the_run() -> None:
    arguments, config, model = parse("math_qwen3", ["--cell", CELL, "--dry_run"])
    arguments.dry_run = False  # parsed as a dry run for this machine has no GPU
    line = start_line(resolve(arguments, config, model, num_rows=7431))
    assert "\n" not in line
    assert "7,431 prompts, 128 x 8 = 1,024 rollouts per step at full budget, 232 optimizer steps" in line


def test_accelerate_launch_of_a_dry_run_loads_no_engine_and_needs_no_network(tmp_path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise RuntimeError('a dry run imported vllm')")
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "empty")}
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", "recipes/math_qwen3.py"]
        + ["--cell", "table1/llama3_3b_duet_50", "--dry_run"],
        cwd=ROOT,
        env=os.environ | offline | nowhere | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "meta-llama/Llama-3.2-3B-Instruct: all parameters trained" in done.stdout
    assert "232 optimizer steps" in done.stdout and not (tmp_path / "empty").exists()
