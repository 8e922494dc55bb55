# SPDX-License-Identifier: Apache-2.0
"""How K1, K2 and the coin of the gate are set from step to step.

`paper`: quantiles of the lengths of recent rollouts (Algorithm 1, lines 45-50). Kept rollouts lack most of those that
reached the abort gate, so K2 ratchets down. `duet`: a rollout without an answer continues as long as it pays the price
of its tokens, which is what one more rollout earns per token (`allocate/statistics.py`); an answer
that turns a failure into a success counts 1. See `AnswerTimes` for K2 and docs/how_it_works.md for the whole.
"""

import math
from typing import Any

import numpy as np

from ..state import Stateful
from .replay import Outcome, Replay

QUANTILES, COLD = (0.3, 0.8), (0.3, 0.7)
"""K1 and K2 of the paper: quantiles of lengths, and before the first refit shares of max_completion_length."""
FOLLOWED = 16.0
"""Rollouts beyond the gate that the coin keeps within memory: twice as many as outweigh the optimism about them."""
KEEP_LEAST, KEEP_MOST = 0.02, 0.5
"""Bounds of the coin: below, a change would go unseen; above, almost nothing would be saved."""
PRICE_MEMORY = 10.0
"""Steps over which the price is averaged: the price of a single batch jumps."""
PRODUCTIVITY_SHARE = 0.5
"""The price is at most this share of what uncut rollouts earn per token. A posterior that is too hopeful about a pool
of hopeless prompts would otherwise price out every rollout."""
REWARDS = 4096
"""Latest rewards, which decide whether a rollout counts as rewarded."""


class LengthThresholds(Stateful):
    """Poll and abort threshold, tokens, 1 <= K1 <= K2 <= max_length, from a window of kept rollouts."""

    remembered = ("poll_threshold", "abort_threshold", "_lengths")

    def __init__(
        self,
        max_length: int,  # length cap of a rollout, tokens, >= 1
        *,
        keep_probability: float = 0.05,  # eps_abort, in (0, 1]
        window: int = 1024,  # W, kept rollouts in the window
        refit_every: int = 10,  # N, steps between two refits
        min_samples: int = 32,  # rollouts in the window before the first refit; at most W are needed
    ) -> None:
        self.max_length, self.keep_probability = max_length, keep_probability
        self.window, self.refit_every, self.min_samples = window, refit_every, min(min_samples, window)
        self._lengths = np.zeros(0)  # of the last W kept rollouts
        # The small addend keeps 0.7 * 10 at 7 where it comes out as 6.999...
        self._set(*(math.floor(share * max_length + 1e-9) for share in COLD))

    def observe(self, replay: Replay, rewards: np.ndarray, step: int, price: float) -> None:
        """Append the kept rollouts of a step to the window, and refit K1 and K2 when it is time (lines 45-50).

        Args:
            replay (Replay): Outcomes of the N rollouts of a step.
            rewards (np.ndarray): Their summed rewards, shape (N,); nan: not scored, and left out.
            step (int): Generation step, from 1.
            price (float): What one more rollout earns per token, nan: unknown; ignored here.
        """
        kept = replay.length[(replay.outcome != Outcome.ABORTED) & ~np.isnan(rewards)]
        self._lengths = np.append(self._lengths, kept)[-self.window :]
        if step % self.refit_every == 0 and len(self._lengths) >= self.min_samples:
            # A length that occurred. Rounding of q n must not miss a share that is met exactly.
            shares = np.array(QUANTILES) * (1.0 - 1e-12)
            poll, abort = np.quantile(self._lengths, shares, method="inverted_cdf")
            self._set(int(poll), int(max(abort, poll)))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`; ValueError if keys differ or the thresholds do not fit max_length."""
        super().load_state_dict(state)
        if not 1 <= self.poll_threshold <= self.abort_threshold <= self.max_length:
            raise ValueError(
                f"K1={self.poll_threshold} and K2={self.abort_threshold} of the state do not fit a length cap of "
                f"{self.max_length}. Resume with the max_completion_length of the checkpoint."
            )

    def _set(self, poll: int, abort: int) -> None:
        """Keep 1 <= K1 <= K2 <= max_length whatever the quantiles are."""
        self.abort_threshold = min(max(abort, 1), self.max_length)
        self.poll_threshold = min(max(poll, 1), self.abort_threshold)


class PricedThresholds(Stateful):
    """K1, K2 (tokens) and the coin of the next step from answer times and a price, in rewards per token.

    K1 is 1: rollouts are polled from the start. They meet their coin, in [`KEEP_LEAST`, `KEEP_MOST`], at K2 +
    `grace_window` tokens. The price is averaged over steps, None before the first; the bins of the answer times are as
    wide as the poll interval.
    """

    poll_threshold = 1
    remembered = ("times", "price", "_rewards")

    def __init__(self, max_length: int, grace_window: int, *, width: int = 8, memory: float = 50.0) -> None:
        self.max_length = max_length
        self.grace_window = grace_window
        self.times = AnswerTimes(max_length, width=width, memory=memory)
        self.price: float | None = None
        self._rewards = np.zeros(0)
        self._refit()

    def observe(self, replay: Replay, rewards: np.ndarray, step: int, price: float) -> None:
        """Learn from a step, and set K2 and the coin of the next one; arguments as `LengthThresholds.observe`."""
        scored = ~np.isnan(rewards)
        if scored.any():
            self._rewards = np.append(self._rewards, rewards[scored])[-REWARDS:]
            ended = replay.outcome[scored] != Outcome.ABORTED
            time = np.where(replay.answered_at < 0, replay.length, np.minimum(replay.answered_at, replay.length))
            paid = rewards[scored] >= reward_bar(self._rewards)
            self.times.observe(np.maximum(time[scored], 1), ended, paid & ended)
        if np.isfinite(price):
            old = price if self.price is None else self.price
            self.price = old + (price - old) / PRICE_MEMORY
        self._refit()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`; ValueError if keys differ or the counts do not fit the length limit."""
        super().load_state_dict(state)
        self._refit()

    def _refit(self) -> None:
        price = min(self.price or 0.0, PRODUCTIVITY_SHARE * self.times.productivity())
        cut = self.times.cut(price) if price > 0.0 else self.max_length
        self.abort_threshold = max(cut - self.grace_window, self.poll_threshold)
        reaching = self.times.reaching(self.abort_threshold + self.grace_window)
        self.keep_probability = float(np.clip(FOLLOWED / max(reaching, 1e-12), KEEP_LEAST, KEEP_MOST))


def scaled_grace_window(max_length: int) -> int:
    """G for a length limit (tokens) in the paper's proportion, 150 to 3,072, but at least 8, a poll interval.

    Example:
        >>> [scaled_grace_window(limit) for limit in (3072, 512, 256, 100)]
        [150, 25, 12, 8]
    """
    return max(8, round(150 * max_length / 3072))


def reward_bar(rewards: np.ndarray) -> float:
    """Minimum reward of a success, from finite rewards in any unit, shape (K,), K >= 1.

    It lies halfway between the mean of the rewards above the overall mean and the mean of those below: between 0 and
    1, or -1 and 1, where there are two values, and barely moved by a format bonus, a price on length or an outlier
    that leaves the mean below the right answers. Where all rewards are equal, all are successes: K2 errs upwards.

    Example:
        >>> float(reward_bar(np.array([0.0, 0.1, 1.1, 1.0])))
        0.55
    """
    above = rewards > rewards.mean()
    if np.ptp(rewards) == 0.0 or above.all() or not above.any():  # the mean of nearly equal numbers can round outside
        return float(rewards.min())
    return float((rewards[above].mean() + rewards[~above].mean()) / 2.0)


PRIOR_ROLLOUTS = 8.0
"""Pseudo-rollouts at every length. As many without a reward outweigh the prior at `OPTIMISM` = 2."""
OPTIMISM = 2.0
"""Earnings of a pseudo-rollout per token, in units of the price; above 1, or nothing unknown would be explored."""


class AnswerTimes(Stateful):
    r"""When rewarded answers come, seen from rollouts that a gate may have cut short, and where to cut at a price.

    An aborted rollout shows that no answer came before it was stopped, and nothing about what would have come: its
    answer time is right-censored. The coin that kept others is flipped without looking at them, so the product-limit
    estimate needs no weights (Kaplan and Meier 1958; for "rewarded" and "not" as competing ends, Aalen and Johansen
    1978):

        S(t) = prod over s <= t of 1 - d(s) / n(s)           continuing: neither answered nor ended
        F(t) = sum over s <= t of S(s-) d_r(s) / n(s)        answered and rewarded

    with n(s) rollouts at risk at s, d(s) that end there and d_r(s) of them rewarded. A rollout that is cut at K takes
    E min(T, K) = sum of S tokens and earns a reward with probability F(K). At a price of lambda rewards per token the
    cut belongs at

        K* = argmax over K of F(K) - lambda E min(T, K).

    That is the first time t from which no later cut K pays: (F(K) - F(t)) / (E min(T, K) - E min(T, t)) <= lambda for
    all K > t. A valley between early and late answers is crossed if what lies beyond it pays for the way.

    Where few rollouts were followed, F is not known: `PRIOR_ROLLOUTS` pseudo-rollouts that earn `OPTIMISM` times the
    price are added at every length. So K* falls only to where more than these were followed and found worthless, and
    rises again when they are forgotten.

    Counts are weighted exponentially: of rollouts at risk, and of their ends, by length.
    `max_length` is the length limit of a rollout and `width` that of a bin, tokens, >= 1. After `memory` > 1 steps a
    count has lost 63% of its weight. `counts` (3, B) are at risk, ended rewarded, and ended otherwise: bin j holds the
    lengths j * width + 1 to (j + 1) * width.
    """

    remembered = ("counts",)

    def __init__(self, max_length: int, *, width: int = 8, memory: float = 50.0) -> None:
        self.max_length = max_length
        self.width = width
        self.keep = 1.0 - 1.0 / memory
        self.counts = np.zeros((3, -(-max_length // width)))

    def observe(self, time: np.ndarray, ended: np.ndarray, paid: np.ndarray) -> None:
        """Add the rollouts of a step.

        Args:
            time (np.ndarray): Length at which each answered, or ended without an answer, or was aborted, tokens,
                shape (N,), >= 1.
            ended (np.ndarray): It was not aborted, shape (N,), bool.
            paid (np.ndarray): It was rewarded, shape (N,), bool; only where `ended` is.
        """
        size = self.counts.shape[1]
        row = np.minimum((np.asarray(time) - 1) // self.width, size - 1)
        left, rewarded, other = (
            np.bincount(row[of], minlength=size) for of in (slice(None), ended & paid, ended & ~paid)
        )
        at_risk = np.cumsum(left[::-1])[::-1]
        self.counts = self.keep * self.counts + np.stack([at_risk, rewarded, other])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`; ValueError if the counts are of another length limit or another width."""
        bins = self.counts.shape
        super().load_state_dict(state)
        if self.counts.shape != bins:
            raise ValueError(
                f"the answer times of the state have shape {self.counts.shape}, this run needs {bins}. Resume with "
                "the max_completion_length and the poll_interval of the checkpoint."
            )

    def curves(self, price: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """S, F and E min(T, K) at the bounds of the bins, shape (B + 1,) each.

        Args:
            price (float): Rewards per token, >= 0, in whose units the prior earns; 0: without a prior.
        """
        at_risk, rewarded, other = self.counts
        prior = PRIOR_ROLLOUTS if price else 0.0
        gain = min(OPTIMISM * price * self.width, 1.0)
        total = np.maximum(at_risk + prior, 1e-12)
        hazard = (rewarded + prior * gain) / total
        alive = np.concatenate([[1.0], np.cumprod(1.0 - np.minimum(hazard + other / total, 1.0))])
        earned = np.concatenate([[0.0], np.cumsum(alive[:-1] * hazard)])
        # An end lies in the middle of its bin, on average.
        tokens = np.concatenate([[0.0], np.cumsum(self.width * (alive[:-1] + alive[1:]) / 2.0)])
        return alive, earned, tokens

    def cut(self, price: float) -> int:
        """K* at a price in rewards per token, > 0; `max_length`: no cut."""
        _, earned, tokens = self.curves(price)
        worth = earned - price * tokens
        best = len(worth) - 1 - int(np.argmax(worth[::-1]))  # ties: the longest
        return min(best * self.width, self.max_length)

    def productivity(self) -> float:
        """Rewards per token of uncut rollouts, as far as they were followed; 0.0 without any."""
        _, earned, tokens = self.curves()
        return float(earned[-1] / tokens[-1])

    def reaching(self, length: int) -> float:
        """Rollouts within memory, weighted, that would continue to this length, tokens, if nothing cut them."""
        alive, _, _ = self.curves()
        return float(self.counts[0, 0] * alive[min(length // self.width, len(alive) - 1)])
