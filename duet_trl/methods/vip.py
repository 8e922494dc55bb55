# SPDX-License-Identifier: Apache-2.0
r"""VIP: predict success rates from what similar prompts did, and give counts that minimise the gradient's variance.

The logit g of a prompt's success rate is a Gaussian process over prompt embeddings (`allocate/gaussian_process.py`),
with prior mean m and covariance K. After a step the prompts B that had rewards give g_B, the logit of their mean
reward, and until the next one has ended

    g_q = m + K_qB (K_BB + 1e-4 I)^-1 (g_B - m),        p_q = 1 / (1 + exp(-g_q))

With `reuse_mean` m is what the steps before predicted. Counts minimise, over the prompts of the step, the sum of

    p (1 - p) / (n - 1)  (RLOO)    or    p (1 - p) (n - 1) / n^2  (Dr. GRPO)        (`allocate/bernoulli.py`)

with M round(b num_generations) rollouts in all. Where all predictions are the same, as in the first step, counts are
equal. Advantages are those of GRPO; `scale_rewards="none"` comes closest to the estimators that the variances are of.

From the paper (VIP) and the history of its code (`HieuNT91/VIP`). Differences: docs/fidelity.md#vip.
"""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..allocate.bernoulli import LEAST, bernoulli_counts
from ..allocate.gaussian_process import KERNELS, GaussianProcess
from ..field_types import Options, one_of, option
from ..rollouts import Job, Judgement, Prompts, Rollouts
from .grouping import counted_jobs, group_relative
from .method import Method, Setting

logger = logging.getLogger(__name__)

_SAME = 1e-6
"""Predictions that spread less are all the same; the code's."""


@dataclass(frozen=True)
class VipOptions(Options):
    """Options of VIP; defaults are those of its code where it has them."""

    embeddings: str = option(
        "What prompts are compared by: 'policy', the mean of the policy's input embeddings over the words of the "
        "prompt, or the name or folder of a sentence-transformers model (extra `embeddings`). Paper: "
        "all-MiniLM-L6-v2.",
        "policy",
        rule=(lambda x: x.strip() != "", "a name or a path, got {!r}"),
    )
    kernel: str = option("Covariance: 'rbf', or 'matern' with nu = 5/2.", "rbf", rule=one_of(*KERNELS))
    length_scale: float | None = option(
        "None: the median distance between the prompts of the first step (paper). The code has 0.4, DUET's run of it "
        "0.5, both for vectors of length 1.",
        symbol="l",
        rule=(lambda x: 0 < x < np.inf, "above 0, got {}. None: the median distance"),
    )
    prior_mean: float = option(
        "Logit of the success rate of a prompt that is like no other. DUET's run: -5.",
        -1.0,
        symbol="m",
        unit="nats",
        rule=(np.isfinite, "finite, got {}"),
    )
    reuse_mean: bool = option("Learn from all steps. False: from the last one alone.", False)
    reward_clip: float = option(
        "Distance that a mean reward keeps from 0 and 1 before its logit. With the code's value a prompt without a "
        "success is at -13.8; half a success in a group is 0.5 / num_generations.",
        1e-6,
        unit="(0, 0.5)",
        rule=(lambda x: 0 < x < 0.5, "in (0, 0.5), got {}"),
    )
    variance: str = option(
        "What the counts minimise: 'rloo' (the code's default) or 'grpo', that of Dr. GRPO.",
        "rloo",
        rule=one_of(*LEAST),
    )
    bias: float = option(
        "Draws rollouts to prompts with a small success rate; in no theorem of the paper. Code: 7e-4, and 4e-4 with "
        "'grpo'. DUET's run: 4e-5.",
        0.0,
        symbol="gamma",
        rule=(lambda x: 0 <= x < np.inf, "at least 0, got {}"),
    )
    lower: int | None = option(
        "Minimum rollouts of a prompt. None: half of num_generations, or the whole budget if that is less.",
        symbol="L",
    )
    upper: int | None = option("Maximum rollouts of a prompt. None: twice its budget.", symbol="U")
    skip_prompts: bool = option(
        "A prompt whose share is below `lower` gets no rollouts, and the others get its budget. False: every prompt "
        "gets `lower`. The code skips with num_generations of 4 or less.",
        False,
    )


class Vip(Method):
    """Counts from predicted success rates; see the module."""

    def __init__(self, setting: Setting, options: VipOptions) -> None:
        self.setting = setting
        self.options = options
        self.embeddings = options.embeddings
        self.rollouts_per_prompt = round(setting.budget_fraction * setting.num_generations)
        self.lower, self.upper = _bounds(setting, options, self.rollouts_per_prompt)
        self.identity = {"method": "vip", "embeddings": options.embeddings, "kernel": options.kernel}
        self.process = GaussianProcess(options.prior_mean, options.kernel, options.length_scale, options.reuse_mean)
        self.reward_range: list[float] | None = None
        self._vectors = np.zeros((0, 0))  # of the prompts of the step, (M, D)
        self._success = np.zeros(0)  # predicted, (M,)
        self._said = False

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> list[Job]:
        """One round, by the predicted success rates."""
        if done is not None:
            return []
        self._say_if_equal()
        options = self.options
        self._vectors = self.embed(list(prompts))
        self._success = 0.5 + 0.5 * np.tanh(0.5 * self.process.predict(self._vectors))
        counts = np.full(len(prompts), self.rollouts_per_prompt)
        if self._success.std() >= _SAME:
            bounds = self.lower, self.upper
            counts = bernoulli_counts(
                self._success, int(counts.sum()), *bounds, options.variance, options.bias, options.skip_prompts
            )
        self._metrics = {
            "expected_success": float(self._success.mean()),
            "skipped_prompts": float((counts == 0).sum()),
        }
        return counted_jobs(counts)

    def judge(self, done: Rollouts) -> Judgement:
        """GRPO's advantages, everything trained."""
        return Judgement.of(group_relative(done, self.setting))

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Learn the mean rewards of the step, as shares between the lowest and the highest reward of the run."""
        group, rewards = done.prompt[done.scored], done.rewards[done.scored]
        if not len(rewards):
            return
        low, high = self.reward_range or (np.inf, -np.inf)
        low, high = self.reward_range = [min(low, float(rewards.min())), max(high, float(rewards.max()))]
        if low == high:  # one reward so far does not tell what a success is
            return
        num_prompts = len(done.prompts)
        number = np.bincount(group, minlength=num_prompts)
        seen = np.flatnonzero(number)
        mean = np.bincount(group, weights=rewards, minlength=num_prompts)[seen] / number[seen]
        share = (mean - low) / (high - low)
        self._metrics = self._metrics | {"prediction_error": float(np.abs(share - self._success[seen]).mean())}
        share = np.clip(share, self.options.reward_clip, 1.0 - self.options.reward_clip)
        keys = done.prompts.keys
        self.process.learn([keys[q] for q in seen], self._vectors[seen], np.log(share / (1.0 - share)))

    def state_dict(self) -> dict[str, Any]:
        """The range of rewards, and what the Gaussian process knows."""
        return {"reward_range": self.reward_range, "process": self.process.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`. Raises ValueError if it is not one."""
        super().load_state_dict(state)
        self.reward_range = state["reward_range"]
        self.process.load_state_dict(state["process"])

    def _say_if_equal(self) -> None:
        if not self._said and self.lower == self.rollouts_per_prompt and not self.options.skip_prompts:
            logger.warning(
                f"vip has nothing to allocate: lower={self.lower} is the whole budget of budget_fraction x "
                f"num_generations = {self.rollouts_per_prompt} rollouts per prompt, so all counts are equal. Raise "
                "the budget, lower `lower`, or set skip_prompts=True."
            )
        self._said = True


def _bounds(setting: Setting, options: VipOptions, mean: int) -> tuple[int, int]:
    """Smallest and largest count of a prompt, with what was left open filled in."""
    budget = f"budget_fraction x num_generations = {mean} rollouts per prompt"
    if mean < 2:
        raise ValueError(f"vip needs a budget of at least 2 rollouts per prompt, got {budget}. Raise one of these.")
    if mean * setting.num_prompts > setting.max_rollouts:
        raise ValueError(
            f"{mean} rollouts for each of {setting.num_prompts} prompts are above max_rollouts="
            f"{setting.max_rollouts}. Raise it, or lower budget_fraction."
        )
    least = LEAST[options.variance]
    lower = min(max(setting.num_generations // 2, least), mean) if options.lower is None else options.lower
    upper = 2 * mean if options.upper is None else options.upper
    if not lower <= mean <= upper:
        raise ValueError(
            f"lower={lower} and upper={upper} cannot hold: the budget is {budget}, which must lie between them. Lower "
            "`lower`, raise `upper`, or change the budget."
        )
    if lower < least and (lower < mean or options.skip_prompts):
        raise ValueError(
            f"lower must be at least {least} with variance={options.variance!r}, got {lower}. Raise it and the "
            "budget, or leave the bounds at None."
        )
    return lower, upper
