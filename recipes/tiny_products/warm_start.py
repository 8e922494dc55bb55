# SPDX-License-Identifier: Apache-2.0
"""Reproduce the shipped checkpoint: `OMP_NUM_THREADS=1 python -m recipes.tiny_products.warm_start`.

The training is that of recipes/tiny_math; here is what the authors of this task write, and how sloppily.
"""

from dataclasses import replace
from pathlib import Path

from recipes.tiny_math.warm_start import Corpus, Phase, main

from .task import MAX_COMPLETION_LENGTH, Author, sample_problem, write_document

CHECKPOINT = Path(__file__).parent / "checkpoint"
SLOPPY = Author(
    slip=0.005,
    forget=0.6,
    looper=(0.01, 0.04, 0.42, 0.6, 0.72),
    again_looper=0.96,
    again=0.04,
    tail=0.03,
)
CLEAN = replace(SLOPPY, slip=0.0, forget=0.0, looper=(0.0,) * 5, again=0.0, tail=0.0)


CORPUS = Corpus(
    sample_problem=sample_problem,
    write_document=write_document,
    sloppy=SLOPPY,
    clean=CLEAN,
    max_completion_length=MAX_COMPLETION_LENGTH,
    row_length=448,
    phases=(Phase(1300, 0.5, 1.0, 1.0), Phase(900, 0.0, 1.0, 0.05)),
    checkpoint=CHECKPOINT,
)

if __name__ == "__main__":
    main(CORPUS)
