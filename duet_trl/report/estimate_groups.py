# SPDX-License-Identifier: Apache-2.0
"""The groups of a finished GRPO run: completions of one prompt in one step, all of one size, with their visits."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .estimate import differing
from .logged_completions import Completions

EASY, HARD = 1, -1

WINDOW = 128
"""Groups at least, of neighbouring steps, that stand for the prompts a step would have drawn: the number of batches
goes with one over the share of groups that differ, which a few groups overstate."""


@dataclass(frozen=True)
class Groups:
    """G groups of n completions each, in order of their steps."""

    step: np.ndarray  # index of the step, shape (G,), int64, from 0 without gaps
    prompt: np.ndarray  # index of the prompt, shape (G,), int64, from 0 without gaps
    rewards: np.ndarray  # shape (G, n), nan where unknown
    lengths: np.ndarray  # tokens, shape (G, n)
    differs: np.ndarray  # whether the rewards of a group differ, shape (G,), bool

    @property
    def size(self) -> int:
        """n, completions of a group."""
        return self.lengths.shape[1]

    @cached_property
    def tokens(self) -> np.ndarray:
        """Tokens of each group, shape (G,)."""
        return self.lengths.sum(axis=1)

    @cached_property
    def steps(self) -> list[np.ndarray]:
        """Groups of each step."""
        return np.split(np.arange(len(self.step)), np.flatnonzero(np.diff(self.step)) + 1)

    @cached_property
    def num_prompts(self) -> int:
        """Different prompts."""
        return int(self.prompt.max()) + 1

    @property
    def revisits(self) -> int:
        """Groups whose prompt was there before."""
        return len(self.prompt) - self.num_prompts

    @cached_property
    def neighbour(self) -> np.ndarray:
        """The next visit of the same prompt, the one before where there is none, or the group itself; (G,)."""
        order = np.argsort(self.prompt, kind="stable")
        again = np.diff(self.prompt[order]) == 0
        found = np.arange(len(order))
        found[order[1:][again]] = order[:-1][again]
        found[order[:-1][again]] = order[1:][again]
        return found

    @cached_property
    def kind(self) -> np.ndarray:
        """`EASY` with every reward the highest of the run so far, `HARD` with every one the lowest, else 0; (G,)."""
        kind, low, high = np.zeros(len(self.step), dtype=np.int64), np.inf, -np.inf
        for rows in self.steps:
            rewards, known = self.rewards[rows], ~np.isnan(self.rewards[rows]).all(axis=1)
            low, high = np.nanmin([low, *rewards.ravel()]), np.nanmax([high, *rewards.ravel()])
            if low < high:
                same = known & ~self.differs[rows]
                kind[rows[same]] = EASY * (np.nanmin(rewards[same], axis=1) >= high)
                kind[rows[same]] += HARD * (np.nanmax(rewards[same], axis=1) <= low)
        return kind


def rows_of_groups(completions: Completions) -> tuple[np.ndarray, np.ndarray]:
    """Completions of each group of the usual size, (G, n), and the sizes of all groups."""
    sizes = np.bincount(completions.group)
    counts = np.bincount(sizes[sizes > 1]) if (sizes > 1).any() else np.bincount(sizes)
    usual = int(counts.argmax())
    order = np.argsort(completions.group, kind="stable")
    return order[sizes[completions.group[order]] == usual].reshape(-1, usual), sizes


def make_groups(completions: Completions, rows: np.ndarray, lengths: np.ndarray, reward: np.ndarray) -> Groups:
    """Groups of completions; `rows` (G, n) are those of each group, in order of the steps."""
    prompts = [completions.prompts[row] for row in rows[:, 0]]
    number = {prompt: index for index, prompt in enumerate(dict.fromkeys(prompts))}
    return Groups(
        step=np.unique(completions.batch[rows[:, 0]], return_inverse=True)[1],
        prompt=np.array([number[prompt] for prompt in prompts], dtype=np.int64),
        rewards=reward[rows],
        lengths=lengths[rows],
        differs=differing(completions, reward, rows),
    )


def windows(groups: Groups) -> list[np.ndarray]:
    """For each step the groups of a window of neighbouring steps, `WINDOW` of them or all there are."""
    num = max(len(groups.step) // WINDOW, 1)
    steps = np.array_split(np.arange(len(groups.steps)), min(num, len(groups.steps)))
    return [pool for part in steps for pool in [np.concatenate([groups.steps[t] for t in part])] * len(part)]


def differs_among(groups: Groups, count: int) -> np.ndarray:
    """Probability that `count` rollouts of a group, drawn without replacement, differ in reward, shape (G,)."""
    chance = np.zeros(len(groups.step))
    for group in np.flatnonzero(groups.differs):
        known = groups.rewards[group][~np.isnan(groups.rewards[group])]
        same = sum(math.comb(int(number), count) for number in np.unique(known, return_counts=True)[1])
        ways = math.comb(len(known), min(count, len(known)))
        chance[group] = 1.0 - same / ways if count else 0.0
    return chance
