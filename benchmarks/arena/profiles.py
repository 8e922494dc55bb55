# SPDX-License-Identifier: Apache-2.0
"""How large an arena is: steps, problems, samples and seeds."""

from dataclasses import dataclass

from .entrants import CONTROLS, ENTRANTS, REFERENCE
from .tasks import TASKS

TUNING_SEED = 100


@dataclass(frozen=True)
class Profile:
    """Size of an arena.

    Attributes:
        factors (tuple[float, ...]): Learning rates that are tried, multiples of `entrants.BASE_RATE`.
        rungs (tuple[tuple[int, int], ...]): Of successive halving: batches of rollouts, and how many of the rates that
            began a rung end it. The last one leaves one (`tuning.TOLERANCE`).
        tuning_problems (int): Of the tuning split, measured at the end of a rung and `settling` batches before it.
        settling (int): Batches.
        horizon (int): Batches of the reference, and the minimum of every other run; most entrants make one optimizer
            step of a batch.
        share (float): Of the reference's tokens that every other run generates at least.
        every (int): Batches between two measurements on the way.
        problems (int): Of the report split, measured on the way; the first of those at the end.
        samples (int): Samples of each on the way.
        problems_end (int): Problems at the horizon and at the end.
        samples_end (int): Samples of each then; greedy decoding is measured beside them.
        samples_start (int): Samples of each problem before training.
        seeds (tuple[int, ...]): Of the reported runs.
        tasks (tuple[str, ...]): Keys of `TASKS`.
        entrants (tuple[str, ...]): Keys of `ENTRANTS`.
    """

    factors: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    rungs: tuple[tuple[int, int], ...] = ((32, 2), (80, 1))
    tuning_problems: int = 160
    settling: int = 8
    horizon: int = 80
    share: float = 0.6
    every: int = 10
    problems: int = 200
    samples: int = 2
    problems_end: int = 400
    samples_end: int = 4
    samples_start: int = 16
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    tasks: tuple[str, ...] = tuple(TASKS)
    entrants: tuple[str, ...] = tuple(
        name for name, entrant in ENTRANTS.items() if name not in CONTROLS and not entrant.retired
    )


PROFILES = {
    "full": Profile(),
    "fast": Profile(
        factors=(1.0, 2.0),
        rungs=((8, 1),),
        tuning_problems=40,
        settling=2,
        horizon=16,
        every=4,
        problems=60,
        problems_end=120,
        seeds=(0, 1),
        tasks=("two_ways",),
        entrants=(REFERENCE, "grpo_4", "duet"),
    ),
    "smoke": Profile(
        factors=(1.0,),
        rungs=((2, 1), (4, 1)),
        tuning_problems=5,
        settling=1,
        horizon=4,
        every=2,
        problems=5,
        problems_end=10,
        samples_end=2,
        samples_start=2,
        seeds=(0,),
        tasks=("sums",),
        entrants=(REFERENCE, "grpo_2", "grpo_4_x4"),
    ),
}
"""The arena, one of about a quarter of an hour, and one that only shows that everything runs."""
