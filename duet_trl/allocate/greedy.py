# SPDX-License-Identifier: Apache-2.0
"""Rollouts in the order of what they gain per token: the plan behind Theorem 1's counts and those of `mixed`.

Where the gains of a prompt fall with every rollout it has, taking the largest gain per token first is optimal up to
the budget that the last rollouts leave over, and that remainder bounds what is lost.
"""

import math

import numpy as np

_BISECTIONS = 12


def greedy_counts(
    value: np.ndarray, cost: np.ndarray, lowest: np.ndarray, limit: float, cap: int
) -> tuple[np.ndarray, float, float]:
    """Integer counts that maximise a sum of concave values under a budget of tokens and a cap on their number.

    Where the cap binds before the budget, every rollout is charged a fee beside its tokens, the smallest with which
    both run out together.

    ``value`` says what n rollouts of each prompt are worth, shape (num_max + 1, M), one row per n from 0. Its
    differences from row to row fall from ``lowest`` (M,) on, which is kept even above ``limit`` tokens. One rollout of
    a prompt takes ``cost`` (M,) tokens.

    Returns:
        tuple[np.ndarray, float, float]: Counts (M,) int64; the price in value per token where the budget ran out, 0.0
        where it pays for everything; a bound on the value below the optimum, inf where the cap binds.
    """
    base = int(lowest.min())
    gains = np.diff(value[base:], axis=0)  # (num_max - base, M)
    counts, price, gap = _take(gains, base, cost, cost, lowest, limit, cap)
    if gap == math.inf:
        counts, price = _balance(value, gains, base, cost, lowest, limit, cap, counts)
    return counts, price, gap


def _take(
    gains: np.ndarray, base: int, cost: np.ndarray, charge: np.ndarray, lowest: np.ndarray, limit: float, cap: int
) -> tuple[np.ndarray, float, float]:
    """Counts by descending gain per charge, the price where the budget ran out, and the gap; inf: the cap came first.

    Where the charge is the cost, no plan beats the counts so far by more than the price of every token left. What the
    filling of the remainder gains comes off that.
    """
    ratio = (gains / charge).ravel()
    order = np.argsort(-ratio, kind="stable")  # ties: by n, then by prompt, so that equal prompts stay equal
    order = order[order // cost.size + base >= lowest[order % cost.size]]
    prompt = order % cost.size
    counts = lowest.copy()
    spent = float(cost @ counts) + np.cumsum(cost[prompt])
    fits = int(np.searchsorted(spent, limit, side="right"))
    room = max(cap - int(counts.sum()), 0)
    taken = min(fits, room)
    counts += np.bincount(prompt[:taken], minlength=cost.size)
    if taken == order.size:
        return counts, 0.0, 0.0
    price = float(ratio[order[taken]])
    if room <= fits:
        return counts, price, math.inf
    left, room = limit - float(cost @ counts), room - taken
    gap = price * max(left, 0.0)
    return counts, price, max(gap - _fill(counts, gains, base, cost, prompt[taken:], left, room), 0.0)


def _fill(
    counts: np.ndarray, gains: np.ndarray, base: int, cost: np.ndarray, prompt: np.ndarray, left: float, room: int
) -> float:
    """Spend the remainder of the budget on cheaper rollouts, in place; returns what they gain.

    A prompt that is passed over once is over for good: its next rollout costs the same, and the gains of a prompt come
    in order.
    """
    gained, prompt = 0.0, prompt[cost[prompt] <= left]
    while room and prompt.size:
        q, prompt = prompt[0], prompt[1:]
        gained += gains[counts[q] - base, q]
        counts[q] += 1
        left -= cost[q]
        room -= 1
        prompt = prompt[cost[prompt] <= left]
    return gained


def _balance(
    value: np.ndarray,
    gains: np.ndarray,
    base: int,
    cost: np.ndarray,
    lowest: np.ndarray,
    limit: float,
    cap: int,
    counts: np.ndarray,
) -> tuple[np.ndarray, float]:
    """Bisect the fee per rollout, in tokens, on which of the two limits is met first; the best plan on the way."""

    def worth(plan: np.ndarray) -> float:
        return float(value[plan, np.arange(plan.size)].sum())

    best, price = counts, 0.0
    low, high = 0.0, 64.0 * float(cost.max())  # with such a fee the tokens hardly count
    for _ in range(_BISECTIONS):
        fee = (low + high) / 2.0
        plan, found, gap = _take(gains, base, cost, cost + fee, lowest, limit, cap)
        if worth(plan) > worth(best):
            best, price = plan, found
        low, high = (fee, high) if gap == math.inf else (low, fee)
    return best, price
