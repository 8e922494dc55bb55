# SPDX-License-Identifier: Apache-2.0
"""Plans from what was learned over epochs, by the methods as a trainer has them, at their default budget."""

from pathlib import Path

import numpy as np
import pytest

from duet_trl import DUETGRPOConfig
from duet_trl.config import reads
from duet_trl.methods import build_method

from .simulator import make_prompts, run_step

NUM_PROMPTS, NUM_GENERATIONS, POOL = 16, 8, 64


@pytest.mark.parametrize("name", ["duet", "paper", "pilot"])
def test_no_plan_is_over_its_budget_and_no_prompt_of_a_step_goes_without(tmp_path: Path, name: str) -> None:
    """Three epochs; prompts are solved never to always, and the harder ones take longer."""
    config = DUETGRPOConfig(
        output_dir=str(tmp_path),
        method=name,
        per_device_train_batch_size=NUM_PROMPTS * NUM_GENERATIONS,
        num_generations=NUM_GENERATIONS,
        max_completion_length=400,
        use_cpu=True,
        bf16=False,
        report_to="none",
        allocate=True if "allocate" in reads(name) else None,
    )
    method, random, seen = build_method(config), np.random.default_rng(0), set()
    for step in range(1, 3 * POOL // NUM_PROMPTS + 1):
        epoch, place = divmod((step - 1) * NUM_PROMPTS, POOL)
        keys = [str(number) for number in range(place, place + NUM_PROMPTS)]
        done, _ = run_step(
            method,
            make_prompts(keys, keys, step, epoch),
            lambda key, number: float(random.random() < int(key) / (POOL - 1)),
            lambda key, number: int(random.uniform(20, 40) + 3 * (POOL - int(key))),
        )
        metrics, counts = method.metrics(), np.bincount(done.prompt, minlength=NUM_PROMPTS)
        assert 0.5 < metrics["planned_tokens"] / metrics["budget_tokens"] <= 1 + 1e-9
        assert counts.min() >= 1
        seen |= set(counts.tolist())
    assert len(seen) > 2  # counts followed what was learned
