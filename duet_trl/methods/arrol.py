# SPDX-License-Identifier: Apache-2.0
"""ARRoL: prune rollouts halfway by a quality head that learns while training (arXiv 2603.24840).

Every prompt gets n = `num_generations` rollouts of at most L = `detect_at` tokens. Those that ended by then are kept.
Each of the others is scored from the last hidden state of the model in training at its L-th token, by a perceptron;
20 bins of past scores turn the raw score into a success posterior q = (successes + 1) / (scores + 2). It continues,
from where it is, with probability

    p(q) = eps + (1 - eps) sigmoid(alpha + beta q),        eps = 0.05

alpha and beta are such that, over the scores of the last steps, the mean of p is kappa and sum of p q / sum of p, the
share of successes among survivors, is 1/2. The others are pruned: they leave baseline, gradient and divisor.

    A_i = (R_i - mean of the prompt's survivors) / (their std + 1e-4)

After the step the head trains for one epoch on the last 2048 pairs of hidden state and final success. For
`head_warmup_steps` steps nothing is pruned, and the head trains on what rollouts looked like at their L-th token.

Biased: survival depends on the prefix, and nothing corrects for it. Our choices: docs/fidelity.md#arrol.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ..field_types import Options, at_least, config_field
from ..rollouts import Job, Judgement, Prompts, Query, Rollouts
from ..state import Stateful
from .grouping import group_relative, positive_rewards, uniform_jobs, widened
from .grpo import FromGRPO
from .method import Setting

DETECT_SHARE = 512 / 3072
"""L over the length limit, in the paper's runs."""
POSITIVE_RATIO, EXPLORATION = 0.5, 0.05
"""rho, and eps, the probability with which the worst rollout continues."""
LEARNING_RATE, WIDTH, HISTORY, BATCH_SIZE = 1e-3, 128, 2048, 64
"""Of the head. The reported rate, 1e-6, would not move a fresh head in a few hundred steps."""
NUM_BINS, LEAST_OBSERVATIONS = 20, 16
"""Of the calibration: with fewer scores of known outcome, the raw score is q."""
LARGEST_SLOPE, LARGEST_SHIFT = 20.0, 60.0
"""|beta| and |alpha|: beyond 40 + |beta| the sigmoid is 0 or 1 in double precision."""
_COIN = 0xA1  # keeps the coins apart from other draws under the seed


@dataclass(frozen=True)
class ArrolOptions(Options):
    """Options of ARRoL."""

    detect_at: int | None = config_field(
        "Tokens after which a rollout is scored. None: a sixth of max_completion_length. Paper: 512 of 3,072.",
        rule=at_least(1),
    )
    keep_rate: float = config_field(
        "Share of the scored rollouts that continue, on average.",
        0.5,
        rule=(lambda x: EXPLORATION < x <= 1, "in (0.05, 1], got {}. 0.05 of the worst continue; 1 prunes nothing"),
    )
    head_warmup_steps: int = config_field(
        "Generation steps in which the head trains and nothing is pruned.", 20, rule=at_least(0)
    )


class Arrol(FromGRPO):
    """ARRoL; see the module."""

    options: ArrolOptions
    remembered = ("head",)

    @staticmethod
    def largest_round(setting: Setting, options: Any) -> int:
        """Both phases count, and all rollouts may survive."""
        return 2 * setting.num_prompts

    def __init__(self, setting: Setting, options: ArrolOptions) -> None:
        super().__init__(setting, options)
        limit = setting.max_completion_length
        self.detect_at = options.detect_at or max(1, round(DETECT_SHARE * limit))
        if self.detect_at >= limit:
            raise ValueError(
                f"detect_at={self.detect_at} is not below max_completion_length={limit}: no rollout would be scored. "
                "Lower detect_at."
            )
        self.identity = {"method": "arrol", "detect_at": self.detect_at}
        self.head = QualityHead(setting.seed)

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> list[Job | Query]:
        """Rollouts up to L, questions about those that have not ended, and the survivors' continuations."""
        warm = prompts.step <= self.options.head_warmup_steps
        if done is None:
            jobs = uniform_jobs(range(len(prompts)), self.setting.num_generations)
            return jobs if warm else [Job(job.prompt, max_tokens=self.detect_at) for job in jobs]
        scored = self._scored(done)
        if done.round.max() > 0 or not len(scored) or (warm and done.answers):
            return []
        if not done.answers:
            return [
                Query(int(q), tuple(ids[: self.detect_at]), hidden_at=self.detect_at - 1)
                for q, (ids, _) in zip(done.prompt[scored], done.tokens(scored), strict=True)
            ]
        head, one_class = self.head, len(np.unique(self.head.positive)) < 2
        alpha, beta = survival_curve(head.quality(head.all_scores), self.options.keep_rate, one_class=one_class)
        quality = self.head.quality(self.head.score(np.stack(done.answers)))
        coins = np.random.default_rng([self.setting.seed, done.prompts.step, _COIN]).random(len(done))[scored]
        rows = scored[coins < survival(quality, alpha, beta)]
        return [
            Job(int(q), tuple(ids), None if logprobs is None else tuple(logprobs), continues=int(row))
            for row, q, (ids, logprobs) in zip(rows, done.prompt[rows], done.tokens(rows), strict=True)
        ]

    def judge(self, done: Rollouts) -> Judgement:
        """GRPO's advantages over the survivors; pruned rollouts and prefixes of others are left out."""
        kept = np.ones(len(done), dtype=bool)
        if self._cut(done):
            kept[self._scored(done)] = False  # pruned, or continued by another
        return Judgement.of(group_relative(done, self.setting, kept), in_gradient=kept)

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Train the head on the scored rollouts whose outcome is known."""
        scored, kept = self._scored(done), judgement.in_divisor
        survivors = np.bincount(done.prompt[kept], minlength=len(done.prompts))
        self._metrics = {
            "scored_rollouts": float(len(scored)),
            "pruned_rollouts": float((~kept & ~done.superseded).sum()),
            "lone_survivors": float((survivors == 1).sum()),
        }
        ends = np.where(kept, done.rewards, np.nan)
        self.head.see_rewards(ends)
        for row, job in enumerate(done.jobs):
            if job.continues is not None:
                ends[job.continues] = done.rewards[row]
        if len(scored):
            foreseen = self.head.learn(np.stack(done.answers), ends[scored], done.prompts.step)
            self._metrics |= {} if foreseen is None else {"head_accuracy": foreseen}

    def _cut(self, done: Rollouts) -> bool:
        """Whether the first round was cut at L, as after the warm-up."""
        return done.jobs[0].max_tokens is not None

    def _scored(self, done: Rollouts) -> np.ndarray:
        """Rollouts of the first round that had not ended by their L-th token, ascending."""
        length = done.replay.length
        open_ = ~done.terminated & (length == self.detect_at) if self._cut(done) else length > self.detect_at
        return np.flatnonzero(open_ & (done.round == 0))


class QualityHead(Stateful):
    """A perceptron, hidden state (D,) -> WIDTH -> logit of success, with the rollouts that it learned from.

    It runs on the CPU in float32 and trains by AdamW on binary cross-entropy. A hidden state is divided by the root of
    its mean square, so that one learning rate suits every model. D is that of the first hidden states.

    Args:
        seed (int): Of the first weights and of the order of training.
    """

    remembered = ("features", "scores", "all_scores", "rewards", "reward_range")
    remembered += ("weights", "first_moment", "second_moment", "updates")

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.features = np.zeros((0, 0), dtype=np.float32)  # (H, D)
        self.scores, self.rewards = np.zeros(0), np.zeros(0)  # raw scores when they were made, and outcomes, (H,)
        self.all_scores = np.zeros(0)  # with those of pruned rollouts, (A,)
        self.reward_range: list[float] = []
        # All weights, layer after layer, and both moments of AdamW, shape (P,); empty before the first hidden state.
        self.weights, self.first_moment, self.second_moment = np.zeros((3, 0), dtype=np.float32)
        self.updates = 0

    @property
    def positive(self) -> np.ndarray:
        """Which rollouts of the history succeeded, shape (H,), bool."""
        return positive_rewards(self.rewards, self.reward_range)

    def quality(self, scores: np.ndarray) -> np.ndarray:
        """q of raw scores in [0, 1], shape (K,)."""
        if len(self.scores) < LEAST_OBSERVATIONS:
            return scores
        past, now = (np.minimum((s * NUM_BINS).astype(np.int64), NUM_BINS - 1) for s in (self.scores, scores))
        count, positive = (np.bincount(past[rows], minlength=NUM_BINS) for rows in (slice(None), self.positive))
        return ((positive + 1.0) / (count + 2.0))[now]

    def score(self, features: np.ndarray) -> np.ndarray:
        """Raw scores of hidden states (K, D), shape (K,), in (0, 1)."""
        if not len(self.weights):
            self._begin(features.shape[1])
        logits = self._logits(torch.from_numpy(self.weights), torch.from_numpy(features).float())
        return torch.sigmoid(logits).double().numpy()

    def see_rewards(self, rewards: np.ndarray) -> None:
        """Widen the run's extremes; nan: no reward."""
        self.reward_range = widened(self.reward_range, rewards)

    def learn(self, features: np.ndarray, rewards: np.ndarray, step: int) -> float | None:
        """Add the scored rollouts of a step, and train for an epoch once the run has seen two rewards.

        Hidden states have shape (K, D), final rewards (K,), nan: pruned, or without one. Returns the share of those
        with a reward whose success was predicted; None where there is none.
        """
        scores, known = self.score(features), ~np.isnan(rewards)
        foreseen = self.quality(scores)[known] > 0.5
        before = self.features if len(self.features) else features[:0].astype(np.float32)
        self.all_scores = np.concatenate([self.all_scores, scores])[-HISTORY:]
        self.features = np.concatenate([before, features[known].astype(np.float32)])[-HISTORY:]
        self.scores = np.concatenate([self.scores, scores[known]])[-HISTORY:]
        self.rewards = np.concatenate([self.rewards, rewards[known]])[-HISTORY:]
        if not len(foreseen):
            return None
        if self.reward_range[0] < self.reward_range[1]:
            inputs, labels = torch.from_numpy(self.features), torch.from_numpy(self.positive.astype(np.float32))
            order = np.random.default_rng([self.seed, step]).permutation(len(inputs))
            weights = torch.from_numpy(self.weights).requires_grad_()
            optimizer = self._optimizer(weights)
            for chunk in torch.from_numpy(order).split(BATCH_SIZE):
                optimizer.zero_grad()
                F.binary_cross_entropy_with_logits(self._logits(weights, inputs[chunk]), labels[chunk]).backward()
                optimizer.step()
                self.updates += 1
        return float((foreseen == positive_rewards(rewards[known], self.reward_range)).mean())

    def _optimizer(self, weights: torch.Tensor) -> torch.optim.Optimizer:
        """AdamW as the last step left it; it writes weights and moments in place."""
        optimizer = torch.optim.AdamW([weights], lr=LEARNING_RATE)
        moments = torch.from_numpy(self.first_moment), torch.from_numpy(self.second_moment)
        step = torch.tensor(float(self.updates))
        optimizer.state[weights] = dict(zip(("exp_avg", "exp_avg_sq", "step"), (*moments, step), strict=True))
        return optimizer

    def _begin(self, dim: int) -> None:
        """Fresh weights, uniform within one over the root of the number of inputs."""
        generator = torch.Generator().manual_seed(self.seed)
        sizes = [(WIDTH * dim, dim), (WIDTH, dim), (WIDTH, WIDTH), (1, WIDTH)]  # and inputs
        parts = [(2 * torch.rand(size, generator=generator) - 1) / math.sqrt(fan_in) for size, fan_in in sizes]
        self.weights = torch.cat(parts).numpy()
        self.first_moment, self.second_moment = np.zeros_like(self.weights), np.zeros_like(self.weights)

    def _logits(self, weights: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        dim = features.shape[1]
        if len(weights) != WIDTH * (dim + 2) + 1:
            raise ValueError(
                f"hidden states have {dim} entries, but the head was trained on "
                f"{(len(weights) - 1) // WIDTH - 2}. Resume with the model of the checkpoint."
            )
        first, first_bias, second, second_bias = weights.split([WIDTH * dim, WIDTH, WIDTH, 1])
        scaled = features * torch.rsqrt(features.square().mean(dim=1, keepdim=True) + 1e-6)
        return torch.relu(F.linear(scaled, first.view(WIDTH, dim), first_bias)) @ second + second_bias


def survival(quality: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """p(q) of the module, the probability with which a rollout continues."""
    return EXPLORATION + (1.0 - EXPLORATION) / (1.0 + np.exp(-(alpha + beta * quality)))


def survival_curve(
    quality: np.ndarray, keep_rate: float, ratio: float = POSITIVE_RATIO, one_class: bool = False
) -> tuple[float, float]:
    """alpha and beta of `survival`, so that both constraints hold over rollouts of quality q, shape (H,) or empty.

    The first has one alpha for each beta; with it, the left side of the second rises in beta. Both are bisected, beta
    within [-20, 20]: where rho is out of reach, the end that comes closest is taken. With labels of one class q means
    nothing: beta = 0.
    """
    values, counts = np.unique(quality, return_counts=True) if len(quality) else (np.zeros(1), np.ones(1))

    def shift(beta: float) -> float:
        return _bisected(
            lambda alpha: np.average(survival(values, alpha, beta), weights=counts) - keep_rate, LARGEST_SHIFT
        )

    def excess(beta: float) -> float:
        kept = counts * survival(values, shift(beta), beta)
        return float(kept @ values / kept.sum()) - ratio

    beta = 0.0 if one_class or len(values) == 1 else _bisected(excess, LARGEST_SLOPE)
    return shift(beta), beta


def _bisected(rising: Callable[[float], float], bound: float) -> float:
    """Root of a rising function within [-bound, bound], or the end nearest to it."""
    low, high = -bound, bound
    while (middle := (low + high) / 2.0) not in (low, high) and high - low > 1e-12 * bound:
        low, high = (middle, high) if rising(middle) < 0.0 else (low, middle)
    return high
