# SPDX-License-Identifier: Apache-2.0
"""DAPO's dynamic sampling: every trained prompt has rewards that differ (arXiv 2503.14476, section 3.2).

A batch of prompts gets n = `num_generations` rollouts each. A group is kept if its rewards are not all the same; where
fewer than M groups are kept, another batch is drawn, until M are found or a ceiling is reached. The first M groups are
trained, the surplus is discarded:

    A_i = (R_i - mean of its group) / (std of its group + 1e-4)     over the kept groups

In expectation the sum over the rollouts has the direction of GRPO's: a dropped group has advantage 0 everywhere. What
changes is its length, by one over the share of groups that differ, and the divisor, which counts trained tokens only.
Whole groups are kept or dropped, by exact equality: a rule for single rollouts would split groups.

The other parts of DAPO are settings of GRPOTrainer: docs/fidelity.md#dapo. Ours: a step that stays under-full trains
on what it has and says so once, where the authors' code stops the run.
"""

import logging
from dataclasses import dataclass, replace

import numpy as np

from ..field_types import Options, option
from ..rollouts import Job, Judgement, NoMorePrompts, Prompts, Rollouts
from .grouping import check_groups, group_relative, mixed_prompts, uniform_jobs
from .method import Method, Setting

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ResamplingOptions(Options):
    """How much a step may generate until M of its prompts have rewards that differ."""

    oversample: float = option(
        "Prompts of a full batch over M.",
        1.0,
        unit=">= 1",
        rule=(lambda x: 1 <= x < float("inf"), "at least 1, got {}: a batch holds M prompts"),
    )
    max_batches: int = option(
        "Maximum batches of a step. 1 filters and never resamples.",
        10,
        unit=">= 1",
        rule=(lambda x: x >= 1, "at least 1, got {}. 1 never resamples"),
    )


@dataclass(frozen=True)
class DapoOptions(ResamplingOptions):
    """Options of DAPO, beside those of `ResamplingOptions`."""

    filter_function: int | None = option(
        "Reward function, from 0, whose values must differ. None: the weighted sum.",
        rule=(lambda x: x >= 0, "at least 0, got {}. None: their sum"),
    )


class Dapo(Method):
    """Dynamic sampling; see the module."""

    def __init__(self, setting: Setting, options: DapoOptions) -> None:
        check_groups(setting, round(options.oversample * setting.num_prompts))
        self.setting = setting
        self.options = options
        self.identity = {"method": "dapo", "filter_function": options.filter_function}
        self._warned = False

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> list[Job]:
        """Batches of whole groups until M of them have rewards that differ, or a ceiling is reached."""
        batch, n = round(self.options.oversample * prompts.num_drawn), self.setting.num_generations
        if done is None:
            draw(prompts, batch - len(prompts))
            return uniform_jobs(range(len(prompts)), n)
        if self._mixed(done).sum() >= prompts.num_drawn:
            return []
        room, ceiling = (self.setting.max_rollouts - len(done)) // n, ""
        if done.round.max() + 1 >= self.options.max_batches:
            room, ceiling = 0, f"max_batches={self.options.max_batches} is reached. Raise it, or choose other prompts."
        elif room < 1:
            ceiling = f"max_rollouts={self.setting.max_rollouts} leaves no room for another group. Raise it."
        added, exhausted = draw(prompts, min(batch, room))
        if not added:
            self._warn(done, ceiling or exhausted)
        return uniform_jobs(added, n)

    def judge(self, done: Rollouts) -> Judgement:
        """GRPO's advantages over the first M groups whose rewards differ; all others are dropped."""
        kept = first_mixed(done, self._mixed(done))
        return Judgement.of(group_relative(done, self.setting, kept), in_gradient=kept)

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Nothing is remembered."""
        self._metrics = resampling_metrics(done, self._mixed(done))

    def _mixed(self, done: Rollouts) -> np.ndarray:
        """Prompts whose rewards, those of `filter_function` if it is set, differ; shape (M,), bool."""
        column, num_functions = self.options.filter_function, done.rewards_per_func.shape[1]
        if column is None:
            return mixed_prompts(done)
        if column >= num_functions:
            raise ValueError(f"filter_function={column} names none of the {num_functions} reward functions, from 0.")
        return mixed_prompts(replace(done, rewards=done.rewards_per_func[:, column].double().cpu().numpy()))

    def _warn(self, done: Rollouts, reason: str) -> None:
        if not self._warned:
            logger.warning(
                f"Step {done.prompts.step} trains on {self._mixed(done).sum()} prompts instead of "
                f"{done.prompts.num_drawn}: the others of the {len(np.unique(done.prompt))} in {done.round.max() + 1} "
                f"batches ({done.new_tokens.sum()} generated tokens) have rewards that are all the same. {reason} "
                "Said once; the metric unfilled_prompts counts on."
            )
        self._warned = True


def draw(prompts: Prompts, count: int) -> tuple[range, str]:
    """More prompts, and what the data set says where it has fewer: then none, and the step ends with what it has."""
    if count < 1:
        return range(0), ""
    try:
        return prompts.more(count), ""
    except NoMorePrompts as error:
        return range(0), str(error)


def first_mixed(done: Rollouts, mixed: np.ndarray) -> np.ndarray:
    """Rollouts of the first M prompts whose rewards differ, M as the sampler drew; the surplus is discarded."""
    return (mixed & (np.cumsum(mixed) <= done.prompts.num_drawn))[done.prompt]


def resampling_metrics(done: Rollouts, mixed: np.ndarray) -> dict[str, float]:
    """Counts of a step: batches beyond the first, prompts that are degenerate, missing, or beyond M."""
    visited = len(np.unique(done.prompt))
    return {
        "resampled_batches": float(done.round.max()),
        "degenerate_prompts": float(visited - mixed.sum()),
        "unfilled_prompts": float(max(done.prompts.num_drawn - mixed.sum(), 0)),
        "surplus_prompts": float(max(mixed.sum() - done.prompts.num_drawn, 0)),
    }
