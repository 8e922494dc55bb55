# SPDX-License-Identifier: Apache-2.0
"""Verifiers that compare answers with each other, and the classes of equal answers that follow."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .completions import Completion


@runtime_checkable
class AnswerVerifier(Protocol):
    """A reward function that can tell which completions give the same answer."""

    def answers(self, completions: list[Completion], **columns: Any) -> list[str | None]:
        """The answer of each completion; None where there is none. Columns as in a call for rewards."""

    def equivalent(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Whether the two answers of each pair are the same answer."""


def answer_classes(
    answers: Sequence[str | None], group: np.ndarray, equivalent: Callable[[list[tuple[str, str]]], list[bool]]
) -> np.ndarray:
    """Classes of equal answers within each group: an answer joins the first class whose first answer it equals.

    Args:
        answers (Sequence[str | None]): Answer of each rollout, length N; None: none.
        group (np.ndarray): Prompt of each, shape (N,), int64.
        equivalent (Callable): Pairs (answer, first answer of a class) -> whether they are equal.

    Returns:
        np.ndarray: Number of the class within the group, from 0 in order of first answers; -1: no answer. Shape (N,).

    Example:
        >>> answer_classes(["0.5", "1/2", None, "3"], np.zeros(4, dtype=int), lambda pairs: [b == "0.5" and a == "1/2"
        ...     for a, b in pairs]).tolist()
        [0, 0, -1, 1]
    """
    open_: dict[int, list[str]] = {}
    for one, text in zip(group.tolist(), answers, strict=True):
        if text is not None and text not in open_.setdefault(one, []):
            open_[one].append(text)
    number: dict[tuple[int, str], int] = {}
    last = 0
    while any(open_.values()):
        pairs = [(one, text, texts[0]) for one, texts in open_.items() for text in texts[1:]]
        verdicts = equivalent([(text, first) for _, text, first in pairs]) if pairs else []
        if len(verdicts) != len(pairs):
            raise ValueError(f"equivalent must return a verdict for each of {len(pairs)} pairs, got {len(verdicts)}.")
        same = {(one, text) for (one, text, _), verdict in zip(pairs, verdicts, strict=True) if verdict}
        same |= {(one, texts[0]) for one, texts in open_.items() if texts}
        number |= dict.fromkeys(same, last)
        open_ = {one: [text for text in texts if (one, text) not in same] for one, texts in open_.items()}
        last += 1
    return np.array([number.get(key, -1) for key in zip(group.tolist(), answers, strict=True)], dtype=np.int64)
