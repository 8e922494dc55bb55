# SPDX-License-Identifier: Apache-2.0
"""Where rollouts think: for the gate, which begins in the state that the prompt left, and for the reward functions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..gate.thoughts import Delimiters, prompt_opens_thought
from ..rewards.completions import WRITTEN, Completion, written_completions


@dataclass(frozen=True)
class Thoughts:
    """The thoughts of a run's model."""

    tokenizer: PreTrainedTokenizerBase
    delimiters: Delimiters | None  # None: the model has none

    def open_after(self, prompt_ids: Sequence[Sequence[int]]) -> np.ndarray:
        """Whether each prompt ends inside a thought, shape (R,), bool; equal prompts are read once."""
        known: dict[tuple[int, ...], bool] = {}
        for ids in prompt_ids if self.delimiters is not None else ():
            if tuple(ids) not in known:
                known[tuple(ids)] = prompt_opens_thought(ids, self.tokenizer, self.delimiters)
        return np.array([known.get(tuple(ids), False) for ids in prompt_ids], dtype=bool)

    def shown_to_rewards(
        self,
        inputs: Sequence[dict],
        opened: np.ndarray,
        completions: Sequence[Completion],
        completion_ids: Sequence[Sequence[int]],
    ) -> list[dict]:
        """Rows with the column from which verifiers know the answer region of their rollouts."""
        written = written_completions(completions, completion_ids, opened, self.tokenizer, self.delimiters)
        return [{**row, WRITTEN: one} for row, one in zip(inputs, written, strict=True)]
