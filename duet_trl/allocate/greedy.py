# SPDX-License-Identifier: Apache-2.0
"""Rollouts in the order of their gain per token.

Where the gains of a prompt fall with every rollout it has, taking the largest gain per token first is optimal up to
the budget that the last rollouts leave over.
"""

import numpy as np

_BISECTIONS = 12


def greedy_counts(
    value: np.ndarray, cost: np.ndarray, lowest: np.ndarray, limit: float, cap: int
) -> tuple[np.ndarray, float]:
    """Integer counts that maximise a sum of concave values under a budget of tokens and a cap on their number.

    Where the cap binds before the budget, every rollout is charged a fee on top of its tokens, the smallest with which
    both run out together.

    ``value`` is the value of n rollouts of each prompt, shape (num_max + 1, M), one row per n from 0. Its
    differences from row to row fall from ``lowest`` (M,) on, which is kept even above ``limit`` tokens. One rollout of
    a prompt takes ``cost`` (M,) tokens.

    Returns:
        tuple[np.ndarray, float]: Counts (M,) int64; the price in value per token where the budget ran out, 0.0 where
        it pays for everything.
    """

    def worth(plan: np.ndarray) -> float:
        return float(value[plan, np.arange(plan.size)].sum())

    best, price, capped = _take(value, cost, cost, lowest, limit, cap)
    if not capped:
        return best, price
    price = 0.0
    low, high = 0.0, 64.0 * float(cost.max())  # with such a fee the tokens barely count
    for _ in range(_BISECTIONS):
        fee = (low + high) / 2.0
        plan, found, capped = _take(value, cost, cost + fee, lowest, limit, cap)
        if worth(plan) > worth(best):
            best, price = plan, found
        low, high = (fee, high) if capped else (low, fee)
    return best, price


def _take(
    value: np.ndarray, cost: np.ndarray, charge: np.ndarray, lowest: np.ndarray, limit: float, cap: int
) -> tuple[np.ndarray, float, bool]:
    """Counts by descending gain per charge, the price where the budget ran out, and whether the cap came first."""
    base = int(lowest.min())
    gains = np.diff(value[base:], axis=0)  # (num_max - base, M)
    ratio = (gains / charge).ravel()
    order = np.argsort(-ratio, kind="stable")  # ties: by n, then by prompt, so that equal prompts stay equal
    order = order[order // cost.size + base >= lowest[order % cost.size]]
    prompt = order % cost.size
    counts = lowest.copy()
    fits = int(np.searchsorted(float(cost @ counts) + np.cumsum(cost[prompt]), limit, side="right"))
    room = max(cap - int(counts.sum()), 0)
    taken = min(fits, room)
    counts += np.bincount(prompt[:taken], minlength=cost.size)
    if taken == order.size:
        return counts, 0.0, False
    price = float(ratio[order[taken]])
    if room <= fits:
        return counts, price, True
    # The remainder buys cheaper rollouts. A prompt that is passed over once stays so: its next one costs the same.
    left, room = limit - float(cost @ counts), room - taken
    prompt = prompt[taken:]
    while room and (prompt := prompt[cost[prompt] <= left]).size:
        counts[prompt[0]] += 1
        left -= cost[prompt[0]]
        room, prompt = room - 1, prompt[1:]
    return counts, price, False
