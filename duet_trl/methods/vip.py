# SPDX-License-Identifier: Apache-2.0
r"""VIP: predict success rates from similar prompts, and give counts that minimise the gradient's variance.

The logit g of a prompt's success rate is a Gaussian process over prompt embeddings, with prior mean m = -1 and the
covariance K = exp(-d^2 / (2 l^2)) of two prompts at distance d; l is the median distance of the prompts of the first
step with rewards. After a step the prompts B that had rewards give g_B, the logit of their mean reward, and until the
next one has ended

    g_q = m + K_qB (K_BB + 1e-4 I)^-1 (g_B - m),        p_q = 1 / (1 + exp(-g_q))

Counts minimise sum p (1 - p) / (n - 1) over the prompts of the step, the variance of RLOO, with M c rollouts in all,
c = round(b num_generations), and G // 2 (at least 2, at most c) to 2 c for each. The sum is convex in each n from 2
on: taking the largest drop first is exact. Where all predictions are the same, as in the first step, counts are equal.
Advantages are those of GRPO. Sources and differences: docs/fidelity.md#vip.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..field_types import Options, config_field
from ..rollouts import Job, Judgement, Prompts, Query, Rollouts
from .grouping import best_counts, counted_jobs, refuse_single, uniform_jobs, widened
from .grpo import FromGRPO
from .method import Setting

PRIOR_MEAN, NOISE = -1.0, 1e-4
"""m, and the variance of an observation."""
EDGE = 1e-6
"""Minimum distance of a mean reward and a prediction from 0 and 1, and spread of predictions that count as equal."""


@dataclass(frozen=True)
class VipOptions(Options):
    """Options of VIP."""

    embeddings: str = config_field(
        "Vectors that prompts are compared by: 'policy', the mean of the policy's input embeddings over the prompt's "
        "words, or the name or folder of a sentence-transformers model (extra `embeddings`). Paper: all-MiniLM-L6-v2.",
        "policy",
        rule=(lambda x: x.strip() != "", "a name or a path, got {!r}"),
    )


class Vip(FromGRPO):
    """Counts from predicted success rates; see the module."""

    remembered = ("reward_range", "length_scale", "vectors", "logits")

    def __init__(self, setting: Setting, options: VipOptions) -> None:
        super().__init__(setting, options)
        self.embeddings = options.embeddings
        self.mean = round(setting.budget_fraction * setting.num_generations)
        refuse_single(self.mean)
        self.lower = min(max(setting.num_generations // 2, 2), self.mean)
        self.identity = {"method": "vip", "embeddings": options.embeddings}
        _sklearn()
        self.length_scale: float | None = None  # l; before the first two different prompts any will do
        self.reward_range: list[float] = []
        self.vectors, self.logits = np.zeros((0, 0), np.float32), np.zeros(0)  # of the observed prompts, (B, D), (B,)
        self._vectors, self._success = self.vectors, self.logits  # of the step: (M, D); predicted, (M,)

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> Sequence[Job | Query]:
        """One round, by the predicted success rates."""
        if done is not None:
            return []
        self._vectors = self.embed(list(prompts))
        self._success = 0.5 + 0.5 * np.tanh(0.5 * self.predict(self._vectors))
        self._metrics = {"expected_success": float(self._success.mean())}
        if self._success.std() < EDGE:
            return uniform_jobs(range(len(prompts)), self.mean)
        return counted_jobs(vip_counts(self._success, self.mean * len(prompts), self.lower, 2 * self.mean))

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Learn the mean rewards of the step, as shares between the lowest and the highest reward of the run."""
        group, rewards = done.prompt[done.scored], done.rewards[done.scored]
        self.reward_range = widened(self.reward_range, rewards)
        low, high = self.reward_range or (0.0, 0.0)
        if low == high or not len(rewards):  # a single reward value does not define success
            return
        seen, number = np.unique(group, return_counts=True)
        share = (np.bincount(group, weights=rewards)[seen] / number - low) / (high - low)
        self._metrics = {**self._metrics, "prediction_error": float(np.abs(share - self._success[seen]).mean())}
        share = np.clip(share, EDGE, 1.0 - EDGE)
        self.vectors, self.logits = self._vectors[seen], np.log(share / (1.0 - share))
        if self.length_scale is None:
            apart = torch.pdist(torch.from_numpy(self.vectors).double())
            self.length_scale = float(np.median(apart[apart > 0])) if (apart > 0).any() else None

    def predict(self, vectors: np.ndarray) -> np.ndarray:
        """g at some vectors, shape (M, D) -> (M,)."""
        if not len(self.logits):
            return np.full(len(vectors), PRIOR_MEAN)
        kernel = _sklearn().kernels.RBF(self.length_scale or 1.0, "fixed")
        process = _sklearn().GaussianProcessRegressor(kernel, alpha=NOISE, optimizer=None)
        process.fit(self.vectors.astype(np.float64), self.logits - PRIOR_MEAN)
        return process.predict(vectors.astype(np.float64)) + PRIOR_MEAN


def vip_counts(success: np.ndarray, total: int, lower: int, upper: int) -> np.ndarray:
    """Counts (M,), int64, of sum `total` in [`lower`, `upper`], from 2 on, that minimise sum p (1 - p) / (n - 1)."""
    p = np.clip(success, EDGE, 1.0 - EDGE)
    n = np.maximum(np.arange(upper + 1), 2)[:, None]  # smaller counts are never read
    return best_counts(-p * (1.0 - p) / (n - 1), np.full(p.size, lower), total)


def _sklearn() -> Any:
    try:
        import sklearn.gaussian_process as found
    except ImportError as error:
        raise ImportError(
            "method='vip' needs scikit-learn for its Gaussian process, and it is not installed. Install the extra: "
            "pip install 'duet-trl[vip]'."
        ) from error
    return found
