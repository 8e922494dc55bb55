# SPDX-License-Identifier: Apache-2.0
"""Phase 1: what the token budget B of a step is, and the stratification factor of the counts it buys (section 3.3)."""

import math

import numpy as np
from numpy.typing import ArrayLike

from .problem import positive_number
from .state import check_state

READINGS = ("rollouts", "reference", "tokens")


class Budget:
    """B, tokens per step, in one of three readings of the paper's "fraction of full GRPO's token cost".

    * ``rollouts``: ``fraction * num_generations`` rollouts per prompt at the batch's current expected lengths. B
      shrinks as rollouts get shorter, which is how the paper's own numbers behave.
    * ``reference``: the same count at the mean rollout cost of uniform GRPO, measured during the first epoch and
      frozen at the first step of the second. Until then ``measuring`` is true: the caller gives every prompt
      ``fraction * num_generations`` rollouts, stops none early, and reports their cost.
    * ``tokens``: an absolute number.

    docs/fidelity.md#budget compares them.

    Args:
        reading (str): One of `READINGS`.
        fraction (float): b, share of full GRPO, in (0, 1]. Not used by ``tokens``.
        num_generations (int): Rollouts per prompt of full GRPO, >= 1.
        budget_tokens (float | None): B for ``tokens``; None otherwise.
        num_min (int): Fewest rollouts per prompt, >= 1; only checked against the budget.

    Raises:
        ValueError: For an unknown reading, a fraction outside (0, 1], ``budget_tokens`` missing or set without
            use, or ``num_min`` above ``fraction * num_generations``.
    """

    def __init__(
        self,
        reading: str = "rollouts",
        *,
        fraction: float = 1.0,
        num_generations: int = 8,
        budget_tokens: float | None = None,
        num_min: int = 1,
    ) -> None:
        if reading not in READINGS:
            raise ValueError(f"The budget reading must be one of {list(READINGS)}, got {reading!r}.")
        if not 0.0 < fraction <= 1.0:
            raise ValueError(f"The budget fraction must be in (0, 1], got {fraction}. Raise num_generations for more.")
        if num_generations < 1 or num_min < 1:
            raise ValueError(f"num_generations and num_min must be at least 1, got {num_generations} and {num_min}.")
        if (reading == "tokens") != (budget_tokens is not None):
            raise ValueError(
                f"budget_tokens belongs to the reading 'tokens', got reading {reading!r} with {budget_tokens}. "
                "Set both or neither."
            )
        if reading != "tokens" and num_min > fraction * num_generations:
            raise ValueError(
                f"num_min={num_min} is above the budget of {fraction:g} x {num_generations} rollouts per prompt. "
                "Raise the fraction or num_generations, or lower num_min."
            )
        self.reading = reading
        self.rollouts_per_prompt = fraction * num_generations
        self.budget_tokens = None if budget_tokens is None else positive_number("budget_tokens", budget_tokens)
        self._measured_tokens = 0.0
        self._measured_rollouts = 0
        self._reference: float | None = None

    @property
    def measuring(self) -> bool:
        """Whether the reference is still being measured: uniform counts, no rollout stopped early."""
        return self.reading == "reference" and self._reference is None

    @property
    def counts_rollouts(self) -> bool:
        """Whether the budget now is a number of rollouts, so that uniform counts do not depend on lengths."""
        return self.reading == "rollouts" or self.measuring

    def total_rollouts(self, num_prompts: int) -> int:
        """Rollouts of a uniform step under a budget that counts rollouts: ``fraction * num_generations * M``."""
        # The margin keeps 0.1 * 10 * 3 = 3.0000000000000004 and its like from losing or gaining a rollout.
        return math.floor(self.rollouts_per_prompt * num_prompts * (1.0 + 1e-12))

    def observe_reference(self, tokens: ArrayLike) -> None:
        """Add natural rollout costs of uniform GRPO, tokens, shape (N,). Only while `measuring`."""
        if not self.measuring:
            raise ValueError(
                f"The reference of reading {self.reading!r} is not being measured. Check `measuring` first."
            )
        values = np.asarray(tokens, dtype=np.float64)
        self._measured_tokens += float(values.sum())
        self._measured_rollouts += int(values.size)

    def advance(self, epoch: int) -> None:
        """Freeze the reference once ``epoch`` (completed passes over the data) reaches 1. Call before each plan."""
        if not self.measuring or epoch < 1:
            return
        if self._measured_rollouts == 0:
            raise ValueError(
                "The reference budget has no rollout from the first epoch. Resume from a checkpoint with the "
                "method's state, or use the reading 'rollouts' or 'tokens'."
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


def stratification(num_rollouts: np.ndarray, floor: float) -> np.ndarray:
    """Stratification factor ``s_pre = clip(n_q / mean(n), floor, 1)`` (Algorithm 1, line 7).

    Computed on the counts that are really generated. It balances prompts in the loss and is no sampling
    probability: no prompt is sampled (assumption A5).
    """
    if not 0.0 < floor <= 1.0:
        raise ValueError(f"The stratification floor must be in (0, 1], got {floor}.")
    counts = np.asarray(num_rollouts, dtype=np.float64)
    if counts.size == 0 or counts.min() < 1.0:
        raise ValueError("Every prompt needs at least one rollout for a stratification factor.")
    return np.clip(counts / counts.mean(), floor, 1.0)
