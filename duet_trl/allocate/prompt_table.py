# SPDX-License-Identifier: Apache-2.0
"""Columns of numbers by prompt, for pools of ten million: 12 bytes a prompt beside its numbers.

A key is kept as 64 hashed bits. Two of P prompts share them with probability P^2 / 2^65, 3e-6 for ten million; the two
would then share one history, which is that of their mixture.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import numpy as np

from .state import check_state

DROPPED = ("visits_waiting",)
"""Columns of earlier versions, ignored in their checkpoints."""
SAMPLE = 2**16
"""Prompts from which figures of the whole pool are computed at most."""


def hash_keys(keys: Sequence[str]) -> np.ndarray:
    """64 bits of each key, shape (N,), uint64; the same in every process."""
    return np.frombuffer(b"".join(blake2b(key.encode(), digest_size=8).digest() for key in keys), dtype="<u8")


class PromptTable:
    """Float64 columns of prompts that were seen, by key; a prompt's row is its place in the order of first visits.

    `name` is that of its owner, for messages.
    """

    def __init__(self, name: str, columns: Sequence[str]) -> None:
        self.name = name
        self._hashes, self._rows = np.zeros(0, np.uint64), np.zeros(0, np.int32)  # ascending, and the row of each
        self._columns = {column: np.zeros(0) for column in columns}  # longer than the table: they grow by a quarter

    def __len__(self) -> int:
        return len(self._hashes)

    def read(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Columns of `keys`, shape (M,) each; 0 for a prompt that was never written."""
        place, known = self._find(hash_keys(keys))
        found = {column: np.zeros(len(keys)) for column in self._columns}
        for column, values in self._columns.items():
            found[column][known] = values[self._rows[place[known]]]
        return found

    @contextmanager
    def editing(self, keys: Sequence[str]) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
        """Columns (U,) of the U different prompts of `keys`, to change in place, and the place of each key among them.

        Prompts that are new start with zeros.
        """
        hashes = hash_keys(keys)
        self._add(hashes)
        rows, place = np.unique(self._rows[self._find(hashes)[0]], return_inverse=True)
        found = {column: values[rows] for column, values in self._columns.items()}
        yield found, place.reshape(-1)
        for column, values in found.items():
            self._columns[column][rows] = values

    def pool(self, *names: str) -> list[np.ndarray]:
        """Some columns over the pool, shape (P',) each; of more than `SAMPLE` prompts every k-th stands for others."""
        step = -(-len(self) // SAMPLE) or 1
        return [self._columns[name][: len(self) : step] for name in names]

    def state_dict(self) -> dict[str, Any]:
        """Hashes of the keys and the columns, in the order of first visits, shape (P,) each."""
        keys = np.empty_like(self._hashes)
        keys[self._rows] = self._hashes
        return {"keys": keys, "columns": {name: values[: len(self)].copy() for name, values in self._columns.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`. Raises ValueError if it is not one, or damaged."""
        check_state(self.name, state, dict.fromkeys(("keys", "columns")))
        check_state(self.name, {x: y for x, y in state["columns"].items() if x not in DROPPED}, self._columns)
        keys = np.asarray(state["keys"], dtype=np.uint64)
        columns = {name: np.array(state["columns"][name], dtype=np.float64) for name in self._columns}
        if any(values.shape != keys.shape for values in columns.values()):
            raise ValueError(f"The {self.name} state is damaged: its columns have other lengths than its keys.")
        rows = np.argsort(keys)
        if (np.diff(keys[rows]) == 0).any():
            raise ValueError(f"The {self.name} state is damaged: a prompt stands in it twice.")
        self._hashes, self._rows, self._columns = keys[rows], rows.astype(np.int32), columns

    def _find(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Place of each hash among the ascending ones, shape (N,), and whether it is there."""
        place = np.searchsorted(self._hashes, hashes)
        known = place < len(self)
        known[known] = self._hashes[place[known]] == hashes[known]
        return place, known

    def _add(self, hashes: np.ndarray) -> None:
        """Give unknown prompts a row, in their order."""
        new, first = np.unique(hashes[~self._find(hashes)[1]], return_index=True)
        if not len(new):
            return
        rows = np.empty(len(new), dtype=np.int32)
        rows[np.argsort(first)] = len(self) + np.arange(len(new), dtype=np.int32)
        place = np.searchsorted(self._hashes, new)
        self._hashes, self._rows = np.insert(self._hashes, place, new), np.insert(self._rows, place, rows)
        for column, values in self._columns.items():  # one after the other, so that only one is there twice
            if len(values) < len(self):
                self._columns[column] = np.concatenate([values, np.zeros(len(self) * 5 // 4 - len(values) + 1)])
