# SPDX-License-Identifier: Apache-2.0
r"""GRPO (arXiv 2402.03300), as in `trl.GRPOTrainer`: the same number of rollouts for every prompt, all trained.

    A_i = (R_i - mean of the group) / (standard deviation of the group + 1e-4)

With `scale_rewards="none"` and the group's other rollouts as baseline this would be an unbiased policy gradient. The
mean includes R_i itself, which shrinks it by (G - 1) / G, and the standard deviation weighs prompts by their
difficulty: both are GRPO. The loss divides by all policy tokens of the step (`loss_type="dapo"`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..field_types import Options
from ..rollouts import Job, Judgement, Prompts, Query, Rollouts
from .grouping import check_groups, group_relative, uniform_jobs
from .method import Method, Setting


class FromGRPO(Method):
    """A method that overrides what it does differently from GRPO.

    Args:
        setting (Setting): Of the run.
        options (Options): Its `method_kwargs`.
    """

    def __init__(self, setting: Setting, options: Options) -> None:
        check_groups(setting, self.largest_round(setting, options))
        self.setting, self.options = setting, options

    @staticmethod
    def largest_round(setting: Setting, options: Any) -> int:
        """Prompts that a step must have room for."""
        return setting.num_prompts

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> Sequence[Job | Query]:
        """One round of G rollouts for each prompt."""
        return uniform_jobs(range(len(prompts)), self.setting.num_generations) if done is None else []

    def judge(self, done: Rollouts) -> Judgement:
        """Group-relative advantages, everything trained."""
        return Judgement.of(group_relative(done, self.setting))

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Learn nothing."""


class GRPO(FromGRPO):
    """Plain GRPO on the loop; loss for loss `trl.GRPOTrainer`."""

    plain = True
    identity = {"method": "grpo"}
