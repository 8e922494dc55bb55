# SPDX-License-Identifier: Apache-2.0
r"""The verifiers of the tiny task: the last closed `\boxed{}` holds the right integer, or the first.

The last one is how solutions are graded everywhere. A policy that is paid for it learns to end after its answer. The
first one does not see what follows an answer, so that plain GRPO has no reason to stop early; benchmarks that compare
what a step costs take it.
"""

from typing import Any, Literal

from duet_trl.gate.markers import extract_boxed


def is_correct(text: str, answer: int, which: Literal["first", "last"] = "last") -> bool:
    """Whether the last boxed answer of a completion, or the first, is this integer."""
    boxed = extract_boxed(text, which=which)
    return boxed is not None and boxed.strip() == str(answer)


def last_box_reward(completions: list[list[dict[str, str]]], answer: list[int], **kwargs: Any) -> list[float]:
    """Reward function in TRL's form: 1 for a right last box, else 0."""
    return _rewards(completions, answer, "last")


def first_box_reward(completions: list[list[dict[str, str]]], answer: list[int], **kwargs: Any) -> list[float]:
    """The same for the first box."""
    return _rewards(completions, answer, "first")


def _rewards(
    completions: list[list[dict[str, str]]], answer: list[int], which: Literal["first", "last"]
) -> list[float]:
    texts = [turns[0]["content"] for turns in completions]
    return [float(is_correct(text, right, which)) for text, right in zip(texts, answer, strict=True)]
