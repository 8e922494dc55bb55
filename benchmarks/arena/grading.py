# SPDX-License-Identifier: Apache-2.0
"""Which answer of a completion counts, read by the extractor that the gate's marker belongs to, and the rewards."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from duet_trl.gate.markers import extract_answer

from .entrants import ANSWER, CONSTANT

Which = Literal["first", "last"]


def is_right(text: str, answer: int, which: Which, marker: str) -> bool:
    """Whether the first or the last answer of a completion is this integer."""
    found = extract_answer(marker, text, which)
    return found is not None and found.strip() == str(answer)


class ArenaReward:
    """Reward function in TRL's form: 1 for a right last answer of what was generated, else 0; or a control's.

    It is a verifier too (`duet_trl.rewards.AnswerVerifier`), for methods that compare answers.

    Args:
        kind (str): `ANSWER`, `CONSTANT` or `COIN`.
        marker (str): Of an answer.
        seed (int): Of the coins.
    """

    __name__ = "arena_reward"

    def __init__(self, kind: str, marker: str, seed: int) -> None:
        self.kind = kind
        self.marker = marker
        self._coins = np.random.default_rng(seed)

    def __call__(self, completions: list[list[dict[str, str]]], answer: list[int], **kwargs: Any) -> list[float]:
        if self.kind == CONSTANT:
            return [1.0] * len(completions)
        if self.kind == ANSWER:
            texts = [turns[0]["content"] for turns in completions]
            pairs = zip(texts, answer, strict=True)
            return [float(is_right(text, right, "last", self.marker)) for text, right in pairs]
        return self._coins.integers(2, size=len(completions)).astype(float).tolist()

    def answers(self, completions: list[list[dict[str, str]]], **columns: Any) -> list[str | None]:
        """The last answer of each completion; None where there is none."""
        return [extract_answer(self.marker, turns[0]["content"], "last") for turns in completions]

    def equivalent(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Integers are equal if their texts are."""
        return [first.strip() == second.strip() for first, second in pairs]
