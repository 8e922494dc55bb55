# SPDX-License-Identifier: Apache-2.0
"""Reinforce-Ada: sample a prompt in rounds until its rewards say enough (arXiv 2510.04996).

Every prompt gets `round_size` rollouts. A prompt leaves with at least one positive rollout
(`exit="positive_focused"`) or with n // 2 positive and n - n // 2 negative ones (`"balanced"`), n = `num_kept`. The
others get another round, up to `max_rounds`. Of each prompt n rollouts are then trained, half of them positive where
there are so many:

    A_i = R_i - mean of *all* rollouts of the prompt      divided by their std + 1e-4 if `scale_rewards` says so

The authors' runs divide by nothing: `scale_rewards="none"`. All rounds are generated and charged, n rollouts of a
prompt are trained. An easy or hopeless prompt costs `max_rounds` times what GRPO pays for it: the budget is not that
of GRPO. The rest of the authors' settings is clip-higher, `epsilon_high=0.28`, and no KL.

Biased twice. Stopping on outcomes biases the mean: stopped at its first success, a prompt with success rate p has
E[share of positives] > p, and a rollout's baseline depends on rounds that exist because of it. Keeping half of each
kind weighs rare rewards more. `baseline="history"` has neither: all rollouts are trained, each against earlier visits,
the others of its own round and all of the rounds before (`update/baseline.py`). Then, with `scale_rewards="none"`,

    E[sum over i of A_i grad log pi_i] = E[n_q] grad J_q

for any rule of exit; tests/methods/test_reinforce_ada.py enumerates both.

Ours: who is kept among equals is drawn under the run's seed (the authors keep the first). A rollout without a reward
is neither positive nor negative and never kept. Positive is a reward above the middle of the run's extremes, this
step's included; while all were the same none is, and `positive_focused` samples on. A round for which `max_rollouts`
has too little room goes to the first prompts.
"""

from dataclasses import dataclass

import numpy as np

from ..allocate.statistics import PromptStatistics
from ..field_types import Options, at_least, one_of, option
from ..rollouts import Job, Judgement, Prompts, Rollouts
from .grouping import advantages_by_round, group_relative, positive_rewards, uniform_jobs
from .method import Remembering, Setting

_DRAW = 0xADA
"""Keeps the draw of who is kept apart from other draws under the seed."""


@dataclass(frozen=True)
class ReinforceAdaOptions(Options):
    """Options of Reinforce-Ada."""

    exit: str = option(
        "When a prompt leaves: 'balanced', half of num_kept positive and half negative; 'positive_focused', one "
        "positive.",
        "balanced",
        rule=one_of("balanced", "positive_focused"),
    )
    round_size: int | None = option(
        "Rollouts of a prompt in a round. None: num_generations. Paper: 8.", unit=">= 1", rule=at_least(1)
    )
    max_rounds: int = option("Maximum rounds of a step.", 4, unit=">= 1", rule=at_least(1))
    num_kept: int | None = option(
        "Rollouts of a prompt that are trained. None: half of num_generations, at least 2. Paper: 4.",
        unit=">= 2",
        symbol="n",
        rule=at_least(2),
    )
    positive_reward: float | None = option(
        "Reward from which a rollout is positive. None: above the middle of the run's extremes.",
        rule=(np.isfinite, "finite, got {}. None: the middle of the run's extremes"),
    )
    baseline: str = option(
        "'all': mean of all rollouts of the prompt (paper). 'history': earlier visits, the others of the round and "
        "all rounds before; every rollout is trained, and stopping causes no bias.",
        "all",
        rule=one_of("all", "history"),
    )


class ReinforceAda(Remembering):
    """Reinforce-Ada; see the module."""

    def __init__(self, setting: Setting, options: ReinforceAdaOptions) -> None:
        self.setting = setting
        self.options = options
        self.round_size = options.round_size or setting.num_generations
        self.num_kept = options.num_kept or max(2, setting.num_generations // 2)
        if self.num_kept > self.round_size * options.max_rounds:
            raise ValueError(
                f"num_kept={self.num_kept} is above round_size={self.round_size} x max_rounds={options.max_rounds}, "
                "all that a prompt can get. Lower it, or sample more."
            )
        if self.round_size * setting.num_prompts > setting.max_rollouts:
            raise ValueError(
                f"round_size={self.round_size} for each of {setting.num_prompts} prompts is above max_rollouts="
                f"{setting.max_rollouts}. Raise it, or lower round_size or the batch."
            )
        if options.baseline == "history" and setting.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError(
                f"multi_objective_aggregation={setting.multi_objective_aggregation!r} has no summed reward to "
                "remember. Set 'sum_then_normalize', or baseline='all'."
            )
        self.identity = {
            "method": "reinforce_ada",
            "positive_reward": options.positive_reward,
            "baseline": options.baseline,
        }
        self.statistics = PromptStatistics()

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> list[Job]:
        """A round for every prompt, then for those that are still open."""
        if done is None:
            return uniform_jobs(range(len(prompts)), self.round_size)
        if done.round.max() + 1 >= self.options.max_rounds:
            return []
        room = (self.setting.max_rollouts - len(done)) // self.round_size
        return uniform_jobs(self._open(done)[:room], self.round_size)

    def judge(self, done: Rollouts) -> Judgement:
        """Advantages over all rollouts; trained are `num_kept` of each prompt, or all of them with a history."""
        if self.options.baseline == "history":
            seen = self.statistics.reward_history(done.prompts.keys)
            return Judgement.of(advantages_by_round(done, seen, self.setting.scale_rewards))
        kept, positive = np.zeros(len(done), dtype=bool), self._positive(done)
        for prompt in range(len(done.prompts)):
            rows = np.flatnonzero((done.prompt == prompt) & done.scored)
            random = np.random.default_rng([self.setting.seed, done.prompts.step, _DRAW, prompt])
            kept[rows[balanced_subset(positive[rows], self.num_kept, random)]] = True
        return Judgement.of(np.where(kept, group_relative(done, self.setting), 0.0), in_gradient=kept)

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Remember rewards, for the run's extremes and for the history."""
        kept = judgement.in_gradient
        self._metrics = {
            "num_kept": float(kept.sum()),
            "kept_tokens": float(done.replay.length[kept].sum()),
            "further_rounds": float(done.round.max()),
            "open_prompts": float(len(self._open(done))),
        }
        self.statistics.observe_rewards(done.prompts.keys, done.prompt, done.rewards, done.scored)

    def _positive(self, done: Rollouts) -> np.ndarray:
        """Rollouts that count as positive, shape (N,), bool."""
        if self.options.positive_reward is not None:
            return done.rewards >= self.options.positive_reward
        return positive_rewards(done.rewards, [*(self.statistics.reward_range or ()), *done.rewards[done.scored]])

    def _open(self, done: Rollouts) -> list[int]:
        """Prompts of the last round that have not met the rule of exit."""
        positive, size = self._positive(done), len(done.prompts)
        num_positive = np.bincount(done.prompt[positive], minlength=size)
        num_negative = np.bincount(done.prompt[done.scored & ~positive], minlength=size)
        if self.options.exit == "positive_focused":
            leaves = num_positive >= 1
        else:
            leaves = (num_positive >= self.num_kept // 2) & (num_negative >= self.num_kept - self.num_kept // 2)
        return [q for q in np.unique(done.prompt[done.round == done.round.max()]).tolist() if not leaves[q]]


def balanced_subset(positive: np.ndarray, size: int, random: np.random.Generator) -> np.ndarray:
    """Indices of `size` rollouts, half of them positive, filled up by the other kind where one has too few."""
    yes, no = (random.permutation(np.flatnonzero(flags)) for flags in (positive, ~positive))
    num_positive = max(min(size // 2, len(yes)), size - len(no))
    return np.sort(np.concatenate([yes[:num_positive], no[: size - min(num_positive, len(yes))]]))
