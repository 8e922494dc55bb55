# SPDX-License-Identifier: Apache-2.0
"""The main entry point on real MATH prompts with the real verifier and a tiny local policy."""

import json
from pathlib import Path

import pytest

from tests.scripts import forked

ROOT = Path(__file__).parents[2]
MATH = ROOT.parent / "shared" / "data" / "math_train_clean.jsonl"

needs_math = pytest.mark.skipif(not MATH.exists(), reason="needs the real MATH file in ../shared/data")


def run(tiny_path: Path, tmp_path: Path, *options: str) -> dict:
    """Two optimizer steps of the recipe over the first 200 problems; returns the trainer's state."""
    data = tmp_path / "math.jsonl"
    data.write_text("".join(MATH.read_text().splitlines(keepends=True)[:200]))
    arguments = ["recipes/math_qwen3.py", "--config", "recipes/configs/math_tiny_smoke.yaml"]
    arguments += ["--model_name_or_path", str(tiny_path), "--dataset_name", str(data), "--output_dir", str(tmp_path)]
    done = forked([*arguments, "--save_strategy", "steps", "--save_steps", "2", *options])
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "model.safetensors").exists()
    return json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())


@pytest.mark.slow
@needs_math
def test_two_steps_on_real_math_prompts(tiny_path, tmp_path):
    steps = [entry for entry in run(tiny_path, tmp_path)["log_history"] if "loss" in entry]
    assert [entry["step"] for entry in steps] == [1, 2]
    assert all(entry["duet/num_rollouts/mean"] == 2 for entry in steps)  # 4 at full budget
    assert all("rewards/MathVerifier/mean" in entry or "rewards/math_reward/mean" in entry for entry in steps)


@needs_math
@pytest.mark.vllm
@pytest.mark.slow
def test_two_steps_on_the_engine_of_the_real_runs(tiny_path, tmp_path):
    options = ("--use_vllm", "true", "--vllm_mode", "colocate", "--vllm_importance_sampling_correction", "false")
    steps = [entry for entry in run(tiny_path, tmp_path, *options)["log_history"] if "loss" in entry]
    assert [entry["step"] for entry in steps] == [1, 2]
