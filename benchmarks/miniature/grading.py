# SPDX-License-Identifier: Apache-2.0
"""Which answer of a completion counts, read by the extractor that the gate's marker belongs to."""

from typing import Any, Literal

from duet_trl.gate.markers import extract_answer

Which = Literal["first", "last"]


def is_right(text: str, answer: int, which: Which, marker: str) -> bool:
    """Whether the first or the last answer of a completion is this integer."""
    found = extract_answer(marker, text, which)
    return found is not None and found.strip() == str(answer)


class AnswerReward:
    """Reward function in TRL's form: 1 for a right answer, else 0."""

    __name__ = "answer_reward"

    def __init__(self, which: Which, marker: str) -> None:
        self.which = which
        self.marker = marker

    def __call__(self, completions: list[list[dict[str, str]]], answer: list[int], **kwargs: Any) -> list[float]:
        texts = [turns[0]["content"] for turns in completions]
        return [
            float(is_right(text, right, self.which, self.marker)) for text, right in zip(texts, answer, strict=True)
        ]
