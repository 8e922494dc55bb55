# SPDX-License-Identifier: Apache-2.0
"""Phase 1: what the token budget B of a step is (section 3.3)."""

import math
from dataclasses import dataclass

import numpy as np

from .state import check_state


@dataclass
class Budget:
    """B, tokens per step, in one of three readings of the paper's "fraction of full GRPO's token cost".

    * ``rollouts``: ``fraction * num_generations`` rollouts per prompt at the batch's current expected lengths.
    * ``reference``: the same count at the mean rollout cost of uniform GRPO, measured during the first epoch and then
      frozen. Until then ``measuring`` is true: counts are uniform and no rollout is stopped early.
    * ``tokens``: an absolute number, ``budget_tokens``.

    docs/fidelity.md#budget compares them. `fraction` is b in (0, 1], `num_generations` the rollouts of full GRPO.
    """

    reading: str = "rollouts"
    fraction: float = 1.0
    num_generations: int = 8
    budget_tokens: float | None = None
    _measured_tokens: float = 0.0
    _measured_rollouts: int = 0
    _reference: float | None = None

    @property
    def rollouts_per_prompt(self) -> float:
        """Rollouts of a prompt that the fraction pays for on average."""
        return self.fraction * self.num_generations

    @property
    def measuring(self) -> bool:
        """Whether the reference is still being measured."""
        return self.reading == "reference" and self._reference is None

    @property
    def counts_rollouts(self) -> bool:
        """Whether the budget now is a number of rollouts, so that uniform counts do not depend on lengths."""
        return self.reading == "rollouts" or self.measuring

    def total_rollouts(self, num_prompts: int) -> int:
        """Rollouts of a uniform step under a budget that counts rollouts: ``fraction * num_generations * M``."""
        # The margin keeps 0.1 * 10 * 3 = 3.0000000000000004 and its like from losing or gaining a rollout.
        return math.floor(self.rollouts_per_prompt * num_prompts * (1.0 + 1e-12))

    def observe_reference(self, tokens: np.ndarray) -> None:
        """Add natural rollout costs of uniform GRPO, tokens, shape (N,). Only while `measuring`."""
        self._measured_tokens += float(tokens.sum())
        self._measured_rollouts += len(tokens)

    def advance(self, epoch: int) -> None:
        """Freeze the reference once ``epoch`` (completed passes over the data) reaches 1. Call before each plan."""
        if not self.measuring or epoch < 1:
            return
        if self._measured_rollouts == 0:
            raise ValueError(
                "The reference budget has no rollout from the first epoch. Use the reading 'rollouts' or 'tokens'."
            )
        self._reference = self._measured_tokens / self._measured_rollouts

    def tokens(self, mean_length: np.ndarray) -> float:
        """B of this step."""
        if self.budget_tokens is not None:
            return self.budget_tokens
        if self._reference is not None:
            return self.rollouts_per_prompt * mean_length.size * self._reference
        return self.rollouts_per_prompt * float(mean_length.sum())

    def state_dict(self) -> dict:
        """Measured and frozen reference, JSON types."""
        return {
            "reading": self.reading,
            "measured_tokens": self._measured_tokens,
            "measured_rollouts": self._measured_rollouts,
            "reference": self._reference,
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore `state_dict()`."""
        check_state("budget", state, self.state_dict())
        if state["reading"] != self.reading:
            raise ValueError(
                f"The budget state was written under reading {state['reading']!r}, this run uses {self.reading!r}. "
                "Resume with the same reading."
            )
        self._measured_tokens = float(state["measured_tokens"])
        self._measured_rollouts = int(state["measured_rollouts"])
        self._reference = None if state["reference"] is None else float(state["reference"])
