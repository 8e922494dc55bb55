# SPDX-License-Identifier: Apache-2.0
"""The gate as a method has it: thresholds, the gate of a step, its coins, and the propensity of what came of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .coins import keep_coins, occurrence
from .priced import PricedThresholds
from .replay import GateSpec, Replay, propensity
from .thresholds import LengthThresholds


class MarkerGate:
    """Marker-gated abort with epsilon-keep and tail trim (section 3.2, Eq. 5, Algorithm 1, phase 2).

    Args:
        thresholds (LengthThresholds | PricedThresholds): Online K1, K2 and coin.
        seed (int): Key of the coins.
        **options (Any): The other attributes of `GateSpec`.

    Attributes:
        keep_probability (float): eps of the last coins that were thrown.
    """

    def __init__(self, thresholds: LengthThresholds | PricedThresholds, *, seed: int, **options: Any) -> None:
        self.thresholds = thresholds
        self.keep_probability, self.seed = thresholds.keep_probability, seed
        self._options = options

    def coins(self, step: int, keys: Sequence[str]) -> np.ndarray:
        """The coin of each rollout of a step, shape (N,), bool (Algorithm 1, line 22): True survives without a marker.

        `keys` are the prompts of the rollouts; one that occurs again gets other coins.
        """
        self.keep_probability = self.thresholds.keep_probability
        return keep_coins(self.seed, step, keys, occurrence(keys), self.keep_probability)

    def spec(self, active: bool = True) -> GateSpec:
        """The gate with its present thresholds; switched off where `active` is false."""
        spec = GateSpec(self.thresholds.poll_threshold, self.thresholds.abort_threshold, **self._options)
        return spec if active else replace(spec, trim=False, abort=False)

    def propensity(self, outcome: np.ndarray) -> np.ndarray:
        """Probability with which a rollout of each outcome was kept, shape (N,) (Theorem 2)."""
        return propensity(outcome, self.keep_probability)

    def observe(self, replay: Replay, rewards: np.ndarray, step: int, price: float) -> None:
        """Learn from the rollouts of a step what K1, K2 and the coin of the next one are (Algorithm 1, phase 4).

        Args:
            replay (Replay): Their outcomes, N rollouts.
            rewards (np.ndarray): Their summed rewards, shape (N,); nan: not scored, and left out.
            step (int): Generation step, from 1.
            price (float): What one more rollout earns per token; nan: not known.
        """
        self.thresholds.observe(replay, self.propensity(replay.outcome), rewards, step, price)

    def state_dict(self) -> dict:
        """JSON state."""
        return self.thresholds.state_dict()

    def load_state_dict(self, state: dict) -> None:
        """Restore `state_dict()`."""
        self.thresholds.load_state_dict(state)
