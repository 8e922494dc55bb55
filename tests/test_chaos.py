# SPDX-License-Identifier: Apache-2.0
"""Runs that are killed at random moments; `make chaos` kills thirty times as many."""

import os
import re
import subprocess
import sys

import pytest

from tests.chaos import moments
from tests.chaos_world import NAMES, PHASES


@pytest.mark.slow
def test_no_run_is_lost_wherever_it_is_killed():
    done = subprocess.run(
        # By chance in an update, a save and an error among others, of methods that have the gate, a head and a memory.
        [sys.executable, "-m", "tests.chaos", "--moments", "6", "--seed", "1920"],
        capture_output=True,
        text=True,
        timeout=550,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert re.search(r"^all +6 of 6 +0 ", done.stdout, flags=re.M), done.stdout


def test_the_moments_are_spread_over_methods_and_phases():
    few, many = moments(max(len(NAMES), len(PHASES)), 1), moments(220, 1)
    assert {one.method for one in few} == {one.method for one in many} == {*NAMES}
    assert {one.phase for one in few} == {*PHASES}
    assert len({(one.method, one.phase) for one in many}) > 100
