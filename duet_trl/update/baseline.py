# SPDX-License-Identifier: Apache-2.0
"""Phase 3: advantages over a baseline that remembers earlier visits of a prompt.

A group of n rollouts estimates its own mean from the n - 1 others of each, which multiplies the variance of the
advantage by n / (n - 1), and a group whose rewards are all the same teaches nothing. A prompt that comes round again
brings a history: with its discounted rewards in the baseline, two rollouts do nearly the work of three
(docs/performance.md), and a lone rollout has an advantage. A policy that learns fast leaves its history behind: how
much the history and the pool are worth is then measured (`MeasuredWeights`). docs/fidelity.md#advantage_baseline.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np

from ..allocate.state import check_state
from ..allocate.statistics import RewardHistory
from .advantages import EPSILON


class Weights(NamedTuple):
    """What a baseline consists of, beside the others of the group, each of which counts 1.

    Attributes:
        pool (float): Pseudo-rollouts at the pool's mean reward, >= 0.
        history (float): Factor on the discounted rollouts of earlier visits, >= 0.
    """

    pool: float = 1.0
    history: float = 1.0


_POOL, _HISTORY = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0), (0.0, 0.25, 0.5, 1.0)
WEIGHTS = tuple(itertools.starmap(Weights, itertools.product(_POOL, _HISTORY)))
"""Those that `MeasuredWeights` compares."""
ERROR_MEMORY = 0.9
"""Factor on squared errors from one step to the next."""


def history_advantages(
    rewards: np.ndarray,
    group: np.ndarray,
    history: RewardHistory,
    scale_rewards: str = "group",
    weights: Weights = Weights(),  # noqa: B008  (immutable)
) -> np.ndarray:
    """Advantages over a leave-one-out mean that is shrunk toward the prompt's history.

    A_i = (R_i - b_i) / s with b_i = (m + sum over j != i of R_j) / (k + n - 1), where m and k are the sum and the
    count of the discounted rewards of earlier visits and of the pseudo-rollouts at the pool mean, in their weights.
    b_i does not depend on rollout i, so A_i grad log pi has the expectation of R_i grad log pi, whatever the history
    is worth, for scale_rewards="none" and up to one common factor for "batch".

    Args:
        rewards (np.ndarray): Summed reward of each rollout, shape (N,); nan for one without a reward, which gets
            advantage 0 and is in no baseline.
        group (np.ndarray): Prompt of each rollout, shape (N,), in 0..M-1.
        history (RewardHistory): Of the M prompts.
        scale_rewards (str): s: "group", the standard deviation of the prompt's rewards, this step's and remembered
            ones; "batch", that of the rewards of the step; "none", 1.
        weights (Weights): Decided before this step.

    Returns:
        np.ndarray: A, shape (N,), float64; 0 for a lone rollout while nothing at all is remembered.

    Example:
        >>> seen = RewardHistory(*(np.array([x]) for x in (3.0, 1.0, 1.0)), 0.5, 0.5)
        >>> history_advantages(np.array([0.0]), np.array([0]), seen, "none").tolist()
        [-0.875]
    """
    rewards, group = np.asarray(rewards, dtype=np.float64), np.asarray(group, dtype=np.int64)
    scored = ~np.isnan(rewards)
    known, first, second = _remembered(history, weights)
    advantages = np.where(scored, _surprise(rewards, group, known, first), 0.0)
    if scale_rewards == "batch" and scored.sum() > 1:
        advantages /= rewards[scored].std(ddof=1) + EPSILON
    elif scale_rewards == "group":
        values, length = np.where(scored, rewards, 0.0), len(known)
        size, total, squares = (
            np.bincount(group[scored], weights=values[scored] ** power, minlength=length) for power in range(3)
        )
        count = np.maximum(known + size, 1.0)
        mean = (first + total) / count
        variance = np.maximum((second + squares) / count - mean**2, 0.0)
        advantages /= (np.sqrt(variance) + EPSILON)[group]
    return advantages


def weigh_failures(advantages: np.ndarray, weight: float) -> np.ndarray:
    """Advantages, those of rollouts below their baseline times a weight.

    The gradients of log pi of right rollouts and of wrong ones are the same message from two sides: summed over either
    they have the expectation of plus or minus the gradient of the success rate p. Where a reward is 0 or 1 and b does
    not depend on the rollout, a prompt's expected gradient is thus (1 - E b + weight E b) grad p, in the direction of
    grad p whatever the weight, and longer or shorter. What the weight changes is the noise: a wrong rollout is often
    a long and unlikely one, with a gradient several times as long.

    Args:
        advantages (np.ndarray): A, shape (N,).
        weight (float): >= 0; 1 changes nothing.

    Returns:
        np.ndarray: Shape (N,).

    Example:
        >>> weigh_failures(np.array([1.5, -0.5]), 0.5).tolist()
        [1.5, -0.25]
    """
    return np.where(advantages < 0, weight * advantages, advantages)


class MeasuredWeights:
    """Which weights would have predicted the rewards best so far.

    At every step each of `WEIGHTS` predicts each reward from the others of its group, the level of the pool at present
    and the prompt's history moved by the pool's drift. Those with the least squared error, older steps counting less
    (`ERROR_MEMORY`), are taken for the next step. No reward has a say in its own baseline, which stays unbiased.
    """

    def __init__(self) -> None:
        self._errors = np.zeros(len(WEIGHTS))

    @property
    def best(self) -> Weights:
        """Those with the least error; before the first, those that `history_advantages` has by itself."""
        return WEIGHTS[int(self._errors.argmin())] if self._errors.any() else Weights()

    def observe(self, rewards: np.ndarray, group: np.ndarray, history: RewardHistory) -> None:
        """Learn from a step.

        Args:
            rewards (np.ndarray): Summed reward of each rollout, shape (N,); nan for one without a reward.
            group (np.ndarray): Prompt of each rollout, shape (N,), in 0..M-1.
            history (RewardHistory): Of the M prompts before the step, as it would be at present.
        """
        scored = ~np.isnan(rewards)
        if np.isnan(history.pool_mean) or not scored.any():
            return
        rewards, group = rewards[scored], group[scored]
        known = (_remembered(history, weights) for weights in WEIGHTS)
        errors = [float((_surprise(rewards, group, count, first) ** 2).sum()) for count, first, _ in known]
        self._errors = ERROR_MEMORY * self._errors + errors

    def state_dict(self) -> dict[str, Any]:
        """The squared errors."""
        return {"errors": self._errors.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`. Raises ValueError if it is not one."""
        check_state("baseline", state, self.state_dict())
        errors = np.array(state["errors"], dtype=np.float64)
        if errors.shape != self._errors.shape:
            raise ValueError(f"The baseline state has {errors.size} errors, expected {self._errors.size}.")
        self._errors = errors


def _remembered(history: RewardHistory, weights: Weights) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rollouts that are remembered of each prompt, and the sums of their rewards and squared rewards, shape (M,)."""
    pool, count = 0.0 if np.isnan(history.pool_mean) else weights.pool, weights.history * history.count
    first, second = (
        pool * np.nan_to_num(of_pool) + count * np.nan_to_num(mean)
        for of_pool, mean in ((history.pool_mean, history.mean), (history.pool_mean_square, history.mean_square))
    )
    return pool + count, first, second


def _surprise(rewards: np.ndarray, group: np.ndarray, known: np.ndarray, first: np.ndarray) -> np.ndarray:
    """R_i - b_i, shape (N,); 0 for a lone rollout of which nothing is known, nan for one without a reward."""
    scored = ~np.isnan(rewards)
    values = np.where(scored, rewards, 0.0)
    size = np.bincount(group[scored], minlength=len(known))
    total = np.bincount(group, weights=values, minlength=len(known))
    others = (known + size - 1.0)[group]
    return rewards - np.divide((first + total)[group] - values, others, out=values.copy(), where=others > 0.0)
