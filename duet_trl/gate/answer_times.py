# SPDX-License-Identifier: Apache-2.0
r"""When rewarded answers come, estimated from rollouts of which a gate cut some short, and where to cut at a price.

An aborted rollout says that no answer came before it was stopped, and nothing about what would have come: its answer
time is right-censored. The coin that kept others is thrown without looking at them, so the product-limit estimate
needs no weights (Kaplan and Meier 1958; for "rewarded" and "not" as competing ends, Aalen and Johansen 1978):

    S(t) = prod over s <= t of 1 - d(s) / n(s)           going on: neither answered nor ended
    F(t) = sum over s <= t of S(s-) d_r(s) / n(s)        answered and rewarded

with n(s) rollouts at risk at s, d(s) that end there and d_r(s) of them rewarded. A rollout that is cut at K takes
E min(T, K) = sum of S tokens and earns a reward with probability F(K). At a price of lambda rewards per token the cut
belongs at

    K* = argmax over K of F(K) - lambda E min(T, K).

That is the first time t from which no later cut K pays: (F(K) - F(t)) / (E min(T, K) - E min(T, t)) <= lambda for all
K > t. A valley between early and late answers is crossed if what lies behind it pays for the way.

Where few rollouts were followed, F is not known: `PRIOR_ROLLOUTS` pseudo-rollouts that earn `OPTIMISM` times the price
stand in at every length. So K* falls only to where more than these were followed and found worthless, and rises again
when they are forgotten.
"""

import numpy as np

PRIOR_ROLLOUTS = 8.0
"""Pseudo-rollouts behind every length. That many with nothing to show outweigh the prior at `OPTIMISM` = 2."""
OPTIMISM = 2.0
"""What a pseudo-rollout earns per token, in units of the price; above 1, or nothing unknown would be explored."""


class AnswerTimes:
    """Exponentially weighted counts of rollouts at risk, and of their ends, by length.

    `max_length` is the length limit of a rollout and `width` that of a bin, tokens, >= 1. After `memory` > 1 steps a
    count has lost 63% of its weight. `counts` (3, B) are at risk, ended rewarded, and ended otherwise: bin j holds the
    lengths j * width + 1 to (j + 1) * width.
    """

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
        best = len(worth) - 1 - int(np.argmax(worth[::-1]))  # of equal ones the longest
        return min(best * self.width, self.max_length)

    def productivity(self) -> float:
        """Rewards per token of rollouts that nothing cuts, as far as they were followed; 0.0 without any."""
        _, earned, tokens = self.curves()
        return float(earned[-1] / tokens[-1])

    def reaching(self, length: int) -> float:
        """Rollouts within memory, weighted, that would go on to this length, tokens, if nothing cut them."""
        alive, _, _ = self.curves()
        return float(self.counts[0, 0] * alive[min(length // self.width, len(alive) - 1)])
