# SPDX-License-Identifier: Apache-2.0
"""A problem of the arena: a prompt, and which answers are right."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from duet_trl.gate.markers import extract_answer


@dataclass(frozen=True)
class Problem:
    """A problem of a task.

    Attributes:
        prompt (str | list[dict[str, str]]): Text, or a conversation.
        kind (str): What is asked for, such as "gcd".
        level (int): How hard it is, from 1 on.
        key (str): Tells it from the task's other problems.
        accepts (Callable[[str], bool]): Whether a text is a right answer.
    """

    prompt: str | list[dict[str, str]]
    kind: str
    level: int
    key: str
    accepts: Callable[[str], bool] = field(compare=False, repr=False)

    def is_right(self, completion: str, marker: str) -> bool:
        """Whether the last answer of a completion that a marker's extractor finds is right."""
        found = extract_answer(marker, completion, "last")
        return found is not None and self.accepts(found.strip())


class ArenaReward:
    """Reward function in TRL's form: 1 where the last answer of a completion is right, else 0.

    Args:
        problems (Sequence[Problem]): The training prompts; a row names its own in the column `index`.
        marker (str): Of an answer.
    """

    __name__ = "arena_reward"

    def __init__(self, problems: Sequence[Problem], marker: str) -> None:
        self.problems = problems
        self.marker = marker

    def __call__(self, completions: Sequence[Any], index: Sequence[int], **_: Any) -> list[float]:
        pairs = zip(map(text_of, completions), index, strict=True)
        return [float(self.problems[place].is_right(text, self.marker)) for text, place in pairs]


def text_of(completion: Any) -> str:
    """The text of a completion, in either of TRL's forms."""
    return completion if isinstance(completion, str) else completion[0]["content"]
