# SPDX-License-Identifier: Apache-2.0
"""Phase 4 of Algorithm 1, lines 41-47: what past steps show about each prompt, as running means under its key.

For pools of ten million prompts: a prompt takes 12 bytes besides its numbers. A key is kept as 64 hashed bits. Two of
P prompts share them with probability P^2 / 2^65, 3e-6 for ten million; the two would then share one history, that of
their mixture.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from ..state import Stateful, check_state

SAMPLE = 2**16
"""Maximum prompts from which figures of the whole pool are computed."""
REWARD_DECAY = 0.7
"""Weight of a prompt's rewards from one visit to the next."""
RANGE_MEMORY = 0.9
"""Weight of an end of the range of rewards against that of a step: a reward that nobody earns again is forgotten."""
PRIOR = 0.5
"""Pseudo-successes and pseudo-failures of a prompt without a history (Jeffreys' prior)."""


@dataclass(frozen=True)
class RewardHistory:
    """What earlier visits show about the rewards of the prompts of one batch, shape (M,) each."""

    count: np.ndarray  # rollouts in it, discounted by age; 0 for a prompt not seen yet
    mean: np.ndarray  # their mean reward; nan where the count is 0


def posterior(history: RewardHistory, reward_range: Sequence[float] | None) -> tuple[np.ndarray, np.ndarray]:
    """Both parameters of the Beta posterior of each prompt's success rate, shape (M,) each.

    A reward counts as a partial success, by its place between the lowest and the highest reward of the run
    (`reward_range`; None or equal: a single reward value does not define success, and none counts).
    """
    low, high = reward_range or (0.0, 0.0)
    count = history.count if low < high else np.zeros(len(history.count))
    share = np.where(count > 0, np.clip((history.mean - low) / max(high - low, 1e-300), 0.0, 1.0), 0.5)
    return PRIOR + count * share, PRIOR + count * (1.0 - share)


def openness(successes: np.ndarray, failures: np.ndarray) -> np.ndarray:
    """x = E p(1 - p) of each prompt's success rate p under its Beta posterior, shape (M,), at most 1/4.

    m rollouts of a prompt are worth x sqrt(m): x is the length of a binary prompt's gradient, and the square root
    keeps a prompt from taking everything.
    """
    total = successes + failures
    return successes * failures / (total * (total + 1.0))


def price_of_more(worth: np.ndarray, counts: np.ndarray, cost: np.ndarray) -> float:
    """Gain in sum x sqrt(n), per token, from one more rollout of each prompt of a step.

    `worth` is x, `counts` n, `cost` the expected tokens of a rollout, > 0; shape (M,) each.
    """
    return float((worth * (np.sqrt(counts + 1.0) - np.sqrt(counts))).sum() / cost.sum())


class PromptStatistics(Stateful):
    """Running means per prompt, keyed by a stable string, for pools of ten million prompts.

    Figures of the pool are over all prompts up to 65,536, and over an even sample of more (`PromptTable.pool`).
    """

    remembered = ("reward_range", "_table")

    def __init__(self) -> None:
        self.reward_range: list[float] | None = None
        means = [f"{of}_{part}" for of in ("sigma", "length", "cost") for part in ("sum", "count")]
        self._table = PromptTable("prompt statistics", (*means, "reward_count", "reward_sum"))

    def __len__(self) -> int:
        return len(self._table)

    def sigma(self, keys: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Mean sigma of each prompt, advantage x nats, nan without one, and observations in it, shape (M,) each."""
        column = self._table.read(keys)
        return _mean(column["sigma_sum"], column["sigma_count"]), column["sigma_count"]

    def pool_sigma(self) -> np.ndarray:
        """Running means of sigma over all prompts that have one, shape (P,)."""
        total, count = self._table.pool("sigma_sum", "sigma_count")
        return total[count > 0.0] / count[count > 0.0]

    def expected_tokens(self, keys: Sequence[str], *, price_aborted: bool, default: float) -> np.ndarray:
        """Expected tokens of one rollout of each prompt, the L_q of Theorem 1.

        All generated tokens, aborted rollouts included, or kept lengths. A prompt without a length takes the mean over
        the prompts that have one, each counting once, and `default` while there is none. Shape (M,), >= 1.
        """
        name, column = "cost" if price_aborted else "length", self._table.read(keys)
        known = _mean(column[f"{name}_sum"], column[f"{name}_count"])
        cold = np.isnan(known)
        if cold.any():
            total, count = self._table.pool(f"{name}_sum", f"{name}_count")
            seen = count > 0.0
            mean = float((total[seen] / count[seen]).mean()) if seen.any() else default
            known = np.where(cold, mean, known)
        return np.maximum(known, 1.0)

    def observe_sigma(self, keys: Sequence[str], sigma_obs: np.ndarray) -> None:
        """Update the means (lines 43-44) by Eq. 3, shape (M,): nan is not an observation, a zero is."""
        seen = ~np.isnan(sigma_obs)
        with self._table.editing(keys) as (column, place):
            np.add.at(column["sigma_sum"], place[seen], sigma_obs[seen])
            np.add.at(column["sigma_count"], place[seen], 1.0)

    def observe_lengths(self, keys: Sequence[str], group: np.ndarray, lengths: np.ndarray, kept: np.ndarray) -> None:
        """Update the running mean lengths and costs (Algorithm 1, lines 45-47).

        Prompt of each rollout in 0..M-1, its tokens, and whether it was not aborted, shape (N,).
        """
        num_prompts = len(keys)
        added = {
            "length_sum": np.bincount(group, weights=np.where(kept, lengths, 0), minlength=num_prompts),
            "length_count": np.bincount(group[kept], minlength=num_prompts),
            "cost_sum": np.bincount(group, weights=lengths, minlength=num_prompts),
            "cost_count": np.bincount(group, minlength=num_prompts),
        }
        with self._table.editing(keys) as (column, place):
            for name, values in added.items():
                np.add.at(column[name], place, values.astype(np.float64))

    def observe_rewards(self, keys: Sequence[str], group: np.ndarray, rewards: np.ndarray, use: np.ndarray) -> None:
        """Add the rewards of a step to the history of its prompts, whose older rewards lose weight.

        Prompt of each rollout in 0..M-1, its summed reward, and whether to use it, shape (N,).
        """
        group, values = group[use], rewards[use]
        if not values.size:
            return
        least, most = float(values.min()), float(values.max())
        low, high = self.reward_range or (least, most)
        if least < most:  # the range moves towards that of the step
            low, high = (RANGE_MEMORY * end + (1.0 - RANGE_MEMORY) * of for end, of in ((low, least), (high, most)))
        self.reward_range = [min(low, least), max(high, most)]
        with self._table.editing(keys) as (column, place):
            visited = np.unique(place[group])
            for name, added in (("reward_count", 1.0), ("reward_sum", values)):
                column[name][visited] *= REWARD_DECAY
                np.add.at(column[name], place[group], added)

    def reward_history(self, keys: Sequence[str]) -> RewardHistory:
        """History of the rewards of ``keys`` (M,), discounted for the coming visit."""
        column = self._table.read(keys)
        mean = _mean(column["reward_sum"], column["reward_count"])
        return RewardHistory(REWARD_DECAY * column["reward_count"], mean)

    @property
    def rewards_differ(self) -> bool:
        """Whether the run has seen two different rewards."""
        return self.reward_range is not None and self.reward_range[0] < self.reward_range[1]

    def success_share(self, rewards: np.ndarray) -> np.ndarray:
        """Where rewards lie between the lowest (0) and the highest (1) of the run; 0.5 while all were the same."""
        if not self.rewards_differ:
            return np.full(np.shape(rewards), 0.5)
        low, high = self.reward_range
        return np.clip((np.asarray(rewards) - low) / (high - low), 0.0, 1.0)


def _mean(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    """``total / count``, nan where nothing was counted."""
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0.0)


def hash_keys(keys: Sequence[str]) -> np.ndarray:
    """64 bits of each key, shape (N,), uint64; the same in every process."""
    return np.frombuffer(b"".join(blake2b(key.encode(), digest_size=8).digest() for key in keys), dtype="<u8")


class PromptTable(Stateful):
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
        """Some columns over the pool, shape (P',) each; of more than `SAMPLE` prompts every k-th represents others."""
        step = -(-len(self) // SAMPLE) or 1
        return [self._columns[name][: len(self) : step] for name in names]

    def state_dict(self) -> dict[str, Any]:
        """Hashes of the keys and the columns, in the order of first visits, shape (P,) each."""
        keys = np.empty_like(self._hashes)
        keys[self._rows] = self._hashes
        return {"keys": keys, "columns": {name: values[: len(self)].copy() for name, values in self._columns.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`. Raises ValueError if it is not one, or damaged."""
        check_state(self.name, state, ("keys", "columns"))
        check_state(self.name, state["columns"], self._columns)
        keys = np.asarray(state["keys"], dtype=np.uint64)
        columns = {name: np.array(state["columns"][name], dtype=np.float64) for name in self._columns}
        if any(values.shape != keys.shape for values in columns.values()):
            raise ValueError(f"The {self.name} state is damaged: its columns have other lengths than its keys.")
        rows = np.argsort(keys)
        if (np.diff(keys[rows]) == 0).any():
            raise ValueError(f"The {self.name} state is damaged: a prompt is in it twice.")
        self._hashes, self._rows, self._columns = keys[rows], rows.astype(np.int32), columns

    def _find(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Place of each hash among the ascending ones, shape (N,), and whether it is there."""
        place = np.searchsorted(self._hashes, hashes)
        known = place < len(self)
        known[known] = self._hashes[place[known]] == hashes[known]
        return place, known

    def _add(self, hashes: np.ndarray) -> None:
        """Add a row for each unknown prompt, in their order."""
        new, first = np.unique(hashes[~self._find(hashes)[1]], return_index=True)
        if not len(new):
            return
        rows = np.empty(len(new), dtype=np.int32)
        rows[np.argsort(first)] = len(self) + np.arange(len(new), dtype=np.int32)
        place = np.searchsorted(self._hashes, new)
        self._hashes, self._rows = np.insert(self._hashes, place, new), np.insert(self._rows, place, rows)
        for column, values in self._columns.items():  # one after the other, so that only one exists twice at a time
            if len(values) < len(self):
                self._columns[column] = np.concatenate([values, np.zeros(len(self) * 5 // 4 - len(values) + 1)])
