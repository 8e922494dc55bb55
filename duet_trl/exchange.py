# SPDX-License-Identifier: Apache-2.0
"""Which process generates which rollout, and how rollouts reach the process that trains them.

Everything is indexed by the global, prompt-major rollout number 0..N-1, so that plans, outcomes and advantages never
depend on the number of processes.

Data parallel training needs the same number of rows in every micro-batch of every rank, while allocation and abort
leave any number of rollouts. Missing rows are padded, and rows are placed by length so that no rank waits for another
and a micro-batch holds little padding.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object

PADDING_ROW = -1
"""Marks a row that the trainer fills with one masked token."""


def pack(
    lengths: np.ndarray,
    num_ranks: int,
    num_windows: int,
    chunks_per_window: int,
    groups: np.ndarray | None = None,
) -> np.ndarray:
    """Places rollouts on ranks, optimizer-step windows and micro-batches (chunks), balanced by length.

    Rollouts are dealt by falling length, back and forth, over the windows, so that every optimizer step sees the whole
    range of lengths, and inside a window over the ranks. Each rank cuts its share into chunks, the longest first. No
    other way to split a window has fewer tokens after padding each chunk to its longest row over all ranks; windows,
    and the ranks of a window, differ by at most the longest minus the shortest row.

    Returns the rollout index or `PADDING_ROW`, shape (num_ranks, num_windows * chunks_per_window, rows_per_chunk),
    int64; every rollout exactly once. `lengths` are tokens, shape (K,); K = 0 gives padding only.

    With `groups`, the prompt of each rollout, shape (K,), a window has the same rollouts, and those of one prompt stay
    together as far as a chunk holds them; whole chunks are dealt over the ranks instead of rows.

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
    if groups is not None:
        shape = (num_ranks, chunks_per_window, rows_per_chunk)
        windows = np.stack([_by_prompt(window, lengths, np.asarray(groups), shape) for window in windows])
        return windows.swapaxes(0, 1).reshape(num_ranks, num_windows * chunks_per_window, rows_per_chunk)
    dealt = np.stack([_deal(window, num_ranks) for window in windows], axis=1)  # (num_ranks, num_windows, rows)
    return dealt.reshape(num_ranks, num_windows * chunks_per_window, rows_per_chunk)


def _by_prompt(window: np.ndarray, lengths: np.ndarray, groups: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """Cuts the rows of a window, prompt after prompt, into chunks: (ranks, chunks of a rank, rows), longest first."""
    rows = window[window != PADDING_ROW]  # longest first
    _, first, group = np.unique(groups[rows], return_index=True, return_inverse=True)
    window = np.append(rows[np.argsort(first[group], kind="stable")], window[window == PADDING_ROW])
    chunks = window.reshape(-1, shape[2])
    tokens = np.where(chunks == PADDING_ROW, 0, np.append(lengths, 0)[chunks]).sum(axis=1)
    order = _deal(np.argsort(-tokens, kind="stable"), shape[0])  # (ranks, chunks)
    return chunks[order].reshape(shape)


def _deal(order: np.ndarray, num_hands: int) -> np.ndarray:
    """Deals a sequence back and forth: 0, 1, .., k, k, .., 1, 0, 0, ..; shape (num_hands, len(order) / num_hands)."""
    rounds = order.reshape(-1, num_hands).copy()
    rounds[1::2] = rounds[1::2, ::-1]
    return rounds.T


@dataclass(frozen=True)
class Placement:
    """Rollouts of one step over the processes that generate them."""

    num_rollouts: int
    num_processes: int
    interleaved: bool

    @property
    def rows_per_process(self) -> int:
        """Rows of every process once the short ones are padded."""
        return -(-self.num_rollouts // self.num_processes)

    def rows(self, process: int) -> np.ndarray:
        """Global numbers of the rollouts of one process, shape (R,), R <= rows_per_process."""
        if self.interleaved:
            return np.arange(process, self.num_rollouts, self.num_processes)
        return np.array_split(np.arange(self.num_rollouts), self.num_processes)[process]

    def from_processes(self, gathered: torch.Tensor) -> torch.Tensor:
        """Sort gathered rows (W * rows_per_process, ...) into global order (N, ...), without the padding."""
        position = np.empty(self.num_rollouts, dtype=np.int64)
        for process in range(self.num_processes):
            rows = self.rows(process)
            position[rows] = process * self.rows_per_process + np.arange(len(rows))
        return gathered[torch.from_numpy(position).to(gathered.device)]


class Exchange:
    """Collectives over rollouts."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator

    @property
    def num_processes(self) -> int:
        """W, processes of the run."""
        return self.accelerator.num_processes

    @property
    def process_index(self) -> int:
        """Number of this process."""
        return self.accelerator.process_index

    def objects(self, local: list) -> list:
        """Concatenate one list of each process, in process order."""
        return gather_object(local) if self.accelerator.num_processes > 1 else list(local)

    def first(self, value: Any) -> Any:
        """The value of process 0, so that every process makes the same decision."""
        return broadcast_object_list([value], from_process=0)[0]

    def numbers(self, placement: Placement, columns: np.ndarray) -> np.ndarray:
        """Gather integer columns of local rollouts into global order."""
        padded = np.zeros((placement.rows_per_process, columns.shape[1]), dtype=np.int64)
        padded[: len(columns)] = columns
        gathered = self.accelerator.gather(torch.from_numpy(padded).to(self.accelerator.device))
        return placement.from_processes(gathered).cpu().numpy()

    def in_order(self, rows: np.ndarray, values: list) -> list:
        """Gather one object of each local rollout into global order."""
        pairs = self.objects(list(zip(rows.tolist(), values, strict=False)))
        return [value for _, value in sorted(pairs, key=lambda pair: pair[0])]

    def fail_together(self, work: Callable[[], Any]) -> Any:
        """Run local work; if it fails on one process, raise on all of them instead of leaving the others waiting.

        Raises:
            RuntimeError: If it failed elsewhere, with what happened there; here its own error is raised unchanged.
        """
        if self.num_processes == 1:
            return work()
        result, failures = None, list[str]()
        try:
            result = work()
        finally:
            error = sys.exception()
            if error is None or isinstance(error, Exception):  # an interrupt waits for nobody
                own = [] if error is None else [f"process {self.process_index}: {type(error).__name__}: {error}"]
                failures = self.objects(own)
        if failures:
            raise RuntimeError(f"Another process has failed, and this one ends with it. {failures[0]}")
        return result

    def largest(self, number: int) -> int:
        """The largest of one number of each process."""
        if self.num_processes == 1:
            return number
        return int(self.accelerator.gather(torch.tensor([number], device=self.accelerator.device)).max())

    def rollouts(self, local: dict[int, Any], wanted: Sequence[Iterable[int]]) -> dict[int, Any]:
        """Send each rollout to the processes that need it, and only to them.

        Args:
            local (dict[int, Any]): Rollouts of this process by number.
            wanted (Sequence[Iterable[int]]): Numbers that each process needs, the same argument on all of them.

        Returns:
            dict[int, Any]: Those that this process needs.
        """
        if self.num_processes == 1:
            return {row: local[row] for row in wanted[0]}
        found: dict[int, Any] = {}
        for process, rows in enumerate(wanted):
            parts = [None] * self.num_processes if process == self.process_index else None
            own = {row: local[row] for row in rows if row in local}
            torch.distributed.gather_object(own, parts, dst=process)
            for part in parts or []:
                found |= part
        return found

    def spread(self, count: int, size: int | None, work: Callable[[np.ndarray], list]) -> list:
        """Distribute some work over the processes: an object for each of 0..count-1, in order, on all of them.

        `work` gets numbers, at most `size` at a time (None: all of this process's), and runs equally often on each
        process: sharded models gather their weights in it.
        """
        placement = Placement(count, self.num_processes, interleaved=True)
        own = placement.rows(self.process_index)
        padded = np.resize(own if len(own) else np.zeros(1, dtype=np.int64), placement.rows_per_process)
        size = len(padded) if size is None else size
        found = [one for start in range(0, len(padded), size) for one in work(padded[start : start + size])]
        return self.in_order(own, found)
