# SPDX-License-Identifier: Apache-2.0
"""ARRoL: prune rollouts halfway by a quality head that learns while training (arXiv 2603.24840).

Every prompt gets n = `num_generations` rollouts of at most L = `detect_at` tokens. Those that ended by then are kept.
Each of the others is scored from the last hidden state of the model in training at its L-th token, by a perceptron
(`quality_head.py`); bins of past scores turn the raw score into a success posterior q. It goes on, from where it is,
with probability

    p(q) = eps + (1 - eps) sigmoid(alpha + beta q)

alpha and beta are such that, over the scores of the last steps, the mean of p is kappa and sum of p q / sum of p, the
share of successes among survivors, is rho (`survival.py`). The others are pruned: they leave baseline, gradient and
divisor.

    A_i = (R_i - mean of the prompt's survivors) / (their std + 1e-4)

After the step the head trains for one epoch on the last 2048 pairs of hidden state and final success. For
`head_warmup_steps` steps nobody is pruned, and the head trains on what rollouts looked like at their L-th token.

Biased: who survives depends on the prefix, and nothing corrects for it, so the gradient is that of another objective.
The head's labels come from survivors only. Within a bin survival is a coin, so the bins keep their meaning as long as
eps or luck fills them. A lone survivor has advantage 0.

Ours: the paper's formula for survival is not public, so p(q) is; so is the layer, the last. The authors prune inside
vLLM. Here generation runs in two phases, which needs nothing from the engine: one forward pass over prompt and prefix
for each scored rollout, and a pause between the phases; what is saved in tokens is not all saved in time. Success is a
reward above the middle of the run's extremes. While all labels are the same, q means nothing: beta = 0, and rollouts
are pruned at rate kappa whatever their score. kappa holds for scored rollouts only and on average.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..field_types import Options, at_least, option
from ..rollouts import Job, Judgement, Prompts, Query, Rollouts
from .grouping import group_relative, uniform_jobs
from .method import Method, Setting
from .quality_head import QualityHead
from .resampling import check_groups
from .survival import survival, survival_curve

DETECT_SHARE = 512 / 3072
"""L over the length limit, in the paper's runs."""
_COIN = 0xA1
"""Keeps the coins apart from other draws under the seed."""


@dataclass(frozen=True)
class ArrolOptions(Options):
    """Options of ARRoL."""

    detect_at: int | None = option(
        "Tokens after which a rollout is scored. None: a sixth of max_completion_length. Paper: 512 of 3,072.",
        unit="tokens",
        symbol="L_detect",
        rule=at_least(1),
    )
    keep_rate: float = option(
        "Share of the scored rollouts that go on, on average.",
        0.5,
        unit="(eps, 1]",
        symbol="kappa",
        rule=(lambda x: 0 < x <= 1, "in (0, 1], got {}. 1 prunes nothing"),
    )
    positive_ratio: float = option(
        "Share of successes to aim at among those that go on.",
        0.5,
        unit="(0, 1)",
        symbol="rho",
        rule=(lambda x: 0 < x < 1, "in (0, 1), got {}"),
    )
    exploration: float = option(
        "Probability with which the worst rollout goes on.",
        0.05,
        unit="[0, 1)",
        symbol="eps",
        rule=(lambda x: 0 <= x < 1, "in [0, 1), got {}"),
    )
    head_warmup_steps: int = option(
        "Generation steps in which the head trains and nobody is pruned.", 20, unit=">= 0", rule=at_least(0)
    )
    head_learning_rate: float = option(
        "Of the head. The 1e-6 that is reported for it would not move a fresh head in a few hundred steps.",
        1e-3,
        unit="> 0",
        rule=(lambda x: 0 < x < float("inf"), "positive, got {}"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_rate <= self.exploration:
            raise ValueError(
                f"keep_rate ({self.keep_rate}) must be above exploration ({self.exploration}), with which every "
                "rollout goes on. Raise it or lower exploration."
            )


class Arrol(Method):
    """ARRoL; see the module."""

    def __init__(self, setting: Setting, options: ArrolOptions) -> None:
        limit = setting.max_completion_length
        self.detect_at = options.detect_at or max(1, round(DETECT_SHARE * limit))
        if self.detect_at >= limit:
            raise ValueError(
                f"detect_at={self.detect_at} is not below max_completion_length={limit}: no rollout would be scored. "
                "Lower detect_at."
            )
        # Both phases count, and all rollouts may survive.
        check_groups(setting, 2 * setting.num_prompts)
        self.setting = setting
        self.options = options
        self.identity = {"method": "arrol", "detect_at": self.detect_at}
        self.head = QualityHead(options.head_learning_rate, setting.seed)

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
            tokens = done.tokens(scored)
            return [
                Query(int(q), tuple(ids[: self.detect_at]), hidden_at=self.detect_at - 1)
                for q, (ids, _) in zip(done.prompt[scored], tokens, strict=True)
            ]
        rows = scored[self._survive(done, scored)]
        return [
            Job(int(q), tuple(ids), None if logprobs is None else tuple(logprobs), continues=int(row))
            for row, q, (ids, logprobs) in zip(rows, done.prompt[rows], done.tokens(rows), strict=True)
        ]

    def judge(self, done: Rollouts) -> Judgement:
        """GRPO's advantages over the survivors; pruned rollouts and beginnings of others are left out."""
        kept = np.ones(len(done), dtype=bool)
        if self._cut(done):
            kept[self._scored(done)] = False  # pruned, or continued by another
        return Judgement.of(group_relative(done, self.setting, kept), in_gradient=kept)

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Train the head on the rollouts that were scored and whose end is known."""
        scored, kept = self._scored(done), judgement.in_gradient
        survivors = np.bincount(done.prompt[kept], minlength=len(done.prompts))
        self._metrics = {
            "scored_rollouts": float(len(scored)),
            "pruned_rollouts": float((~kept & ~done.superseded).sum()),
            "lone_survivors": float((survivors == 1).sum()),
        }
        ends = np.where(kept, done.rewards, np.nan)
        self.head.see_rewards(ends[~np.isnan(ends)])
        for row, job in enumerate(done.jobs):
            if job.continues is not None:
                ends[job.continues] = done.rewards[row]
        if len(scored):
            foreseen = self.head.learn(np.stack(done.answers), ends[scored], done.prompts.step)
            self._metrics |= {} if foreseen is None else {"head_accuracy": foreseen}

    def state_dict(self) -> dict[str, Any]:
        """The head, its optimizer, and what it learned from."""
        return {"head": self.head.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`. Raises ValueError if it is not one."""
        super().load_state_dict(state)
        self.head.load_state_dict(state["head"])

    def _cut(self, done: Rollouts) -> bool:
        """Whether the first round was cut at L, as after the warm-up."""
        return done.jobs[0].max_tokens is not None

    def _scored(self, done: Rollouts) -> np.ndarray:
        """Rollouts of the first round that had not ended by their L-th token, ascending."""
        open_ = (
            ~done.terminated & (done.replay.length == self.detect_at)
            if self._cut(done)
            else (done.replay.length > self.detect_at)
        )
        return np.flatnonzero(open_ & (done.round == 0))

    def _survive(self, done: Rollouts, scored: np.ndarray) -> np.ndarray:
        """Who of the scored rollouts goes on, shape (K,), bool."""
        head, options = self.head, self.options
        alpha, beta = survival_curve(
            head.quality(head.all_scores),
            options.keep_rate,
            options.positive_ratio,
            options.exploration,
            one_class=len(np.unique(head.positive)) < 2,
        )
        quality = head.quality(head.score(np.stack(done.answers)))
        coins = np.random.default_rng([self.setting.seed, done.prompts.step, _COIN]).random(len(done))[scored]
        return coins < survival(quality, alpha, beta, options.exploration)
