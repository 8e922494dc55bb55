# SPDX-License-Identifier: Apache-2.0
"""Online K1 and K2 of Phase 2: quantiles of the lengths of recent rollouts (Algorithm 1, lines 45-50).

The paper takes plain quantiles over kept rollouts. Those lack most rollouts that reached the abort gate, so K2 falls,
which aborts more of them, and so on. Weighting each kept length by 1 / propensity restores the missing ones in
expectation; both forms are here, see docs/fidelity.md. K2 can also follow the times at which answers came instead of
the lengths: those of rollouts that were answered in time are hardly touched by the abort.
"""

import math
from typing import Any

import numpy as np


class LengthThresholds:
    """Poll threshold K1 and abort threshold K2 from a sliding window of kept rollouts.

    Args:
        max_length (int): Length cap of a rollout, tokens, >= 1; neither threshold ever exceeds it.
        window (int): W, kept rollouts in the window. Paper: 1024.
        refit_every (int): N, steps between two refits. Paper: 10.
        quantiles (tuple[float, float]): Length quantiles of K1 and K2, in [0, 1]. Paper: 0.3 and 0.8.
        cold (tuple[float, float]): K1 and K2 before the first refit, as shares of max_length. Paper: 0.3 and 0.7.
        weighted (bool): Weight each length by 1 / propensity. False: plain quantiles, as in the paper.
        min_samples (int): Rollouts in the window before the first refit.
        min_poll_threshold (int): Least K1 of a refit, tokens. The published code: 32.
        min_gap (int): Least K2 - K1 of a refit, tokens. The published code: 50.
        answer_quantile (float): K2 is `answer_slack` times this quantile of the answer times in the window, in [0, 1);
            0: the length quantile, as in the paper.
        answer_slack (float): >= 1. Above 1 the threshold cannot ratchet: were it to cut into the answers, the late
            ones that remain would lie just below it, and the next refit would raise it again.

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
        min_poll_threshold: int = 1,
        min_gap: int = 0,
        answer_quantile: float = 0.0,
        answer_slack: float = 1.25,
    ) -> None:
        for name, value, least in (
            ("max_length", max_length, 1),
            ("window", window, 1),
            ("refit_every", refit_every, 1),
            ("min_samples", min_samples, 1),
            ("min_poll_threshold", min_poll_threshold, 1),
            ("min_gap", min_gap, 0),
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
        self.min_poll_threshold = min_poll_threshold
        self.min_gap = min_gap
        self.answer_quantile = answer_quantile
        self.answer_slack = answer_slack
        self._lengths = np.zeros(0, dtype=np.int64)
        self._answered_at = np.zeros(0, dtype=np.int64)
        self._propensity = np.zeros(0, dtype=np.float64)
        # The small addend keeps 0.7 * 10 at 7 where it comes out as 6.999...
        self._set(*(math.floor(share * max_length + 1e-9) for share in cold))

    def observe(self, lengths: np.ndarray, propensity: np.ndarray, answered_at: np.ndarray | None = None) -> None:
        """Append the kept rollouts of a step to the window; the oldest ones leave it.

        Args:
            lengths (np.ndarray): Policy tokens of each kept rollout, shape (K,), >= 0. Aborted ones do not belong
                here; the weights of the kept ones stand for them.
            propensity (np.ndarray): Probability with which each was kept, shape (K,), in (0, 1].
            answered_at (np.ndarray): Tokens after which a poll saw its answer, shape (K,); -1 for one without,
                None where no one asks.

        Raises:
            ValueError: If shapes differ or a value is out of range.
        """
        lengths = np.asarray(lengths, dtype=np.int64)
        answered_at = np.full(lengths.shape, -1) if answered_at is None else np.asarray(answered_at, dtype=np.int64)
        propensity = np.asarray(propensity, dtype=np.float64)
        if lengths.ndim != 1 or not lengths.shape == propensity.shape == answered_at.shape:
            raise ValueError(
                f"lengths {lengths.shape}, propensity {propensity.shape} and answered_at {answered_at.shape} must "
                "have one shape (K,)."
            )
        if (lengths < 0).any() or not ((propensity > 0.0) & (propensity <= 1.0)).all():
            raise ValueError("lengths must be >= 0 and propensities in (0, 1]. Pass kept rollouts only.")
        self._lengths = np.concatenate([self._lengths, lengths])[-self.window :]
        self._propensity = np.concatenate([self._propensity, propensity])[-self.window :]
        self._answered_at = np.concatenate([self._answered_at, answered_at])[-self.window :]

    def step(self, step: int) -> bool:
        """Refit K1 and K2 if `step` is a multiple of N and the window has enough rollouts (Algorithm 1, lines 48-50).

        Args:
            step (int): Generation step that was just observed, from 1.

        Returns:
            bool: Whether they were refitted.
        """
        if step % self.refit_every or len(self._lengths) < self.min_samples:
            return False
        weights = 1.0 / self._propensity if self.weighted else np.ones(len(self._lengths))
        poll, abort = weighted_quantile(self._lengths, weights, self.quantiles)
        poll = max(int(poll), self.min_poll_threshold)
        if self.answer_quantile:
            abort = self._after_the_answers(weights)
        self._set(poll, max(int(abort), poll + self.min_gap))
        return True

    def _after_the_answers(self, weights: np.ndarray) -> int:
        answered = self._answered_at >= 0
        if answered.sum() < self.min_samples:
            return self.abort_threshold  # too few answers to say when they come
        return after_the_answers(
            self._answered_at[answered], weights[answered], self.answer_quantile, self.answer_slack
        )

    def state_dict(self) -> dict[str, Any]:
        """Thresholds and window: JSON types only."""
        return {
            "poll_threshold": self.poll_threshold,
            "abort_threshold": self.abort_threshold,
            "lengths": self._lengths.tolist(),
            "propensity": self._propensity.tolist(),
            "answered_at": self._answered_at.tolist(),
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
            raise ValueError(f"the state of the thresholds has keys {sorted(state)}, expected {sorted(expected)}.")
        if not 1 <= state["poll_threshold"] <= state["abort_threshold"] <= self.max_length:
            raise ValueError(
                f"K1={state['poll_threshold']} and K2={state['abort_threshold']} of the state do not fit a length "
                f"cap of {self.max_length}. Resume with the max_completion_length of the checkpoint."
            )
        self._lengths = self._propensity = self._answered_at = np.zeros(0)
        self.observe(*(np.array(state[name]) for name in ("lengths", "propensity", "answered_at")))
        self._set(state["poll_threshold"], state["abort_threshold"])

    def _set(self, poll: int, abort: int) -> None:
        """Keep 1 <= K1 <= K2 <= max_length whatever the quantiles say."""
        self.abort_threshold = min(max(abort, 1), self.max_length)
        self.poll_threshold = min(max(poll, 1), self.abort_threshold)


def after_the_answers(answered_at: np.ndarray, weights: np.ndarray, quantile: float, slack: float) -> int:
    """K2 that late answers stay clear of: `slack` times a quantile of the answer times, rounded up, in tokens.

    Args:
        answered_at (np.ndarray): Tokens after which a poll saw each answer, shape (K,), K >= 1.
        weights (np.ndarray): Shape (K,), > 0.
        quantile (float): In [0, 1].
        slack (float): >= 1.
    """
    (late,) = weighted_quantile(answered_at, weights, (quantile,))
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
