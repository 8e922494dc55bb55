# SPDX-License-Identifier: Apache-2.0
"""Where a method gets prompts from that the sampler did not draw for the step."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from datasets import Dataset

from ..rollouts import NoMorePrompts, Prompt
from .data_checks import check_row, prompt_keys

SHUFFLED = 2**18
"""Rows up to which a step shuffles all of them; of more it draws one by one, and a row that came before again."""


class PromptSource:
    """Draws further prompts from the training data, at random under the run's seed and the step.

    What it draws depends on nothing else, so that every process and a resumed run draw alike. It does not move TRL's
    own sampler.
    """

    def __init__(self, dataset: Any, column: str | None, seed: int) -> None:
        self.dataset = dataset
        self.column = column
        self.seed = seed

    def of_step(self, step: int) -> Callable[[int, set[str]], list[Prompt]] | None:
        """The source of one generation step, each row once (see `Prompts`); None for a stream."""
        return partial(self._draw, self._rows(step)) if isinstance(self.dataset, Dataset) else None

    def _rows(self, step: int) -> Iterator[int]:
        random, size = np.random.default_rng([self.seed, step]), len(self.dataset)
        if size <= SHUFFLED:
            yield from random.permutation(size).tolist()
            return
        drawn: set[int] = set()
        while len(drawn) < size:
            row = int(random.integers(size))
            if row not in drawn:
                drawn.add(row)
                yield row

    def _draw(self, rows: Iterator[int], count: int, taken: set[str]) -> list[Prompt]:
        found: dict[str, Prompt] = {}
        while len(found) < count:
            row = next(rows, None)
            if row is None:
                raise NoMorePrompts(
                    f"{count} more prompts were asked for, and only {len(found)} of {len(self.dataset)} rows of the "
                    "data set are not in the step yet. Use more data, or fewer prompts in a step."
                )
            example = self.dataset[row]
            check_row(example, f"The prompt of row {row} of the data set", self.column)
            key = prompt_keys([example], self.column)[0]
            if key not in taken and key not in found:
                found[key] = Prompt(key, example)
        return list(found.values())
