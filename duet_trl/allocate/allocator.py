# SPDX-License-Identifier: Apache-2.0
"""What an allocator of phase 1 is."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from .neyman import Allocation
from .statistics import PromptStatistics


class Allocator(Protocol):
    """Phase 1. Decides from prompt keys and history alone, never from rewards of the step it plans."""

    statistics: PromptStatistics
    measuring: bool
    cold: np.ndarray

    def plan(self, keys: Sequence[str], epoch: int) -> Allocation:
        """Counts for a batch of prompts after `epoch` completed passes."""

    def observe_lengths(
        self, keys: Sequence[str], group: np.ndarray, lengths: np.ndarray, tokens: np.ndarray, kept: np.ndarray
    ) -> None:
        """Policy tokens and generated tokens of each rollout (N,), and whether it was kept."""

    def observe_sigma(
        self, keys: Sequence[str], group: np.ndarray, advantages: np.ndarray, sum_logps: np.ndarray, use: np.ndarray
    ) -> None:
        """Unweighted advantage and sum of log pi of each rollout (N,), where `use` is true."""

    def observe_rewards(self, keys: Sequence[str], group: np.ndarray, rewards: np.ndarray, use: np.ndarray) -> None:
        """Summed reward of each rollout (N,), where `use` is true."""

    def metrics(self) -> dict[str, float]:
        """Plain floats about the last plan."""

    def state_dict(self) -> dict:
        """JSON state."""

    def load_state_dict(self, state: dict) -> None:
        """Restore `state_dict()`."""
