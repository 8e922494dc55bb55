# SPDX-License-Identifier: Apache-2.0
"""Phase 4 of Algorithm 1, lines 41-47: what past steps say about each prompt, as running means under its key."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .prompt_table import PromptTable
from .state import check_state

_COLUMNS = (
    "sigma_sum",
    "sigma_count",
    "length_sum",
    "length_count",
    "cost_sum",
    "cost_count",
    "reward_count",
    "reward_sum",
    "reward_squares",
    "reward_levels",
)
_REWARDS = ("reward_count", "reward_sum", "reward_squares")
LEVEL_MEMORY = 0.7
"""Weight of all earlier steps in the level of the pool, against that of the latest one: it is three steps old."""
RANGE_MEMORY = 0.9
"""Weight of an end of the range of rewards against that of a step: a reward that nobody earns again is forgotten."""
MAX_DISTINCT = 64
"""Distinct rewards beyond which they count as continuous."""
_TIE = 1e-6  # of two rewards that are one, relative


@dataclass(frozen=True)
class PromptView:
    """What is known about the prompts of one batch, shape (M,) each; nan where nothing was observed."""

    sigma: np.ndarray  # running mean of sigma_obs, advantage x nats
    num_observations: np.ndarray  # k_q, observations in it, int64
    mean_length: np.ndarray  # L_q, mean policy tokens of kept rollouts
    mean_cost: np.ndarray  # mean generated tokens of all rollouts, aborted ones included


@dataclass(frozen=True)
class RewardHistory:
    """What earlier visits say about the rewards of the prompts of one batch, shape (M,) each."""

    count: np.ndarray  # rollouts behind it, discounted by age; 0 for a prompt not seen yet
    mean: np.ndarray  # their mean reward; that of the pool where the count is 0
    mean_square: np.ndarray  # their mean squared reward, likewise
    pool_mean: float  # over the prompts seen so far, each counting once; nan before the first
    pool_mean_square: float
    level: float = np.nan  # mean reward of the prompts of the latest steps (`LEVEL_MEMORY`); nan before the first
    level_square: float = np.nan
    drift: np.ndarray | float = 0.0  # how far the level has risen since the rewards of each prompt; 0 for a new one

    def at_present(self) -> "RewardHistory":
        """The history as it would be today: means moved by the drift, their variances kept; the level as the pool."""
        mean = np.where(self.count > 0.0, self.mean + self.drift, self.level)
        square = np.where(self.count > 0.0, self.mean_square - self.mean**2 + mean**2, self.level_square)
        return replace(
            self, mean=mean, mean_square=square, pool_mean=self.level, pool_mean_square=self.level_square, drift=0.0
        )

    def after(self, rewards: np.ndarray, group: np.ndarray) -> "RewardHistory":
        """The history with more rewards in it, at full weight; the pool stays as it was."""
        scored = ~np.isnan(rewards)
        group, rewards, size = group[scored], rewards[scored], len(self.count)
        added, first, second = (np.bincount(group, weights=rewards**power, minlength=size) for power in range(3))
        count, before = self.count + added, self.count > 0.0
        means = (
            np.divide(np.where(before, self.count * mean, 0.0) + total, count, out=mean.copy(), where=count > 0.0)
            for mean, total in ((self.mean, first), (self.mean_square, second))
        )
        mean, square = means
        return replace(self, count=count, mean=mean, mean_square=square)


class PromptStatistics:
    """Running means per prompt, keyed by a stable string, for pools of ten million prompts.

    A figure of the pool is one of all prompts up to 65,536, and of an even sample of more (`PromptTable.pool`).
    """

    def __init__(self, reward_decay: float = 0.7) -> None:
        self.reward_decay = reward_decay
        self.reward_range: list[float] | None = None
        self.distinct: np.ndarray = np.empty(0)  # rewards of the run, ascending; the first `MAX_DISTINCT` + 1 of them
        self._level: list[float] | None = None  # mean reward and mean squared reward of the latest steps
        self._table = PromptTable("prompt statistics", _COLUMNS)

    def __len__(self) -> int:
        return len(self._table)

    def lookup(self, keys: Sequence[str]) -> PromptView:
        """What is known about ``keys`` (M,)."""
        column = self._table.read(keys)
        return PromptView(
            sigma=_mean(column["sigma_sum"], column["sigma_count"]),
            num_observations=column["sigma_count"].astype(np.int64),
            mean_length=_mean(column["length_sum"], column["length_count"]),
            mean_cost=_mean(column["cost_sum"], column["cost_count"]),
        )

    def pool_sigma(self) -> np.ndarray:
        """Running means of sigma over all prompts that have one, shape (P,)."""
        total, count = self._table.pool("sigma_sum", "sigma_count")
        return total[count > 0.0] / count[count > 0.0]

    def expected_tokens(self, keys: Sequence[str], *, price_aborted: bool, default: float) -> np.ndarray:
        """Expected tokens of one rollout of each prompt, the L_q of Theorem 1.

        All generated tokens, aborted rollouts included, or kept lengths. A prompt without a length takes the mean over
        the prompts that have one, each counting once, and `default` while there is none. Shape (M,), >= 1.
        """
        view = self.lookup(keys)
        known, name = (view.mean_cost, "cost") if price_aborted else (view.mean_length, "length")
        cold = np.isnan(known)
        if cold.any():
            total, count = self._table.pool(f"{name}_sum", f"{name}_count")
            seen = count > 0.0
            mean = float((total[seen] / count[seen]).mean()) if seen.any() else default
            known = np.where(cold, mean, known)
        return np.maximum(known, 1.0)

    def observe_sigma(self, keys: Sequence[str], sigma_obs: np.ndarray) -> None:
        """Update the means (lines 43-44) by Eq. 3, shape (M,): nan is none, a zero is an observation."""
        seen = ~np.isnan(sigma_obs)
        with self._table.editing(keys) as (column, place):
            np.add.at(column["sigma_sum"], place[seen], sigma_obs[seen])
            np.add.at(column["sigma_count"], place[seen], 1.0)

    def observe_lengths(
        self, keys: Sequence[str], group: np.ndarray, lengths: np.ndarray, tokens: np.ndarray, kept: np.ndarray
    ) -> None:
        """Update the running mean lengths and costs (Algorithm 1, lines 45-47).

        Prompt of each rollout in 0..M-1, its policy and generated tokens, and whether it was not aborted, shape (N,).
        """
        num_prompts = len(keys)
        added = {
            "length_sum": np.bincount(group, weights=np.where(kept, lengths, 0), minlength=num_prompts),
            "length_count": np.bincount(group[kept], minlength=num_prompts),
            "cost_sum": np.bincount(group, weights=tokens, minlength=num_prompts),
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
        self.reward_range = self._range_with(float(values.min()), float(values.max()))
        self._note_distinct(values)
        sums = [np.bincount(group, weights=values**power, minlength=len(keys)) for power in range(3)]
        rewarded = sums[0] > 0
        latest = [float((column[rewarded] / sums[0][rewarded]).mean()) for column in sums[1:]]
        both = zip(self._level or latest, latest, strict=True)
        self._level = [LEVEL_MEMORY * old + (1.0 - LEVEL_MEMORY) * new for old, new in both]
        with self._table.editing(keys) as (column, place):
            visited = np.unique(place[rewarded])
            for name, added in zip((*_REWARDS, "reward_levels"), (*sums, sums[0] * self._level[0]), strict=True):
                column[name][visited] *= self.reward_decay
                np.add.at(column[name], place, added)

    def _range_with(self, least: float, most: float) -> list[float]:
        """The range that takes in the extremes of a step, and has drawn nearer to them where the step has two."""
        low, high = self.reward_range or (least, most)
        if least < most:
            low, high = (RANGE_MEMORY * end + (1.0 - RANGE_MEMORY) * of for end, of in ((low, least), (high, most)))
        return [min(low, least), max(high, most)]

    def _note_distinct(self, values: np.ndarray) -> None:
        if len(self.distinct) > MAX_DISTINCT:
            return
        known = np.unique(np.concatenate([self.distinct, values]))
        new = np.diff(known, prepend=-np.inf) > _TIE * np.maximum(np.abs(known), 1.0)
        self.distinct = known[new][: MAX_DISTINCT + 1]

    def reward_gaps(self, rewards: np.ndarray) -> np.ndarray:
        """How far the nearest other reward of the run lies from each of these, shape (N,).

        Infinite while there is no other one, 0 where rewards are continuous: then any difference is one.
        """
        if len(self.distinct) > MAX_DISTINCT:
            return np.zeros(len(rewards))
        apart = np.abs(np.asarray(rewards)[:, None] - self.distinct)
        return np.where(apart > 2 * _TIE * np.maximum(np.abs(self.distinct), 1.0), apart, np.inf).min(
            axis=1, initial=np.inf
        )

    def reward_history(self, keys: Sequence[str]) -> RewardHistory:
        """History of the rewards of ``keys`` (M,), discounted for the visit that is about to come."""
        count, *sums = self._table.pool(*_REWARDS)
        seen = count > 0.0
        pool = [float((column[seen] / count[seen]).mean()) if seen.any() else np.nan for column in sums]
        column = self._table.read(keys)
        count, known = column["reward_count"], column["reward_count"] > 0.0
        mean, square = (
            np.divide(column[name], count, out=np.full(len(keys), of_pool), where=known)
            for name, of_pool in zip(_REWARDS[1:], pool, strict=True)
        )
        level = self._level or [np.nan, np.nan]
        drift = np.where(known, level[0] - _mean(column["reward_levels"], count), 0.0)
        return RewardHistory(np.where(known, self.reward_decay * count, 0.0), mean, square, *pool, *level, drift)

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

    def state_dict(self) -> dict:
        """Range, level and distinct values of rewards, and the table of sums."""
        return {
            "reward_range": self.reward_range,
            "distinct": self.distinct,
            "level": self._level,
            "table": self._table.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore `state_dict()`. Raises ValueError if it is not one, or damaged."""
        check_state("prompt statistics", state, dict.fromkeys(("reward_range", "distinct", "level", "table")))
        self._table.load_state_dict(state["table"])
        self.distinct = np.asarray(state["distinct"], dtype=np.float64)
        self.reward_range, self._level = (
            None if state[name] is None else [float(x) for x in state[name]] for name in ("reward_range", "level")
        )


def _mean(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    """``total / count``, nan where nothing was counted."""
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0.0)
