# SPDX-License-Identifier: Apache-2.0
"""Reproduce the shipped checkpoint: `OMP_NUM_THREADS=1 python -m recipes.tiny_products.warm_start`.

The training is that of recipes/tiny_math; here is what the authors of this task write, and how sloppily.
"""

import random
from dataclasses import replace
from pathlib import Path

from recipes.tiny_math.problems import HELD_OUT, LEVELS, WARM_START, Problem
from recipes.tiny_math.warm_start import Corpus, Phase, main

from .task import MAX_COMPLETION_LENGTH, Author, sample_problem, sample_problems, write_document

CHECKPOINT = Path(__file__).parent / "checkpoint"
SLOPPY = Author(
    slip=0.015,
    slip_hard=0.25,
    looper=(0.02, 0.2, 0.4, 0.54, 0.72),
    again_looper=0.96,
    again=0.04,
    tail=0.03,
)
CLEAN = replace(SLOPPY, slip=0.0, slip_hard=0.0, looper=(0.0,) * 5, again=0.0, tail=0.0)


def sample_document(rng: random.Random, clean_share: float) -> tuple[Problem, str]:
    """One problem of the corpus and its document; `clean_share` is the probability of the clean author."""
    problem = sample_problem(rng, rng.choice(LEVELS), WARM_START)
    return problem, write_document(rng, problem, CLEAN if rng.random() < clean_share else SLOPPY)


CORPUS = Corpus(
    sample_document=sample_document,
    sample_held_out=lambda count, seed: sample_problems(HELD_OUT, count, seed),
    marker="code",
    max_completion_length=MAX_COMPLETION_LENGTH,
    row_length=448,
    phases=(Phase(1300, 0.5, 1.0, 1.0), Phase(900, 0.0, 1.0, 0.05)),
    checkpoint=CHECKPOINT,
)

if __name__ == "__main__":
    main(CORPUS)
