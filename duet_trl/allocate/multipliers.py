# SPDX-License-Identifier: Apache-2.0
"""Searches for the multiplier of one budget constraint: Theorem 1 with bounds, and its integer counterpart."""

import math

import numpy as np

# The integer search stops once so few single rollouts lie between its two ends; sorting them is cheaper.
_SORTABLE_STEPS = 32
# Relative width at which the ends of the search are the same number: whatever lies between them is a tie.
_TIE_WIDTH = 1e-13


def continuous_multiplier(
    squares: np.ndarray, cost: np.ndarray, lowest: np.ndarray, highest: np.ndarray, budget: float
) -> float:
    """Multiplier lambda* that closes the budget when counts may be fractional (Theorem 1, Eq. 2, with bounds).

    Without active bounds this is ``(sum(sigma * sqrt(L)) / B) ** 2``. With bounds, prompts that the closed form
    pushes outside are fixed at the bound of the side that dominates, and the rest is solved again; each fixing
    is final, so the result is exact after at most M rounds (a handful in practice).

    Args:
        squares (np.ndarray): sigma squared, shape (M,).
        cost (np.ndarray): Tokens of one rollout, shape (M,).
        lowest (np.ndarray): Fewest rollouts, shape (M,).
        highest (np.ndarray): Most rollouts, shape (M,).
        budget (float): Tokens, at least ``sum(cost * lowest)``.

    Returns:
        float: sigma squared per token; 0.0 when the budget does not bind.
    """
    if cost @ highest <= budget:
        return 0.0
    spread, unit_count = np.sqrt(squares * cost), np.sqrt(squares / cost)
    root = float(spread.sum()) / budget
    while spread.size:
        counts = unit_count / root
        below, above = counts < lowest, counts > highest
        deficit = float(((lowest - counts) * cost)[below].sum())
        surplus = float(((counts - highest) * cost)[above].sum())
        if deficit == surplus:
            break
        fixed, bound = (below, lowest) if deficit > surplus else (above, highest)
        budget -= float((bound * cost)[fixed].sum())
        free = ~fixed
        spread, unit_count, cost, lowest, highest = (x[free] for x in (spread, unit_count, cost, lowest, highest))
        if spread.size and budget > 0.0:
            root = float(spread.sum()) / budget
    return root * root


def counts_at(multiplier: float, ratio: np.ndarray, lowest: np.ndarray, highest: np.ndarray) -> np.ndarray:
    """Integer minimiser of ``squares / n + multiplier * cost * n`` for each prompt, as float64, shape (M,).

    The n-th rollout pays while ``squares / (n * (n - 1)) >= multiplier * cost``, so n is the largest integer with
    ``n * (n - 1) <= ratio / multiplier``, where ``ratio = squares / cost``.
    """
    counts = ratio / multiplier
    counts += 0.25
    np.sqrt(counts, out=counts)
    counts += 0.5
    np.floor(counts, out=counts)
    return np.clip(counts, lowest, highest, out=counts)


def split_solution(
    squares: np.ndarray, cost: np.ndarray, lowest: np.ndarray, highest: np.ndarray, budget: float
) -> tuple[np.ndarray, float, float]:
    """Take single rollouts by falling gain per token until the first that no longer fits.

    Args:
        squares (np.ndarray): sigma squared, shape (M,).
        cost (np.ndarray): Tokens of one rollout, shape (M,).
        lowest (np.ndarray): Fewest rollouts, shape (M,).
        highest (np.ndarray): Most rollouts, shape (M,).
        budget (float): Tokens, at least ``sum(cost * lowest)``.

    Returns:
        tuple[np.ndarray, float, float]: The counts before that rollout, float64, shape (M,); its gain per token, a
        multiplier at which the counts minimise the Lagrangian; and the multiplier of the fractional problem. Both are
        0.0 when everything fits.
    """
    if cost @ highest <= budget:
        return highest.copy(), 0.0, 0.0
    ratio = squares / cost
    guess = continuous_multiplier(squares, cost, lowest, highest, budget)
    below, above = _bracket(guess, ratio, cost, lowest, highest, budget)
    under = counts_at(above, ratio, lowest, highest)
    over = counts_at(below, ratio, lowest, highest)
    while (over - under).sum() > _SORTABLE_STEPS and above - below > _TIE_WIDTH * above:
        middle = math.sqrt(below * above)
        counts = counts_at(middle, ratio, lowest, highest)
        if cost @ counts > budget:
            below, over = middle, counts
        else:
            above, under = middle, counts
    return *_take_in_order(under, over, ratio, cost, budget), guess


def _bracket(
    guess: float, ratio: np.ndarray, cost: np.ndarray, lowest: np.ndarray, highest: np.ndarray, budget: float
) -> tuple[float, float]:
    """Multipliers around ``guess`` of which the lower breaks the budget and the upper keeps it."""
    # At these ends every prompt sits at its upper and lower bound respectively.
    least, most = float((ratio / highest**2).min()) / 2.0, 2.0 * float((ratio / lowest**2).max())
    guess = min(max(guess, least), most)
    exceeds = cost @ counts_at(guess, ratio, lowest, highest) > budget
    factor, last = 1.1, guess
    while True:
        step = min(last * factor, most) if exceeds else max(last / factor, least)
        if step in (least, most) or (cost @ counts_at(step, ratio, lowest, highest) > budget) != exceeds:
            return (last, step) if exceeds else (step, last)
        last, factor = step, factor**3


def _take_in_order(
    under: np.ndarray, over: np.ndarray, ratio: np.ndarray, cost: np.ndarray, budget: float
) -> tuple[np.ndarray, float]:
    """Walk from ``under`` towards ``over`` by falling gain per token; stop at the first rollout that does not fit."""
    extra = (over - under).astype(np.int64)
    prompt = np.repeat(np.arange(extra.size), extra)  # one entry per rollout between the two
    nth = np.arange(prompt.size) - np.repeat(np.cumsum(extra) - extra, extra)
    counts = under[prompt] + nth
    gain = ratio[prompt] / (counts * (counts + 1.0))
    order = np.argsort(-gain, kind="stable")
    fits = int(np.searchsorted(np.cumsum(cost[prompt[order]]), budget - cost @ under, side="right"))
    chosen = under + np.bincount(prompt[order[:fits]], minlength=under.size)
    # Ties end the search with every tied rollout between the two ends, so one that does not fit always exists,
    # up to rounding of the running sum; then the last one stands for it.
    return chosen, float(gain[order[min(fits, order.size - 1)]])
