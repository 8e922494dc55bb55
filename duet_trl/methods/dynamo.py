# SPDX-License-Identifier: Apache-2.0
r"""DynaMO: counts by Bernoulli variance, and advantages modulated token by token (arXiv 2602.19208).

Counts. A step has C = b num_generations M rollouts. A prompt with k successes in all its G rollouts so far has

    P_q = 4 k (G - k) / (G (G - 1))        four times the unbiased estimate of p (1 - p);  1 for G < 2

Every prompt gets n_low, the rest of C is shared in proportion to P_q, none above n_high; the bounds are 0.5 and 1.5
times the budget's average (the authors' 8 and 24 at 16). The sum is C exactly.

Tokens. Inside the loss the advantage A of a token is multiplied by boost x decay, without a gradient:

    boost = 1 + (1.2 - 1) (H_max - H) / (H_max - H_min + 1e-8)   where A > 0, else 1
    decay = 0.6 + (1 - 0.6) / (1 + exp(50 (x - 0.99))),          x = Xi / (max Xi + 1e-8)
    Xi    = |A (u - mean of u over the rollout)|,                u = pi (log pi + H)

H is the entropy before the token and pi its probability; Xi is proportional to the change of entropy that it causes.
The extremes are over all tokens of the step with an advantage, which a last round asks the model about. Our choices:
docs/fidelity.md#dynamo.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from ..allocate.allocators import Budget
from ..allocate.statistics import PromptStatistics
from ..field_types import Options
from ..rollouts import Job, Judgement, Prompts, Query, Rollouts
from .grouping import counted_jobs, group_relative, refuse_single
from .grpo import FromGRPO
from .method import Setting, TokenBatch

LOW, HIGH = 0.5, 1.5  # bounds of a prompt's rollouts over the average of the budget; rounded down, at least 1, and up
BOOST_MAX, DECAY_MIN, DECAY_AT, SLOPE = 1.2, 0.6, 0.99, 50.0  # mu_max, lambda, tau and gamma of the authors
_TINY = 1e-8


class Dynamo(FromGRPO):
    """Counts and token factors; see the module."""

    identity = {"method": "dynamo"}
    remembered = ("statistics",)

    def __init__(self, setting: Setting, options: Options) -> None:
        super().__init__(setting, options)
        self.budget = Budget(fraction=setting.budget_fraction, num_generations=setting.num_generations)
        refuse_single(self.budget.total_rollouts(setting.num_prompts) / setting.num_prompts)
        self.statistics = PromptStatistics(reward_decay=1.0)
        self._extremes: dict[str, float] = {}

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> Sequence[Job | Query]:
        """A round of rollouts, and one of questions about those whose advantage is not 0."""
        if done is None:
            return counted_jobs(self._counts(prompts.keys))
        rows = [] if done.answers else np.flatnonzero(group_relative(done, self.setting)).tolist()
        texts = zip(rows, done.tokens(rows) if rows else [], strict=True)
        return [Query(int(done.prompt[q]), tuple(ids), entropies=True) for q, (ids, _) in texts]

    def judge(self, done: Rollouts) -> Judgement:
        """GRPO's advantages within each group; the extremes of the step follow from the answers."""
        advantages = group_relative(done, self.setting)
        self._extremes = {}
        if done.answers:
            rows = [torch.from_numpy(answer.T).float() for answer in done.answers]  # (T, 2) each
            logps, entropies = pad_sequence(rows, batch_first=True, padding_value=torch.nan).unbind(dim=2)
            mask, trained = ~logps.isnan(), torch.from_numpy(advantages[advantages != 0])
            known, change = entropies[mask], entropy_change(logps, entropies, mask, trained).max()
            found = known.min(), known.max(), change
            self._extremes = dict(zip(("entropy_min", "entropy_max", "change_max"), map(float, found), strict=True))
        return Judgement.of(advantages)

    def token_factor(self, batch: TokenBatch) -> torch.Tensor | None:
        """Boost times decay, shape (B, T); 1 where a token has no advantage."""
        if not self._extremes:
            return None
        lowest, highest, largest = self._extremes.values()
        mask, advantages = batch.mask.bool(), batch.advantages.unsqueeze(1)
        share = ((highest - batch.entropies.float()) / (highest - lowest + _TINY)).clamp(0.0, 1.0)
        boost = torch.where(advantages > 0, 1.0 + (BOOST_MAX - 1.0) * share, 1.0)
        change = entropy_change(batch.logps, batch.entropies, mask, batch.advantages) / (largest + _TINY)
        decay = DECAY_MIN + (1.0 - DECAY_MIN) * torch.sigmoid(SLOPE * (DECAY_AT - change))
        return torch.where(mask & (advantages != 0) & (batch.rollout >= 0).unsqueeze(1), boost * decay, 1.0)

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Count successes."""
        self.statistics.observe_rewards(done.prompts.keys, done.prompt, done.rewards, done.scored)
        self._metrics = {**self._metrics, **self._extremes}

    def _counts(self, keys: tuple[str, ...]) -> np.ndarray:
        """Rollouts of each prompt, shape (M,), int64."""
        history, average = self.statistics.reward_history(keys), self.budget.rollouts_per_prompt
        count = history.count * self.statistics.rewards_differ  # a single reward value does not define success
        self._metrics = {"unseen_prompts": float((count == 0).sum())}
        priority = priorities(count, self.statistics.success_share(history.mean))
        total = self.budget.total_rollouts(len(keys))
        return water_filling(priority, total, max(math.floor(LOW * average), 1), math.ceil(HIGH * average))


def priorities(count: np.ndarray, success: np.ndarray) -> np.ndarray:
    """P_q of each prompt from its rollouts so far and the share of successes, shape (M,) each; see the module."""
    return np.where(count >= 2, 4.0 * success * (1.0 - success) * count / np.maximum(count - 1.0, 1.0), 1.0)


def water_filling(priority: np.ndarray, total: int, lowest: int, most: int) -> np.ndarray:
    """Counts (M,), int64, of sum `total` between two bounds: `lowest`, and the rest in proportion to priorities (M,).

    The rest is shared among those below `most`: the floor of each share, then one more for the largest remainders.
    The surplus of a full prompt is shared again; where all with a priority are full, the others share equally.
    """
    counts = np.full(priority.size, lowest, dtype=np.int64)
    while rest := total - int(counts.sum()):
        open_ = np.flatnonzero((counts < most) & (priority > 0.0))
        if not open_.size:
            priority = np.ones(priority.size)
            continue
        share = rest * (priority[open_] / priority[open_].sum())
        added = np.floor(share).astype(np.int64)
        largest = np.argsort(added - share, kind="stable")  # largest remainders first, ties: the earlier prompt
        added[largest[: max(rest - int(added.sum()), 0)]] += 1
        counts[open_] += np.minimum(added, most - counts[open_])
    return counts


def entropy_change(
    logps: torch.Tensor, entropies: torch.Tensor, mask: torch.Tensor, advantages: torch.Tensor
) -> torch.Tensor:
    """Xi of the tokens in the mask, shape (B, T), float32, 0 elsewhere; log-probs and entropies (B, T), A (B,)."""
    logps = logps.float()
    u = torch.where(mask, logps.exp() * (logps + entropies.float()), 0.0)
    mean = u.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.where(mask, (advantages.float().unsqueeze(1) * (u - mean)).abs(), 0.0)
