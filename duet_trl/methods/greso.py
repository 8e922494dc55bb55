# SPDX-License-Identifier: Apache-2.0
"""GRESO: skip prompts whose last visits taught nothing, and refill the batch (arXiv 2506.02177).

z_easy of a prompt is the number of its latest visits in a row with every reward at the top, z_hard with every reward
at the bottom. Before a rollout is generated a prompt is taken with probability

    max(p_easy^z_easy, 0.01)   resp.   max(p_hard^z_hard, 0.01)   and always where both are 0

and others are drawn, by the same rule, until the batch is full. From the second epoch on p_easy falls by 0.01 after a
step whose share of all-top prompts reached its target and rises by 0.01 after another [0.05, 0.95]; p_hard
likewise for all-bottom prompts. What is generated is filtered as in `dapo`: groups whose rewards are all the same
leave gradient and divisor, and more batches are drawn, each as large as the remainder should need:

    1.25 * (M - found) / (share of the prompts so far whose rewards differ),   within [a sixth of a batch, a batch]

A batch that should suffice is the last: what it leaves empty stays empty. The filter keeps the direction of GRPO's
gradient, as in `dapo`; a skipped prompt loses weight in proportion to its visits, and gets none of it back.

Ours: top and bottom are the highest and the lowest reward of the run so far, exactly, until `easy_reward` and
`hard_reward` say otherwise (the authors: means of at least 0.98 and at most 0.11, for rewards with a bonus of 0.1 for
the format). The smallest batch is their 64 of 384 prompts as a share. The share that sets the size of a batch is that
of the whole step. Where all prompts are skipped and there are no others, those that were drawn are taken.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..allocate.prompt_table import PromptTable
from ..field_types import option
from ..rollouts import Job, Judgement, Prompts, Rollouts
from .grouping import group_relative, mixed_prompts, uniform_jobs, visit_metrics
from .method import Method, Setting
from .resampling import ResamplingOptions, check_groups, draw, first_mixed, resampling_metrics

START, STEP, RANGE = 0.5, 0.01, (0.05, 0.95)
"""p_easy and p_hard: where they start, by how much they move, where they stay."""
LEAST = 0.01
"""Probability with which every prompt is taken."""
HARD_SHARE = 2 / 3
"""Share of `target_zero_variance` that all-bottom prompts have."""
SAFETY, SMALLEST = 1.25, 1 / 6
"""Size of a further batch: over what should be needed, and at least this share of a full one."""
EASY, HARD = 1, -1
_COIN = 0x6E50
"""Keeps the coins apart from other draws under the seed."""
_FINITE = (np.isfinite, "finite, got {}. None: the run's own extreme")


@dataclass(frozen=True)
class GresoOptions(ResamplingOptions):
    """Options of GRESO, beside those of `ResamplingOptions`."""

    easy_reward: float | None = option(
        "Mean reward from which a visit is easy. None: every reward the run's highest.", rule=_FINITE
    )
    hard_reward: float | None = option(
        "Mean reward up to which it is hard. None: every reward the run's lowest.", rule=_FINITE
    )
    target_zero_variance: float = option(
        "Share of prompts to aim at that are easy (a third) or hard (two thirds).",
        0.25,
        unit="[0, 1]",
        rule=(lambda x: 0 <= x <= 1, "in [0, 1], got {}"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if None not in (self.easy_reward, self.hard_reward) and self.hard_reward >= self.easy_reward:
            raise ValueError(f"hard_reward must be below easy_reward, got {self.hard_reward} and {self.easy_reward}.")


class Greso(Method):
    """GRESO; see the module."""

    def __init__(self, setting: Setting, options: GresoOptions) -> None:
        check_groups(setting, round(options.oversample * setting.num_prompts))
        self.setting = setting
        self.options = options
        self.identity = {"method": "greso", "easy_reward": options.easy_reward, "hard_reward": options.hard_reward}
        self.easy_probability = self.hard_probability = START
        self._reward_range: list[float] | None = None
        self._streaks = PromptTable("greso streaks", ("streak",))  # z_easy, or -z_hard, of prompts that were visited

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> list[Job]:
        """Groups of prompts that are not skipped, until M of them have rewards that differ or should have."""
        drawn = range(prompts.num_drawn)
        batch = round(self.options.oversample * len(drawn))
        if done is None:
            return uniform_jobs(self._taken(prompts, drawn, batch) or drawn, self.setting.num_generations)
        rounds = int(done.round.max()) + 1
        if rounds > 1 and self._needed(done, rounds - 1) <= batch:  # the last batch should have sufficed
            return []
        needed = self._needed(done, rounds)
        if needed <= 0 or rounds >= self.options.max_batches:
            return []
        size = min(batch, max(int(batch * SMALLEST), int(min(needed, batch)), 1))
        room = (self.setting.max_rollouts - len(done)) // self.setting.num_generations
        return uniform_jobs(self._taken(prompts, (), min(size, room)), self.setting.num_generations)

    def judge(self, done: Rollouts) -> Judgement:
        """GRPO's advantages over the first M groups whose rewards differ; all others are dropped."""
        kept = first_mixed(done)
        return Judgement.of(group_relative(done, self.setting, kept), in_gradient=kept)

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Count the visits in a row, and move p_easy and p_hard."""
        visited, scored, prompts = np.unique(done.prompt), done.scored, done.prompts
        if scored.any():
            run = [*(self._reward_range or ()), done.rewards[scored].min(), done.rewards[scored].max()]
            self._reward_range = [float(min(run)), float(max(run))]
        kinds = {int(q): self._kind(done.rewards[scored & (done.prompt == q)]) for q in visited}
        with self._streaks.editing([prompts[prompt].key for prompt in kinds]) as (column, place):
            streak = column["streak"]
            for at, kind in zip(place, kinds.values(), strict=True):
                streak[at] = streak[at] + kind if streak[at] * kind > 0 else kind
        easy, hard = (sum(kind == wanted for kind in kinds.values()) for wanted in (EASY, HARD))
        if prompts.epoch > 0:
            target = self.options.target_zero_variance
            self.easy_probability = _moved(self.easy_probability, easy / len(visited), target * (1 - HARD_SHARE))
            self.hard_probability = _moved(self.hard_probability, hard / len(visited), target * HARD_SHARE)
        self._metrics = {
            **resampling_metrics(done, mixed_prompts(done)),
            **visit_metrics(done),
            "easy_prompts": float(easy),
            "hard_prompts": float(hard),
            "p_easy": self.easy_probability,
            "p_hard": self.hard_probability,
        }

    def state_dict(self) -> dict[str, Any]:
        """Visits in a row by key, the two probabilities and the run's reward range."""
        return {
            "streaks": self._streaks.state_dict(),
            "p_easy": self.easy_probability,
            "p_hard": self.hard_probability,
            "reward_range": self._reward_range,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`. Raises ValueError if it is not one."""
        super().load_state_dict(state)
        self._streaks.load_state_dict(state["streaks"])
        self.easy_probability, self.hard_probability = float(state["p_easy"]), float(state["p_hard"])
        self._reward_range = None if state["reward_range"] is None else [float(x) for x in state["reward_range"]]

    def _taken(self, prompts: Prompts, candidates: Iterable[int], wanted: int) -> list[int]:
        """Candidates that are not skipped, refilled up to `wanted` prompts or to the end of the data set."""
        taken = self._not_skipped(prompts, candidates)
        while len(taken) < wanted:
            added, _ = draw(prompts, wanted - len(taken))
            if not added:
                break
            taken += self._not_skipped(prompts, added)
        return taken

    def _not_skipped(self, prompts: Prompts, candidates: Iterable[int]) -> list[int]:
        candidates = list(candidates)
        streaks = self._streaks.read([prompts[prompt].key for prompt in candidates])["streak"].tolist()
        return [q for q, streak in zip(candidates, streaks, strict=True) if not self._skipped(prompts, q, streak)]

    def _skipped(self, prompts: Prompts, prompt: int, streak: float) -> bool:
        taken = (self.easy_probability if streak > 0 else self.hard_probability) ** abs(streak)
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
        """Whether a visit with these rewards was easy, hard, or neither (0)."""
        easy, hard = self.options.easy_reward, self.options.hard_reward
        if not rewards.size:
            return 0
        bottom, top = self._reward_range
        if bottom == top:  # one reward so far does not tell which end it is
            bottom, top = -np.inf, np.inf
        if rewards.min() >= top if easy is None else rewards.mean() >= easy:
            return EASY
        return HARD if (rewards.max() <= bottom if hard is None else rewards.mean() <= hard) else 0


def _moved(probability: float, observed: float, target: float) -> float:
    moved = probability - STEP if observed >= target else probability + STEP
    return float(np.clip(moved, *RANGE))
