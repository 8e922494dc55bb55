# SPDX-License-Identifier: Apache-2.0
"""What is said when training starts: where the gate can act, what there is to allocate, and what does nothing."""

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.common import grouped
from duet_trl import DUETGRPOConfig
from duet_trl.gate.replay import GateSpec
from duet_trl.methods.duet_settings import mean_rollouts
from duet_trl.seams.start import batch_line, batch_warnings, gate_line, gate_warnings
from tests.runs import duet_trainer

ROOT = Path(__file__).resolve().parents[2]
COUNTS = {"allocate": True}


def config(tmp_path, **overrides) -> DUETGRPOConfig:
    """8 prompts x 8 rollouts a step, half of them bought."""
    settings = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4, "num_generations": 8}
    fixed = {"output_dir": str(tmp_path), "report_to": "none", "use_cpu": True, "bf16": False}
    return DUETGRPOConfig(**grouped({**settings, **fixed, **overrides}))


# ---- Precision ----------------------------------------------------------------------------------------------------


def test_bf16_on_a_cpu_without_it_is_said(tmp_path):
    """oneDNN is told to forget such instructions, as on a CPU that has none, before torch is imported."""
    script = f"""
from duet_trl import DUETGRPOConfig
from duet_trl.seams.start import precision_warnings

for bf16 in (True, False):
    found = precision_warnings(DUETGRPOConfig(output_dir={str(tmp_path)!r}, use_cpu=True, bf16=bf16))
    assert [("Set bf16=False" in warning) for warning in found] == [True] * bf16, found
"""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


# ---- The gate ---------------------------------------------------------------------------------------------------


def spec(**changes) -> GateSpec:
    """The cold thresholds of a limit of 512 tokens: 0.3 and 0.7 of it, and G in proportion."""
    return GateSpec(**{"poll_threshold": 153, "abort_threshold": 358, "grace_window": 25, **changes})


def test_the_line_names_the_tokens_from_which_trim_and_abort_act():
    # 160 is the first multiple of 8 from 153 on; a rollout answered there may run 25 tokens further.
    assert gate_line(spec(), 512, False) == (
        "Gate at the start, for rollouts of at most 512 tokens: first poll at 160 (K1 = 153), trim from token 185 on, "
        "abort at K2 + G = 358 + 25 = 383. K1 and K2 will follow the rollouts."
    )
    assert "trim from token 160 on" in gate_line(spec(entropy_threshold=0.1), 512, False)
    off = gate_line(spec(trim=False, abort=False), 512, False)
    assert "trim off, abort off" in off


def test_by_price_the_line_says_that_abort_waits_for_answers():
    cold = spec(poll_threshold=1, abort_threshold=512 - 25)
    assert gate_line(cold, 512, True).endswith(
        "trim from token 33 on, abort once it is known when rewarded answers come. K2 will follow the rollouts."
    )
    assert "abort at K2 + G = 300 + 25 = 325." in gate_line(spec(poll_threshold=1, abort_threshold=300), 512, True)
    assert gate_warnings(cold, 512, True) == []
    (never,) = gate_warnings(spec(poll_threshold=1, abort_threshold=1, grace_window=504, trim=False), 512, True)
    assert never.startswith("abort=True saves nothing: it acts at token K2 + G = 1 + 504 = 505 of 512. Set grace_")


@pytest.mark.parametrize(
    ("changes", "limit", "said"),
    [
        ({}, 512, []),
        (
            {"grace_window": 150},
            512,
            ["abort=True saves nothing: .* = 358 \\+ 150 = 508 of 512. Set grace_window=25,"],
        ),
        ({"grace_window": 145}, 512, []),  # 503: nine tokens are left
        ({"grace_window": 150, "abort": False}, 512, []),
        ({"grace_window": 350}, 512, ["trim=True .* token 510 of 512 .* grace_window=25", "abort=True"]),
        ({"grace_window": 350, "entropy_threshold": 0.1}, 512, ["abort=True"]),  # trim may act at the first poll
        ({"grace_window": 350, "trim": False}, 512, ["abort=True"]),
        ({"poll_threshold": 4, "abort_threshold": 11, "grace_window": 8}, 16, ["trim=True", "Raise max_completion"]),
    ],
)
def test_a_part_that_can_save_less_than_a_poll_interval_is_a_warning_with_the_remedy(changes, limit, said):
    found = gate_warnings(spec(**changes), limit, False)
    assert len(found) == len(said)
    for text, pattern in zip(found, said, strict=True):
        assert re.search(pattern, text), text


# ---- The batches ------------------------------------------------------------------------------------------------


def test_the_line_names_the_first_step_of_the_second_epoch(tmp_path):
    # 100 prompts, 8 a step: an epoch is 12 steps; TRL drops the batch of the last 4 prompts, which is not full.
    line = "100 prompts, 8 in a generation step with 4 rollouts each on average, 30 generation steps: prompts have a "
    assert batch_line(config(tmp_path), 100, 30) == line + "history from step 13 on."
    assert batch_line(config(tmp_path), 100, 12).endswith(
        "12 generation steps: prompts have a history in none of them."
    )
    tokens = config(tmp_path, budget_reading="tokens", budget_tokens=1e5)
    assert "with 100000 tokens for all, 30 generation steps" in batch_line(tokens, 100, 30)
    assert batch_line(config(tmp_path), None, 30).startswith("A stream of prompts, 8 in a generation step")
    assert batch_warnings(config(tmp_path), None, 30) == []


@pytest.mark.parametrize(
    ("overrides", "steps", "said"),
    [
        ({}, 12, []),
        (COUNTS, 13, []),
        (COUNTS, 12, ["no history to allocate by: 12 generation steps of 8 of 100"]),
        ({**COUNTS, "allocation_objective": "variance"}, 12, ["no history to allocate by"]),
        ({**COUNTS, "budget_fraction": 0.25, "num_generations": 8}, 13, []),
        (
            {**COUNTS, "num_rollouts_min": 4},
            13,
            ["nothing to allocate: the budget of 4 rollouts per prompt is num_rollouts_min"],
        ),
        (
            {**COUNTS, "num_generations": 2},
            99,
            ["nothing to allocate", "32 or more of 32 .* without a gradient in step 1"],
        ),
        ({"num_generations": 4, "budget_fraction": 0.375}, 99, ["8 or more of 16 .* without a gradient in step 1"]),
        (
            {"num_generations": 4, "budget_fraction": 0.375, "method": "paper"},
            99,
            ["8 or more of 16 .* teaches nothing under advantage_baseline='group'"],
        ),
        ({**COUNTS, "num_rollouts_max": 1, "num_rollouts_min": 1}, 99, ["nothing to allocate", "8 or more of 8 "]),
        ({**COUNTS, "max_rollouts": 12, "num_rollouts_min": 1}, 99, ["4 or more of 8 prompts have a single rollout"]),
        ({**COUNTS, "num_generations": 32}, 99, ["Only 2 prompt"]),
        ({"budget_reading": "tokens", "budget_tokens": 1e5, "num_generations": 2}, 99, []),
    ],
)
def test_what_does_nothing_is_a_warning_with_the_remedy(tmp_path, overrides, steps, said):
    found = batch_warnings(config(tmp_path, **overrides), 100, steps)
    assert len(found) == len(said), found
    for text, pattern in zip(found, said, strict=True):
        assert re.search(pattern, text), text


def test_mean_rollouts_is_the_least_of_budget_and_caps(tmp_path):
    assert mean_rollouts(config(tmp_path)) == 4
    assert mean_rollouts(config(tmp_path, num_rollouts_max=3)) == 3
    assert mean_rollouts(config(tmp_path, max_rollouts=20)) == 2.5


# ---- In a run ---------------------------------------------------------------------------------------------------


def said(caplog) -> list[tuple[int, str]]:
    return [(r.levelno, r.getMessage()) for r in caplog.records if r.name == "duet_trl.seams.start"]


def test_a_run_says_each_line_once_and_warns_of_nothing_that_works(tiny_path, tmp_path, caplog):
    # 32 prompts, 8 a step: the second epoch begins at step 5.
    with caplog.at_level(logging.INFO, logger="duet_trl"):
        duet_trainer(tiny_path, tmp_path, max_steps=5).train()
    (first, gate), (second, batches) = said(caplog)
    assert first == second == logging.INFO
    assert gate.startswith(
        "Gate at the start, for rollouts of at most 96 tokens: first poll at 32 (K1 = 28), trim from"
    )
    assert batches.endswith("5 generation steps: prompts have a history from step 5 on.")


def test_counts_without_a_history_are_a_warning_and_plain_grpo_says_nothing(tiny_path, tmp_path, caplog, capsys):
    # Two updates of each batch: eight optimizer steps are four generation steps, an epoch.
    duet_trainer(tiny_path, tmp_path, max_steps=8, num_iterations=2, allocate=True).train()
    ((level, text),) = said(caplog)
    assert level == logging.WARNING and "no history to allocate by: 4 generation steps of 8 of 32" in text
    # A log that takes warnings only, as in a plain script: the two lines are on the console.
    printed = capsys.readouterr().out
    assert printed.count("Gate at the start") == printed.count("prompts have a history in none of them") == 1
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="duet_trl"):
        duet_trainer(tiny_path, tmp_path, max_steps=1, method="grpo").train()
    assert said(caplog) == []
