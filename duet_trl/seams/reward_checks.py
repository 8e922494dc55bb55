# SPDX-License-Identifier: Apache-2.0
"""What a reward function returned: one number, or None, for each completion. An error names the function and the row.

TRL takes what it is given apart: of a mapping it would train on the keys.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import nullcontext
from numbers import Real
from types import TracebackType
from typing import Any

import numpy as np
import torch
from trl.trainer.utils import is_async_callable

from .data_checks import short


class Deferred:
    """Holds the first error of some work until all processes are there to hear of it."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> "Deferred":
        """Begin."""
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> bool:
        """Keep an error, but for an interrupt."""
        if not isinstance(error, Exception):
            return False
        self.error = self.error or error
        return True

    def release(self) -> None:
        """Raise it."""
        if self.error is not None:
            raise self.error


def checked(function: Any, name: str, deferred: Deferred | None) -> Any:
    """A reward function whose result is checked.

    Args:
        function (Any): As TRL calls it; a model stays as it is.
        name (str): Of the function, for errors.
        deferred (Deferred | None): Takes its error, and nothing is scored; None: it is raised at once.
    """
    if isinstance(function, torch.nn.Module):
        return function
    if is_async_callable(function):

        async def answered(**columns: Any) -> list:
            with deferred or nullcontext():
                return numbers_of(await function(**columns), name, len(columns["completions"]))
            return [None] * len(columns["completions"])  # there was an error

        return answered

    def called(**columns: Any) -> list:
        with deferred or nullcontext():
            return numbers_of(function(**columns), name, len(columns["completions"]))
        return [None] * len(columns["completions"])  # there was an error

    return called


def numbers_of(output: Any, name: str, count: int) -> list:
    """The rewards of `count` completions.

    Raises:
        TypeError: If it is no sequence of numbers and None.
        ValueError: If there are not as many.
    """
    shape = output.shape if isinstance(output, np.ndarray | torch.Tensor) else (count,)
    foreign = isinstance(output, str | Mapping | AbstractSet) or not isinstance(output, Iterable)
    if foreign or len(shape) != 1:
        raise TypeError(
            f"The reward function {name!r} returned {short(output)} of type {type(output).__name__}. It must return a "
            f"list with one number for each of the {count} completions; None is one that it does not score."
        )
    rewards = list(output)
    if len(rewards) != count:
        raise ValueError(
            f"The reward function {name!r} returned {len(rewards)} rewards, but {count} were expected. It must return "
            "one for each completion; None is one that it does not score."
        )
    for row, reward in enumerate(rewards):
        if not (reward is None or isinstance(reward, Real | np.number | np.bool_) or _is_scalar(reward)):
            raise TypeError(
                f"The reward function {name!r} returned {short(reward)} of type {type(reward).__name__} for "
                f"completion {row}. A reward is a number, or None where it does not score."
            )
    return rewards


def _is_scalar(reward: Any) -> bool:
    return isinstance(reward, torch.Tensor) and reward.ndim == 0
