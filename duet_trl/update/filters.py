# SPDX-License-Identifier: Apache-2.0
"""Phase 3: which rollouts reach the forward pass.

A filter takes the advantages and the abort flags of a step and returns the rollouts to keep; a rival of the paper adds
a function of the same signature. Filtering comes after scoring: what is dropped here has already had its say in the
group baseline.
"""

from collections.abc import Callable

import numpy as np
import torch

RolloutFilter = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(advantages (N,), aborted (N,) bool) -> keep (N,) bool."""


def drop_aborted(advantages: np.ndarray, aborted: np.ndarray) -> np.ndarray:
    """Keep what was not aborted: the factor (1 - I_abort) of Eq. 6, taken before any compute is spent on it.

    Args:
        advantages (np.ndarray): A, shape (N,); not used.
        aborted (np.ndarray): I_abort, shape (N,), bool.

    Returns:
        np.ndarray: Rollouts to keep, shape (N,), bool.
    """
    return ~np.asarray(aborted, dtype=bool)


def drop_zero_advantage(advantages: np.ndarray, aborted: np.ndarray, cutoff: float = 0.0) -> np.ndarray:
    """Keep what can move the policy: not aborted and with an advantage other than 0.

    The loss of Eq. 6 stays the same only if the tokens of dropped rollouts still count in N_t, and only without a KL
    or entropy term, which such rollouts would feel.

    Args:
        advantages (np.ndarray): A, shape (N,).
        aborted (np.ndarray): I_abort, shape (N,), bool.
        cutoff (float): Drop advantages of a smaller absolute value too. Above 0 their share of the gradient is lost:
            at most `cutoff` times their own length each.

    Returns:
        np.ndarray: Rollouts to keep, shape (N,), bool.
    """
    size = np.abs(np.asarray(advantages))
    return drop_aborted(advantages, aborted) & (size > 0) & (size >= cutoff)


def nonfinite_rewards(rewards_per_func: torch.Tensor) -> torch.Tensor:
    """Rollouts with an infinite reward. NaN is not one: it is how TRL writes that a function abstained.

    Args:
        rewards_per_func (torch.Tensor): Rewards, shape (N, F).

    Returns:
        torch.Tensor: Flags, shape (N,), bool.
    """
    return torch.isinf(rewards_per_func).any(dim=1)


def unscored(rewards_per_func: torch.Tensor) -> torch.Tensor:
    """Rollouts on which every reward function abstained or returned NaN.

    Args:
        rewards_per_func (torch.Tensor): Rewards, shape (N, F).

    Returns:
        torch.Tensor: Flags, shape (N,), bool. All true is a broken reward function, not a hard batch.
    """
    return torch.isnan(rewards_per_func).all(dim=1)


def nonfinite_logps(sum_logps: np.ndarray) -> np.ndarray:
    """Rollouts whose summed log-probability is NaN or infinite.

    Args:
        sum_logps (np.ndarray): Sum of log pi over the policy tokens, shape (N,), nats.

    Returns:
        np.ndarray: Flags, shape (N,), bool.
    """
    return ~np.isfinite(np.asarray(sum_logps, dtype=np.float64))
