# SPDX-License-Identifier: Apache-2.0
"""Reproduce the shipped checkpoint: `OMP_NUM_THREADS=1 python -m recipes.tiny_two_ways.warm_start`.

The training is that of recipes/tiny_math; here is what the authors of this task write, how often they take care, and
how sloppily.
"""

from pathlib import Path

from recipes.tiny_math.warm_start import Corpus, Phase, main

from .task import MAX_COMPLETION_LENGTH, Author, sample_problem, write_document

CHECKPOINT = Path(__file__).parent / "checkpoint"
SLOPPY = Author(careful=0.09, slip=0.04)
CLEAN = Author(careful=1.0, slip=0.0)

CORPUS = Corpus(
    sample_problem=sample_problem,
    write_document=write_document,
    sloppy=SLOPPY,
    clean=CLEAN,
    max_completion_length=MAX_COMPLETION_LENGTH,
    row_length=384,
    phases=(Phase(1100, 0.9, 1.0, 1.0), Phase(600, 0.0, 1.0, 0.05)),
    checkpoint=CHECKPOINT,
)

if __name__ == "__main__":
    main(CORPUS)
