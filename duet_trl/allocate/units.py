# SPDX-License-Identifier: Apache-2.0
"""Handing out whole rollouts under a budget that counts them: one by one in turn, or in proportion to priorities."""

import numpy as np


def round_robin(counts: np.ndarray, units: int, most: int, among: np.ndarray) -> int:
    """One more rollout for each of some prompts in their order, again and again; in place.

    Args:
        counts (np.ndarray): Rollouts so far, shape (M,), int64.
        units (int): Rollouts to hand out, >= 0.
        most (int): Maximum rollouts of a prompt.
        among (np.ndarray): Who may get any, shape (M,), bool.

    Returns:
        int: Units that are left because all of these prompts are full.
    """
    while units and (able := np.flatnonzero(among & (counts < most))[:units]).size:
        counts[able] += 1
        units -= able.size
    return units


def water_filling(priority: np.ndarray, total: int, lowest: int, most: int) -> np.ndarray:
    """Counts between two bounds, the rest of the budget in proportion to priorities.

    Every prompt gets `lowest`. What is left is shared by priority among those below `most`: the floor of each share,
    then one more for the largest remainders. What a full prompt cannot take is shared again. Where all with a priority
    are full, the others take turns.

    Args:
        priority (np.ndarray): Shape (M,), >= 0 and finite.
        total (int): Sum of the counts.
        lowest (int): Minimum rollouts of a prompt.
        most (int): Maximum rollouts of a prompt.

    Returns:
        np.ndarray: Shape (M,), int64, with the sum `total`.

    Raises:
        ValueError: If the bounds cannot hold `total`.

    Example:
        >>> water_filling(np.array([1.0, 0.5, 0.0]), 10, 2, 6).tolist()
        [5, 3, 2]
    """
    if not lowest * priority.size <= total <= most * priority.size:
        raise ValueError(
            f"{total} rollouts cannot be shared by {priority.size} prompts with {lowest} to {most} each. Change the "
            "budget or the bounds."
        )
    counts = np.full(priority.size, lowest, dtype=np.int64)
    rest = total - lowest * priority.size
    while rest and (open_ := np.flatnonzero((counts < most) & (priority > 0.0))).size:
        share = rest * (priority[open_] / priority[open_].sum())
        added = np.floor(share).astype(np.int64)
        largest = np.argsort(added - share, kind="stable")  # largest remainders first, of equals the earlier prompt
        added[largest[: max(rest - int(added.sum()), 0)]] += 1
        added = np.minimum(added, most - counts[open_])
        counts[open_] += added
        rest -= int(added.sum())
    round_robin(counts, rest, most, np.ones(priority.size, dtype=bool))
    return counts
