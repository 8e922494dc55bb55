# SPDX-License-Identifier: Apache-2.0
"""Closes the integrality gap of Theorem 1: proves the integer optimum, or finds it among a few near-tied changes.

At multipliers (lambda, mu) of tokens and rollouts the Lagrangian minimum is a lower bound on the variance. Any other
allocation pays, on top of that bound, the reduced costs of the single rollouts by which it departs from the minimiser
plus the price of what it leaves unused. An allocation within an excess E of the bound therefore departs only by
rollouts of reduced cost below E. Those few (the core) are enumerated by a list dynamic programme, for a growing E,
until the best allocation found is within E: then nothing outside the core can beat it.
"""

from dataclasses import dataclass

import numpy as np

from .problem import Problem

# Size of the first core and growth of the next ones. A batch of 128 prompts mostly needs one or two.
_FIRST_CORE, _CORE_GROWTH = 14, 1.7
# The excess under examination grows at most by this factor, because the number of states grows far faster.
_LIMIT_GROWTH = 3.0
# Most steps a core may hold, ties and repeated steps of one prompt included.
_MAX_STEPS = 1024
# Partial allocations kept at once. Bounds the worst case, two limits that bind at once or lengths that are nearly
# equal, to about a tenth of a second.
_MAX_STATES = 20_000
# Losses below this share of a rollout's price are differences of equal numbers.
_LOSS_ROUNDING = 1e-12
# Up to here the test of what a state can still reach costs more than carrying the state.
_PRUNING_STATES = 64
# From here on sorting for dominance costs less than carrying dominated states.
_DOMINANCE_STATES = 512


@dataclass(frozen=True)
class Prices:
    """Lagrangian multipliers of a problem.

    Args:
        token (float): lambda, scaled sigma squared per token.
        rollout (float): mu, scaled sigma squared per rollout; 0.0 where the row cap does not bind.
    """

    token: float
    rollout: float


@dataclass(frozen=True)
class Steps:
    """Single rollouts to add to or remove from the Lagrangian minimiser, K of them, cheapest first.

    Args:
        prompt (np.ndarray): Prompt of each, shape (K,).
        sign (np.ndarray): +1.0 adds, -1.0 removes, shape (K,).
        tokens (np.ndarray): Signed expected tokens, shape (K,).
        reduced_cost (np.ndarray): Loss in the Lagrangian, shape (K,), >= 0.
    """

    prompt: np.ndarray
    sign: np.ndarray
    tokens: np.ndarray
    reduced_cost: np.ndarray


def reduced_costs(problem: Problem, price: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lagrangian loss of one more and of one less rollout than ``counts``, shape (M,) each; inf beyond a bound.

    ``price`` (M,) is what one rollout of each prompt costs at the multipliers.
    """
    more = price - problem.squares / (counts * (counts + 1.0))
    fewer = problem.squares / (counts * np.maximum(counts - 1.0, 0.5)) - price
    # Where the multiplier was read off this very step its loss is zero, whatever the last bits say.
    rounding = _LOSS_ROUNDING * price
    more[more < rounding] = 0.0
    fewer[fewer < rounding] = 0.0
    more[counts >= problem.highest] = np.inf
    fewer[counts <= problem.lowest] = np.inf
    return more, fewer


def search_core(
    problem: Problem,
    prices: Prices,
    base: np.ndarray,
    unused: np.ndarray,
    incumbent: np.ndarray,
    excess: float,
) -> tuple[np.ndarray, float]:
    """Improve ``incumbent`` to the proven optimum, or say how far it may be from it.

    Args:
        problem (Problem): Squares, costs and bounds; its two limits enter through ``unused``.
        prices (Prices): Multipliers.
        base (np.ndarray): A minimiser of the Lagrangian at ``prices``, shape (M,).
        unused (np.ndarray): Tokens and rollouts ``base`` leaves unused, shape (2,); negative where it overdraws.
        incumbent (np.ndarray): Feasible counts, shape (M,).
        excess (float): Variance of ``incumbent`` above the Lagrangian bound.

    Returns:
        tuple[np.ndarray, float]: Counts, shape (M,), and a proven bound on their variance above the optimum.
    """
    price = prices.token * problem.cost + prices.rollout
    first = reduced_costs(problem, price, base)
    first_losses = np.concatenate(first)
    proven, size = 0.0, _FIRST_CORE
    while excess > proven and size <= _MAX_STEPS:
        limit = float(np.partition(first_losses, size)[size]) if size < first_losses.size else np.inf
        limit = min(limit, excess, _LIMIT_GROWTH * proven or np.inf)
        size = int(size * _CORE_GROWTH)
        if limit <= proven:
            continue
        steps = _steps_below(limit, problem, price, base, first)
        if steps.prompt.size > _MAX_STEPS:
            break
        taken, found_excess, complete = _enumerate(steps, limit, prices, unused)
        if found_excess < excess:
            change = np.bincount(steps.prompt[taken], weights=steps.sign[taken], minlength=base.size)
            incumbent, excess = _order_twins(base + change, steps.prompt, problem), found_excess
        if not complete:
            break
        proven = limit
    return incumbent, max(excess - proven, 0.0)


def _steps_below(
    limit: float, problem: Problem, price: np.ndarray, base: np.ndarray, first: tuple[np.ndarray, np.ndarray]
) -> Steps:
    """Every single rollout whose reduced cost is below ``limit``, cheapest first.

    The losses of a prompt's first, second, ... step in one direction grow, so a direction is followed only while it
    stays below the limit, and an enumeration that skips a cheaper step of the same prompt is never better.
    """
    prompts, signs, losses = [], [], []
    for direction, sign in enumerate((1.0, -1.0)):
        prompt = np.flatnonzero(first[direction] < limit)
        counts, loss = base[prompt], first[direction][prompt]
        while prompt.size:
            prompts.append(prompt)
            signs.append(np.full(prompt.size, sign))
            losses.append(loss)
            counts = counts + sign
            loss = reduced_costs(problem.take(prompt), price[prompt], counts)[direction]
            below = loss < limit
            prompt, counts, loss = prompt[below], counts[below], loss[below]
    prompt = np.concatenate([np.zeros(0, dtype=np.int64), *prompts])
    sign, loss = np.concatenate([np.zeros(0), *signs]), np.concatenate([np.zeros(0), *losses])
    # Equal steps become neighbours: sums of their tokens then agree to the last bit, which dominance relies on.
    order = np.lexsort((prompt, sign, problem.cost[prompt], loss))
    prompt, sign = prompt[order], sign[order]
    return Steps(prompt, sign, sign * problem.cost[prompt], loss[order])


def _enumerate(steps: Steps, limit: float, prices: Prices, unused: np.ndarray) -> tuple[np.ndarray, float, bool]:
    """Best subset of ``steps`` within both constraints whose excess over the Lagrangian bound is below ``limit``.

    Returns:
        tuple[np.ndarray, float, bool]: Mask of the steps taken, shape (K,); the excess, inf where no subset beats
        ``limit``; and whether all subsets were examined before the states outgrew their cap.
    """
    weights = np.array([1.0, prices.token, prices.rollout])
    # One column per partial allocation: reduced costs so far, tokens and rollouts still unused.
    states = np.array([[0.0], [unused[0]], [unused[1]]])
    # Rollouts that cost nothing need no count, and uncounted they let dominance drop far more.
    rows = steps.sign if prices.rollout > 0.0 else np.zeros(steps.sign.size)
    changes = np.stack([steps.reduced_cost, -steps.tokens, -rows], axis=1)[:, :, None]  # (K, 3, 1)
    longest = float(np.abs(steps.tokens).max(initial=0.0))
    trail: list[np.ndarray] = []  # per step: the states carried over, of which a second copy takes the step
    best, best_excess = (0, 0), np.inf
    if unused.min() >= 0.0:
        best_excess = float(weights[1:] @ unused)
        limit = min(limit, best_excess)
    for change, step_loss in zip(changes, steps.reduced_cost.tolist(), strict=True):
        # Later steps lose at least as much as this one: a state without room for it is finished.
        alive = (states[0] < limit - step_loss).nonzero()[0]
        if alive.size > _PRUNING_STATES and step_loss > 0.0:
            alive = alive[_reachable(states[:, alive], limit, step_loss, longest, weights)]
        if alive.size > _DOMINANCE_STATES:
            alive = alive[_undominated(states[:, alive], weights)]
        if 2 * alive.size > _MAX_STATES:
            return _read_trail(trail, best, steps.sign.size), best_excess, False
        states = states[:, alive]
        children = states + change
        trail.append(alive)
        excess = weights @ children
        excess[(children[1:] < 0.0).any(axis=0)] = np.inf
        if alive.size and excess.min() < limit:
            child = int(excess.argmin())
            limit = best_excess = float(excess[child])
            best = (len(trail), alive.size + child)
        states = np.concatenate([states, children], axis=1)
    return _read_trail(trail, best, steps.sign.size), best_excess, True


def _reachable(states: np.ndarray, limit: float, step_loss: float, longest: float, weights: np.ndarray) -> np.ndarray:
    """Mask of the states that can still end with nothing overdrawn and no more left over than the limit pays for."""
    room = limit - states[0]
    remaining = np.floor(room / step_loss)
    reach = np.stack([remaining * longest, remaining])
    unused = states[1:]
    return ((unused >= -reach) & (weights[1:, None] * (unused - reach) < room)).all(axis=0)


def _read_trail(trail: list[np.ndarray], best: tuple[int, int], num_steps: int) -> np.ndarray:
    """Mask of the steps taken on the way to the state ``best`` = (number of steps decided, index)."""
    mask = np.zeros(num_steps, dtype=bool)
    stage, state = best
    for index in range(stage - 1, -1, -1):
        alive = trail[index]
        mask[index] = state >= alive.size
        state = alive[state % alive.size]
    return mask


def _undominated(states: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Indices of the states that no state with as many rows and at least as many unused tokens matches in variance."""
    variance = weights @ states
    _, tokens, rows = states
    order = np.lexsort((variance, -tokens, rows))
    # Each group of equal rows lies below the ones before, so that one running minimum restarts at every group.
    span = 2.0 * float(np.ptp(variance)) or 1.0
    group = np.cumsum(np.diff(rows[order], prepend=rows[order[0]]) != 0.0)
    ordered = variance[order] - span * group
    before = np.minimum.accumulate(np.concatenate([[np.inf], ordered[:-1]]))
    return order[ordered < before]


def _order_twins(counts: np.ndarray, touched: np.ndarray, problem: Problem) -> np.ndarray:
    """Give the larger counts of identical prompts to the earlier ones, so that ties do not hang on the search."""
    prompt = np.unique(touched)
    keys = [x[prompt] for x in (problem.squares, problem.cost, problem.lowest, problem.highest)]
    by_index = np.lexsort((prompt, *keys))
    by_count = np.lexsort((-counts[prompt], *keys))
    ordered = counts.copy()
    ordered[prompt[by_index]] = counts[prompt[by_count]]
    return ordered
