# SPDX-License-Identifier: Apache-2.0
"""Prompts with known pass rates and laws of length, which drift as the policy improves."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..gate.replay import NEVER

SHORTEST = 8
"""Tokens before the earliest answer."""


@dataclass(frozen=True)
class Drawn:
    """Rollouts that no gate has stopped yet, shape (N,) each.

    Attributes:
        completed_at (np.ndarray): Length at which the answer is complete; `NEVER` without one.
        natural (np.ndarray): Length at which it ends by itself or at the length limit.
        right (np.ndarray): Whether the answer is right, bool.
        late (np.ndarray): Whether it is one of the few that answer late, bool.
    """

    completed_at: np.ndarray
    natural: np.ndarray
    right: np.ndarray
    late: np.ndarray

    def take(self, rows: np.ndarray) -> "Drawn":
        """Some of them."""
        return Drawn(*(column[rows] for column in vars(self).values()))


@dataclass(frozen=True)
class Population:
    """What the policy does on each prompt at each step.

    The difficulty d of a prompt is normal. With x = 1 - exp(-3 step / horizon), the share of learning that is done,

        pass rate    1 / (1 + exp(d - start_skill - x learned))
        answer at    answer_tokens growth^x exp(length_slope d) exp(length_spread Z),    Z normal

    A share `late` of the rollouts answers `late_factor` times as late, a share `silent` never; these run to the limit.
    Behind an answer a rollout goes on for an exponential number of tokens.

    Attributes:
        num_prompts (int): P.
        max_length (int): Length limit, tokens.
        horizon (int): Steps of the run.
        difficulty_spread (float): Standard deviation of d, nats.
        start_skill (float): Log-odds of success on a prompt of difficulty 0 at the start.
        learned (float): What training adds to it.
        answer_tokens (float): Median length at the answer at difficulty 0.
        length_slope (float): Longer answers of harder prompts, per nat.
        length_spread (float): Spread within a prompt.
        growth (float): Factor on all answer times by the end of the run.
        late (float): Share of rollouts that answer late.
        late_factor (float): How much later.
        silent (float): Share of rollouts without an answer.
        tail_tokens (float): Mean tokens behind an answer.
        seed (int): Of difficulties and rollouts.
    """

    num_prompts: int
    max_length: int
    horizon: int
    difficulty_spread: float = 2.0
    start_skill: float = -0.5
    learned: float = 2.0
    answer_tokens: float = 600.0
    length_slope: float = 0.15
    length_spread: float = 0.35
    growth: float = 1.5
    late: float = 0.03
    late_factor: float = 2.5
    silent: float = 0.03
    tail_tokens: float = 60.0
    seed: int = 0

    @cached_property
    def difficulty(self) -> np.ndarray:
        """d of each prompt, shape (P,), float32."""
        return np.random.default_rng(self.seed).standard_normal(self.num_prompts, np.float32) * self.difficulty_spread

    def progress(self, step: int) -> float:
        """Share of the learning that is done after some steps, [0, 1)."""
        return 1.0 - float(np.exp(-3.0 * step / self.horizon))

    def pass_rate(self, prompts: np.ndarray, step: int) -> np.ndarray:
        """Probability that an answer is right, shape (N,), for the prompts (N,) by number."""
        skill = self.start_skill + self.learned * self.progress(step)
        return 1.0 / (1.0 + np.exp(self.difficulty[prompts].astype(np.float64) - skill))

    def draw(self, prompts: np.ndarray, step: int, random: np.random.Generator) -> Drawn:
        """One rollout of each prompt (N,), by number."""
        size = len(prompts)
        median = self.answer_tokens * self.growth ** self.progress(step)
        scale = np.exp(
            self.length_slope * self.difficulty[prompts] + self.length_spread * random.standard_normal(size)
        )
        kind = random.random(size)
        median = np.where(kind < self.late, median * self.late_factor, median)
        answered = np.maximum(median * scale, SHORTEST).astype(np.int64)
        natural = answered + 1 + random.exponential(self.tail_tokens, size).astype(np.int64)
        silent = kind > 1.0 - self.silent
        natural = np.where(silent, self.max_length, np.minimum(natural, self.max_length))
        shown = ~silent & (answered <= natural)
        right = shown & (random.random(size) < self.pass_rate(prompts, step))
        return Drawn(np.where(shown, answered, NEVER), natural, right, kind < self.late)
