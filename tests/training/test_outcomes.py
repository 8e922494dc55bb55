# SPDX-License-Identifier: Apache-2.0
"""The warning about a marker that fits no answer."""

import logging

import numpy as np
import pytest

from duet_trl.generate.gate import Outcome
from duet_trl.training.outcomes import MarkerWatch


@pytest.mark.parametrize(
    ("outcomes", "warned"),
    [
        ([Outcome.ABORTED, Outcome.NATURAL], True),
        ([Outcome.ABORTED, Outcome.ANSWERED], False),
        ([Outcome.NATURAL, Outcome.NATURAL], False),
    ],
)
def test_it_warns_once_when_rollouts_are_aborted_and_no_marker_is_ever_seen(caplog, outcomes, warned):
    watch = MarkerWatch("math", patience=2)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            watch.look(np.array(outcomes))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == int(warned)
    assert all("set `marker`" in message for message in messages)
