# SPDX-License-Identifier: Apache-2.0
"""Warnings: settings that do nothing, a marker that fits no answer, steps that teach nothing, lost rollouts."""

import logging
import re

import numpy as np
import pytest

from benchmarks.common import grouped
from duet_trl import DUETGRPOConfig
from duet_trl.gate.replay import GateSpec
from duet_trl.methods.duet_settings import mean_rollouts
from duet_trl.seams.watch import RunWatch, batch_warnings, gate_warnings
from tests.runs import duet_trainer

YES, NO = np.ones(4, dtype=bool), np.zeros(4, dtype=bool)
ONE = np.array([True, False, False, False])
COUNTS = {"allocate": True}


def config(tmp_path, **overrides) -> DUETGRPOConfig:
    """8 prompts x 8 rollouts a step, half of them bought."""
    settings = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4, "num_generations": 8}
    fixed = {"output_dir": str(tmp_path), "report_to": "none", "use_cpu": True, "bf16": False}
    return DUETGRPOConfig(**grouped({**settings, **fixed, **overrides}))


def watching(tmp_path) -> RunWatch:
    return RunWatch(config(tmp_path), None, None, patience=2)


def spec(**changes) -> GateSpec:
    """The cold thresholds of a limit of 512 tokens: 0.3 and 0.7 of it, and G in proportion."""
    return GateSpec(**{"poll_threshold": 153, "abort_threshold": 358, "grace_window": 25, **changes})


# ---- Settings -----------------------------------------------------------------------------------------------------


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


def test_by_price_abort_may_come_down_to_the_first_token():
    assert gate_warnings(spec(poll_threshold=1, abort_threshold=512 - 25), 512, True) == []
    (never,) = gate_warnings(spec(poll_threshold=1, abort_threshold=1, grace_window=504, trim=False), 512, True)
    assert never.startswith("abort=True saves nothing: it acts at token K2 + G = 1 + 504 = 505 of 512. Set grace_")


@pytest.mark.parametrize(
    ("overrides", "steps", "said"),
    [
        ({}, 12, []),
        (COUNTS, 13, []),  # 100 prompts, 8 a step: an epoch is 12 steps
        (COUNTS, 12, ["no history to allocate by: 12 generation steps of 8 of 100"]),
        ({**COUNTS, "allocation_objective": "variance"}, 12, ["no history to allocate by"]),
        (
            {**COUNTS, "num_rollouts_min": 4},
            13,
            ["nothing to allocate: the budget of 4 rollouts per prompt is num_rollouts_min"],
        ),
        ({"num_generations": 4, "budget_fraction": 0.375}, 99, []),  # compared with the history of other prompts
        (
            {"num_generations": 4, "budget_fraction": 0.375, "method": "paper"},
            99,
            ["8 or more of 16 .* teaches nothing under advantage_baseline='group'"],
        ),
        ({**COUNTS, "num_rollouts_max": 1, "num_rollouts_min": 1}, 99, ["nothing to allocate"]),
        ({"budget_reading": "tokens", "budget_tokens": 1e5, "num_generations": 2}, 99, []),
    ],
)
def test_what_has_nothing_to_allocate_is_a_warning_with_the_remedy(tmp_path, overrides, steps, said):
    found = batch_warnings(config(tmp_path, **overrides), 100, steps)
    assert len(found) == len(said), found
    for text, pattern in zip(found, said, strict=True):
        assert re.search(pattern, text), text


def test_a_stream_says_nothing_of_a_history(tmp_path):
    assert batch_warnings(config(tmp_path, **COUNTS), None, 30) == []


def test_mean_rollouts_is_the_least_of_budget_and_caps(tmp_path):
    assert mean_rollouts(config(tmp_path)) == 4
    assert mean_rollouts(config(tmp_path, num_rollouts_max=3)) == 3
    assert mean_rollouts(config(tmp_path, max_rollouts=20)) == 2.5


def test_a_run_warns_once_of_what_does_nothing_and_plain_grpo_of_nothing(tiny_path, tmp_path, caplog):
    # Two updates of each batch: eight optimizer steps are four generation steps, an epoch.
    duet_trainer(tiny_path, tmp_path, max_steps=8, num_iterations=2, allocate=True).train()
    assert caplog.text.count("no history to allocate by: 4 generation steps of 8 of 32") == 1
    caplog.clear()
    duet_trainer(tiny_path, tmp_path, max_steps=1, method="grpo").train()
    assert [record for record in caplog.records if record.name == "duet_trl.seams.watch"] == []


# ---- Steps --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "better", "warned_at"),
    [
        (NO, NO, 2),  # nothing is rewarded, and no marker anywhere
        (NO, YES, 2),
        (ONE, ~ONE, 3),  # 3 rewarded ones a step, 8 are enough: the marker stands in one that is not rewarded
        (ONE, ONE, None),
        (ONE, NO, None),  # nothing is rewarded so far
    ],
)
def test_it_warns_once_when_no_rewarded_rollout_shows_the_marker(tmp_path, caplog, shown, better, warned_at):
    watch = watching(tmp_path)
    with caplog.at_level(logging.WARNING):
        for step in range(1, 6):
            watch.markers(shown, better, limited=YES)
            assert len(caplog.records) == int(warned_at is not None and step >= warned_at)
    for record in caplog.records:
        message = record.getMessage()
        assert (
            f"None of the {warned_at * int(better.sum())} rollouts that were rewarded in the first {warned_at}"
            in message
        )
        assert f"{4 * warned_at} does. {4 * warned_at} ran into max_completion_length" in message
        assert "set `marker`" in message


def test_it_warns_once_when_no_group_differs_for_several_steps_in_a_row(tmp_path, caplog):
    watch, equal, different = watching(tmp_path), np.zeros(4), np.array([0.0, 1.0, -1.0, 0.0])
    with caplog.at_level(logging.WARNING):
        for advantages in (equal, different, equal, different):
            watch.advantages(advantages)
        assert not caplog.records  # never two in a row
        for _ in range(5):
            watch.advantages(equal)
    assert ["last 2 generation steps" in record.getMessage() for record in caplog.records] == [True]


def test_it_warns_once_about_rollouts_without_finite_values(tmp_path, caplog):
    watch = watching(tmp_path)
    with caplog.at_level(logging.WARNING):
        watch.values(np.array([False, False]))
        assert not caplog.records
        for _ in range(3):
            watch.values(np.array([True, False]))
    assert [record.getMessage()[:18] for record in caplog.records] == ["1 of 2 rollouts ha"]
