# SPDX-License-Identifier: Apache-2.0
r"""The verifier of the tiny task: the first closed `\boxed{}` holds the right integer.

The first box, because that is where the gate stops a rollout. Plain GRPO then has no reason to stop early either: the
reward does not see what follows the first answer.
"""

from typing import Any

from duet_trl.gate.markers import extract_boxed


def is_correct(text: str, answer: int) -> bool:
    """Whether the first boxed answer of a completion is this integer."""
    boxed = extract_boxed(text, which="first")
    return boxed is not None and boxed.strip() == str(answer)


def first_box_reward(completions: list[list[dict[str, str]]], answer: list[int], **kwargs: Any) -> list[float]:
    """Reward function in TRL's form: 1 for a right first box, else 0."""
    return [float(is_correct(turns[0]["content"], right)) for turns, right in zip(completions, answer, strict=True)]
