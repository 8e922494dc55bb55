# SPDX-License-Identifier: Apache-2.0
"""How large an arena is: batches, problems, samples and seeds."""

from dataclasses import dataclass

from .records import FREE, STOPPED

TUNING_SEED = 100


@dataclass(frozen=True)
class Size:
    """How much of a split is measured.

    Attributes:
        problems (int): The first of the split.
        samples (int): Of each, at temperature 1.
        greedy (bool): Whether greedy decoding is measured too.
    """

    problems: int
    samples: int
    greedy: bool = False


@dataclass(frozen=True)
class Profile:
    """Size of an arena. Shares are of what the reference of the same seed spends in all.

    Attributes:
        prompts (int): Of a batch.
        tuning_batches (int): Of a tuning run of the reference; the others are tuned until they have spent as much.
        batches (int): Of a reported run of the reference.
        shares (tuple[float, ...]): Of tokens and of seconds, at which every run is measured; the last is 1, where it
            ends.
        patience (float): A run ends at this share of seconds even if it has tokens left; a tuning run at 1.
        way (Size): Measured at these shares, served with the stop string.
        tuning (Size): Measured at the end of a tuning run.
        whole (dict[str, Size]): Measured at the end, by serving.
        start (dict[str, Size]): Measured before training.
        seeds (tuple[int, ...]): Of reported runs.
        fresh_seeds (tuple[int, ...]): Of confirming runs.
    """

    prompts: int
    tuning_batches: int
    batches: int
    shares: tuple[float, ...]
    patience: float
    way: Size
    tuning: Size
    whole: dict[str, Size]
    start: dict[str, Size]
    seeds: tuple[int, ...]
    fresh_seeds: tuple[int, ...]


PROFILES = {
    "full": Profile(
        prompts=8,
        tuning_batches=48,
        batches=64,
        shares=(0.25, 0.375, 0.5, 1.0),
        patience=1.25,
        way=Size(150, 4),
        tuning=Size(150, 8),
        whole={STOPPED: Size(300, 8, True), FREE: Size(150, 1, True)},
        start={STOPPED: Size(300, 16, True), FREE: Size(150, 2, True)},
        seeds=(10, 11, 12, 13, 14),
        fresh_seeds=(200, 201, 202),
    ),
    "smoke": Profile(
        prompts=4,
        tuning_batches=2,
        batches=2,
        shares=(0.5, 1.0),
        patience=1.5,
        way=Size(5, 2),
        tuning=Size(5, 2),
        whole={STOPPED: Size(10, 8, True), FREE: Size(5, 1, True)},
        start={STOPPED: Size(10, 16, True), FREE: Size(5, 2, True)},
        seeds=(0,),
        fresh_seeds=(200,),
    ),
}
"""The arena, and one that only shows that everything runs."""
