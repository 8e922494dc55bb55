# SPDX-License-Identifier: Apache-2.0
"""K2 and the coin of `duet`: a rollout without an answer goes on as long as it pays the price of its tokens.

The price is that of the allocation, what one more rollout earns per token (`allocate/openness.py`), and an answer that
turns a failure into a success counts 1. See `answer_times.py` for K2 and docs/algorithm.md for the whole.
"""

from typing import Any

import numpy as np

from .answer_times import AnswerTimes
from .replay import Outcome, Replay
from .thresholds import check_keys, reward_bar

FOLLOWED = 16.0
"""Rollouts beyond the gate that the coin keeps within memory: twice what outweighs the optimism about them."""
KEEP_LEAST, KEEP_MOST = 0.02, 0.5
"""Bounds of the coin: below, a change would go unseen; above, hardly anything would be saved."""
PRICE_MEMORY = 10.0
"""Steps over which the price is averaged: that of a single batch jumps."""
PRODUCTIVITY_SHARE = 0.5
"""The price is at most this share of what uncut rollouts earn per token. A posterior that is too hopeful about a pool
of hopeless prompts would otherwise price out every rollout."""
REWARDS = 4096
"""Latest rewards, by which a rollout is told to be rewarded."""


class PricedThresholds:
    """K1, K2 and the coin from answer times and a price.

    K1 is 1: rollouts are polled from the start.

    Args:
        max_length (int): Length limit of a rollout, tokens, >= 1.
        grace_window (int): G, tokens; rollouts meet their coin at K2 + G.
        width (int): Tokens of a bin of the answer times: the poll interval.
        memory (float): Steps; see `AnswerTimes`.

    Attributes:
        abort_threshold (int): K2 of the next step, tokens.
        keep_probability (float): Coin of the next step, in [`KEEP_LEAST`, `KEEP_MOST`].
        price (float): Rewards per token, averaged over steps; nan before the first.
    """

    poll_threshold = 1

    def __init__(self, max_length: int, grace_window: int, *, width: int = 8, memory: float = 50.0) -> None:
        self.max_length = max_length
        self.grace_window = grace_window
        self.times = AnswerTimes(max_length, width=width, memory=memory)
        self.price = float("nan")
        self._rewards = np.zeros(0)
        self._refit()

    def observe(self, replay: Replay, propensity: np.ndarray, rewards: np.ndarray, step: int, price: float) -> None:
        """Learn from a step, and set K2 and the coin of the next one; arguments as `MarkerGate.observe`."""
        scored = ~np.isnan(rewards)
        if scored.any():
            self._rewards = np.append(self._rewards, rewards[scored])[-REWARDS:]
            ended = replay.outcome[scored] != Outcome.ABORTED
            time = np.where(replay.answered_at < 0, replay.length, np.minimum(replay.answered_at, replay.length))
            paid = rewards[scored] >= reward_bar(self._rewards)
            self.times.observe(np.maximum(time[scored], 1), ended, paid & ended)
        if np.isfinite(price):
            old = price if np.isnan(self.price) else self.price
            self.price = old + (price - old) / PRICE_MEMORY
        self._refit()

    def state_dict(self) -> dict[str, Any]:
        """Counts, price and rewards: JSON types only."""
        return {
            "counts": self.times.counts.tolist(),
            "price": None if np.isnan(self.price) else self.price,
            "rewards": self._rewards.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`; ValueError if keys differ or the counts do not fit the length limit."""
        check_keys(state, self.state_dict())
        counts = np.array(state["counts"], dtype=np.float64)
        if counts.shape != self.times.counts.shape:
            raise ValueError(
                f"the answer times of the state have shape {counts.shape}, this run needs {self.times.counts.shape}. "
                "Resume with the max_completion_length and the poll_interval of the checkpoint."
            )
        self.times.counts = counts
        self.price = float("nan") if state["price"] is None else float(state["price"])
        self._rewards = np.array(state["rewards"], dtype=np.float64)
        self._refit()

    def _refit(self) -> None:
        cut, productivity = self.max_length, self.times.productivity()
        price = min(self.price, PRODUCTIVITY_SHARE * productivity)  # nan, the first, stays nan
        if price > 0.0:
            cut = self.times.cut(price)
        self.abort_threshold = max(cut - self.grace_window, self.poll_threshold)
        reaching = self.times.reaching(self.abort_threshold + self.grace_window)
        self.keep_probability = float(np.clip(FOLLOWED / max(reaching, 1e-12), KEEP_LEAST, KEEP_MOST))
