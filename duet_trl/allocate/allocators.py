# SPDX-License-Identifier: Apache-2.0
"""The interchangeable allocators of phase 1: prompt keys and history in, rollouts per prompt out.

Every allocator has the interface of `UniformAllocator`: `plan(keys, epoch)`, then its `statistics` learn lengths and
rewards after generation, and `observe_sigma` is called after the forward pass.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..state import Stateful
from .neyman import Allocation, bisection_allocation, calibration_chi2, sigma_observed
from .statistics import PromptStatistics, openness, posterior, price_of_more

FLOOR, FLOOR_QUANTILE = 0.01, 0.05
"""Of sigma: before the first epoch is over, and the quantile of the pool's positive sigmas that replaces it."""


@dataclass(frozen=True)
class Budget:
    """B, tokens per step (section 3.3): the cost of full GRPO's rollouts, or an absolute number.

    That is ``fraction * num_generations`` rollouts per prompt at the batch's current expected lengths, with b in
    (0, 1] and the rollouts of full GRPO; or `budget_tokens`. docs/fidelity.md#budget.
    """

    fraction: float = 1.0
    num_generations: int = 8
    budget_tokens: float | None = None

    @property
    def rollouts_per_prompt(self) -> float:
        """Rollouts of a prompt that the fraction pays for on average."""
        return self.fraction * self.num_generations

    def total_rollouts(self, num_prompts: int) -> int:
        """Rollouts of a uniform step under a budget without `budget_tokens`: ``fraction * num_generations * M``."""
        # The margin keeps 0.1 * 10 * 3 = 3.0000000000000004 and the like from losing or gaining a rollout.
        return math.floor(self.rollouts_per_prompt * num_prompts * (1.0 + 1e-12))

    def tokens(self, mean_length: np.ndarray) -> float:
        """B of a step with these expected lengths, shape (M,)."""
        if self.budget_tokens is not None:
            return float(self.budget_tokens)
        return self.rollouts_per_prompt * float(mean_length.sum())


class UniformAllocator(Stateful):
    """The same number of rollouts for every prompt: as in GRPO and `duet`.

    Under a budget that counts rollouts every prompt gets ``fraction * num_generations``; under a token budget as many
    as it pays for. Where the total does not divide evenly, the first prompts of the batch get one more.

    Args:
        budget (Budget): B.
        max_length (float): Tokens assumed for a rollout before any was observed.
        price_aborted (bool): Price all generated tokens, aborted rollouts included, or kept lengths only (paper).
        num_min (int): n_min, kept even above a token budget.
        num_max (int): n_max.
        max_rollouts (int | None): Cap on the rollouts of a step; None: no cap.

    Attributes:
        statistics (PromptStatistics): The history of each prompt.
        price (float): Gain per token from one more rollout of each prompt of the last plan
            (`price_of_more`); nan before the first.
    """

    remembered: tuple[str, ...] = ("statistics",)

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
        self.price = float("nan")
        self._metrics: dict[str, float] = {}

    def plan(self, keys: Sequence[str], epoch: int) -> Allocation:
        """Rollouts of each of M prompts in the next step, after `epoch` completed passes over the data."""
        cost = self.statistics.expected_tokens(keys, price_aborted=self.price_aborted, default=self.max_length)
        history, self._metrics = self.statistics.reward_history(keys), {}
        allocation = self._counts(keys, epoch, cost)
        worth = openness(*posterior(history, self.statistics.reward_range))
        self.price = price_of_more(worth, allocation.num_rollouts, cost)
        self._metrics |= {"budget_tokens": allocation.budget_tokens, "planned_tokens": allocation.planned_tokens}
        return allocation

    def observe_sigma(
        self, keys: Sequence[str], group: np.ndarray, advantages: np.ndarray, sum_logps: np.ndarray, use: np.ndarray
    ) -> None:
        """Only Theorem 1 needs sigma. Unweighted advantages and sums of log pi, shape (N,)."""

    def metrics(self) -> dict[str, float]:
        """Metrics of the last step, plain floats."""
        return dict(self._metrics)

    def _counts(self, keys: Sequence[str], epoch: int, cost: np.ndarray) -> Allocation:
        """The plan at the expected tokens of a rollout of each prompt, shape (M,); adds metrics."""
        tokens = self.budget.tokens(cost)
        if self.budget.budget_tokens is None:
            total = self.budget.total_rollouts(cost.size)
        else:
            rounds = int(tokens // cost.sum())
            # The rest of the budget pays for one more rollout of the first prompts.
            extra = int(np.searchsorted(np.cumsum(cost), tokens - rounds * cost.sum(), side="right"))
            total = max(rounds * cost.size + min(extra, cost.size - 1), self.bounds["num_min"] * cost.size)
        total = min(total, self.bounds["num_max"] * cost.size, self.bounds["max_rollouts"] or total)
        return uniform_allocation(cost.size, total, cost, tokens)


def uniform_allocation(
    num_prompts: int, total_rollouts: int, mean_length: ArrayLike, budget_tokens: float
) -> Allocation:
    """Counts as equal as possible, GRPO's; the first prompts get one more where the total does not divide evenly.

    ``mean_length`` (M,) prices the plan and ``budget_tokens`` is recorded with it. ValueError if there are fewer
    rollouts than prompts.
    """
    if total_rollouts < num_prompts:
        raise ValueError(
            f"total_rollouts={total_rollouts} leaves some of {num_prompts} prompts without a rollout. "
            "Raise the budget or lower the number of prompts per step."
        )
    each, extra = divmod(int(total_rollouts), num_prompts)
    counts = np.full(num_prompts, each, dtype=np.int64)
    counts[:extra] += 1
    return Allocation(counts, 0.0, float(np.asarray(mean_length) @ counts), float(budget_tokens))


class NeymanAllocator(UniformAllocator):
    """The paper's allocator: Theorem 1 on surrogates of sigma and length (Algorithm 1, lines 1-8 and 41-47).

    ``s_q = max(floor, running mean of sigma)``, and the floor below `warmup` observations. After the first epoch it is
    raised to the `FLOOR_QUANTILE` of the pool's positive sigmas, once. docs/fidelity.md#surrogate.

    Args:
        budget (Budget): B.
        warmup (int | None): k_warmup, >= 1; None: one s_q for all prompts, so that counts follow lengths alone.
        **options (Any): As for `UniformAllocator`.

    Attributes:
        cold (np.ndarray): Prompts of the last plan whose sigma is the floor, shape (M,), bool.
    """

    remembered = ("statistics", "floor", "_frozen", "_dual")

    def __init__(self, budget: Budget, *, warmup: int | None = 1, **options: Any) -> None:
        super().__init__(budget, **options)
        # The scale of a constant does not matter to the counts.
        self.warmup, self.floor, self._frozen = warmup, FLOOR if warmup else 1.0, False
        self._dual: float | None = None
        self.cold = np.zeros(0, dtype=bool)
        self._planned: tuple[tuple[str, ...], np.ndarray] | None = None

    def sigma(self, keys: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """s_q of the prompts, >= the floor (Algorithm 1, line 2), and whether it is their own; shape (M,) each."""
        if self.warmup is None:
            return np.full(len(keys), self.floor), np.ones(len(keys), dtype=bool)
        mean, observations = self.statistics.sigma(keys)
        warm = observations >= self.warmup
        return np.where(warm, np.fmax(mean, self.floor), self.floor), warm

    def observe_sigma(
        self, keys: Sequence[str], group: np.ndarray, advantages: np.ndarray, sum_logps: np.ndarray, use: np.ndarray
    ) -> None:
        """Learn the spread of a step (Eq. 3) and how well the plan's surrogate met it (Eq. 7)."""
        observed = sigma_observed(advantages, sum_logps, group, use, len(keys))
        self.statistics.observe_sigma(keys, observed)
        self._metrics.pop("calibration_chi2", None)
        if self._planned is not None and self._planned[0] == tuple(keys) and np.any(observed > 0.0):
            self._metrics["calibration_chi2"] = calibration_chi2(self._planned[1], observed)

    def _counts(self, keys: Sequence[str], epoch: int, cost: np.ndarray) -> Allocation:
        self._raise_floor(epoch)
        sigma, warm = self.sigma(keys)
        allocation = bisection_allocation(sigma, cost, self.budget.tokens(cost), **self.bounds, dual=self._dual)
        self._dual, self._planned, self.cold = allocation.dual, (tuple(keys), sigma), ~warm
        self._metrics |= {"dual": allocation.dual, "sigma_floor": self.floor}
        return allocation

    def _raise_floor(self, epoch: int) -> None:
        """Replace and freeze the floor once the first epoch is over and a sigma was positive."""
        if self._frozen or self.warmup is None or epoch < 1:
            return
        observed = self.statistics.pool_sigma()
        positive = observed[observed > 0.0]
        if positive.size:
            self.floor = max(self.floor, float(np.quantile(positive, FLOOR_QUANTILE)))
            self._frozen = True
