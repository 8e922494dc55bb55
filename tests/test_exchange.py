# SPDX-License-Identifier: Apache-2.0
"""Placement: every rollout on exactly one process, and back into global order."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.exchange import Placement


@given(st.integers(1, 60), st.integers(1, 9), st.booleans())
def test_rows_partition_the_rollouts_and_come_back_in_order(num_rollouts, num_processes, interleaved):
    placement = Placement(num_rollouts, num_processes, interleaved)
    rows = [placement.rows(process) for process in range(num_processes)]
    assert sorted(np.concatenate(rows).tolist()) == list(range(num_rollouts))
    assert max(len(r) for r in rows) == placement.rows_per_process
    gathered = torch.full((num_processes, placement.rows_per_process), -1)
    for process, own in enumerate(rows):
        gathered[process, : len(own)] = torch.from_numpy(own)
    assert placement.from_processes(gathered.flatten()).tolist() == list(range(num_rollouts))


@pytest.mark.parametrize("num_processes", [1, 2, 4])
def test_contiguous_blocks_are_those_of_grpo(num_processes):
    placement = Placement(16, num_processes, interleaved=False)
    size = 16 // num_processes
    for process in range(num_processes):
        assert placement.rows(process).tolist() == list(range(process * size, (process + 1) * size))


def test_interleaving_spreads_the_rollouts_of_a_prompt():
    # 8 rollouts of one prompt, then 8 of another: two processes get four of each.
    group = np.repeat([0, 1], 8)
    placement = Placement(16, 2, interleaved=True)
    assert [np.bincount(group[placement.rows(p)]).tolist() for p in range(2)] == [[4, 4], [4, 4]]
