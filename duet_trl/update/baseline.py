# SPDX-License-Identifier: Apache-2.0
"""Phase 3: advantages over a baseline that remembers earlier visits of a prompt.

With a prompt's discounted rewards in the baseline, groups whose rewards agree teach too, and a lone rollout has an
advantage. The weights of history and pool are measured (`MeasuredWeights`). Where failures have the longer gradients,
the baseline of least noise is lower than the mean (`LeastNoise`). docs/fidelity.md#advantage_baseline.
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
BOUNDS = (0.01, 100.0)
"""Of the ratio of squared gradients: beyond them the baseline is at one end of the rewards anyway."""
LEAST_SURPRISAL = 1e-6
"""Minimum nats of a success; a policy that is certain of all of them has no ratio otherwise."""


class LeastNoise(NamedTuple):
    """The baseline that makes a prompt's gradient least noisy, from the mean and the mean square of its rewards.

    That is b = E[w R] / E[w] with the squared length of the gradient of a rollout for w (Weaver and Tao,
    arXiv 1301.2315; Hao et al., arXiv 2505.23585, take lengths for w). Here w lies between its value for a success, 1,
    and that for a failure, `ratio`, as the reward lies between `low` and `high`. Of rewards 0 and 1 with mean p it is
    p / (p + ratio (1 - p)).
    """

    ratio: float  # squared length of a failure's gradient over that of a success's, > 0; 1: the mean
    low: float  # reward of a failure
    high: float  # reward of a success, above low

    def baseline(self, mean: np.ndarray, mean_square: np.ndarray) -> np.ndarray:
        """b, in [low, high]; same shapes. Means outside are clipped to the nearer end.

        Example:
            >>> LeastNoise(3.0, 0.0, 1.0).baseline(np.array([0.5, 0.75]), np.array([0.5, 0.75])).tolist()
            [0.25, 0.5]
        """
        span = self.high - self.low
        share = np.clip((mean - self.low) / span, 0.0, 1.0)
        square = (mean_square - 2.0 * self.low * mean + self.low**2) / span**2
        square = np.clip(square, share**2, share)  # values between 0 and 1 have their mean square there
        earned = self.ratio * share + (1.0 - self.ratio) * square
        return self.low + span * earned / (self.ratio * (1.0 - share) + share)


def history_advantages(
    rewards: np.ndarray,
    group: np.ndarray,
    history: RewardHistory,
    scale_rewards: str = "group",
    weights: Weights = Weights(),  # noqa: B008  (immutable)
    least_noise: LeastNoise | None = None,
) -> np.ndarray:
    """Advantages over a leave-one-out mean that is shrunk toward the prompt's history.

    A_i = (R_i - b_i) / s with b_i = (m + sum over j != i of R_j) / (k + n - 1), where m and k are the sum and the
    count of the discounted rewards of earlier visits and of the pseudo-rollouts at the pool mean, in their weights.
    b_i, and any function of it and of the mean of the squares (`LeastNoise`), does not depend on rollout i, so A_i
    grad log pi has the expectation of R_i grad log pi for s = 1, and up to one common factor for "batch".

    Args:
        rewards (np.ndarray): Shape (N,); nan for a rollout without one: advantage 0, and not in any baseline.
        group (np.ndarray): Prompt of each rollout, shape (N,), in 0..M-1.
        history (RewardHistory): Of the M prompts.
        scale_rewards (str): s: "group", the standard deviation of the prompt's rewards, this step's and remembered
            ones; "batch", that of the rewards of the step; "none", 1.
        weights (Weights): Decided before this step.
        least_noise (LeastNoise | None): Also decided before; None: b is the mean.

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
    baseline = _mean_of_others(values, group, first, others)
    if least_noise is not None:
        lower = least_noise.baseline(baseline, _mean_of_others(values**2, group, second, others))
        baseline = np.where(others > 0.0, lower, baseline)
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


class NoiseRatio:
    """How much larger the squared gradients of failures are than those of successes, estimated from -log pi.

    A rollout's gradient of log pi is a sum over its tokens, and a token contributes more the less likely it was, so
    -log pi of a rollout is a proxy for its squared length, which every pass over a batch computes. Older steps count
    less (`MEMORY`).
    """

    def __init__(self) -> None:
        self._sums = np.zeros((2, 2))  # failures and successes: rollouts, and nats

    @property
    def value(self) -> float:
        """The ratio, within `BOUNDS`; 1 until both a failure and a success have been seen."""
        (failures, surprise), (successes, certain) = self._sums
        if failures == 0.0 or successes == 0.0:
            return 1.0
        return float(np.clip(surprise / failures / max(certain / successes, LEAST_SURPRISAL), *BOUNDS))

    def observe(self, success_share: np.ndarray, sum_logps: np.ndarray) -> None:
        """Learn from rewards as shares of a success, in [0, 1], and log pi of rollouts, nats, shape (N,)."""
        known = np.isfinite(sum_logps)
        success, surprisal = success_share[known] >= 0.5, -sum_logps[known]
        found = [[np.count_nonzero(of), surprisal[of].sum()] for of in (~success, success)]
        self._sums = MEMORY * self._sums + np.array(found, dtype=np.float64)

    def state_dict(self) -> dict[str, Any]:
        """Rollouts and nats of failures and successes."""
        return {"sums": self._sums.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`. Raises ValueError if it is not one."""
        check_state("noise ratio", state, self.state_dict())
        sums = np.array(state["sums"], dtype=np.float64)
        if sums.shape != (2, 2):
            raise ValueError(f"The state of the noise ratio has sums of shape {sums.shape}, expected (2, 2).")
        self._sums = sums


def _remembered(history: RewardHistory, weights: Weights) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rollouts that are remembered of each prompt, and the sums of their rewards and squared rewards, shape (M,)."""
    pool, count = 0.0 if np.isnan(history.pool_mean) else weights.pool, weights.history * history.count
    first, second = (
        pool * np.nan_to_num(of_pool) + count * np.nan_to_num(mean)
        for of_pool, mean in ((history.pool_mean, history.mean), (history.pool_mean_square, history.mean_square))
    )
    return pool + count, first, second


def _mean_of_others(values: np.ndarray, group: np.ndarray, first: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Mean of the history and of the others of its group, shape (N,); its own value where there is neither."""
    total = first + np.bincount(group, weights=values, minlength=len(first))
    return np.divide(total[group] - values, others, out=values.copy(), where=others > 0.0)
