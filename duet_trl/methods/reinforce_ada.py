# SPDX-License-Identifier: Apache-2.0
"""Reinforce-Ada: sample a prompt in rounds until its rewards are informative (arXiv 2510.04996).

Every prompt gets `num_generations` rollouts. A prompt leaves with at least one positive rollout
(`exit="positive_focused"`) or with n // 2 positive and n - n // 2 negative ones (`"balanced"`), n = `num_kept`. The
others get another round, up to four. Of each prompt n rollouts are then trained, half of them positive where there are
enough:

    A_i = R_i - mean of *all* rollouts of the prompt      divided by their std + 1e-4 if `scale_rewards` asks for it

The authors' runs divide by nothing: `scale_rewards="none"`. All rounds are generated and charged: an easy or hopeless
prompt costs four times as much as in GRPO. Their other settings are `epsilon_high=0.28` and no KL.

Biased twice. Stopping on outcomes biases the mean: a rollout's baseline depends on rounds that exist because of it
(tests/methods/test_reinforce_ada.py enumerates it). Keeping half of each kind weighs rare rewards more.

Ours: among equals those kept are drawn under the run's seed (the authors keep the first). A rollout without a reward
is neither positive nor negative and never kept. A reward is positive above the middle of the run's extremes, this
step's included; while all were the same none is. A round for which `max_rollouts` has too little room goes to the
first prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..field_types import Options, at_least, config_field, one_of
from ..rollouts import Job, Judgement, Prompts, Query, Rollouts
from .grouping import group_relative, positive_rewards, uniform_jobs, widened
from .grpo import FromGRPO
from .method import Setting

MAX_ROUNDS = 4
_DRAW = 0xADA  # keeps this draw apart from other draws under the seed


@dataclass(frozen=True)
class ReinforceAdaOptions(Options):
    """Options of Reinforce-Ada."""

    exit: str = config_field(
        "When a prompt leaves: 'balanced', half of num_kept positive and half negative; 'positive_focused', one "
        "positive.",
        "balanced",
        rule=one_of("balanced", "positive_focused"),
    )
    num_kept: int | None = config_field(
        "Rollouts of a prompt that are trained. None: half of num_generations, at least 2. Paper: 4.",
        rule=at_least(2),
    )


class ReinforceAda(FromGRPO):
    """Reinforce-Ada; see the module."""

    identity = {"method": "reinforce_ada"}
    remembered = ("reward_range",)
    options: ReinforceAdaOptions

    def __init__(self, setting: Setting, options: ReinforceAdaOptions) -> None:
        super().__init__(setting, options)
        self.num_kept = options.num_kept or max(2, setting.num_generations // 2)
        if self.num_kept > MAX_ROUNDS * setting.num_generations:
            raise ValueError(
                f"num_kept={self.num_kept} is above {MAX_ROUNDS} rounds of num_generations={setting.num_generations}, "
                "all that a prompt can get. Lower it, or sample more."
            )
        self.reward_range: list[float] = []

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> Sequence[Job | Query]:
        """A round for every prompt, then for those that have not met the exit rule."""
        if done is None or done.round.max() + 1 >= MAX_ROUNDS:
            return super().jobs(prompts, done)
        size = self.setting.num_generations
        return uniform_jobs(self._open(done)[: (self.setting.max_rollouts - len(done)) // size], size)

    def judge(self, done: Rollouts) -> Judgement:
        """Advantages over all rollouts of a prompt; trained are `num_kept` of each."""
        kept, positive = np.zeros(len(done), dtype=bool), self._positive(done)
        for prompt in range(len(done.prompts)):
            rows = np.flatnonzero((done.prompt == prompt) & done.scored)
            random = np.random.default_rng([self.setting.seed, done.prompts.step, _DRAW, prompt])
            kept[rows[balanced_subset(positive[rows], self.num_kept, random)]] = True
        return Judgement.of(np.where(kept, group_relative(done, self.setting), 0.0), in_gradient=kept)

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Remember the run's extremes."""
        kept = judgement.in_divisor
        self._metrics = {
            "num_kept": float(kept.sum()),
            "kept_tokens": float(done.replay.length[kept].sum()),
            "further_rounds": float(done.round.max()),
            "open_prompts": float(len(self._open(done))),
        }
        self.reward_range = widened(self.reward_range, done.rewards)

    def _positive(self, done: Rollouts) -> np.ndarray:
        """Rollouts that count as positive, shape (N,), bool."""
        return positive_rewards(done.rewards, widened(self.reward_range, done.rewards))

    def _open(self, done: Rollouts) -> list[int]:
        """Prompts of the last round that have not met the exit rule."""
        positive, size, half = self._positive(done), len(done.prompts), self.num_kept // 2
        num_positive = np.bincount(done.prompt[positive], minlength=size)
        num_negative = np.bincount(done.prompt[done.scored & ~positive], minlength=size)
        leaves = (num_positive >= half) & (num_negative >= self.num_kept - half)
        if self.options.exit == "positive_focused":
            leaves = num_positive >= 1
        return [q for q in np.unique(done.prompt[done.round == done.round.max()]).tolist() if not leaves[q]]


def balanced_subset(positive: np.ndarray, size: int, random: np.random.Generator) -> np.ndarray:
    """Indices of `size` rollouts, half of them positive, filled up with the other kind where one has too few."""
    yes, no = (random.permutation(np.flatnonzero(flags)) for flags in (positive, ~positive))
    num_positive = max(min(size // 2, len(yes)), size - len(no))
    return np.sort(np.concatenate([yes[:num_positive], no[: size - min(num_positive, len(yes))]]))
