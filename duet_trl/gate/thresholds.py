# SPDX-License-Identifier: Apache-2.0
"""Online K1 and K2 of Phase 2: quantiles of the lengths of recent rollouts (Algorithm 1, lines 45-50).

The paper takes plain quantiles over kept rollouts. Those lack most rollouts that reached the abort gate, so K2 falls,
which aborts more of them, and so on. Weighting each kept length by 1 / propensity restores the missing ones in
expectation; both forms are here, see docs/fidelity.md. K2 can also follow the times at which answers came instead of
the lengths. What comes behind the gate is known from the rollouts that the coin kept; a minority that answers late and
is rewarded for it holds K2 up, whatever the majority does: docs/fidelity.md#abort_answer_quantile.
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
    """Poll threshold K1 and abort threshold K2 from a sliding window of kept rollouts.

    Args:
        max_length (int): Length cap of a rollout, tokens, >= 1; neither threshold ever exceeds it.
        window (int): W, kept rollouts in the window of lengths. Paper: 1024. Answer times come from the last 4 W.
        refit_every (int): N, steps between two refits. Paper: 10.
        quantiles (tuple[float, float]): Length quantiles of K1 and K2, in [0, 1]. Paper: 0.3 and 0.8.
        cold (tuple[float, float]): K1 and K2 before the first refit, as shares of max_length. Paper: 0.3 and 0.7.
        weighted (bool): Weight each length by 1 / propensity. False: plain quantiles, as in the paper.
        min_samples (int): Rollouts in the window before the first refit.
        answer_quantile (float): K2 is `answer_slack` times this quantile of the answer times, in [0, 1), and never
            below `answer_slack` times the 0.995 quantile of those that were rewarded; 0: the length quantile, as in
            the paper.
        answer_slack (float): >= 1. What lies between the latest answers and K2, as a factor.

    Attributes:
        poll_threshold (int): K1, tokens, in [1, K2].
        abort_threshold (int): K2, tokens, in [K1, max_length].

    Raises:
        ValueError: If a value is out of range or a pair is crossed.
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
        for name, value, least in (
            ("max_length", max_length, 1),
            ("window", window, 1),
            ("refit_every", refit_every, 1),
            ("min_samples", min_samples, 1),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}.")
        if min_samples > window:
            raise ValueError(
                f"min_samples {min_samples} is above window {window}, so K1 and K2 would never be refitted. "
                "Lower min_samples or widen the window."
            )
        for name, (low, high) in (("quantiles", quantiles), ("cold", cold)):
            if not 0.0 <= low <= high <= 1.0:
                raise ValueError(f"{name} must be two shares with 0 <= K1's <= K2's <= 1, got ({low}, {high}).")
        if not 0.0 <= answer_quantile < 1.0 or answer_slack < 1.0:
            raise ValueError(
                f"answer_quantile must be in [0, 1) and answer_slack at least 1, got {answer_quantile} and "
                f"{answer_slack}."
            )
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
        """Append the kept rollouts of a step to the window; the oldest ones leave it.

        A rollout that the coin kept and that answered late and was rewarded raises K2 at once: it stands for others
        that were aborted.

        Args:
            lengths (np.ndarray): Policy tokens of each kept rollout, shape (K,), >= 0. Aborted ones do not belong
                here; the weights of the kept ones stand for them.
            propensity (np.ndarray): Probability with which each was kept, shape (K,), in (0, 1].
            answered_at (np.ndarray | None): Tokens after which each answered (`Replay.answered_at`), shape (K,); -1
                for one without an answer. None where no one asks.
            rewards (np.ndarray | None): Summed reward of each, shape (K,), finite, in any unit. None: all alike.

        Raises:
            ValueError: If shapes differ or a value is out of range.
        """
        lengths = np.asarray(lengths, dtype=np.float64)
        answered_at = np.full(lengths.shape, -1) if answered_at is None else np.asarray(answered_at)
        rewards = np.zeros(lengths.shape) if rewards is None else np.asarray(rewards, dtype=np.float64)
        propensity = np.asarray(propensity, dtype=np.float64)
        if lengths.ndim != 1 or not lengths.shape == propensity.shape == answered_at.shape == rewards.shape:
            raise ValueError(
                f"lengths {lengths.shape}, propensity {propensity.shape}, answered_at {answered_at.shape} and rewards "
                f"{rewards.shape} must have one shape (K,)."
            )
        if (lengths < 0).any() or not ((propensity > 0.0) & (propensity <= 1.0)).all():
            raise ValueError("lengths must be >= 0 and propensities in (0, 1]. Pass kept rollouts only.")
        if not np.isfinite(rewards).all():
            raise ValueError("a reward is not finite. Leave such rollouts out.")
        added = np.stack([lengths, propensity, answered_at, rewards])
        self._seen = np.concatenate([self._seen, added], axis=1)[:, -ANSWER_WINDOWS * self.window :]
        if self.answer_quantile and len(lengths):
            new = slice(-len(lengths), None)  # of a step that is larger than the window, what is left of it
            _, propensity, answered_at, _ = self._seen[:, new]
            late = rewarded(self._seen[3], self._weights)[new] & (propensity < 1.0)
            latest = math.ceil(self.answer_slack * answered_at[late].max(initial=0.0) - 1e-9)
            self._set(self.poll_threshold, max(self.abort_threshold, latest))

    def step(self, step: int) -> bool:
        """Refit K1 and K2 if `step` is a multiple of N and the window has enough rollouts (Algorithm 1, lines 48-50).

        Args:
            step (int): Generation step that was just observed, from 1.

        Returns:
            bool: Whether they were refitted.
        """
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
        """Restore `state_dict()`.

        Args:
            state (dict[str, Any]): State of thresholds with the same arguments.

        Raises:
            ValueError: If keys are missing or unknown, or the thresholds do not fit max_length.
        """
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
    """G for a length limit in the paper's proportion, 150 to 3,072, rounded to a token; at least 8, a poll interval.

    Args:
        max_length (int): Length limit, tokens, >= 1.

    Example:
        >>> [scaled_grace_window(limit) for limit in (3072, 512, 256, 100)]
        [150, 25, 12, 8]
    """
    return max(8, round(150 * max_length / 3072))


def rewarded(rewards: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Which rollouts earned what tells success from failure, for rewards in any unit.

    The bar lies halfway between the mean of the rewards above the overall mean and the mean of those below: between 0
    and 1, or -1 and 1, where there are two values, and hardly moved by a format bonus, a price on length or an outlier
    that leaves the mean below the right answers. Where all rewards are alike, all count as rewarded: K2 errs upwards.

    Args:
        rewards (np.ndarray): Shape (K,), finite.
        weights (np.ndarray): Shape (K,), > 0.

    Returns:
        np.ndarray: Shape (K,), bool.

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
    """K2 that answers stay clear of, in tokens: `slack` times a quantile of their times, rounded up.

    It is the larger of that for all answers, at `quantile`, and for the rewarded ones, at 0.995: a minority that
    answers late and is rewarded is not left behind, one that never is does not hold K2 up.

    Args:
        answered_at (np.ndarray): Answer times, shape (K,), K >= 1.
        weights (np.ndarray): Shape (K,), > 0.
        paid (np.ndarray): Which were `rewarded`, shape (K,), bool.
        quantile (float): In [0, 1].
        slack (float): >= 1.
    """
    (late,) = weighted_quantile(answered_at, weights, (quantile,))
    if paid.any():
        late = max(late, *weighted_quantile(answered_at[paid], weights[paid], (REWARDED_QUANTILE,)))
    return math.ceil(slack * late - 1e-9)


def weighted_quantile(values: np.ndarray, weights: np.ndarray, quantiles: tuple[float, ...]) -> np.ndarray:
    """The inverse of the weighted empirical distribution function.

    The q-quantile is the smallest value v with sum of weights of values <= v at least q times the sum of all weights.
    It is one of the values, so a length quantile is a length that occurred. With equal weights it is
    `np.quantile(values, q, method="inverted_cdf")`.

    Args:
        values (np.ndarray): Shape (K,), K >= 1.
        weights (np.ndarray): Shape (K,), > 0.
        quantiles (tuple[float, ...]): Each in [0, 1].

    Returns:
        np.ndarray: One of the values per quantile.
    """
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    # A share that is met exactly must not be missed by the rounding of the sum.
    targets = np.asarray(quantiles) * cumulative[-1] * (1.0 - 1e-12)
    return values[order][np.searchsorted(cumulative, targets)]
