# SPDX-License-Identifier: Apache-2.0
"""Warnings about a marker that fits no answer and about values that are not finite."""

import logging

import numpy as np
import pytest

from duet_trl.gate.replay import Outcome
from duet_trl.seams.watch import RunWatch


@pytest.mark.parametrize(
    ("outcomes", "warned"),
    [
        ([Outcome.ABORTED, Outcome.NATURAL], True),
        ([Outcome.ABORTED, Outcome.ANSWERED], False),
        ([Outcome.NATURAL, Outcome.NATURAL], False),
    ],
)
def test_it_warns_once_when_rollouts_are_aborted_and_no_marker_is_ever_seen(caplog, outcomes, warned):
    watch = RunWatch("math", patience=2)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            watch.outcomes(np.array(outcomes))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == int(warned)
    assert all("set `marker`" in message for message in messages)


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
