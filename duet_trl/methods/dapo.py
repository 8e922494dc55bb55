# SPDX-License-Identifier: Apache-2.0
"""DAPO's dynamic sampling: every trained prompt has rewards that differ (arXiv 2503.14476, section 3.2).

A batch of prompts gets n = `num_generations` rollouts each. A group is kept if its rewards are not all the same; where
fewer than M groups are kept, another batch is drawn, until M are found or a ceiling is reached. The first M groups are
trained, the surplus is discarded:

    A_i = (R_i - mean of its group) / (std of its group + 1e-4)     over the kept groups

In expectation the sum over the rollouts has the direction of GRPO's: a dropped group has advantage 0 everywhere. Its
length changes, by one over the share of groups that differ, and so does the divisor, which counts trained tokens only.
Whole groups are kept or dropped, by exact equality: a rule for single rollouts would split groups.

The other parts of DAPO are settings of GRPOTrainer: docs/fidelity.md#dapo. Ours: a step that stays under-full trains
on what it has and warns once, where the authors' code stops the run.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..field_types import Options, config_field
from ..rollouts import Job, Judgement, NoMorePrompts, Prompts, Query, Rollouts
from .grouping import group_relative, mixed_prompts, uniform_jobs
from .grpo import FromGRPO
from .method import Setting

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DapoOptions(Options):
    """How much a step may generate until M of its prompts have rewards that differ."""

    oversample: float = config_field(
        "Prompts of a full batch over M.",
        1.0,
        rule=(lambda x: 1 <= x < float("inf"), "at least 1, got {}: a batch holds M prompts"),
    )
    max_batches: int = config_field(
        "Maximum batches of a step. 1 filters and never resamples.",
        10,
        rule=(lambda x: x >= 1, "at least 1, got {}. 1 never resamples"),
    )


class Dapo(FromGRPO):
    """Dynamic sampling; see the module."""

    identity = {"method": "dapo"}
    options: DapoOptions
    _said = False

    @staticmethod
    def largest_round(setting: Setting, options: Any) -> int:
        """Prompts of a batch."""
        return round(options.oversample * setting.num_prompts)

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> Sequence[Job | Query]:
        """Batches of whole groups until M of them have rewards that differ, or a ceiling is reached."""
        batch, n = round(self.options.oversample * prompts.num_drawn), self.setting.num_generations
        if done is None:
            draw(prompts, batch - len(prompts))
            return uniform_jobs(range(len(prompts)), n)
        found = int(mixed_prompts(done).sum())
        if found >= prompts.num_drawn:
            return []
        room = (self.setting.max_rollouts - len(done)) // n
        more = done.round.max() + 1 < self.options.max_batches
        added = draw(prompts, min(batch, room)) if more else range(0)
        if not added and not self._said:
            logger.warning(
                f"Step {prompts.step} trains on {found} prompts instead of {prompts.num_drawn}: the others of the "
                f"{len(np.unique(done.prompt))} in {done.round.max() + 1} batches ({done.new_tokens.sum()} generated "
                f"tokens) have rewards that are all the same, and max_batches={self.options.max_batches}, max_rollouts"
                f"={self.setting.max_rollouts} or the data set leaves no more. Raise these, or choose other prompts. "
                "Warned once; the metric unfilled_prompts keeps counting."
            )
            self._said = True
        return uniform_jobs(added, n)

    def judge(self, done: Rollouts) -> Judgement:
        """GRPO's advantages over the first M groups whose rewards differ; all others are dropped."""
        mixed = mixed_prompts(done)
        kept = (mixed & (np.cumsum(mixed) <= done.prompts.num_drawn))[done.prompt]
        return Judgement.of(group_relative(done, self.setting, kept), in_gradient=kept)

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Count batches beyond the first, and prompts that are degenerate, missing, or beyond M."""
        found, wanted = int(mixed_prompts(done).sum()), done.prompts.num_drawn
        self._metrics = {
            "resampled_batches": float(done.round.max()),
            "degenerate_prompts": float(len(np.unique(done.prompt)) - found),
            "unfilled_prompts": float(max(wanted - found, 0)),
            "surplus_prompts": float(max(found - wanted, 0)),
        }


def draw(prompts: Prompts, count: int) -> range:
    """More prompts; none where the data set has fewer, and the step ends with what it has."""
    try:
        return prompts.more(max(count, 0))
    except NoMorePrompts:
        return range(0)
