# SPDX-License-Identifier: Apache-2.0
"""The miniature benchmark: what its arms have in common, its arithmetic, its resumption, and one cell for real."""

import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks.miniature.arms import ARMS, PROMPTS_PER_STEP, configuration
from benchmarks.miniature.cell import PROFILES
from benchmarks.miniature.pool import ALWAYS, MIDDLE, NEVER, ROLLOUTS, arrange, kind_of, load_pool
from benchmarks.miniature.report import accuracy, at_tokens, compare, interval, resolvable, targets
from duet_trl import DUETGRPOConfig
from recipes.tiny_math.task import HELD_OUT, TRAIN, Problem, sample_problems, split_of

ROOT = Path(__file__).parents[2]


def record(arm: str, seed: int, right: list[int], tokens: float, seconds: float, samples: int = 4) -> dict:
    """A cell of two steps that starts with nothing right and ends with these numbers of right samples."""
    points = [
        {"step": step, "train_seconds": seconds * step / 2, "processor_seconds": 1.0, "right_first": values}
        for step, values in ((0, [0] * len(right)), (2, right))
    ]
    for point in points:
        point["right_last"] = point["right_first"]
    return {
        "arm": arm,
        "seed": seed,
        "reward": "first",
        "size": {"samples": samples, "held_out": len(right)},
        "evaluations": points,
        "curves": {"generated_tokens": [tokens / 2] * 2, "trained_tokens": [tokens / 2] * 2},
    }


@pytest.mark.parametrize("arm", ARMS.values(), ids=ARMS)
def test_an_arm_differs_from_the_others_by_its_method_and_budget_only(arm, tmp_path):
    fields = configuration(arm, tmp_path, 4, 0, {})
    config = DUETGRPOConfig(**fields | {"use_cpu": True, "use_vllm": False})
    assert config.num_prompts == PROMPTS_PER_STEP
    assert config.generation_batch_size == config.per_device_train_batch_size * config.gradient_accumulation_steps
    rollouts = config.budget_fraction * config.num_generations
    assert rollouts == 8 * arm.budget
    assert config.drop_zero_advantage is True
    assert (config.duet_active is False) == (arm.method == "grpo")
    for name in ("learning_rate", "max_completion_length", "temperature", "beta", "loss_type", "num_iterations"):
        assert config.__dict__[name] == DUETGRPOConfig(**_base(tmp_path)).__dict__[name], name


def _base(folder: Path) -> dict:
    fields = configuration(ARMS["grpo_100"], folder, 4, 0, {})
    return fields | {"use_cpu": True, "use_vllm": False}


def test_an_experiment_has_the_last_word(tmp_path):
    fields = configuration(ARMS["duet_50"], tmp_path, 4, 0, {"aborted_rollouts": "failure", "budget_fraction": 0.7})
    assert (fields["aborted_rollouts"], fields["budget_fraction"]) == ("failure", 0.7)


def test_the_pool_has_its_mix_in_every_prefix_and_nothing_that_is_held_out():
    for profile in PROFILES.values():
        pool = load_pool(profile.pool)
        assert len({p.expression for p in pool}) == profile.pool
        assert {split_of(p.expression) for p in pool} == {TRAIN}
        held_out = {p.expression for p in sample_problems(HELD_OUT, profile.held_out_end, seed=1)}
        assert not held_out & {p.expression for p in pool}
    entries = json.loads((ROOT / "benchmarks" / "miniature" / "pool.json").read_text())["problems"]
    for size in (20, 160, 320, 640):
        kinds = Counter(kind_of(entry["right"]) for entry in entries[:size])
        assert kinds == {ALWAYS: 3 * size // 20, NEVER: 3 * size // 20, MIDDLE: 14 * size // 20}


def test_a_pool_that_lacks_a_kind_is_refused():
    problems = [Problem(f"1+1+{i}", 1, 2 + i) for i in range(40)]
    with pytest.raises(ValueError, match="3 problems are to be never solved, 0 are"):
        arrange(problems, [ROLLOUTS, 5] * 20, 20)


def test_accuracy_is_the_share_of_right_samples_of_each_problem():
    assert accuracy(record("duet_50", 0, [4, 1, 0], 10, 1)).tolist() == [1.0, 0.25, 0.0]


def test_an_interval_holds_the_seeds_as_well_as_the_problems():
    rng = np.random.default_rng(0)
    seeds, problems = rng.normal(0, 0.1, (40, 1)), rng.normal(0, 0.3, (1, 400))
    low, high = interval(seeds + problems)
    # Two independent means: sd^2 = sd_seeds^2 / 40 + sd_problems^2 / 400, and 1.96 of it either side.
    expected = 2 * 1.96 * math.sqrt(seeds.var() / 40 + problems.var() / 400)
    assert high - low == pytest.approx(expected, rel=0.08)
    assert low < (seeds + problems).mean() < high


def test_what_a_number_of_seeds_can_resolve():
    assert resolvable(np.array([0.0, 0.02, 0.04, 0.06])) == pytest.approx(2.8 * 0.0258199 / 2, rel=1e-5)
    assert math.isnan(resolvable(np.array([0.1])))


def test_accuracy_at_equal_tokens_is_interpolated_and_never_credited_beyond_the_end():
    run = record("grpo_100", 0, [4, 0], 1000, 1)
    assert [at_tokens(run, tokens) for tokens in (0, 250, 1000, 5000)] == [0.0, 0.125, 0.5, 0.5]


def test_arms_are_compared_seed_by_seed_at_equal_steps_and_at_the_tokens_of_the_cheaper():
    duet = {seed: record("duet_50", seed, [2, 2], 400, 10) for seed in (0, 1, 7)}
    grpo = {seed: record("grpo_100", seed, [3, 2 + seed], 1000, 30) for seed in (0, 1)}
    found = compare(duet, grpo)
    assert found["seeds"] == 2
    # grpo: (3 + 2) / 8 and (3 + 3) / 8; duet: 4 / 8
    assert found["difference"] == pytest.approx((0.5 - 0.625 + 0.5 - 0.75) / 2)
    # at 400 of its 1,000 tokens GRPO has come 40% of the way
    assert found["equal_tokens"] == pytest.approx((0.5 - 0.25 + 0.5 - 0.3) / 2)
    assert found["resolvable"] == pytest.approx(2.8 * np.std([-0.125, -0.25], ddof=1) / math.sqrt(2))


def test_targets_that_are_missed_are_named():
    grpo = {seed: record("grpo_100", seed, [2] * 50, 1000, 30) for seed in range(3)}
    good = {seed: record("duet_50", seed, [2] * 50, 400, 12) for seed in range(3)}
    assert targets({"grpo_100": grpo, "duet_50": good}) == []
    poor = {seed: record("duet_50", seed, [1] * 50, 500, 20) for seed in range(3)}
    assert targets({"grpo_100": grpo, "duet_50": poor}) == [
        "duet_50: lower end of the difference -0.250, wanted at least -0.01",
        "duet_50: 1.50x as fast, wanted 2.5x",
        "duet_50: 50% of the tokens, wanted at most 40%",
    ]


@pytest.mark.vllm
@pytest.mark.slow
def test_cells_run_for_real_are_recorded_and_taken_up_again(tmp_path):
    command = [sys.executable, "-m", "benchmarks.miniature", "--profile", "smoke", "--seeds", "3", "--jobs", "1"]
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 500}
    options["env"] = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    path = tmp_path / "outputs" / "bench" / "miniature" / "smoke.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert {r["arm"] for r in records} == {"grpo_100", "duet_50"}
    for found in records:
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
