# SPDX-License-Identifier: Apache-2.0
r"""GRPO (arXiv 2402.03300), as `trl.GRPOTrainer` has it: every prompt as many rollouts, all of them trained.

    A_i = (R_i - mean of the group) / (standard deviation of the group + 1e-4)

With `scale_rewards="none"` and the group's other rollouts as baseline this would be an unbiased policy gradient. The
mean includes R_i itself, which shrinks it by (G - 1) / G, and the standard deviation weighs prompts by their
difficulty: both are GRPO. The loss divides by all policy tokens of the step (`loss_type="dapo"`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..field_types import Options
from ..rollouts import Job, Judgement, Prompts, Rollouts
from .grouping import group_relative, uniform_jobs
from .method import Method, Setting


@dataclass(frozen=True)
class GRPOOptions(Options):
    """GRPO has no options of its own."""


class GRPO(Method):
    """Plain GRPO on the loop; loss for loss `trl.GRPOTrainer`."""

    plain = True

    def __init__(self, setting: Setting, options: GRPOOptions) -> None:
        self.setting = setting
        self.identity = {"method": "grpo"}

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> Sequence[Job]:
        """One round of G rollouts for each prompt."""
        return uniform_jobs(range(len(prompts)), self.setting.num_generations) if done is None else []

    def judge(self, done: Rollouts) -> Judgement:
        """Group-relative advantages, everything trained."""
        return Judgement.of(group_relative(done, self.setting))

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: object) -> None:
        """GRPO learns nothing about prompts."""
