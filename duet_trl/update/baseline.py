# SPDX-License-Identifier: Apache-2.0
"""Phase 3: advantages over a baseline that remembers earlier visits of a prompt.

With a prompt's discounted rewards in the baseline, groups whose rewards agree teach too, and a lone rollout has an
advantage. The weights of history and pool are measured (`MeasuredWeights`). docs/fidelity.md#advantage_baseline.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np

from ..allocate.statistics import RewardHistory
from ..state import check_state
from .advantages import EPSILON


class Weights(NamedTuple):
    """The parts of a baseline besides the others of the group, which count 1 each."""

    pool: float = 1.0  # pseudo-rollouts at the pool's mean reward, >= 0
    history: float = 1.0  # factor on the discounted rollouts of earlier visits, >= 0


_POOL, _HISTORY = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0), (0.0, 0.25, 0.5, 1.0)
WEIGHTS = tuple(itertools.starmap(Weights, itertools.product(_POOL, _HISTORY)))
"""Those that `MeasuredWeights` compares."""
MEMORY = 0.9
"""Factor on the measurements of a step from one step to the next."""


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
    b_i does not depend on rollout i, so A_i grad log pi has the expectation of R_i grad log pi for s = 1, and up to
    one common factor for "batch".

    Args:
        rewards (np.ndarray): Shape (N,); nan for a rollout without one: advantage 0, and not in any baseline.
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
    values = np.where(scored, rewards, 0.0)
    size, total, squares = (
        np.bincount(group[scored], weights=rewards[scored] ** power, minlength=len(known)) for power in range(3)
    )
    others = (known + size - 1.0)[group]
    summed = first + np.bincount(group, weights=values, minlength=len(known))
    # Its own value where there is neither history nor another rollout.
    baseline = np.divide(summed[group] - values, others, out=values.copy(), where=others > 0.0)
    distances = np.where(scored, rewards - baseline, 0.0)
    if scale_rewards == "batch" and scored.sum() > 1:
        return distances / (rewards[scored].std(ddof=1) + EPSILON)
    if scale_rewards == "group":
        count = np.maximum(known + size, 1.0)
        mean = (first + total) / count
        variance = np.maximum((second + squares) / count - mean**2, 0.0)
        return distances / (np.sqrt(variance) + EPSILON)[group]
    return distances


class MeasuredWeights:
    """Which weights would have predicted the rewards best so far.

    At every step each of `WEIGHTS` predicts each reward from the others of its group, the level of the pool at present
    and the prompt's history moved by the pool's drift. Those with the least squared error, older steps counting less
    (`MEMORY`), are used in the next step. No reward affects its own baseline, which stays unbiased.
    """

    def __init__(self) -> None:
        self._errors = np.zeros(len(WEIGHTS))

    @property
    def best(self) -> Weights:
        """Those with the least error; before the first step, the defaults of `history_advantages`."""
        return WEIGHTS[int(self._errors.argmin())] if self._errors.any() else Weights()

    def observe(self, rewards: np.ndarray, group: np.ndarray, history: RewardHistory) -> None:
        """Learn from the rewards (N,), nan for none, and prompts (N,) of a step, and the history at its beginning."""
        scored = ~np.isnan(rewards)
        if np.isnan(history.pool_mean) or not scored.any():
            return
        rewards, group = rewards[scored], group[scored]
        missed = [history_advantages(rewards, group, history, "none", one) for one in WEIGHTS]
        errors = [float((distances**2).sum()) for distances in missed]
        self._errors = MEMORY * self._errors + errors

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
