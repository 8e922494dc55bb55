# SPDX-License-Identifier: Apache-2.0
"""The average of a policy's weights over its last updates."""

from collections.abc import Sequence

import torch


class WeightAverage:
    """An exponential moving average of weights (Polyak and Juditsky, 1992), without a start to forget.

    After update t the average moves to the weights by max(1 - decay, 1 / t): it is their mean until there are
    1 / (1 - decay) of them. Held in float32 at least, where the steps of an average survive.

    Args:
        decay (float): In (0, 1).

    Attributes:
        count (int): Updates so far.
        tensors (list[torch.Tensor]): The average, a tensor for each of the weights; empty before the first update.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.count = 0
        self.tensors: list[torch.Tensor] = []

    @torch.no_grad()
    def add(self, weights: Sequence[torch.Tensor]) -> None:
        """Take in the weights after an update, the same ones each time."""
        self.count += 1
        if self.count == 1:
            self.tensors = [one.to(torch.promote_types(one.dtype, torch.float32), copy=True) for one in weights]
            return
        share = max(1 - self.decay, 1 / self.count)
        for average, one in zip(self.tensors, weights, strict=True):
            average.lerp_(one.to(average.dtype), share)

    @torch.no_grad()
    def copy_to(self, weights: Sequence[torch.Tensor]) -> None:
        """Write the average into the weights, in place, rounded to their type."""
        for average, one in zip(self.tensors, weights, strict=True):
            one.copy_(average)
