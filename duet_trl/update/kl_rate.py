# SPDX-License-Identifier: Apache-2.0
"""A learning rate that follows how far the updates of a batch move the policy.

The idea is that of PPO for robots (Rudin et al., arXiv 2109.11978, after the adaptive penalty of Schulman et al.,
arXiv 1707.06347, section 4), measured where GRPO has it for nothing: the second pass over a batch computes the
log-probs of tokens whose log-probs before the first are known. Late in training the trained rollouts of a batch are a
few failures that agree with each other, and the rate that was right at the start moves the policy far too much.

A small divergence grows with the square of the rate, so the rate is multiplied by the root of what is desired over
what was found. It rises slowly: a batch of which little is trained moves the policy little at any rate, and the next
may have more. It falls fast. The divergence is that of whole rollouts, a sum over their tokens: a policy whose
solutions are five times as long moves its distribution over solutions as far as before when each token moves a fifth
as far.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

RISE, FALL = 1.25, 2.0
"""Factors by which the rate goes up and down at most from one batch to the next."""
LOWEST, HIGHEST = 1 / 30, 4.0
"""Bounds of the whole factor: the schedule stays the frame."""


class KLRate:
    """The factor on the learning rate.

    Args:
        desired (float): KL divergence of a rollout, nats, that the updates of a batch should come to.
    """

    def __init__(self, desired: float) -> None:
        self.desired = desired
        self.factor = 1.0
        self._sums: torch.Tensor | None = None
        self._steered: LRScheduler | None = None

    def steer(self, scheduler: LRScheduler) -> None:
        """Multiply the rates of a schedule by the factor, from its next step on.

        Raises:
            ValueError: If it is not a `LambdaLR`, as all schedules of transformers are that do not watch a metric.
        """
        if scheduler is self._steered:
            return
        if not isinstance(scheduler, LambdaLR):
            raise ValueError(
                "desired_kl needs a LambdaLR schedule, such as that of lr_scheduler_type='constant'; got "
                f"{type(scheduler).__name__}. Choose another schedule, or remove desired_kl"
            )
        self._steered = scheduler
        scheduler.lr_lambdas = [lambda step, stock=stock: stock(step) * self.factor for stock in scheduler.lr_lambdas]

    def note(self, moved: torch.Tensor, mask: torch.Tensor) -> None:
        """Add rollouts to what `take` gives.

        Args:
            moved (torch.Tensor): Log-prob now minus log-prob when the batch was generated, (B, T).
            mask (torch.Tensor): Which tokens count, (B, T). A row without any is padding, and no rollout.
        """
        # Schulman's k3: not negative, unbiased for the divergence of the policy before from the one now.
        divergence = torch.where(mask.bool(), torch.expm1(moved.float()) - moved.float(), 0.0)
        sums = torch.stack([divergence.sum(), mask.any(dim=1).sum().to(divergence)])
        self._sums = sums if self._sums is None else self._sums + sums

    def take(self) -> torch.Tensor:
        """Summed divergence and number of the rollouts noted, shape (2,); forgets them."""
        sums, self._sums = self._sums, None
        return torch.zeros(2) if sums is None else sums

    def follow(self, divergence: float) -> dict[str, float]:
        """Move the factor after the last pass over a batch.

        Args:
            divergence (float): Mean of a rollout, nats, over all processes.

        Returns:
            dict[str, float]: It, as a metric.
        """
        if not divergence <= 0:  # a batch that moved nothing measures nothing; NaN is too much
            step = math.sqrt(self.desired / divergence) if math.isfinite(divergence) else 0.0
            step = min(max(step, 1 / FALL), RISE)
            self.factor = min(max(self.factor * step, LOWEST), HIGHEST)
        return {"update_kl": divergence} if math.isfinite(divergence) else {}

    def state_dict(self) -> dict[str, Any]:
        """The factor."""
        return {"rate_factor": self.factor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict()`."""
        self.factor = state["rate_factor"]
