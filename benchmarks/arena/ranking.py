# SPDX-License-Identifier: Apache-2.0
"""One number for each entrant: where it is after half of the reference's tokens, in the mean over the tasks.

Every run spends that much, so the number exists whether or not the target is reached, and it is linear in what was
measured. The tokens to the target stand beside it, as the geometric mean over tasks of the share of the reference's; a
task whose target is not reached enters with what was spent there, and makes the mean a lower bound.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .contest import AtCost, Contest, Reached
from .estimates import Estimate, mean_of

TOKENS = "generated_tokens"
HALF = 0.5


@dataclass(frozen=True)
class Rank:
    """An entrant over all tasks.

    Attributes:
        entrant (str): The entrant.
        tasks (int): Tasks on which it has runs.
        half (Estimate | None): Accuracy at half of the reference's tokens minus the reference's at the end, mean over
            tasks; None: on a task it did not spend that much.
        reached (int): Tasks whose target it reaches.
        ratio (Estimate | None): Logarithm of the geometric mean of its share of the reference's tokens to the target;
            None: on a task the target is not reached.
        bound (float | None): The same mean where what was spent stands for what was not reached, no logarithm.
    """

    entrant: str
    tasks: int
    half: Estimate | None
    reached: int
    ratio: Estimate | None
    bound: float | None


def ranking(contests: Mapping[str, Contest]) -> list[Rank]:
    """Entrants, best first: those that have runs on more tasks, then by `Rank.half`."""
    names = dict.fromkeys(name for contest in contests.values() for name in contest.rivals)
    ranks = [_rank(name, [contest for contest in contests.values() if name in contest.runs]) for name in names]
    return sorted(ranks, key=lambda rank: (-rank.tasks, math.inf if rank.half is None else -rank.half.value))


def _rank(name: str, own: list[Contest]) -> Rank:
    halves: list[AtCost | None] = [contest.at_cost(name, TOKENS, HALF) for contest in own]
    found: list[Reached | None] = [contest.reached(name, TOKENS) for contest in own]
    ratios = [one.ratio for one in found if one is not None and one.ratio is not None]
    bounds = [one.bound if one.ratio is None else math.exp(one.ratio.value) for one in found if one is not None]
    return Rank(
        name,
        len(own),
        None if None in halves else mean_of([one.to_end for one in halves if one is not None]),
        len(ratios),
        mean_of(ratios) if len(ratios) == len(own) else None,
        float(np.exp(np.mean(np.log(bounds)))) if len(bounds) == len(own) else None,
    )


def best_rivals(contest: Contest, apart: tuple[str, ...], count: int) -> list[str]:
    """Those that are ahead at half of the reference's tokens on a task, some names apart, the best first."""
    found = {name: contest.at_cost(name, TOKENS, HALF) for name in contest.rivals if name not in apart}
    scores = {name: one.to_end.value for name, one in found.items() if one is not None}
    return sorted(scores, key=lambda name: -scores[name])[:count]
