# SPDX-License-Identifier: Apache-2.0
"""Where a method gets prompts from that the sampler did not draw for the step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import Dataset

from ..rollouts import NoMorePrompts, Prompt
from .data_checks import check_text, prompt_keys


class PromptSource:
    """Draws further prompts from the training data, at random under the run's seed and the step.

    What it draws depends on nothing else, so that every process and a resumed run draw alike. It does not move TRL's
    own sampler.
    """

    def __init__(self, dataset: Any, column: str | None, seed: int) -> None:
        self.dataset = dataset
        self.column = column
        self.seed = seed

    def of_step(self, step: int) -> "StepSource | None":
        """The source of one generation step; None for a stream, which cannot be drawn from."""
        return StepSource(self, step) if isinstance(self.dataset, Dataset) else None


class StepSource:
    """Prompts for one generation step, each row of the data set once; see `PromptSource`."""

    def __init__(self, source: PromptSource, step: int) -> None:
        self._source = source
        self._rng = np.random.default_rng([source.seed, step])
        self._order: np.ndarray | None = None
        self._next = 0

    def __call__(self, count: int, taken: set[str]) -> Sequence[Prompt]:
        """Draw prompts."""
        dataset, found = self._source.dataset, []
        if self._order is None:
            self._order = self._rng.permutation(len(dataset))
        taken = set(taken)
        while len(found) < count:
            if self._next == len(self._order):
                raise NoMorePrompts(
                    f"{count} more prompts were asked for, and only {len(found)} of {len(dataset)} rows of the data "
                    "set are not in the step yet. Use more data, or fewer prompts in a step."
                )
            example = dataset[int(self._order[self._next])]
            self._next += 1
            key = prompt_keys([example], self._source.column)[0]
            if key not in taken:
                check_text([example["prompt"]])
                taken.add(key)
                found.append(Prompt(key, example))
        return found
