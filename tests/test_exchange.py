# SPDX-License-Identifier: Apache-2.0
"""Placement: every rollout on one process, and back. Packing: equal shapes, bounded imbalance, least padding."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.exchange import PADDING_ROW, Placement, pack


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


# ---- Packing -----------------------------------------------------------------------------------------------------

LENGTHS = st.lists(st.integers(1, 3072), max_size=200)
COUNTS = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4))


def placed_lengths(rows, lengths):
    """Tokens of each placed row, 0 for padding."""
    return np.where(rows == PADDING_ROW, 0, np.append(np.asarray(lengths, dtype=np.int64), 0)[rows])


def padded_tokens(chunks):
    """Tokens of a window when every micro-step takes as long as its longest row on any rank; (ranks, chunks, rows)."""
    return chunks.max(axis=(0, 2)).sum() * chunks.shape[0] * chunks.shape[2]


@given(LENGTHS, COUNTS)
def test_each_row_is_placed_once_with_the_fewest_padding_rows(lengths, counts):
    rows = pack(lengths, *counts)
    num_ranks, num_windows, chunks_per_window = counts
    assert rows.shape[:2] == (num_ranks, num_windows * chunks_per_window)
    assert rows.dtype == np.int64
    assert sorted(rows[rows != PADDING_ROW]) == list(range(len(lengths)))
    num_chunks = num_ranks * num_windows * chunks_per_window
    assert rows.shape[2] == max(1, -(-len(lengths) // num_chunks))


@given(LENGTHS, COUNTS)
def test_windows_and_ranks_differ_by_less_than_the_longest_row(lengths, counts):
    num_ranks, num_windows, chunks_per_window = counts
    packing = pack(lengths, *counts)
    placed = placed_lengths(packing, lengths).reshape(num_ranks, num_windows, -1)
    spread = placed.max() - placed.min()
    assert np.ptp(placed.sum(axis=(0, 2))) <= spread
    assert (np.ptp(placed.sum(axis=2), axis=0) <= spread).all()


@given(LENGTHS, COUNTS)
def test_ranks_hold_neighbours_of_the_sorted_order_at_every_micro_step(lengths, counts):
    num_ranks, num_windows, chunks_per_window = counts
    placed = placed_lengths(pack(lengths, *counts), lengths)
    placed = placed.reshape(num_ranks, num_windows, chunks_per_window, -1)
    longest, shortest = placed.max(axis=(0, 3)), placed.min(axis=(0, 3))  # (windows, chunks)
    assert (shortest[:, :-1] >= longest[:, 1:]).all()
    if placed.shape[3] > 1:  # the longest rows of the ranks all lie in the first round of the deal
        second_round = np.sort(placed, axis=3)[..., -2].max(axis=0)
        assert (placed.max(axis=3).min(axis=0) >= second_round).all()


@given(LENGTHS, COUNTS, st.integers(0, 2**32 - 1))
def test_no_arrangement_of_a_window_has_fewer_padded_tokens(lengths, counts, seed):
    num_ranks, num_windows, chunks_per_window = counts
    placed = placed_lengths(pack(lengths, *counts), lengths).reshape(num_ranks, num_windows, chunks_per_window, -1)
    rng = np.random.default_rng(seed)
    for window in range(num_windows):
        chunks = placed[:, window]
        for _ in range(5):
            assert padded_tokens(chunks) <= padded_tokens(rng.permutation(chunks.ravel()).reshape(chunks.shape))


def test_every_window_sees_the_whole_range_of_lengths():
    lengths = np.random.default_rng(0).permutation(np.arange(1, 129))
    placed = placed_lengths(pack(lengths, 2, 4, 2), lengths).reshape(2, 4, -1)
    for window in range(4):
        assert placed[:, window].max() >= 125 and placed[:, window].min() <= 4


def test_worked_example():
    # Sorted: 50 40 30 20 10 and a pad. Over 2 ranks: 50 | 40, then 30 to rank 1 and 20 to rank 0, then 10 | pad.
    rows = pack([10, 20, 30, 40, 50], num_ranks=2, num_windows=1, chunks_per_window=3)
    assert rows.tolist() == [[[4], [1], [0]], [[3], [2], [PADDING_ROW]]]


@given(st.lists(st.tuples(st.integers(1, 3072), st.integers(0, 9)), max_size=120), COUNTS)
def test_rows_of_a_prompt_stay_together_and_each_window_keeps_its_rows(rollouts, counts):
    lengths, groups = np.array(rollouts, dtype=np.int64).reshape(-1, 2).T
    num_ranks, num_windows, chunks_per_window = counts
    by_length, by_prompt = (
        pack(lengths, *counts, groups=one).reshape(num_ranks, num_windows, chunks_per_window, -1)
        for one in (None, groups)
    )
    for window in range(num_windows):
        rows = by_prompt[:, window]
        assert sorted(rows.flat) == sorted(by_length[:, window].flat)
        chunks = [set(groups[chunk[chunk != PADDING_ROW]].tolist()) for chunk in rows.reshape(-1, rows.shape[2])]
        # A cut between two chunks splits one prompt at most.
        assert sum(map(len, chunks)) <= len(set().union(*chunks)) + len(chunks) - 1
        tokens = placed_lengths(rows, lengths).sum(axis=2)  # (ranks, chunks)
        assert (tokens.min(axis=0)[:-1] >= tokens.max(axis=0)[1:]).all()
