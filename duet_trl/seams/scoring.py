# SPDX-License-Identifier: Apache-2.0
"""Input of reward functions, the results they may return, and their use: thoughts, checks, endings.

TRL takes what a reward function returns apart: of a mapping it would train on the keys. A reward for ending teaches a
policy to stop where the trim would stop it: no reward sees what it would have written after its answer, and where it
later generates without the gate, and its last answer counts, that costs accuracy. Only what the reward functions pay
for is paid more: a wrong answer that ends is no better than one that does not.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from trl.trainer.utils import is_async_callable

from ..gate.thoughts import Delimiters, prompt_opens_thought
from ..rewards.completions import WRITTEN, Completion, written_completions
from ..update.advantages import weighted_sum
from .data_checks import short


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


@contextmanager
def held_back(errors: list[Exception] | None) -> Iterator[None]:
    """While active, an error waits in a list until all processes can be told; None: it is raised at once."""
    try:
        yield
    except Exception as error:  # an interrupt is not held back
        if errors is None:
            raise
        errors.append(error)


def raise_first(errors: list[Exception]) -> None:
    """The end of `held_back`."""
    if errors:
        raise errors[0]


def checked(function: Any, name: str, errors: list[Exception] | None) -> Any:
    """A reward function as TRL calls it, whose result is checked; a model stays as it is.

    `errors` takes its error, and nothing is scored; see `held_back`.
    """
    if isinstance(function, torch.nn.Module):
        return function
    if is_async_callable(function):

        async def answered(**columns: Any) -> list:
            with held_back(errors):
                return numbers_of(await function(**columns), name, len(columns["completions"]))
            return [None] * len(columns["completions"])  # there was an error

        return answered

    def called(**columns: Any) -> list:
        with held_back(errors):
            return numbers_of(function(**columns), name, len(columns["completions"]))
        return [None] * len(columns["completions"])  # there was an error

    return called


def numbers_of(output: Any, name: str, count: int) -> list:
    """The rewards of `count` completions; TypeError unless they are numbers and None, ValueError if not as many."""
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
        scalar = isinstance(reward, torch.Tensor) and reward.ndim == 0
        if not (reward is None or scalar or isinstance(reward, Real | np.number | np.bool_)):
            raise TypeError(
                f"The reward function {name!r} returned {short(reward)} of type {type(reward).__name__} for "
                f"completion {row}. A reward is a number, or None where it does not score."
            )
    return rewards


class EndingReward:
    """TRL reward function: 1 for a completion that the policy ended itself, with an EOS, else 0.

    What the gate or the length limit stopped earns nothing here; `pay_endings` sets what an ending is worth.
    """

    def __init__(self, eos_token_ids: Iterable[int]) -> None:
        self.eos_token_ids = frozenset(eos_token_ids)

    def __call__(self, completion_ids: Sequence[Sequence[int]], **kwargs: Any) -> list[float]:
        """Rewards, length N."""
        return [float(len(ids) > 0 and ids[-1] in self.eos_token_ids) for ids in completion_ids]


def add_ending_reward(trainer: Any, weight: float) -> None:
    """Add an `EndingReward` after the reward functions of a script, as TRL adds those of environments."""
    # New lists: TRL keeps those of the script, which may give them to another trainer.
    trainer.reward_funcs = [*trainer.reward_funcs, EndingReward(trainer.eos_token_ids)]
    trainer.reward_func_names = [*trainer.reward_func_names, "ending_reward"]
    trainer.reward_processing_classes = [*trainer.reward_processing_classes, None]
    trainer.reward_weights = torch.cat([trainer.reward_weights, torch.tensor([weight])])


def pay_endings(rewards_per_func: torch.Tensor, reward_weights: torch.Tensor) -> None:
    """Replace 1 for an ending by what the other reward functions pay together, if that is above 0, in place.

    Rewards have shape (N, F + 1), that of the ending last, and weights (F + 1,). What no other scored stays unscored.
    """
    others = rewards_per_func[:, :-1]
    earned = weighted_sum(others, reward_weights[:-1].to(others.device)).clamp(min=0.0)
    rewards_per_func[:, -1] *= torch.where(torch.isnan(others).all(dim=1), torch.nan, earned.nan_to_num(0.0))
