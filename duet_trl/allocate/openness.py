# SPDX-License-Identifier: Apache-2.0
"""What rollouts of a prompt are worth while its success rate is open, and what the next one of a step earns a token.

m rollouts of a prompt are worth x sqrt(m) with x = E p(1 - p) under the Beta posterior of its success rate p: x is the
length of a binary prompt's gradient, and the square root keeps a prompt from taking everything.
"""

from collections.abc import Sequence

import numpy as np

from .statistics import RewardHistory

PRIOR = 0.5
"""Pseudo-successes and pseudo-failures of a prompt without a history (Jeffreys' prior)."""


def posterior(history: RewardHistory, reward_range: Sequence[float] | None) -> tuple[np.ndarray, np.ndarray]:
    """Both parameters of the Beta posterior of each prompt's success rate, shape (M,) each.

    A reward counts as the share of a success that it is between the lowest and the highest reward of the run
    (`reward_range`; None or equal: one reward so far does not tell what a success is, and none counts).
    """
    low, high = reward_range or (0.0, 0.0)
    count = history.count if low < high else np.zeros(len(history.count))
    share = np.where(count > 0, np.clip((history.mean - low) / max(high - low, 1e-300), 0.0, 1.0), 0.5)
    return PRIOR + count * share, PRIOR + count * (1.0 - share)


def openness(successes: np.ndarray, failures: np.ndarray) -> np.ndarray:
    """x = E p(1 - p) of each prompt's success rate under its posterior, shape (M,), at most 1/4."""
    total = successes + failures
    return successes * failures / (total * (total + 1.0))


def price_of_more(worth: np.ndarray, counts: np.ndarray, cost: np.ndarray) -> float:
    """What one more rollout of each prompt of a step would add to sum x sqrt(n), per token.

    `worth` is x, `counts` n, `cost` the expected tokens of a rollout, > 0; shape (M,) each.
    """
    return float((worth * (np.sqrt(counts + 1.0) - np.sqrt(counts))).sum() / cost.sum())
