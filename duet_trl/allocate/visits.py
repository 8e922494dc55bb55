# SPDX-License-Identifier: Apache-2.0
"""Which prompts a step visits: the price of a token holds over the data set, not over the batch of the sampler.

A prompt that is solved or hopeless teaches next to nothing, however many rollouts it gets. So several prompts compete
for each visit, and those with the most uncertain success rate p win: x = E p(1 - p), as in `openness`, here under

    Beta(k m + s,  k (1 - m) + n - s)        m: success share of the pool at present, k = `PRIOR_COUNT` rollouts
                                             n, s: rollouts of the prompt and successes among them, aged

The history of a prompt ages with its visits, as everywhere, and with the steps between them. So no prompt waits
forever: the longer it waits the more it is like one that was never seen. And the prior follows the policy: once that
solves most of the pool, a prompt that failed long ago is likely to be uncertain, and one that was solved is not.
"""

from collections.abc import Sequence

import numpy as np

from ..state import Stateful
from .statistics import PromptTable, openness

AGEING = 0.97
"""Factor on the history of a prompt from one step to the next: half of it is gone after 23 steps."""
PRIOR_COUNT = 1.0
LEAST_SHARE = 0.02
"""The prior's m stays in [LEAST_SHARE, 1 - LEAST_SHARE], so that nothing is ever certain."""
_COLUMNS = ("count", "successes", "step")


class Visits(Stateful):
    """Decides which prompts are visited, by key; `decay` is the factor on a prompt's history from visit to visit."""

    remembered = ("_table",)

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self._table = PromptTable("visits", _COLUMNS)

    def __len__(self) -> int:
        """Prompts that were visited."""
        return len(self._table)

    def choose(self, keys: Sequence[str], count: int, step: int) -> np.ndarray:
        """Indices of the `count` most uncertain of the candidates `keys`, ascending, int64; ties: the first."""
        return np.sort(np.argsort(-self.openness(keys, step), kind="stable")[:count])

    def openness(self, keys: Sequence[str], step: int) -> np.ndarray:
        """x = E p(1 - p) of each prompt at a step, shape (M,)."""
        count, successes = _aged(self._table.read(keys), step)
        share = self.pool_success(step)
        a, b = PRIOR_COUNT * share + successes, PRIOR_COUNT * (1.0 - share) + count - successes
        return openness(a, b)

    def pool_success(self, step: int) -> float:
        """m: success share of the pool, each prompt weighted by what remains of its history; 1/2 before the first."""
        columns = dict(zip(_COLUMNS, self._table.pool(*_COLUMNS), strict=True))
        count, successes = _aged(columns, step)
        known = float(count.sum())
        return float(np.clip(successes.sum() / known, LEAST_SHARE, 1.0 - LEAST_SHARE)) if known else 0.5

    def observe(self, keys: Sequence[str], group: np.ndarray, successes: np.ndarray, step: int) -> None:
        """Learn from a step.

        `group` is the prompt of each rollout in 0..M-1, `successes` its reward as a share of a success, in [0, 1],
        shape (N,) each. Prompts without a rollout do not change.
        """
        visited, group = np.unique(group, return_inverse=True)
        if not visited.size:
            return
        added = {"count": np.bincount(group).astype(float), "successes": np.bincount(group, weights=successes)}
        with self._table.editing([keys[q] for q in visited]) as (column, place):
            aged = _aged(column, step)
            for own, before in zip(("count", "successes"), aged, strict=True):
                column[own][:] = self.decay * before
                np.add.at(column[own], place, added[own])
            column["step"][:] = step


def _aged(column: dict[str, np.ndarray], step: int) -> tuple[np.ndarray, np.ndarray]:
    """Rollouts and successes of prompts, weighted as they count at a step, shape (M,) each."""
    factor = AGEING ** np.maximum(step - column["step"], 0.0)
    return factor * column["count"], factor * column["successes"]
