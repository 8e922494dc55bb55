# SPDX-License-Identifier: Apache-2.0
"""Warnings: settings that do nothing, a marker that fits no answer, steps that teach nothing, lost rollouts."""

import logging
import re

import numpy as np
import pytest

from duet_trl.gate.replay import GateSpec
from duet_trl.seams.watch import RunWatch, gate_warnings
from tests.runs import duet_trainer

YES, NO = np.ones(4, dtype=bool), np.zeros(4, dtype=bool)
ONE = np.array([True, False, False, False])


def watching() -> RunWatch:
    return RunWatch("math", 512, patience=2)


def spec(**changes) -> GateSpec:
    """The cold thresholds of a limit of 512 tokens: 0.3 and 0.7 of it, and G in proportion."""
    return GateSpec(**{"poll_threshold": 153, "abort_threshold": 358, "grace_window": 25, **changes})


# ---- Settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "limit", "said"),
    [
        ({}, 512, []),
        ({"grace_window": 504}, 512, ["trim=True", "abort=True .* 504 is the whole of 512 .* Set grace_window=25,"]),
        ({"grace_window": 504, "abort": False}, 512, ["trim=True"]),
        ({"grace_window": 350}, 512, ["trim=True .* token 510 of 512 .* grace_window=25"]),
        ({"grace_window": 350, "entropy_threshold": 0.1}, 512, []),  # trim may act at the first poll
        ({"grace_window": 504, "trim": False}, 512, ["abort=True"]),
        ({"poll_threshold": 4, "abort_threshold": 11, "grace_window": 8}, 16, ["trim=True", "Raise max_completion"]),
    ],
)
def test_a_part_that_can_save_less_than_a_poll_interval_is_a_warning_with_the_remedy(changes, limit, said):
    found = gate_warnings(spec(**changes), limit)
    assert len(found) == len(said)
    for text, pattern in zip(found, said, strict=True):
        assert re.search(pattern, text), text


def test_a_run_warns_once_of_a_gate_that_does_nothing_and_plain_grpo_of_nothing(tiny_path, tmp_path, caplog):
    duet_trainer(tiny_path, tmp_path, max_steps=2, grace_window=90).train()
    assert caplog.text.count("abort=True saves nothing: a grace window of 90 is the whole of 96") == 1
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
    watch = watching()
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
    watch, equal, different = watching(), np.zeros(4), np.array([0.0, 1.0, -1.0, 0.0])
    with caplog.at_level(logging.WARNING):
        for advantages in (equal, different, equal, different):
            watch.advantages(advantages)
        assert not caplog.records  # never two in a row
        for _ in range(5):
            watch.advantages(equal)
    assert ["last 2 generation steps" in record.getMessage() for record in caplog.records] == [True]


def test_it_warns_once_about_rollouts_without_finite_values(tmp_path, caplog):
    watch = watching()
    with caplog.at_level(logging.WARNING):
        watch.values(np.array([False, False]))
        assert not caplog.records
        for _ in range(3):
            watch.values(np.array([True, False]))
    assert [record.getMessage()[:18] for record in caplog.records] == ["1 of 2 rollouts ha"]
