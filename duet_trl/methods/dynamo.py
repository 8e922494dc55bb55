# SPDX-License-Identifier: Apache-2.0
r"""DynaMO: counts by Bernoulli variance, and advantages modulated token by token (arXiv 2602.19208).

Counts. A step has C = b num_generations M rollouts. A prompt with k successes in all its G rollouts so far has

    P_q = 4 k (G - k) / (G (G - 1))        four times the unbiased estimate of p (1 - p);  1 for G < 2

Every prompt gets n_low, the rest of C is shared in proportion to P_q, none above n_high (`allocate/units.py`). The
bounds follow the budget, 0.5 and 1.5 times its average: the authors' 8 and 24 at 16. The sum is C exactly.

Tokens. Inside the loss the advantage A of a token is multiplied by boost x decay, without a gradient:

    boost = 1 + (mu_max - 1) (H_max - H) / (H_max - H_min + 1e-8)   where A > 0, else 1
    decay = lambda + (1 - lambda) / (1 + exp(50 (x - 0.99))),       x = Xi / (max Xi + 1e-8)
    Xi    = |A (u - mean of u over the rollout)|,                   u = pi (log pi + H)

H is the entropy before the token and pi its probability. The boost makes up for the small gradient of confident right
tokens; Xi is proportional to the change of entropy that the token causes, and the largest changes are damped to
lambda. The extremes are over all tokens with an advantage.

* `normalisation="window"`: of the step, so that the factor does not depend on how rollouts are packed. A last round
  asks for log-probs and entropies of these rollouts: one more forward pass over them, counted in `asked_tokens`.
* `normalisation="micro_batch"`: of the micro-batch that is in the loss, as in the published code. No extra pass.

Ours: the window, and the probability ratio and its clip in Xi count as 1, as they are where a step makes one update.
`proxy="released"` is the published code's priority, max(4 p (1 - p), 0.01), and 0.01 from p = 0.85 on. A success is a
share where rewards are graded (`success_share`). docs/fidelity.md#dynamo has what else the code does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..allocate.budget import Budget
from ..allocate.statistics import PromptStatistics
from ..allocate.units import water_filling
from ..field_types import Options, one_of, option
from ..rollouts import Job, Judgement, Prompts, Query, Rollouts
from ..update.modulation import Extremes, boost, decay, entropy_change
from .grouping import counted_jobs, group_relative
from .method import Remembering, Setting, TokenBatch

MASTERED, LEAST_PRIORITY = 0.85, 0.01
"""Of the published code's priority."""


@dataclass(frozen=True)
class DynamoOptions(Options):
    """Options of DynaMO; the defaults are the authors', but for `normalisation`."""

    proxy: str = option(
        "Priority of a prompt: 'variance' (paper) or 'released' (the code's rule).",
        "variance",
        symbol="P",
        rule=one_of("variance", "released"),
    )
    low: float = option(
        "Minimum rollouts of a prompt over the average of the budget, rounded down, at least 1.",
        0.5,
        unit="[0, 1]",
        symbol="n_low",
        rule=(lambda x: 0 <= x <= 1, "in [0, 1], got {}"),
    )
    high: float = option(
        "Maximum rollouts of a prompt over the average of the budget, rounded up.",
        1.5,
        unit=">= 1",
        symbol="n_high",
        rule=(lambda x: 1 <= x < np.inf, "at least 1, got {}"),
    )
    normalisation: str = option(
        "Whose extremes normalise entropies and changes: 'window', of the step, for one more forward pass over "
        "rollouts with an advantage; 'micro_batch' (the code).",
        "window",
        rule=one_of("window", "micro_batch"),
    )
    boost_max: float = option(
        "Factor on a right token without entropy. 1: no boost.",
        1.2,
        unit=">= 1",
        symbol="mu_max",
        rule=(lambda x: 1 <= x < np.inf, "at least 1; 1 is no boost; got {}"),
    )
    decay_min: float = option(
        "Factor on the token that changes entropy most. 1: no decay.",
        0.6,
        unit="(0, 1]",
        symbol="lambda",
        rule=(lambda x: 0 < x <= 1, "in (0, 1]; 1 is no decay; got {}"),
    )
    decay_at: float = option(
        "Share of the largest change at which half of the decay acts.",
        0.99,
        unit="[0, 1]",
        symbol="tau",
        rule=(lambda x: 0 <= x <= 1, "in [0, 1], got {}"),
    )


def priorities(count: np.ndarray, success: np.ndarray, proxy: str) -> np.ndarray:
    """Priority of each prompt from its rollouts so far and the share of successes, shape (M,) each; see the module."""
    if proxy == "released":
        known = np.where(success < MASTERED, 4.0 * success * (1.0 - success), 0.0).clip(min=LEAST_PRIORITY)
        return np.where(count > 0, known, 1.0)
    variance = success * (1.0 - success) * count / np.maximum(count - 1.0, 1.0)
    return np.where(count >= 2, 4.0 * variance, 1.0)


class Dynamo(Remembering):
    """Counts and token factors; see the module."""

    def __init__(self, setting: Setting, options: DynamoOptions) -> None:
        self.setting = setting
        self.options = options
        self.budget = Budget(fraction=setting.budget_fraction, num_generations=setting.num_generations)
        if self.budget.total_rollouts(setting.num_prompts) <= setting.num_prompts:
            raise ValueError(
                f"the budget of {self.budget.rollouts_per_prompt:g} rollouts per prompt leaves every prompt a single "
                "one, and no step has a gradient. Raise budget_fraction or num_generations."
            )
        self.identity = {"method": "dynamo"}
        self.statistics = PromptStatistics(reward_decay=1.0)
        self._extremes: Extremes | None = None

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> list[Job | Query]:
        """A round of rollouts, and one of questions about those whose advantage is not 0."""
        if done is None:
            return counted_jobs(self._counts(prompts.keys))
        if done.answers or not self._modulates or self.options.normalisation == "micro_batch":
            return []
        rows = np.flatnonzero(group_relative(done, self.setting)).tolist()
        texts = done.tokens(rows) if rows else []
        return [
            Query(int(done.prompt[row]), tuple(ids), entropies=True) for row, (ids, _) in zip(rows, texts, strict=True)
        ]

    def judge(self, done: Rollouts) -> Judgement:
        """GRPO's advantages within each group; the extremes of the step follow from the answers."""
        advantages = group_relative(done, self.setting)
        self._extremes = _extremes_of(done.answers, advantages[advantages != 0])
        return Judgement.of(advantages)

    def token_factor(self, batch: TokenBatch) -> torch.Tensor | None:
        """Boost times decay, shape (B, T); 1 where a token has no advantage."""
        if not self._modulates:
            return None
        options, mask = self.options, batch.mask.bool()
        use = mask & ((batch.advantages != 0) & (batch.rollout >= 0)).unsqueeze(1)
        change = entropy_change(batch.logps, batch.entropies, mask, batch.advantages)
        extremes = self._extremes or Extremes.of(batch.entropies.float(), change, use)
        factor = boost(batch.entropies, batch.advantages, extremes, options.boost_max)
        factor = factor * decay(change, extremes, options.decay_min, options.decay_at)
        return torch.where(use, factor, 1.0)

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Count successes."""
        self.statistics.observe_rewards(done.prompts.keys, done.prompt, done.rewards, done.scored)
        if self._extremes is not None:
            self._metrics = {**self._metrics, **vars(self._extremes)}

    @property
    def _modulates(self) -> bool:
        return self.options.boost_max > 1 or self.options.decay_min < 1

    def _counts(self, keys: tuple[str, ...]) -> np.ndarray:
        """Rollouts of each prompt, shape (M,), int64."""
        history = self.statistics.reward_history(keys)
        # One reward so far does not tell what a success is.
        count = history.count if self.statistics.rewards_differ else np.zeros(len(keys))
        average = self.budget.rollouts_per_prompt
        priority = priorities(count, self.statistics.success_share(history.mean), self.options.proxy)
        lowest, most = max(math.floor(self.options.low * average), 1), math.ceil(self.options.high * average)
        self._metrics = {"unseen_prompts": float((count == 0).sum())}
        return water_filling(priority, self.budget.total_rollouts(len(keys)), lowest, most)


def _extremes_of(answers: Sequence[np.ndarray], advantages: np.ndarray) -> Extremes | None:
    """Over the answers (2, T) about rollouts with these advantages; None without an answer."""
    if not answers:
        return None
    entropies = [float(extreme) for answer in answers for extreme in (answer[1].min(), answer[1].max())]
    changes = []
    for answer, advantage in zip(answers, advantages, strict=True):
        logps, entropy = torch.from_numpy(answer).float().unsqueeze(1)  # (1, T) each
        change = entropy_change(logps, entropy, torch.ones_like(logps, dtype=torch.bool), torch.tensor([advantage]))
        changes.append(float(change.max()))
    return Extremes(min(entropies), max(entropies), max(changes))
