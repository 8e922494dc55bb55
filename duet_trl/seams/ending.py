# SPDX-License-Identifier: Apache-2.0
"""A reward for ending, which teaches a policy to stop where the trim would stop it.

The trim stops a rollout behind its answer, so no reward ever sees what the policy would have written next, and nothing
keeps it from going on. Where it later generates without the gate, and its last answer counts, that costs accuracy.
Only what the reward functions pay for is paid more: a wrong answer that ends is no better than one that does not.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..update.advantages import unscored, weighted_sum


class EndingReward:
    """TRL reward function: 1 for a completion that the policy ended itself, with an EOS, else 0.

    What the gate or the length limit stopped earns nothing here; what an ending is worth, `pay_endings` says.
    """

    def __init__(self, eos_token_ids: Iterable[int]) -> None:
        self.eos_token_ids = frozenset(eos_token_ids)

    def __call__(self, completion_ids: Sequence[Sequence[int]], **kwargs: Any) -> list[float]:
        """Rewards, length N."""
        return [float(len(ids) > 0 and ids[-1] in self.eos_token_ids) for ids in completion_ids]


def add_ending_reward(trainer: Any, weight: float) -> None:
    """Add an `EndingReward` behind the reward functions of a script, as TRL adds those of environments."""
    # New lists: TRL keeps those of the script, which may give them to another trainer.
    trainer.reward_funcs = [*trainer.reward_funcs, EndingReward(trainer.eos_token_ids)]
    trainer.reward_func_names = [*trainer.reward_func_names, "ending_reward"]
    trainer.reward_processing_classes = [*trainer.reward_processing_classes, None]
    trainer.reward_weights = torch.cat([trainer.reward_weights, torch.tensor([weight])])


def pay_endings(rewards_per_func: torch.Tensor, reward_weights: torch.Tensor) -> None:
    """Make 1 for an ending what the other reward functions pay together, if that is above 0, in place.

    Args:
        rewards_per_func (torch.Tensor): That of the ending last, shape (N, F + 1). What no other one scored stays
            unscored.
        reward_weights (torch.Tensor): Shape (F + 1,).
    """
    others = rewards_per_func[:, :-1]
    earned = weighted_sum(others, reward_weights[:-1].to(others.device)).clamp(min=0.0)
    rewards_per_func[:, -1] *= torch.where(unscored(others), torch.nan, earned.nan_to_num(0.0))
