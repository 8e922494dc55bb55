# SPDX-License-Identifier: Apache-2.0
"""How good a gradient estimate is, from many simulated steps at a fixed policy.

With u the gradient estimate of a step and g the gradient of held-out accuracy, an Adam step whose moments have settled
moves coordinate j by E[u_j] / sqrt(E[u_j^2]) of the learning rate, and raises the accuracy to first order by

    gain = sum over j of g_j E[u_j] / sqrt(E[u_j^2])

per unit of learning rate. It does not change with the scale of u, and falls with its noise.
"""

from dataclasses import dataclass

import numpy as np
import torch

LEVEL = (2.5, 97.5)


@dataclass(frozen=True)
class Moments:
    """First and second moment of the gradient estimates, by block of steps, shape (B, C) each, and each step's cosine.

    Attributes:
        first (np.ndarray): Mean of u over the steps of a block.
        second (np.ndarray): Mean of u squared.
        cosine (np.ndarray): Of u with the held-out gradient, shape (S,); 0 where u is 0.
        norm (np.ndarray): Of u over the recorded coordinates, shape (S,).
    """

    first: np.ndarray
    second: np.ndarray
    cosine: np.ndarray
    norm: np.ndarray


def moments(weights: torch.Tensor, gradients: torch.Tensor, held_out: np.ndarray, blocks: int) -> Moments:
    """Moments of the estimates u = weights @ gradients.

    Args:
        weights (torch.Tensor): Weight of each recorded gradient in each step, shape (S, R), sparse.
        gradients (torch.Tensor): Of the sum of log pi of each recorded rollout, shape (R, C).
        held_out (np.ndarray): Gradient of held-out accuracy, shape (C,).
        blocks (int): Of steps, in order; divides S.
    """
    estimates = weights @ gradients  # (S, C)
    norm = estimates.norm(dim=1).double().numpy()
    along = (estimates @ torch.from_numpy(held_out).to(estimates)).double().numpy()
    scale = norm * np.linalg.norm(held_out)
    cosine = np.divide(along, scale, out=np.zeros_like(along), where=scale > 0)
    in_blocks = estimates.view(blocks, -1, estimates.shape[1])
    first = in_blocks.mean(dim=1).numpy()
    return Moments(first, in_blocks.square_().mean(dim=1).numpy(), cosine, norm)


def adam_direction(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """E[u] / sqrt(E[u^2]), shape of both; 0 for a coordinate that never had a gradient."""
    return np.divide(first, np.sqrt(second), out=np.zeros_like(first), where=second > 0)


def gain(found: Moments, held_out: np.ndarray) -> float:
    """Accuracy per unit of learning rate that an Adam step gains; held_out has shape (C,)."""
    return float(adam_direction(found.first.mean(axis=0), found.second.mean(axis=0)) @ held_out)


@dataclass(frozen=True)
class Resamples:
    """Bootstrap draws that all estimators of a policy share, so that their ratios are paired.

    Attributes:
        steps (np.ndarray): Share of each block of steps, shape (D, B).
        held_out (np.ndarray): Share of each block of held-out problems, shape (D, H).
    """

    steps: np.ndarray
    held_out: np.ndarray


def draw_resamples(count: int, step_blocks: int, held_out_blocks: int, seed: int) -> Resamples:
    """Blocks of steps and of held-out problems, drawn with replacement and independently of each other."""
    rng = np.random.default_rng(seed)
    return Resamples(
        *(rng.multinomial(size, np.full(size, 1 / size), size=count) / size for size in (step_blocks, held_out_blocks))
    )


def resampled_gains(found: Moments, held_out: np.ndarray, resamples: Resamples) -> np.ndarray:
    """The gain in every draw, shape (D,).

    Args:
        found (Moments): Of an estimator.
        held_out (np.ndarray): Gradients of accuracy on the blocks of held-out problems, shape (H, C).
        resamples (Resamples): The draws.
    """
    gains = np.empty(len(resamples.steps))
    for draw, (steps, problems) in enumerate(zip(resamples.steps, resamples.held_out, strict=True)):
        direction = adam_direction(*(np.asarray(steps, x.dtype) @ x for x in (found.first, found.second)))
        gains[draw] = (held_out @ direction) @ problems
    return gains


def interval(values: np.ndarray) -> tuple[float, float]:
    """Central 95% of bootstrap values."""
    low, high = np.percentile(values, LEVEL)
    return float(low), float(high)
