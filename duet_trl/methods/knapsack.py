# SPDX-License-Identifier: Apache-2.0
r"""Knapsack RL: rollouts where a group is likely to differ and a success would teach most (arXiv 2509.25849).

A step has C = b num_generations M rollouts. n of them for a prompt with success rate p are worth

    value(n, p) = (1 - p^n - (1 - p)^n) p (1 - p)^2        P(rewards differ) x information gain

and the counts n_q in [n_min, n_max] = [2, 128] maximise the sum of the values under sum n_q = C. The value is concave
in n from 1 on, so taking the largest gain first is exact; the authors solve the same problem by dynamic programming.
Formula, bounds and the rules below are those of the published code (`liziniu/KnapsackRL`, commit 05eeb92):

* A prompt without a history gets C / M, so that the first epoch is uniform.
* A prompt whose rewards were all the highest or all the lowest is worth nothing at any n and gets n_min.
* Fall-back: a prompt with 0 < p < 1 needs about ln(1 - 0.9) / ln max(p, 1 - p) rollouts to differ with probability
  0.9. The budget that these leave is shared evenly by the prompts that were always wrong.

Ours: p is the mean of earlier rewards, discounted by 0.7 from visit to visit; the code takes the latest visit, and the
latest 16 rewards if it had fewer. A graded reward counts as a partial success, by its place between the run's
extremes. The code calls a prompt unseen until it has 8 rewards. n_max holds in the fall-back too, where the code
ignores it. What the prompts with a value cannot take goes to those that were always wrong, then to all in turn.
"""

from collections.abc import Sequence

import numpy as np

from ..allocate.allocators import Budget
from ..allocate.statistics import PromptStatistics
from ..field_types import Options
from ..rollouts import Job, Judgement, Prompts, Query, Rollouts
from .grouping import best_counts, counted_jobs, refuse_single
from .grpo import FromGRPO
from .method import Setting

CONFIDENCE = 0.9
"""Probability of a mixed group that is enough for the fall-back: the authors' alpha."""


def knapsack_counts(success: np.ndarray, total: int, lowest: int, most: int) -> np.ndarray:
    """Counts (M,), int64, of sum `total` within n_min and n_max that maximise the sum of the values; see the module.

    `success` (M,) is the rate of each prompt, nan where it is unknown. ValueError if the bounds cannot hold `total`.

    Example:
        >>> knapsack_counts(np.array([0.5, 0.1, 1.0]), 24, 2, 32).tolist()
        [7, 15, 2]
    """
    size = success.size
    if not 1 <= lowest <= total / size <= most:
        raise ValueError(
            f"{total} rollouts cannot be shared by {size} prompts with {lowest} to {most} each. Change "
            "budget_fraction or num_generations, or the bounds num_rollouts_min and num_rollouts_max."
        )
    unseen, wrong = np.isnan(success), success == 0.0
    able = ~unseen & (success > 0.0) & (success < 1.0)
    counts = np.full(size, lowest, dtype=np.int64)
    counts[unseen] = total // size
    rest = total - int(counts.sum())
    p = success[able]
    needed = np.minimum(np.log(1.0 - CONFIDENCE) / np.log1p(-np.minimum(p, 1.0 - p)), most).astype(np.int64)
    reserved = min(max(rest - int(needed.sum()), 0), int((most - counts[wrong]).sum()))
    if p.size:
        n = np.arange(most + 1)[:, None]
        value = (1.0 - p**n - (1.0 - p) ** n) * p * (1.0 - p) ** 2
        counts[able] = best_counts(value, counts[able], rest - reserved + lowest * p.size)
    rest = total - int(counts.sum())
    for among in (wrong, np.ones(size, dtype=bool)):
        while rest and (open_ := np.flatnonzero(among & (counts < most))[:rest]).size:
            counts[open_] += 1  # one more for each in turn
            rest -= open_.size
    return counts


class Knapsack(FromGRPO):
    """Counts by value, with GRPO's advantages; see the module."""

    identity = {"method": "knapsack"}
    remembered = ("statistics",)

    def __init__(self, setting: Setting, options: Options) -> None:
        super().__init__(setting, options)
        self.budget = Budget(fraction=setting.budget_fraction, num_generations=setting.num_generations)
        refuse_single(self.budget.total_rollouts(setting.num_prompts) / setting.num_prompts)
        self.statistics = PromptStatistics()
        self._plan(np.full(setting.num_prompts, np.nan))  # raises now if the bounds cannot hold
        self._metrics = {}

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> Sequence[Job | Query]:
        """One round, by the results of earlier visits."""
        return counted_jobs(self._plan(self._success(prompts.keys))) if done is None else []

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Remember rewards."""
        self.statistics.observe_rewards(done.prompts.keys, done.prompt, done.rewards, done.scored)

    def _success(self, keys: tuple[str, ...]) -> np.ndarray:
        """Success rate of each prompt, shape (M,); nan without a history."""
        history = self.statistics.reward_history(keys)
        # A single reward value does not define success.
        known = (history.count > 0.0) & self.statistics.rewards_differ
        return np.where(known, self.statistics.success_share(history.mean), np.nan)

    def _plan(self, success: np.ndarray) -> np.ndarray:
        total = self.budget.total_rollouts(success.size)
        counts = knapsack_counts(success, total, self.setting.num_rollouts_min, self.setting.num_rollouts_max)
        mixed = 1.0 - success**counts - (1.0 - success) ** counts
        self._metrics = {
            "unseen_prompts": float(np.isnan(success).sum()),
            "all_wrong_prompts": float((success == 0.0).sum()),
            "all_right_prompts": float((success == 1.0).sum()),
            "mixed_prompts_expected": float(np.nansum(mixed)),
        }
        return counts
