# SPDX-License-Identifier: Apache-2.0
"""The exchangeable allocators of phase 1: prompt keys and history in, rollouts per prompt out.

Every allocator has the interface of `UniformAllocator`: `plan(keys, epoch)`, then `observe_lengths` and
`observe_rewards` after generation and `observe_sigma` after the forward pass. It never sees rewards of the step it
plans.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .budget import Budget
from .neyman import Allocation, bisection_allocation, uniform_allocation
from .openness import openness, posterior, price_of_more
from .state import check_state
from .statistics import PromptStatistics
from .surrogate import Surrogate, calibration_chi2, sigma_observed


class UniformAllocator:
    """The same number of rollouts for every prompt: GRPO, or DUET without its allocator.

    Under a budget that counts rollouts every prompt gets ``fraction * num_generations``; under a token budget as many
    as it pays for. Where the total does not divide, the first prompts of the batch get one more.

    Args:
        budget (Budget): What B is.
        max_length (float): Tokens assumed for a rollout before any was observed.
        price_aborted (bool): Price all generated tokens, aborted rollouts included, or kept lengths only (paper).
        num_min (int): n_min, kept even above a token budget.
        num_max (int): n_max.
        max_rollouts (int | None): Cap on the rollouts of a step; None is no cap.

    Attributes:
        cold (np.ndarray): Prompts of the last plan without an observation, shape (M,), bool.
        price (float): What one more rollout of each prompt of the last plan would earn per token
            (`openness.price_of_more`); nan before the first.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        max_length: float,
        price_aborted: bool = True,
        num_min: int = 1,
        num_max: int = 32,
        max_rollouts: int | None = None,
    ) -> None:
        self.budget = budget
        self.max_length = max_length
        self.statistics = PromptStatistics()
        self.price_aborted = price_aborted
        self.bounds = {"num_min": num_min, "num_max": num_max, "max_rollouts": max_rollouts}
        self.cold = np.zeros(0, dtype=bool)
        self.price = float("nan")
        self._metrics: dict[str, float] = {}

    @property
    def measuring(self) -> bool:
        """Whether the reference budget is being measured, during which no rollout may be stopped early."""
        return self.budget.measuring

    def plan(self, keys: Sequence[str], epoch: int) -> Allocation:
        """Rollouts of each of M prompts in the next step, after `epoch` completed passes over the data."""
        self.budget.advance(epoch)
        self.cold = np.zeros(len(keys), dtype=bool)
        cost = self._cost(keys)
        allocation = self._uniform(cost)
        self._set_price(self._posterior(keys), allocation, cost)
        self._metrics = plan_metrics(allocation)
        return allocation

    def observe_lengths(
        self, keys: Sequence[str], group: np.ndarray, lengths: np.ndarray, tokens: np.ndarray, kept: np.ndarray
    ) -> None:
        """Learn what the rollouts of a step cost; see `PromptStatistics.observe_lengths` for shapes."""
        self.statistics.observe_lengths(keys, group, lengths, tokens, kept)
        if self.budget.measuring:
            self.budget.observe_reference(tokens)

    def observe_sigma(
        self, keys: Sequence[str], group: np.ndarray, advantages: np.ndarray, sum_logps: np.ndarray, use: np.ndarray
    ) -> None:
        """Only Theorem 1 needs sigma; part of the interface. Unweighted advantages and sums of log pi, shape (N,)."""

    def observe_rewards(self, keys: Sequence[str], group: np.ndarray, rewards: np.ndarray, use: np.ndarray) -> None:
        """Learn the rewards of a step; see `PromptStatistics.observe_rewards` for shapes."""
        self.statistics.observe_rewards(keys, group, rewards, use)

    def metrics(self) -> dict[str, float]:
        """Figures of the last step, plain floats."""
        return dict(self._metrics)

    def state_dict(self) -> dict:
        """Everything that future plans depend on."""
        return {"budget": self.budget.state_dict(), "statistics": self.statistics.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        """Restore `state_dict()`. Raises ValueError if keys are missing or foreign."""
        check_state("allocator", state, self.state_dict())
        self.budget.load_state_dict(state["budget"])
        self.statistics.load_state_dict(state["statistics"])

    def _cost(self, keys: Sequence[str]) -> np.ndarray:
        return self.statistics.expected_tokens(keys, price_aborted=self.price_aborted, default=self.max_length)

    def _posterior(self, keys: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        return posterior(self.statistics.reward_history(keys), self.statistics.reward_range)

    def _set_price(self, of: tuple[np.ndarray, np.ndarray], allocation: Allocation, cost: np.ndarray) -> None:
        self.price = price_of_more(openness(*of), allocation.num_rollouts, cost)

    def _uniform(self, cost: np.ndarray) -> Allocation:
        tokens = self.budget.tokens(cost)
        if self.budget.counts_rollouts:
            total = self.budget.total_rollouts(cost.size)
        else:
            rounds = int(tokens // cost.sum())
            # The rest of the budget pays for one more rollout of the first prompts.
            extra = int(np.searchsorted(np.cumsum(cost), tokens - rounds * cost.sum(), side="right"))
            total = max(rounds * cost.size + min(extra, cost.size - 1), self.bounds["num_min"] * cost.size)
        total = min(total, self.bounds["num_max"] * cost.size, self.bounds["max_rollouts"] or total)
        return uniform_allocation(cost.size, total, cost, tokens)


class NeymanAllocator(UniformAllocator):
    """The paper's allocator: Theorem 1 on surrogates of sigma and length (Algorithm 1, lines 1-8 and 41-47).

    While the reference budget is measured counts are uniform. Options as for `UniformAllocator`.
    """

    def __init__(self, surrogate: Surrogate, budget: Budget, **options: Any) -> None:
        super().__init__(budget, **options)
        self.surrogate = surrogate
        self._dual: float | None = None
        self._planned: tuple[tuple[str, ...], np.ndarray] | None = None

    def plan(self, keys: Sequence[str], epoch: int) -> Allocation:
        """Rollouts per prompt of the next step by Theorem 1; see `UniformAllocator.plan`."""
        self.budget.advance(epoch)
        self.surrogate.advance(self.statistics, epoch)
        view, cost = self.statistics.lookup(keys), self._cost(keys)
        sigma = self.surrogate.sigma(view)
        if self.budget.measuring:
            allocation = self._uniform(cost)
        else:
            allocation = bisection_allocation(sigma, cost, self.budget.tokens(cost), **self.bounds, dual=self._dual)
            self._dual = allocation.dual
        self._set_price(self._posterior(keys), allocation, cost)
        self._planned = (tuple(keys), sigma)
        self.cold = ~self.surrogate.is_warm(view)
        self._metrics = plan_metrics(allocation) | {"dual": allocation.dual, "sigma_floor": self.surrogate.floor}
        return allocation

    def observe_sigma(
        self, keys: Sequence[str], group: np.ndarray, advantages: np.ndarray, sum_logps: np.ndarray, use: np.ndarray
    ) -> None:
        """Learn the spread of a step (Eq. 3) and how well the plan's surrogate met it (Eq. 7)."""
        observed = sigma_observed(advantages, sum_logps, group, use, len(keys))
        self.statistics.observe_sigma(keys, observed)
        self._metrics.pop("calibration_chi2", None)
        if self._planned is not None and self._planned[0] == tuple(keys) and np.any(observed > 0.0):
            self._metrics["calibration_chi2"] = calibration_chi2(self._planned[1], observed)

    def state_dict(self) -> dict:
        """Everything that future plans depend on."""
        return {**super().state_dict(), "surrogate": self.surrogate.state_dict(), "dual": self._dual}

    def load_state_dict(self, state: dict) -> None:
        """Restore `state_dict()`. Raises ValueError if keys are missing or foreign."""
        super().load_state_dict(state)
        self.surrogate.load_state_dict(state["surrogate"])
        self._dual = None if state["dual"] is None else float(state["dual"])


def plan_metrics(allocation: Allocation) -> dict[str, float]:
    """Budget and cost of a plan, tokens."""
    return {"budget_tokens": allocation.budget_tokens, "planned_tokens": allocation.planned_tokens}
