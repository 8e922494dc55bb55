# SPDX-License-Identifier: Apache-2.0
"""Phase 3: which kept rollout goes to which rank, optimizer step and micro-batch.

Data parallel training needs the same number of rows in every micro-batch of every rank, while allocation and abort
leave any number of rollouts. Missing rows are padded, and rows are placed by length so that no rank waits for another
and a micro-batch holds little padding.
"""

import numpy as np

PADDING_ROW = -1
"""Stands for a row that the trainer fills with one masked token."""


def pack(lengths: np.ndarray, num_ranks: int, num_windows: int, chunks_per_window: int) -> np.ndarray:
    """Places rollouts on ranks, optimizer-step windows and micro-batches (chunks), balanced by length.

    Rollouts are dealt in falling length, back and forth, over the windows, so that every optimizer step sees the whole
    range of lengths, and inside a window over the ranks. Each rank cuts its share into chunks, the longest first. No
    other way to split a window has fewer tokens after padding each chunk to its longest row over all ranks; windows,
    and the ranks of a window, differ by at most the longest minus the shortest row.

    Returns the rollout index or `PADDING_ROW`, shape (num_ranks, num_windows * chunks_per_window, rows_per_chunk),
    int64; every rollout exactly once. `lengths` are tokens, shape (K,); K = 0 gives padding only.

    Example:
        >>> pack([5, 9, 7], num_ranks=2, num_windows=1, chunks_per_window=1).tolist()
        [[[1, -1]], [[2, 0]]]
    """
    lengths = np.asarray(lengths)
    num_chunks = num_ranks * num_windows * chunks_per_window
    rows_per_chunk = max(1, -(-len(lengths) // num_chunks))
    order = np.full(num_chunks * rows_per_chunk, PADDING_ROW, dtype=np.int64)
    order[: len(lengths)] = np.argsort(-lengths, kind="stable")
    windows = _deal(order, num_windows)  # (num_windows, rows of a window), longest first
    dealt = np.stack([_deal(window, num_ranks) for window in windows], axis=1)  # (num_ranks, num_windows, rows)
    return dealt.reshape(num_ranks, num_windows * chunks_per_window, rows_per_chunk)


def _deal(order: np.ndarray, num_hands: int) -> np.ndarray:
    """Deals a sequence back and forth: 0, 1, .., k, k, .., 1, 0, 0, ..; shape (num_hands, len(order) / num_hands)."""
    rounds = order.reshape(-1, num_hands).copy()
    rounds[1::2] = rounds[1::2, ::-1]
    return rounds.T
