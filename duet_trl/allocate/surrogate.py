# SPDX-License-Identifier: Apache-2.0
"""Phase 1: the surrogate s_q that stands in for sigma_q in Theorem 1, observed by Eq. 3, judged by Eq. 7."""

from dataclasses import dataclass

import numpy as np

from .state import check_state
from .statistics import PromptStatistics, PromptView


def sigma_observed(
    advantages: np.ndarray, sum_logps: np.ndarray, group: np.ndarray, use: np.ndarray, num_prompts: int
) -> np.ndarray:
    """Within-prompt spread of a step, ``std_i(A_i * sum_l log pi(y_il))`` over the used rollouts (Eq. 3), over n - 1.

    The advantages are the unweighted ones (docs/fidelity.md#surrogate). Columns have shape (N,); `use` is true for
    kept rollouts with finite values. Returns shape (num_prompts,); nan where fewer than two rollouts are used.
    """
    contribution, prompt = advantages[use] * sum_logps[use], group[use]
    count = np.bincount(prompt, minlength=num_prompts)
    mean = np.bincount(prompt, weights=contribution, minlength=num_prompts) / np.maximum(count, 1)
    squares = np.bincount(prompt, weights=np.square(contribution - mean[prompt]), minlength=num_prompts)
    spread = np.sqrt(squares / np.maximum(count - 1, 1))
    return np.where(count >= 2, spread, np.nan)


def calibration_chi2(surrogate: np.ndarray, sigma: np.ndarray) -> float:
    """Calibration divergence ``mean((s_q / sigma_q - 1)^2)`` of Theorem 4, which bounds the plug-in loss (Eq. 7).

    ``V(n^s) - V* <= K * chi2 / B`` with K from the bounds on sigma and length, the floor and M.
    """
    positive = sigma > 0.0
    return float(np.mean(np.square(surrogate[positive] / sigma[positive] - 1.0)))


@dataclass
class Surrogate:
    """Rules that turn a prompt's running mean of sigma_obs into the s_q of Theorem 1 (section 3.1).

    ``s_q = max(floor, running mean)``, where the floor becomes, after the first epoch, the `floor_quantile` (None: it
    stays) of the positive sigmas of the pool, never below the first one, and is frozen. `warmup` is k_warmup, the
    observations before a prompt's own mean is used. docs/fidelity.md#surrogate.
    """

    floor: float = 0.01
    floor_quantile: float | None = 0.05
    warmup: int = 1
    _frozen: bool = False

    def advance(self, statistics: PromptStatistics, epoch: int) -> None:
        """Replace and freeze the floor once ``epoch`` (completed passes over the data) reaches 1.

        Waits for the first positive sigma. Call before each plan.
        """
        if self._frozen or self.floor_quantile is None or epoch < 1:
            return
        observed = statistics.pool_sigma()
        positive = observed[observed > 0.0]
        if positive.size:
            self.floor = max(self.floor, float(np.quantile(positive, self.floor_quantile)))
            self._frozen = True

    def sigma(self, view: PromptView) -> np.ndarray:
        """s_q of the prompts in ``view``, shape (M,), >= the floor (Algorithm 1, line 2)."""
        return np.where(self.is_warm(view), np.fmax(view.sigma, self.floor), self.floor)

    def is_warm(self, view: PromptView) -> np.ndarray:
        """Whether each prompt's own mean is used, shape (M,), bool."""
        return view.num_observations >= self.warmup

    def state_dict(self) -> dict:
        """Floor, JSON types."""
        return {"floor": self.floor, "frozen": self._frozen}

    def load_state_dict(self, state: dict) -> None:
        """Restore `state_dict()`. Raises ValueError if keys differ."""
        check_state("surrogate", state, self.state_dict())
        self.floor, self._frozen = float(state["floor"]), bool(state["frozen"])


class ConstantSurrogate(Surrogate):
    """One s_q for all prompts, which no observation changes: counts follow lengths alone."""

    def __init__(self) -> None:
        super().__init__(floor=1.0, floor_quantile=None)  # its scale does not matter to the counts

    def sigma(self, view: PromptView) -> np.ndarray:
        """1 for each of the prompts in ``view``, shape (M,)."""
        return np.full(len(view.sigma), self.floor)

    def is_warm(self, view: PromptView) -> np.ndarray:
        """Every prompt has its estimate from the start, shape (M,), bool."""
        return np.ones(len(view.sigma), dtype=bool)
