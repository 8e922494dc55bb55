# SPDX-License-Identifier: Apache-2.0
"""GRESO: skip prompts whose last visits taught nothing, and refill the batch (arXiv 2506.02177).

z_easy of a prompt is the number of its latest visits in a row with every reward at the top, z_hard with every reward
at the bottom. Before a rollout is generated a prompt is taken with probability

    max(p_easy^z_easy, 0.01)    or    max(p_hard^z_hard, 0.01)    and always where both are 0

and others are drawn, by the same rule, until the batch is full. From the second epoch on p_easy falls by 0.01 after a
step whose share of all-top prompts reached 1/12 and rises by 0.01 after another [0.05, 0.95]; so does p_hard, for
all-bottom prompts and 1/6. The rollouts are filtered as in `dapo`, and more batches are drawn, each as large as the
remainder should need:

    1.25 * (M - found) / (share of the prompts so far whose rewards differ),   within [a sixth of a batch, a batch]

A batch that should suffice is the last: what it leaves unfilled stays so. The filter keeps the direction of GRPO's
gradient; a skipped prompt loses weight in proportion to its visits, and gets none of it back.

Ours: top and bottom are the highest and the lowest reward of the run so far, exactly. The share that sets the size of
a batch is that of the whole step. Where all prompts are skipped and no others exist, those that were drawn are taken.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from ..rollouts import Job, Judgement, Prompts, Query, Rollouts
from .dapo import Dapo, DapoOptions, draw
from .grouping import mixed_prompts, uniform_jobs, widened
from .method import Setting

START, STEP, RANGE = 0.5, 0.01, (0.05, 0.95)
"""Start, step and range of p_easy and p_hard."""
LEAST = 0.01
"""Minimum probability with which a prompt is taken."""
TARGETS = np.array([0.25 / 3, 0.25 * 2 / 3])
"""Shares of easy and of hard prompts to aim at."""
SAFETY, SMALLEST = 1.25, 1 / 6
"""Size of a further batch: over the expected need, and at least this share of a full one (authors: 64 of 384)."""
_COIN = 0x6E50  # keeps the coins apart from other draws under the seed


class Greso(Dapo):
    """GRESO; see the module."""

    identity = {"method": "greso"}
    remembered = ("visits_in_a_row", "probability", "_reward_range")

    def __init__(self, setting: Setting, options: DapoOptions) -> None:
        super().__init__(setting, options)
        self.probability = np.array([START, START])  # p_easy and p_hard
        self.visits_in_a_row: dict[str, int] = {}  # z_easy, or -z_hard, by prompt; one that is not here has neither
        self._reward_range: list[float] = []

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> Sequence[Job | Query]:
        """Groups of prompts that are not skipped, until M of them have rewards that differ or should have."""
        drawn, n = range(prompts.num_drawn), self.setting.num_generations
        batch = round(self.options.oversample * len(drawn))
        if done is None:
            return uniform_jobs(self._taken(prompts, drawn, batch) or drawn, n)
        rounds = int(done.round.max()) + 1
        if rounds > 1 and self._needed(done, rounds - 1) <= batch:  # the last batch should have sufficed
            return []
        needed = self._needed(done, rounds)
        if needed <= 0 or rounds >= self.options.max_batches:
            return []
        size = min(batch, max(int(batch * SMALLEST), int(min(needed, batch)), 1))
        return uniform_jobs(self._taken(prompts, (), min(size, (self.setting.max_rollouts - len(done)) // n)), n)

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Count the visits in a row, and move p_easy and p_hard."""
        super().observe(done, judgement, sum_logps)
        self._reward_range = widened(self._reward_range, done.rewards)
        kinds = [(done.prompts[q].key, self._kind(done.rewards[done.prompt == q])) for q in np.unique(done.prompt)]
        for key, kind in kinds:
            streak = self.visits_in_a_row.pop(key, 0)
            if kind:
                self.visits_in_a_row[key] = kind + (streak if streak * kind > 0 else 0)
        found = np.array([sum(kind == wanted for _, kind in kinds) for wanted in (1, -1)])
        if done.prompts.epoch > 0:
            step = np.where(found / len(kinds) >= TARGETS, -STEP, STEP)
            self.probability = np.clip(self.probability + step, *RANGE)
        names, values = ("easy_prompts", "hard_prompts", "p_easy", "p_hard"), (*found, *self.probability)
        self._metrics = {**self._metrics, **_visit_metrics(done), **dict(zip(names, map(float, values), strict=True))}

    def _taken(self, prompts: Prompts, candidates: Iterable[int], wanted: int) -> list[int]:
        """Candidates that are not skipped, refilled up to `wanted` prompts or to the end of the data set."""
        taken = [q for q in candidates if not self._skipped(prompts, q)]
        while len(taken) < wanted and (added := draw(prompts, wanted - len(taken))):
            taken += [q for q in added if not self._skipped(prompts, q)]
        return taken

    def _skipped(self, prompts: Prompts, prompt: int) -> bool:
        streak = self.visits_in_a_row.get(prompts[prompt].key, 0)
        taken = self.probability[int(streak < 0)] ** abs(streak)
        coin = np.random.default_rng([self.setting.seed, prompts.step, _COIN, prompt]).random()
        return bool(coin >= max(taken, LEAST))

    def _needed(self, done: Rollouts, rounds: int) -> float:
        """Prompts that the remainder should need after some rounds; inf while no group has rewards that differ."""
        sampled = np.unique(done.prompt[done.round < rounds])
        found = int(mixed_prompts(done)[sampled].sum())
        missing = done.prompts.num_drawn - found
        if missing <= 0:
            return 0.0
        return SAFETY * missing * len(sampled) / found if found else float("inf")

    def _kind(self, rewards: np.ndarray) -> int:
        """Whether a visit with these rewards was easy (1), hard (-1), or neither (0); nan: no reward."""
        rewards = rewards[~np.isnan(rewards)]
        if not rewards.size or self._reward_range[0] == self._reward_range[1]:
            return 0  # a single reward value is neither top nor bottom
        if rewards.min() >= self._reward_range[1]:
            return 1
        return -1 if rewards.max() <= self._reward_range[0] else 0


def _visit_metrics(done: Rollouts) -> dict[str, float]:
    """Prompts of a step that got no rollout, and those that did and were not drawn by the sampler."""
    visited = np.unique(done.prompt)
    return {
        "skipped_prompts": float(len(done.prompts) - len(visited)),
        "added_prompts": float(np.count_nonzero(visited >= done.prompts.num_drawn)),
    }
