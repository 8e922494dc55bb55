# SPDX-License-Identifier: Apache-2.0
"""Columns of numbers by prompt, in blocks that never move: a pool grows, and a checkpoint is taken, without a copy."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from .key_index import KeyIndex, hash_keys
from .state import check_state

BLOCK = 4096
"""Prompts of a block. The first write into a block that a state holds copies it, so blocks are small."""

SAMPLE = 16
"""Blocks from which figures of the whole pool are computed at most."""


class PromptTable:
    """Float64 columns of prompts that were seen, by key; a prompt's row is its place in the order of first visits.

    Args:
        name (str): Of its owner, for messages.
        columns (Sequence[str]): Names, C of them.
    """

    def __init__(self, name: str, columns: Sequence[str]) -> None:
        self.name = name
        self.columns = tuple(columns)
        self._index = KeyIndex(np.zeros(0, dtype=np.uint64))
        self._blocks: list[np.ndarray] = []  # (C, BLOCK) each
        self._lent: set[int] = set()  # blocks that a state may still hold
        self._latest = self._nothing()

    def __len__(self) -> int:
        return len(self._index)

    def read(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Columns of `keys`, shape (M,) each; 0 for a prompt that was never written."""
        return dict(zip(self.columns, self._look_up(keys).values.copy(), strict=True))

    @contextmanager
    def editing(self, keys: Sequence[str]) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
        """Columns of the U different prompts of `keys`, to change in place, and the place of each key among them.

        Prompts that are new start with zeros.

        Yields:
            tuple: Columns, shape (U,) each; places, shape (M,), int64.
        """
        latest = self._look_up(keys, add=True)
        rows, first, place = np.unique(latest.rows, return_index=True, return_inverse=True)
        values, place = latest.values[:, first], place.reshape(-1)
        yield dict(zip(self.columns, values, strict=True)), place
        self._put(rows, values)
        self._latest = latest._replace(values=values[:, place])

    def pool(self, *names: str) -> list[np.ndarray]:
        """Some columns over the pool, in the order of first visits, shape (P',) each; behind the last prompt, zeros.

        Of more than `SAMPLE` blocks, 65,536 prompts, every k-th stands for the others, so that a step does not take
        longer in a larger pool: between 32,768 and 65,536 prompts, evenly spaced over the time of their first visit.
        """
        sample = self._blocks[:: -(-len(self._blocks) // SAMPLE) or 1]
        return [
            np.concatenate([np.zeros(0), *(block[row] for block in sample)]) for row in map(self.columns.index, names)
        ]

    def state_dict(self) -> dict[str, Any]:
        """Hashes of the keys, shape (P,), and the blocks, shape (C, <= BLOCK) each; later writes do not reach them."""
        self._lent = set(range(len(self._blocks)))
        blocks = {}
        for number, block in enumerate(self._blocks):
            blocks[str(number)] = block[:, : len(self) - number * BLOCK]
            blocks[str(number)].flags.writeable = False
        return {"columns": list(self.columns), "keys": self._index.hashes(), "blocks": blocks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`. Raises ValueError if it is not one, or damaged."""
        check_state(self.name, state, dict.fromkeys(("columns", "keys", "blocks")))
        keys, blocks = np.asarray(state["keys"], dtype=np.uint64), list(state["blocks"].values())
        widths = [min(BLOCK, len(keys) - first) for first in range(0, len(keys), BLOCK)]
        shapes = [(len(self.columns), width) for width in widths]
        if list(state["columns"]) != list(self.columns) or [np.shape(block) for block in blocks] != shapes:
            raise ValueError(f"The {self.name} state is damaged: its columns or the shapes of its blocks are others.")
        ascending = np.sort(keys)
        if (ascending[1:] == ascending[:-1]).any():
            raise ValueError(f"The {self.name} state is damaged: a prompt stands in it twice.")
        self._index, self._lent, self._latest = KeyIndex(keys), set(), self._nothing()
        self._blocks = [np.zeros((len(self.columns), BLOCK)) for _ in blocks]
        for own, block in zip(self._blocks, blocks, strict=True):
            own[:, : np.shape(block)[1]] = block

    def _look_up(self, keys: Sequence[str], add: bool = False) -> "_Latest":
        """Rows and values of some keys; `add` gives unknown ones a row."""
        if self._latest.keys != (keys := tuple(keys)):
            hashes = hash_keys(keys)
            rows = self._index.find(hashes)
            self._latest = _Latest(keys, hashes, rows, self._take(rows))
        if add and (self._latest.rows < 0).any():
            self._latest = self._latest._replace(rows=self._index.add(self._latest.hashes))
            while len(self._blocks) * BLOCK < len(self):
                self._blocks.append(np.zeros((len(self.columns), BLOCK)))
        return self._latest

    def _nothing(self) -> "_Latest":
        return _Latest((), np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros((len(self.columns), 0)))

    def _take(self, rows: np.ndarray) -> np.ndarray:
        """Values of some rows, shape (C, N); 0 for row -1."""
        values = np.zeros((len(self.columns), len(rows)))
        for number, at in _by_block(rows):
            values[:, at] = self._blocks[number][:, rows[at] % BLOCK]
        return values

    def _put(self, rows: np.ndarray, values: np.ndarray) -> None:
        for number, at in _by_block(rows):
            if number in self._lent:
                self._blocks[number] = self._blocks[number].copy()
                self._lent.remove(number)
            self._blocks[number][:, rows[at] % BLOCK] = values[:, at]


class _Latest(NamedTuple):
    """The keys that were asked for last: a step asks for the same ones several times.

    Hashes and rows have shape (M,), -1 for a prompt without a row; values have shape (C, M).
    """

    keys: tuple[str, ...]
    hashes: np.ndarray
    rows: np.ndarray
    values: np.ndarray


def _by_block(rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Number of each block that rows lie in, and where these rows stand; -1 lies in none."""
    order = np.argsort(rows, kind="stable")
    order = order[np.searchsorted(rows[order], 0) :]
    numbers, first = np.unique(rows[order] // BLOCK, return_index=True)
    return zip(numbers.tolist(), np.split(order, first)[1:], strict=True)
