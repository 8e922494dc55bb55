# SPDX-License-Identifier: Apache-2.0
"""PODS: generate many rollouts, train on those whose rewards differ most (arXiv 2504.13818).

A prompt gets n = `num_generations` rollouts. Of its n rewards the m = `num_kept` with the largest variance are kept;
the best m are the k highest and the m - k lowest for some k, so sorting finds them:

    S = argmax over |S| = m of Var(R_i, i in S)
    A_i = (R_i - mean of S) / (std of S + 1e-4)     for i in S,  0 otherwise

All other rollouts leave the gradient *and* its divisor, so a step costs m forward and backward passes for n generated
rollouts: updates become cheaper, generation does not.

Biased: who is kept depends on the rewards, so rare rewards weigh more than under the policy. With two reward values
the expectation still points along each prompt's own gradient, as any function of the group's rewards does.

Ours: rollouts without a reward are never kept; a prompt with fewer than m rewards keeps them all.
"""

from dataclasses import dataclass

import numpy as np

from ..field_types import Options, at_least, option
from ..rollouts import Job, Judgement, Prompts, Rollouts
from .grouping import check_groups, group_relative, uniform_jobs
from .method import Method, Setting


@dataclass(frozen=True)
class PodsOptions(Options):
    """Options of PODS."""

    num_kept: int | None = option(
        "Rollouts of a prompt that are trained, at most num_generations. None: a quarter of num_generations, at least "
        "2.",
        unit=">= 2",
        symbol="m",
        rule=at_least(2),
    )


class Pods(Method):
    """PODS; see the module."""

    def __init__(self, setting: Setting, options: PodsOptions) -> None:
        check_groups(setting, setting.num_prompts)
        self.setting = setting
        self.num_kept = max(2, setting.num_generations // 4) if options.num_kept is None else options.num_kept
        if self.num_kept > setting.num_generations:
            raise ValueError(
                f"num_kept={self.num_kept} is above num_generations={setting.num_generations}. Lower it, or generate "
                "more."
            )
        self.identity = {"method": "pods", "num_kept": self.num_kept}

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> list[Job]:
        """One round: n rollouts for each prompt."""
        return uniform_jobs(range(len(prompts)), self.setting.num_generations) if done is None else []

    def judge(self, done: Rollouts) -> Judgement:
        """Advantages of the kept rollouts; the others are dropped."""
        kept = np.zeros(len(done), dtype=bool)
        for prompt in range(len(done.prompts)):
            rows = np.flatnonzero((done.prompt == prompt) & done.scored)
            kept[rows[max_variance_subset(done.rewards[rows], self.num_kept)]] = True
        return Judgement.of(group_relative(done, self.setting, kept), in_gradient=kept)

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Nothing is remembered."""
        kept = judgement.in_gradient
        self._metrics = {"num_kept": float(kept.sum()), "kept_tokens": float(done.replay.length[kept].sum())}


def max_variance_subset(rewards: np.ndarray, num_kept: int) -> np.ndarray:
    """The rewards with the largest variance among all subsets of one size, in O(n log n)."""
    if len(rewards) <= num_kept:
        return np.arange(len(rewards))
    lowest = np.argsort(rewards, kind="stable")
    highest = lowest[::-1]  # of the same order, so that no tie is in both
    centred = rewards - rewards.mean()
    powers = np.stack([centred, centred**2])  # (2, n)
    start = np.zeros((2, 1))
    low = np.concatenate([start, np.cumsum(powers[:, lowest[:num_kept]], axis=1)], axis=1)  # (2, m + 1)
    high = np.concatenate([start, np.cumsum(powers[:, highest[:num_kept]], axis=1)], axis=1)
    first, second = (high + low[:, ::-1]) / num_kept  # moments with k highest and m - k lowest, k = 0..m
    k = int(np.argmax(second - first**2))
    return np.sort(np.concatenate([highest[:k], lowest[: num_kept - k]]))
