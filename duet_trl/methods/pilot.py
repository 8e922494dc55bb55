# SPDX-License-Identifier: Apache-2.0
r"""Pilot, our own rule: a few rollouts of each prompt, then the rest of the budget where the outcome is uncertain.

Round 1 gives every prompt k = `pilot_rollouts`. Round 2 spends the rest of B tokens, greedily by gain per token: m
rollouts of a prompt are worth x sqrt(m), where x = E p(1 - p) under the Beta posterior of its success rate p after
discounted earlier visits and the pilot. A solved or hopeless prompt may get none. (Pilot-Commit, arXiv 2605.26606,
has the same two stages.)

Stopping on outcomes biases a mean, so nothing that multiplies a rollout may depend on itself or on what it caused:

    A_i = R_i - b_i,    b_i = mean of the *others* of i's own round, and for round 2 also all of round 1

Given everything before its round, each rollout has E[A_i grad log pi_i] = grad J_q. Hence, for scale_rewards="none",

    E[sum over i of A_i grad log pi_i] = (k + E[n2_q]) grad J_q

exactly, whatever the rule for n2: the gradient of a sum in which a prompt counts by the rollouts it is expected to
get. A baseline over both rounds lacks this: what it adds to a rollout of round 1 depends on n2_q, and so on that
rollout. tests/methods/test_pilot_unbiased.py enumerates both. As in GRPO the loss divides by the tokens of the step, a
random number. With "group" an advantage is divided by the spread of this and earlier rounds, which depends on the
rollout itself, as GRPO's does. With "batch" it is that of round 1, one number for all. A rollout without a reward
contributes 0; so does a lone rollout of round 1 (k = 1).
"""

from dataclasses import dataclass

import numpy as np

from ..allocate.greedy import greedy_counts
from ..allocate.statistics import PromptStatistics, openness, posterior
from ..field_types import Options, at_least, config_field
from ..rollouts import Job, Judgement, Prompts, Rollouts
from ..update.advantages import EPSILON
from .grouping import counted_jobs, mixed_prompts, uniform_jobs
from .method import Method, Setting


@dataclass(frozen=True)
class PilotOptions(Options):
    """Options of the two-round rule; rule and default are our own."""

    pilot_rollouts: int = config_field("Rollouts of every prompt in round 1.", 2, rule=at_least(1))


class Pilot(Method):
    """Two rounds; see the module."""

    identity = {"method": "pilot"}
    remembered = ("statistics",)

    def __init__(self, setting: Setting, options: PilotOptions) -> None:
        self.setting = setting
        self.num_pilot = options.pilot_rollouts
        self.rollouts_per_prompt = setting.budget_fraction * setting.num_generations
        self.statistics = PromptStatistics()
        pilot = f"pilot_rollouts={self.num_pilot}"
        if self.num_pilot > min(self.rollouts_per_prompt, setting.num_rollouts_max):
            raise ValueError(
                f"{pilot} is above budget_fraction x num_generations = {self.rollouts_per_prompt:g} or "
                f"num_rollouts_max={setting.num_rollouts_max}. Raise these or lower pilot_rollouts."
            )
        if self.num_pilot * setting.num_prompts > setting.max_rollouts:
            raise ValueError(
                f"{pilot} for each of {setting.num_prompts} prompts are above max_rollouts={setting.max_rollouts}. "
                "Raise it, or lower pilot_rollouts or the batch."
            )
        if setting.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError("pilot remembers summed rewards. Set multi_objective_aggregation='sum_then_normalize'.")

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> list[Job]:
        """Round 1: k for each prompt. Round 2: the rest of the budget by the posterior."""
        if done is None:
            return uniform_jobs(range(len(prompts)), self.num_pilot)
        return [] if done.round.max() > 0 else counted_jobs(self._second_round(done))

    def judge(self, done: Rollouts) -> Judgement:
        """Advantages round by round: the results of a round are known to the next."""
        return Judgement.of(advantages_by_round(done, self.setting.scale_rewards))

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Remember lengths and rewards of both rounds."""
        keys, length = done.prompts.keys, done.new_tokens
        self.statistics.observe_lengths(keys, done.prompt, length, length, np.ones(len(done), dtype=bool))
        self.statistics.observe_rewards(keys, done.prompt, done.rewards, done.scored)
        second = done.prompt[done.round > 0]
        self._metrics = {
            **self._metrics,
            "pilot_rollouts": float(len(done) - len(second)),
            "second_rollouts": float(len(second)),
            "second_prompts": float(len(np.unique(second))),
            "mixed_prompts": float(mixed_prompts(done).sum()),
        }

    def _second_round(self, done: Rollouts) -> np.ndarray:
        """Rollouts of each prompt in round 2, shape (M,), int64."""
        keys, statistics, spent = done.prompts.keys, self.statistics, float(done.new_tokens.sum())
        known = [*(statistics.reward_range or ()), *done.rewards[done.scored]]
        seen = statistics.reward_history(keys).after(done.rewards, done.prompt)
        value = openness(*posterior(seen, (min(known), max(known)) if known else None))
        worth = np.sqrt(np.arange(self.setting.num_rollouts_max + 1))[:, None] * value  # (num_max + 1, M)
        cost = statistics.expected_tokens(keys, price_aborted=True, default=max(spent / len(done), 1.0))
        first = np.bincount(done.prompt, minlength=len(keys))
        budget = self.rollouts_per_prompt * float(cost.sum())
        # The counts cover both rounds: round 1 is charged at expected lengths, and its actual cost is subtracted.
        limit, lowest = budget - spent + float(cost @ first), np.full(len(keys), self.num_pilot)
        counts, _ = greedy_counts(worth, cost, lowest, limit, self.setting.max_rollouts)
        self._metrics = {"budget_tokens": budget, "planned_tokens": spent + float(cost @ (counts - first))}
        return counts - self.num_pilot


def advantages_by_round(done: Rollouts, scale_rewards: str) -> np.ndarray:
    """A of the module, shape (N,): 0 for a rollout without a reward, and for one that has no other to compare with."""
    advantages, known = np.zeros(len(done)), np.zeros((3, len(done.prompts)))  # rollouts, rewards, squared rewards
    for number in range(done.round.max() + 1):
        rows = (done.round == number) & done.scored
        rewards, group = done.rewards[rows], done.prompt[rows]
        known += [np.bincount(group, weights=rewards**power, minlength=known.shape[1]) for power in range(3)]
        count, total, squares = known[:, group]
        baseline = np.divide(total - rewards, count - 1.0, out=rewards.copy(), where=count > 1.0)
        spread = np.sqrt(np.maximum(squares / count - (total / count) ** 2, 0.0)) + EPSILON
        advantages[rows] = (rewards - baseline) / (spread if scale_rewards == "group" else 1.0)
    first = done.rewards[(done.round == 0) & done.scored]
    return advantages / (first.std(ddof=1) + EPSILON) if scale_rewards == "batch" and len(first) > 1 else advantages
