# SPDX-License-Identifier: Apache-2.0
"""The gate as a method has it: thresholds, the gate of a step, its coins, and the propensity of what came of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .automaton import TokenAutomaton
from .coins import keep_coins
from .replay import GateSpec, propensity
from .thresholds import LengthThresholds


@dataclass(frozen=True)
class MarkerGate:
    """Marker-gated abort with epsilon-keep and tail trim (section 3.2, Eq. 5, Algorithm 1, phase 2).

    Attributes:
        thresholds (LengthThresholds): Online K1 and K2.
        automaton (TokenAutomaton | None): Compiled marker. None: no marker is looked for, trim and abort must be off.
        trim (bool): Stop answered rollouts within the grace window.
        abort (bool): Stop marker-less rollouts at K2 + G unless their coin keeps them.
        grace_window (int): G, tokens.
        poll_interval (int): Tokens between two marker checks.
        entropy_threshold (float): Nats; 0: entropy never ends the grace window early.
        window (int | None): Tokens back from a poll in which the marker must have completed; None: all.
        keep_probability (float): eps_abort.
        seed (int): Key of the coins.
    """

    thresholds: LengthThresholds
    automaton: TokenAutomaton | None
    trim: bool
    abort: bool
    grace_window: int
    poll_interval: int
    entropy_threshold: float
    window: int | None
    keep_probability: float
    seed: int

    def __post_init__(self) -> None:
        if self.automaton is None and (self.trim or self.abort):
            raise ValueError("trim and abort need a marker automaton. Switch both off, or compile a marker.")

    def coins(self, step: int, keys: Sequence[str]) -> np.ndarray:
        """The coin of each rollout of a step, shape (N,), bool (Algorithm 1, line 22): True survives without a marker.

        `keys` are the prompts of the rollouts; one that occurs again gets other coins.
        """
        return keep_coins(self.seed, step, keys, _occurrence(keys), self.keep_probability)

    def spec(self, active: bool = True) -> GateSpec:
        """The gate with its present thresholds; switched off where `active` is false."""
        return GateSpec(
            poll_threshold=self.thresholds.poll_threshold,
            abort_threshold=self.thresholds.abort_threshold,
            grace_window=self.grace_window,
            poll_interval=self.poll_interval,
            trim=self.trim and active,
            abort=self.abort and active,
            entropy_threshold=self.entropy_threshold,
            window=self.window,
        )

    def propensity(self, outcome: np.ndarray) -> np.ndarray:
        """Probability with which a rollout of each outcome was kept, shape (N,) (Theorem 2)."""
        return propensity(outcome, self.keep_probability)

    def observe(
        self,
        lengths: np.ndarray,
        kept_propensity: np.ndarray,
        answered_at: np.ndarray,
        rewards: np.ndarray,
        step: int,
    ) -> None:
        """Add the kept rollouts of a step to the window and refit K1 and K2 when due (Algorithm 1, phase 4).

        Args:
            lengths (np.ndarray): Policy tokens of each kept rollout, shape (K,).
            kept_propensity (np.ndarray): Their propensity, shape (K,).
            answered_at (np.ndarray): Their answer times (`Replay.answered_at`), shape (K,), tokens; -1 for none.
            rewards (np.ndarray): Their summed rewards, shape (K,), finite.
            step (int): Generation step, from 1.
        """
        self.thresholds.observe(lengths, kept_propensity, answered_at, rewards)
        self.thresholds.step(step)

    def state_dict(self) -> dict:
        """JSON state."""
        return self.thresholds.state_dict()

    def load_state_dict(self, state: dict) -> None:
        """Restore `state_dict()`."""
        self.thresholds.load_state_dict(state)


def _occurrence(keys: Sequence[str]) -> np.ndarray:
    """How often each key stood before, so that a prompt drawn twice in a batch gets distinct coins."""
    seen: Counter[str] = Counter()
    index = []
    for key in keys:
        index.append(seen[key])
        seen[key] += 1
    return np.array(index, dtype=np.int64)
