# SPDX-License-Identifier: Apache-2.0
"""SEED-GRPO: smaller updates where a prompt's answers disagree (arXiv 2505.12346).

The rollouts of a prompt are put into classes C_k of the same answer, by the verifier's equivalence; one without an
answer is its own class. Their semantic entropy scales the advantages of the prompt:

    p(C_k) = sum over i in C_k of w_i        w = softmax over the prompt's rollouts of their mean log-prob per token
    SE = - sum over k of p(C_k) ln p(C_k)    in nats, between 0 and ln n
    A_i = (R_i - mean of the group) f(x)     x = SE / ln n,  f(x) = 1 / (1 + alpha x)

The paper's base is R_i - mean, without a standard deviation: `scale_rewards="none"`; here it follows `scale_rewards`.
The weights are free where the engine returns log-probs and cost one question about each rollout elsewhere. f depends
on a rollout's own answer: the gradient is that of another objective. Sources of f, alpha: docs/fidelity.md#seed_grpo.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..field_types import Options, config_field
from ..rollouts import Job, Judgement, Prompts, Query, Rollouts
from .grouping import group_relative
from .grpo import FromGRPO


@dataclass(frozen=True)
class SeedGRPOOptions(Options):
    """Options of SEED-GRPO."""

    alpha: float = config_field(
        "How fast f falls with the entropy. 0: GRPO.",
        0.0417,
        rule=(lambda x: 0 <= x < float("inf"), "at least 0, got {}. 0 is GRPO"),
    )


class SeedGRPO(FromGRPO):
    """GRPO scaled by semantic entropy; see the module."""

    identity = {"method": "seed_grpo"}
    compares_answers = True
    options: SeedGRPOOptions

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> Sequence[Job | Query]:
        """One round of n rollouts for each prompt, and a question about each where the engine has no log-probs."""
        if done is None or done.answers or done.tokens([0])[0][1] is not None:
            return super().jobs(prompts, done)
        tokens = done.tokens(range(len(done)))
        return [Query(int(prompt), tuple(ids)) for prompt, (ids, _) in zip(done.prompt, tokens, strict=True)]

    def judge(self, done: Rollouts) -> Judgement:
        """GRPO's advantages, less where answers disagree."""
        size = np.bincount(done.prompt, minlength=len(done.prompts))
        logps = mean_logps(done.answers or [logprobs for _, logprobs in done.tokens(range(len(done)))])
        entropy = semantic_entropy(done.answer_class(), done.prompt, logps, len(done.prompts))
        factor = 1.0 / (1.0 + self.options.alpha * np.clip(entropy / np.log(size), 0.0, 1.0))  # (M,)
        self._metrics = {"semantic_entropy": float(entropy.mean()), "advantage_factor": float(factor.mean())}
        return Judgement.of(group_relative(done, self.setting) * factor[done.prompt])


def mean_logps(found: Sequence[Sequence[float | None]]) -> np.ndarray:
    """Mean log-prob of the known tokens of each rollout, nats, shape (N,); without any, the mean of the others."""
    tokens = [np.array(one, dtype=np.float64) for one in found]  # None: nan
    means = np.array([np.nan if np.isnan(one).all() else np.nanmean(one) for one in tokens])
    known = ~np.isnan(means)
    return np.where(known, means, means[known].mean() if known.any() else 0.0)


def semantic_entropy(answer_class: np.ndarray, prompt: np.ndarray, logps: np.ndarray, num_prompts: int) -> np.ndarray:
    """SE of each prompt, shape (M,), nats; 0 for a prompt of one rollout or none.

    Class within its prompt (-1: no answer, alone), prompt, and mean log-prob of each rollout have shape (N,).

    Example:
        >>> semantic_entropy(np.array([0, 0, 1, -1]), np.zeros(4, dtype=int), np.zeros(4), 1).round(4).tolist()
        [1.0397]
    """
    highest = np.full(num_prompts, -np.inf)
    np.maximum.at(highest, prompt, logps)
    weight = np.exp(logps - highest[prompt])
    weight /= np.bincount(prompt, weights=weight, minlength=num_prompts)[prompt]
    alone = np.where(answer_class < 0, -1 - np.arange(len(prompt)), answer_class)
    classes, member = np.unique(np.stack([prompt, alone], axis=1), axis=0, return_inverse=True)
    share = np.bincount(member.reshape(-1), weights=weight)  # (K,), of all prompts
    # A share of 0 adds nothing; the smallest float replaces it in the logarithm.
    surprise = -share * np.log(np.maximum(share, np.finfo(np.float64).tiny))
    return np.maximum(np.bincount(classes[:, 0], weights=surprise, minlength=num_prompts), 0.0)
