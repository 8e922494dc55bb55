# SPDX-License-Identifier: Apache-2.0
"""The main entry point on real MATH prompts: the real verifier, a tiny local policy, the engine of the real runs."""

import json
from pathlib import Path

import pytest

from tests.processes import forked

MATH = Path(__file__).parents[2].parent / "shared" / "data" / "math_train_clean.jsonl"


@pytest.mark.skipif(not MATH.exists(), reason="needs the real MATH file in ../shared/data")
@pytest.mark.vllm
@pytest.mark.slow
def test_two_steps_on_real_math_prompts(tiny_path, tmp_path):
    data = tmp_path / "math.jsonl"
    data.write_text("".join(MATH.read_text().splitlines(keepends=True)[:200]))
    arguments = ["recipes/math_qwen3.py", "--config", "recipes/configs/math_tiny_smoke.yaml"]
    arguments += ["--model_name_or_path", str(tiny_path), "--dataset_name", str(data), "--output_dir", str(tmp_path)]
    arguments += ["--use_vllm", "true", "--vllm_mode", "colocate", "--vllm_importance_sampling_correction", "false"]
    done = forked([*arguments, "--save_strategy", "steps", "--save_steps", "2"])
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "model.safetensors").exists()
    state = json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())
    steps = [entry for entry in state["log_history"] if "loss" in entry]
    assert [entry["step"] for entry in steps] == [1, 2]
    assert all(entry["duet/num_rollouts/mean"] == 2 for entry in steps)  # 4 at full budget
    assert all("rewards/MathVerifier/mean" in entry or "rewards/math_reward/mean" in entry for entry in steps)
