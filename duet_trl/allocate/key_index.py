# SPDX-License-Identifier: Apache-2.0
"""Rows of prompts by key, for pools of ten million prompts: 12 bytes a prompt, and no step that waits for a rehash.

A key is kept as 64 hashed bits. Two of P prompts share them with probability P^2 / 2^65, 3e-6 for ten million; the two
would then share one history, which is that of their mixture.

The hashes lie in sorted runs. New ones are a run of their own, and runs of like size are merged up to `LONGEST`: a
step searches a dozen or two runs, and the longest merge takes ten milliseconds.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

LONGEST = 2**20
"""Hashes of a run that is not merged any more."""


def hash_keys(keys: Sequence[str]) -> np.ndarray:
    """64 bits of each key, shape (N,), uint64; the same in every process."""
    return np.frombuffer(b"".join(blake2b(key.encode(), digest_size=8).digest() for key in keys), dtype="<u8")


class KeyIndex:
    """Numbers of hashes, from 0 in the order of their first appearance.

    Args:
        hashes (np.ndarray): Different hashes to begin with, by number, shape (P,), uint64.
    """

    def __init__(self, hashes: np.ndarray) -> None:
        self._size = len(hashes)
        self._runs: list[tuple[np.ndarray, np.ndarray]] = []  # hashes, ascending, and their numbers, shape (R,) each
        for first in range(0, len(hashes), LONGEST):
            order = np.argsort(hashes[first : first + LONGEST])
            self._runs.append((hashes[first + order], (first + order).astype(np.int32)))

    def __len__(self) -> int:
        return self._size

    def find(self, hashes: np.ndarray) -> np.ndarray:
        """Number of each hash, shape (N,), int64; -1 for unknown ones."""
        order = np.argsort(hashes)  # sorted ones are searched an order of magnitude faster
        wanted, found = hashes[order], np.full(len(hashes), -1, dtype=np.int64)
        for known, numbers in self._runs:
            at = np.searchsorted(known, wanted)
            at[at == len(known)] = 0
            hit = np.flatnonzero(known[at] == wanted)
            found[order[hit]] = numbers[at[hit]]
        return found

    def add(self, hashes: np.ndarray) -> np.ndarray:
        """Number of each hash, shape (N,), int64; unknown ones get the next."""
        found = self.find(hashes)
        if (found >= 0).all():
            return found
        unknown, first = np.unique(hashes[found < 0], return_index=True)
        order = np.argsort(first)
        numbers = np.empty(len(unknown), dtype=np.int64)
        numbers[order] = self._size + np.arange(len(unknown))
        self._size += len(unknown)
        self._append(unknown, numbers)
        found[found < 0] = numbers[np.searchsorted(unknown, hashes[found < 0])]
        return found

    def hashes(self) -> np.ndarray:
        """All hashes by number, shape (P,), uint64."""
        found = np.empty(self._size, dtype=np.uint64)
        for known, numbers in self._runs:
            found[numbers] = known
        return found

    def _append(self, hashes: np.ndarray, numbers: np.ndarray) -> None:
        """Add a run, and merge it into its neighbours while they are no longer than twice as long."""
        numbers = numbers.astype(np.int32)
        while self._runs and len(self._runs[-1][0]) <= min(2 * len(hashes), LONGEST - len(hashes)):
            other = self._runs.pop()
            hashes, numbers = (np.concatenate(pair) for pair in zip(other, (hashes, numbers), strict=True))
            order = np.argsort(hashes, kind="stable")  # of two sorted runs: one pass
            hashes, numbers = hashes[order], numbers[order]
        self._runs.append((hashes, numbers))
