# SPDX-License-Identifier: Apache-2.0
"""Which of a prompt's rollouts are trained where that is fewer than were generated."""

import numpy as np


def max_variance_subset(rewards: np.ndarray, num_kept: int) -> np.ndarray:
    """The rewards with the largest variance among all subsets of one size, in O(n log n)."""
    if len(rewards) <= num_kept:
        return np.arange(len(rewards))
    lowest = np.argsort(rewards, kind="stable")
    highest = lowest[::-1]  # of the same order, so that no tie is in both
    centred = rewards - rewards.mean()
    powers = np.stack([centred, centred**2])  # (2, n)
    start = np.zeros((2, 1))
    low = np.concatenate([start, np.cumsum(powers[:, lowest[:num_kept]], axis=1)], axis=1)  # (2, m + 1)
    high = np.concatenate([start, np.cumsum(powers[:, highest[:num_kept]], axis=1)], axis=1)
    first, second = (high + low[:, ::-1]) / num_kept  # moments with k highest and m - k lowest, k = 0..m
    k = int(np.argmax(second - first**2))
    return np.sort(np.concatenate([highest[:k], lowest[: num_kept - k]]))
