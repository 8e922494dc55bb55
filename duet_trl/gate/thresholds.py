# SPDX-License-Identifier: Apache-2.0
"""Online K1 and K2 of Phase 2: quantiles of the lengths of recent rollouts (Algorithm 1, lines 45-50).

Kept rollouts lack most of those that reached the abort gate, so K2 ratchets down; weighting each by 1 / propensity
restores the missing ones in expectation (docs/fidelity.md). K2 can also follow the times at which answers came:
docs/fidelity.md#abort_answer_quantile.
"""

import math
from typing import Any

import numpy as np

REWARDED_QUANTILE = 0.995
"""K2 stays behind this quantile of the times of rewarded answers: a minority of one in a hundred is no tail of it."""

ANSWER_WINDOWS = 4
"""Windows of rollouts whose answers count. Where one answer in a hundred comes late, 1,024 rollouts hold ten of them,
which chance can halve to what the quantile leaves out; four times as many do not get there."""

_COLUMNS = ("lengths", "propensity", "answered_at", "rewards")


class LengthThresholds:
    """Poll threshold K1 and abort threshold K2, tokens, 1 <= K1 <= K2 <= max_length, from a window of kept rollouts.

    Args:
        max_length (int): Length cap of a rollout, tokens, >= 1.
        window (int): W, kept rollouts in the window of lengths. Paper: 1024. Answer times come from the last 4 W.
        refit_every (int): N, steps between two refits. Paper: 10.
        quantiles (tuple[float, float]): Length quantiles of K1 and K2, in [0, 1]. Paper: 0.3 and 0.8.
        cold (tuple[float, float]): K1 and K2 before the first refit, as shares of max_length. Paper: 0.3 and 0.7.
        weighted (bool): Weight each length by 1 / propensity. False: plain quantiles, as in the paper.
        min_samples (int): Rollouts in the window before the first refit, at most `window`.
        answer_quantile (float): Of `after_the_answers`, in [0, 1); 0: K2 is the length quantile, as in the paper.
        answer_slack (float): Of `after_the_answers`, >= 1.
    """

    def __init__(
        self,
        max_length: int,
        *,
        window: int = 1024,
        refit_every: int = 10,
        quantiles: tuple[float, float] = (0.3, 0.8),
        cold: tuple[float, float] = (0.3, 0.7),
        weighted: bool = True,
        min_samples: int = 32,
        answer_quantile: float = 0.0,
        answer_slack: float = 1.25,
    ) -> None:
        self.max_length = max_length
        self.window = window
        self.refit_every = refit_every
        self.quantiles = quantiles
        self.weighted = weighted
        self.min_samples = min_samples
        self.answer_quantile = answer_quantile
        self.answer_slack = answer_slack
        self._seen = np.zeros((len(_COLUMNS), 0))  # the last 4 W kept rollouts, one row per column
        # The small addend keeps 0.7 * 10 at 7 where it comes out as 6.999...
        self._set(*(math.floor(share * max_length + 1e-9) for share in cold))

    def observe(
        self,
        lengths: np.ndarray,
        propensity: np.ndarray,
        answered_at: np.ndarray | None = None,
        rewards: np.ndarray | None = None,
    ) -> None:
        """Append the kept rollouts of a step to the window; arguments as `MarkerGate.observe`.

        A rollout that the coin kept and that answered late and was rewarded raises K2 at once: it stands for others
        that were aborted. Without answer times no rollout answered, without rewards all are alike.
        """
        answered_at = np.full(lengths.shape, -1) if answered_at is None else answered_at
        rewards = np.zeros(lengths.shape) if rewards is None else rewards
        added = np.stack([lengths, propensity, answered_at, rewards]).astype(np.float64)
        self._seen = np.concatenate([self._seen, added], axis=1)[:, -ANSWER_WINDOWS * self.window :]
        if self.answer_quantile and len(lengths):
            new = slice(-len(lengths), None)  # of a step that is larger than the window, what is left of it
            _, propensity, answered_at, _ = self._seen[:, new]
            late = rewarded(self._seen[3], self._weights)[new] & (propensity < 1.0)
            latest = math.ceil(self.answer_slack * answered_at[late].max(initial=0.0) - 1e-9)
            self._set(self.poll_threshold, max(self.abort_threshold, latest))

    def step(self, step: int) -> bool:
        """Refit K1 and K2 if `step` is a multiple of N and the window is long enough (Algorithm 1, lines 48-50)."""
        lengths, weights = self._seen[0, -self.window :], self._weights[-self.window :]
        if step % self.refit_every or len(lengths) < self.min_samples:
            return False
        poll, abort = weighted_quantile(lengths, weights, self.quantiles)
        if self.answer_quantile:
            abort = self._after_the_answers()
        self._set(int(poll), int(max(abort, poll)))
        return True

    @property
    def _weights(self) -> np.ndarray:
        return 1.0 / self._seen[1] if self.weighted else np.ones(self._seen.shape[1])

    def _after_the_answers(self) -> int:
        _, _, answered_at, rewards = self._seen
        answered = answered_at >= 0
        if answered.sum() < self.min_samples:
            return self.abort_threshold  # too few answers to say when they come
        paid = rewarded(rewards, self._weights)[answered]
        return after_the_answers(
            answered_at[answered], self._weights[answered], paid, self.answer_quantile, self.answer_slack
        )

    def state_dict(self) -> dict[str, Any]:
        """Thresholds and window: JSON types only."""
        return {
            "poll_threshold": self.poll_threshold,
            "abort_threshold": self.abort_threshold,
            **{name: column.tolist() for name, column in zip(_COLUMNS, self._seen, strict=True)},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`; ValueError if keys differ or the thresholds do not fit max_length."""
        expected = self.state_dict().keys()
        if state.keys() != expected:
            raise ValueError(
                f"the state of the thresholds has keys {sorted(state)}, expected {sorted(expected)}. Another version "
                "of duet_trl wrote it: resume with that version, or start a new output_dir."
            )
        if not 1 <= state["poll_threshold"] <= state["abort_threshold"] <= self.max_length:
            raise ValueError(
                f"K1={state['poll_threshold']} and K2={state['abort_threshold']} of the state do not fit a length "
                f"cap of {self.max_length}. Resume with the max_completion_length of the checkpoint."
            )
        self._seen = np.zeros((len(_COLUMNS), 0))
        self.observe(*(np.array(state[name]) for name in _COLUMNS))
        self._set(state["poll_threshold"], state["abort_threshold"])

    def _set(self, poll: int, abort: int) -> None:
        """Keep 1 <= K1 <= K2 <= max_length whatever the quantiles say."""
        self.abort_threshold = min(max(abort, 1), self.max_length)
        self.poll_threshold = min(max(poll, 1), self.abort_threshold)


def scaled_grace_window(max_length: int) -> int:
    """G for a length limit (tokens) in the paper's proportion, 150 to 3,072, but at least 8, a poll interval.

    Example:
        >>> [scaled_grace_window(limit) for limit in (3072, 512, 256, 100)]
        [150, 25, 12, 8]
    """
    return max(8, round(150 * max_length / 3072))


def rewarded(rewards: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Which rollouts, shape (K,), earned what tells success from failure, for finite rewards in any unit.

    The bar lies halfway between the mean of the rewards above the overall mean and the mean of those below: between 0
    and 1, or -1 and 1, where there are two values, and hardly moved by a format bonus, a price on length or an outlier
    that leaves the mean below the right answers. Where all rewards are alike, all count as rewarded: K2 errs upwards.

    Example:
        >>> rewarded(np.array([0.0, 0.1, 1.1, 1.0]), np.ones(4)).tolist()
        [False, False, True, True]
    """
    if not len(rewards) or np.ptp(rewards) == 0.0:
        return np.ones(len(rewards), dtype=bool)
    above = rewards > np.average(rewards, weights=weights)
    if above.all() or not above.any():  # the mean of nearly equal numbers can round to outside of them
        return np.ones(len(rewards), dtype=bool)
    bar = sum(np.average(rewards[side], weights=weights[side]) for side in (above, ~above)) / 2.0
    return rewards >= bar


def after_the_answers(
    answered_at: np.ndarray, weights: np.ndarray, paid: np.ndarray, quantile: float, slack: float
) -> int:
    """K2 that answers stay clear of, in tokens: `slack` times a quantile of their times (K,), K >= 1, rounded up.

    It is the larger of that for all answers, at `quantile`, and for the rewarded ones (`paid`), at 0.995: a minority
    that answers late and is rewarded is not left behind, one that never is does not hold K2 up.
    """
    (late,) = weighted_quantile(answered_at, weights, (quantile,))
    if paid.any():
        late = max(late, *weighted_quantile(answered_at[paid], weights[paid], (REWARDED_QUANTILE,)))
    return math.ceil(slack * late - 1e-9)


def weighted_quantile(values: np.ndarray, weights: np.ndarray, quantiles: tuple[float, ...]) -> np.ndarray:
    """The smallest values v with weight of values <= v at least q of all weight, one for each q in [0, 1].

    With equal weights, which are > 0, it is `np.quantile(values, q, method="inverted_cdf")`: a length that occurred.
    """
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    # A share that is met exactly must not be missed by the rounding of the sum.
    targets = np.asarray(quantiles) * cumulative[-1] * (1.0 - 1e-12)
    return values[order][np.searchsorted(cumulative, targets)]
