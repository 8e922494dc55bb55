# SPDX-License-Identifier: Apache-2.0
"""Online K1 and K2 of Phase 2: quantiles of the lengths of recent rollouts (Algorithm 1, lines 45-50).

Kept rollouts lack most of those that reached the abort gate, so K2 ratchets down; weighting each by 1 / propensity
restores the missing ones in expectation (docs/fidelity.md). `priced.py` has the rule of `duet`.
"""

import math
from typing import Any

import numpy as np

from .replay import Outcome, Replay


class LengthThresholds:
    """Poll threshold K1 and abort threshold K2, tokens, 1 <= K1 <= K2 <= max_length, from a window of kept rollouts.

    Args:
        max_length (int): Length cap of a rollout, tokens, >= 1.
        keep_probability (float): eps_abort, in (0, 1].
        window (int): W, kept rollouts in the window. Paper: 1024.
        refit_every (int): N, steps between two refits. Paper: 10.
        quantiles (tuple[float, float]): Length quantiles of K1 and K2, in [0, 1]. Paper: 0.3 and 0.8.
        cold (tuple[float, float]): K1 and K2 before the first refit, as shares of max_length. Paper: 0.3 and 0.7.
        weighted (bool): Weight each length by 1 / propensity. False: plain quantiles, as in the paper.
        min_samples (int): Rollouts in the window before the first refit, at most `window`.
    """

    def __init__(
        self,
        max_length: int,
        *,
        keep_probability: float = 0.05,
        window: int = 1024,
        refit_every: int = 10,
        quantiles: tuple[float, float] = (0.3, 0.8),
        cold: tuple[float, float] = (0.3, 0.7),
        weighted: bool = True,
        min_samples: int = 32,
    ) -> None:
        self.max_length = max_length
        self.keep_probability = keep_probability
        self.window = window
        self.refit_every = refit_every
        self.quantiles = quantiles
        self.weighted = weighted
        self.min_samples = min_samples
        self._seen = np.zeros((2, 0))  # lengths and propensities of the last W kept rollouts
        # The small addend keeps 0.7 * 10 at 7 where it comes out as 6.999...
        self._set(*(math.floor(share * max_length + 1e-9) for share in cold))

    def observe(self, replay: Replay, propensity: np.ndarray, rewards: np.ndarray, step: int, price: float) -> None:
        """Append the kept rollouts of a step to the window, and refit K1 and K2 when it is time (lines 45-50).

        Arguments as `MarkerGate.observe`; the rewards say which rollouts were scored, and the price has no part here.
        """
        kept = (replay.outcome != Outcome.ABORTED) & ~np.isnan(rewards)
        added = np.stack([replay.length[kept], propensity[kept]]).astype(np.float64)
        self._seen = np.concatenate([self._seen, added], axis=1)[:, -self.window :]
        lengths, propensity = self._seen
        if step % self.refit_every == 0 and len(lengths) >= self.min_samples:
            weights = 1.0 / propensity if self.weighted else np.ones(len(lengths))
            poll, abort = weighted_quantile(lengths, weights, self.quantiles)
            self._set(int(poll), int(max(abort, poll)))

    def state_dict(self) -> dict[str, Any]:
        """Thresholds and window: JSON types only."""
        lengths, propensity = self._seen.tolist()
        return {
            "poll_threshold": self.poll_threshold,
            "abort_threshold": self.abort_threshold,
            "lengths": lengths,
            "propensity": propensity,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`; ValueError if keys differ or the thresholds do not fit max_length."""
        check_keys(state, self.state_dict())
        if not 1 <= state["poll_threshold"] <= state["abort_threshold"] <= self.max_length:
            raise ValueError(
                f"K1={state['poll_threshold']} and K2={state['abort_threshold']} of the state do not fit a length "
                f"cap of {self.max_length}. Resume with the max_completion_length of the checkpoint."
            )
        self._seen = np.array([state["lengths"], state["propensity"]], dtype=np.float64)[:, -self.window :]
        self._set(state["poll_threshold"], state["abort_threshold"])

    def _set(self, poll: int, abort: int) -> None:
        """Keep 1 <= K1 <= K2 <= max_length whatever the quantiles say."""
        self.abort_threshold = min(max(abort, 1), self.max_length)
        self.poll_threshold = min(max(poll, 1), self.abort_threshold)


def check_keys(state: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raise ValueError unless a state of thresholds has these keys."""
    if state.keys() != expected.keys():
        raise ValueError(
            f"the state of the thresholds has keys {sorted(state)}, expected {sorted(expected)}. Another version "
            "of duet_trl wrote it: resume with that version, or start a new output_dir."
        )


def scaled_grace_window(max_length: int) -> int:
    """G for a length limit (tokens) in the paper's proportion, 150 to 3,072, but at least 8, a poll interval.

    Example:
        >>> [scaled_grace_window(limit) for limit in (3072, 512, 256, 100)]
        [150, 25, 12, 8]
    """
    return max(8, round(150 * max_length / 3072))


def reward_bar(rewards: np.ndarray) -> float:
    """Least reward of a success, of finite rewards in any unit, shape (K,), K >= 1.

    It lies halfway between the mean of the rewards above the overall mean and the mean of those below: between 0 and
    1, or -1 and 1, where there are two values, and hardly moved by a format bonus, a price on length or an outlier
    that leaves the mean below the right answers. Where all rewards are alike, all are successes: K2 errs upwards.

    Example:
        >>> float(reward_bar(np.array([0.0, 0.1, 1.1, 1.0])))
        0.55
    """
    above = rewards > rewards.mean()
    if np.ptp(rewards) == 0.0 or above.all() or not above.any():  # the mean of nearly equal numbers can round outside
        return float(rewards.min())
    return float((rewards[above].mean() + rewards[~above].mean()) / 2.0)


def weighted_quantile(values: np.ndarray, weights: np.ndarray, quantiles: tuple[float, ...]) -> np.ndarray:
    """The smallest values v with weight of values <= v at least q of all weight, one for each q in [0, 1].

    With equal weights, which are > 0, it is `np.quantile(values, q, method="inverted_cdf")`: a length that occurred.
    """
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    # A share that is met exactly must not be missed by the rounding of the sum.
    targets = np.asarray(quantiles) * cumulative[-1] * (1.0 - 1e-12)
    return values[order][np.searchsorted(cumulative, targets)]
