# SPDX-License-Identifier: Apache-2.0
"""Advantages modulated token by token, as DynaMO does (arXiv 2602.19208; formulas in `methods/dynamo.py`)."""

from dataclasses import dataclass

import torch

SLOPE = 50.0
"""Steepness of the decay, the authors' gamma."""
_TINY = 1e-8


@dataclass(frozen=True)
class Extremes:
    """What normalises the factors, scalars.

    Attributes:
        entropy_min (torch.Tensor | float): H_min, nats.
        entropy_max (torch.Tensor | float): H_max, nats.
        change_max (torch.Tensor | float): Largest Xi.
    """

    entropy_min: torch.Tensor | float
    entropy_max: torch.Tensor | float
    change_max: torch.Tensor | float

    @classmethod
    def of(cls, entropies: torch.Tensor, change: torch.Tensor, use: torch.Tensor) -> "Extremes":
        """Over the tokens in use, shape (B, T) each; infinite entropies where there is none."""
        return cls(
            entropies.masked_fill(~use, torch.inf).amin(),
            entropies.masked_fill(~use, -torch.inf).amax(),
            change.masked_fill(~use, 0.0).amax(),
        )


def entropy_change(
    logps: torch.Tensor, entropies: torch.Tensor, mask: torch.Tensor, advantages: torch.Tensor
) -> torch.Tensor:
    """Xi = |A (u - mean of u over the row)| with u = pi (log pi + H): what a token changes of the entropy.

    Args:
        logps (torch.Tensor): Log-prob of each token, shape (B, T), nats.
        entropies (torch.Tensor): Entropy before each token, shape (B, T), nats.
        mask (torch.Tensor): Tokens that count, shape (B, T), bool.
        advantages (torch.Tensor): Of each row, shape (B,).

    Returns:
        torch.Tensor: Shape (B, T), float32, up to the learning rate; 0 outside of the mask.
    """
    logps = logps.float()
    u = torch.where(mask, logps.exp() * (logps + entropies.float()), 0.0)
    mean = u.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.where(mask, (advantages.float().unsqueeze(1) * (u - mean)).abs(), 0.0)


def boost(entropies: torch.Tensor, advantages: torch.Tensor, extremes: Extremes, largest: float) -> torch.Tensor:
    """1 where A <= 0, else from 1 at the largest entropy to `largest` at the smallest; shape (B, T)."""
    width = extremes.entropy_max - extremes.entropy_min
    share = ((extremes.entropy_max - entropies.float()) / (width + _TINY)).clamp(0.0, 1.0)
    return torch.where(advantages.unsqueeze(1) > 0, 1.0 + (largest - 1.0) * share, 1.0)


def decay(change: torch.Tensor, extremes: Extremes, smallest: float, at: float) -> torch.Tensor:
    """From 1 at a small change of the entropy to `smallest` at the largest, half-way at a share `at`; shape (B, T)."""
    share = change / (extremes.change_max + _TINY)
    return smallest + (1.0 - smallest) * torch.sigmoid(SLOPE * (at - share))
