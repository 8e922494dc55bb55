# SPDX-License-Identifier: Apache-2.0
"""The demo end to end for two steps, and what it writes from given runs."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from duet_trl.evaluation import mean_at_k
from duet_trl.evaluation.callbacks import Evaluation
from recipes.tiny_math.demo_report import run_record, write_report
from recipes.tiny_math.reward import first_box_reward, is_correct, last_box_reward
from recipes.tiny_math.step_line import print_lines
from tests.processes import forked
from tests.runs import duet_trainer, logged

ROOT = Path(__file__).parents[2]


def evaluation(step, seconds, solved):
    correct = np.arange(10)[:, None] < np.full((1, 4), solved)
    return Evaluation(step, seconds, mean_at_k(correct), correct, np.full((10, 4), 50))


def history(tokens):
    kinds = ({"duet/generated_tokens": tokens}, {"held_out/mean@4": 0.5})
    return [{"step": step, **kind} for step in (1, 2, 3) for kind in kinds]


def test_tokens_before_a_measurement_are_those_of_the_steps_done():
    record = run_record("GRPO", history(100.0), [evaluation(0, 0.0, 3), evaluation(2, 8.0, 5)], {})
    assert [point["generated_tokens"] for point in record["evaluations"]] == [0, 200.0]
    assert [point["accuracy"]["value"] for point in record["evaluations"]] == [0.3, 0.5]


def test_the_report_compares_the_last_measurements_and_draws_every_run(tmp_path):
    grpo = run_record("GRPO", history(1000.0), [evaluation(0, 0.0, 3), evaluation(3, 30.0, 5)], {"seed": 0})
    duet = run_record("DUET", history(400.0), [evaluation(0, 0.0, 3), evaluation(3, 12.0, 4)], {"seed": 0})
    table = write_report([grpo, duet], tmp_path)
    lines = [" ".join(line.split()) for line in table.split("\n")]
    assert lines[-1].startswith("DUET minus GRPO, on the same 10 problems: -0.100 [-0.3")
    assert lines[2].startswith("GRPO 0.500 [")
    assert lines[2].endswith("3,000 30 1.00x 50")
    assert lines[3].startswith("DUET 0.400 [")
    assert lines[3].endswith("1,200 12 2.50x 50")
    image = imread(tmp_path / "accuracy.png")[..., :3].reshape(-1, 3)
    for color in ("C0", "C1"):  # a line of each run
        assert (np.abs(image - to_rgb(color)).max(axis=1) < 0.01).sum() > 200
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [run["name"] for run in summary["runs"]] == ["GRPO", "DUET"]
    assert summary["runs"][1]["history"] == history(400.0)
    assert summary["hardware"]["cores"] >= 1
    assert {"python", "torch", "trl"} <= summary["versions"].keys()


@pytest.mark.parametrize("disable_tqdm", [True, False])
def test_each_step_is_one_line_and_nothing_else_is_printed(tiny_path, tmp_path, capfd, disable_tqdm):
    trainer = duet_trainer(tiny_path, tmp_path, max_steps=2, disable_tqdm=disable_tqdm)
    print_lines(trainer)
    trainer.train()
    out, err = capfd.readouterr()
    figures = zip((1, 2), logged(trainer, "reward"), logged(trainer, "duet/generated_tokens"), strict=True)
    lines = [
        f"step {step}/2 | reward {reward:.3f} | generated_tokens {tokens:,.0f}" for step, reward, tokens in figures
    ]
    assert [line for line in out.splitlines() if line.startswith("step ")] == lines
    assert "{" not in out + err


@pytest.mark.parametrize(
    ("text", "answer", "last", "first"),
    [
        ("12+3=15\nThe answer is $\\boxed{15}$.", 15, True, True),
        ("So we get \\boxed{-4}.", -4, True, True),
        ("\\boxed{15} and then \\boxed{16}", 16, True, False),
        ("\\boxed{15} and then \\boxed{16}", 15, False, True),
        ("\\boxed{}, I mean \\boxed{7}", 7, True, True),  # an empty box is no answer
        ("\\boxed{1", 1, False, False),
        ("15", 15, False, False),
        ("\\boxed{15.0}", 15, False, False),
        ("\\boxed{x}", 0, False, False),
    ],
)
def test_the_rewards_compare_the_last_or_the_first_boxed_integer(text, answer, last, first):
    completions = [[{"role": "assistant", "content": text}]]
    assert is_correct(text, answer) is last
    assert last_box_reward(completions, [answer]) == [float(last)]
    assert first_box_reward(completions, [answer]) == [float(first)]


@pytest.mark.slow
@pytest.mark.vllm
def test_the_demo_trains_both_arms_and_reports(tmp_path):
    pytest.importorskip("vllm", reason="needs vLLM")
    small = ("--steps", "1", "--eval_problems", "5", "--eval_every", "0")
    done = forked(["recipes/math_tiny.py", *small, "--output_dir", str(tmp_path)])
    assert done.returncode == 0, done.stderr[-3000:]
    assert "speed-up" in done.stdout
    summary = json.loads((tmp_path / "summary.json").read_text())
    for run in summary["runs"]:
        assert [point["step"] for point in run["evaluations"]] == [0, 1]
        assert len([entry for entry in run["history"] if "duet/generated_tokens" in entry]) == 1
    grpo, duet = (run["evaluations"][-1]["generated_tokens"] for run in summary["runs"])
    assert 0 < duet < 0.75 * grpo  # half the rollouts, and some of them cut short
    assert (tmp_path / "accuracy.png").exists()
