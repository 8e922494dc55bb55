# SPDX-License-Identifier: Apache-2.0
"""Which box of a completion counts."""

from typing import Any, Literal

from duet_trl.generate.markers import extract_boxed

Which = Literal["first", "last"]


def is_right(text: str, answer: int, which: Which) -> bool:
    """Whether the first or the last box of a completion holds this integer."""
    boxed = extract_boxed(text, which=which)
    return boxed is not None and boxed.strip() == str(answer)


class BoxReward:
    """Reward function in TRL's form: 1 for a right box, else 0."""

    __name__ = "box_reward"

    def __init__(self, which: Which) -> None:
        self.which = which

    def __call__(self, completions: list[list[dict[str, str]]], answer: list[int], **kwargs: Any) -> list[float]:
        texts = [turns[0]["content"] for turns in completions]
        return [float(is_right(text, right, self.which)) for text, right in zip(texts, answer, strict=True)]
