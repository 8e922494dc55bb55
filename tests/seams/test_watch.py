# SPDX-License-Identifier: Apache-2.0
"""Warnings about a marker that fits no answer and about values that are not finite."""

import logging

import numpy as np
import pytest

from duet_trl.seams.watch import RunWatch

YES, NO = np.ones(4, dtype=bool), np.zeros(4, dtype=bool)
ONE = np.array([True, False, False, False])


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
def test_it_warns_once_when_no_rewarded_rollout_shows_the_marker(caplog, shown, better, warned_at):
    watch = RunWatch("math", patience=2)
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


def test_it_warns_once_when_no_group_differs_for_several_steps_in_a_row(caplog):
    watch, equal, different = RunWatch("math", patience=2), np.zeros(4), np.array([0.0, 1.0, -1.0, 0.0])
    with caplog.at_level(logging.WARNING):
        for advantages in (equal, different, equal, different):
            watch.advantages(advantages)
        assert not caplog.records  # never two in a row
        for _ in range(5):
            watch.advantages(equal)
    assert ["last 2 generation steps" in record.getMessage() for record in caplog.records] == [True]


def test_it_warns_once_about_rollouts_without_finite_values(caplog):
    watch = RunWatch("math")
    with caplog.at_level(logging.WARNING):
        watch.values(np.array([False, False]))
        assert not caplog.records
        for _ in range(3):
            watch.values(np.array([True, False]))
    assert [record.getMessage()[:18] for record in caplog.records] == ["1 of 2 rollouts ha"]
