# SPDX-License-Identifier: Apache-2.0
r"""The text of the paper: Algorithm 1 with its appendix's values. Differences in `duet`: docs/fidelity.md.

1. **Allocate.** Counts n_q by Theorem 1 on the surrogate of sigma_q, by ten steps of bisection; without `allocate` all
   are equal.
2. **Generate.** A rollout stops shortly after its answer marker, or, without a marker, at K2 + G, unless a coin that
   lands with probability eps keeps it. K1 and K2 are quantiles of lengths.
3. **Update.** Advantages over all rollouts of a prompt, aborted ones included; aborted ones are masked, and the others
   have weight w = 1 / (s_pre p_abort) (Eq. 6), so that the gradient is unbiased for that of full rollouts, up to the
   clip of s_pre.
4. **Observe.** Lengths, sigma, and the window from which K1 and K2 follow.

docs/how_it_works.md maps every line of the paper to code.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..allocate.allocators import NeymanAllocator, UniformAllocator
from ..field_types import Acts, at_least, config_field, one_of
from ..gate.replay import propensity
from ..gate.thresholds import LengthThresholds
from ..rollouts import Judgement, Rollouts
from ..update.advantages import rollout_weights, surcharge
from .gated import GATED, Gated, GateOptions, bounds_of, budget_of
from .grouping import group_relative
from .method import Setting

_COUNTS = Acts(lambda v: v.allocate, "allocate=True")
_ONLINE = Acts(lambda v: v.allocate and v.surrogate == "online", "allocate=True and surrogate='online'")
ENTROPY_WINDOW = 256


@dataclass(frozen=True)
class PaperOptions(GateOptions):
    """`method_kwargs` of `paper`."""

    surrogate: str = config_field(
        "Where sigma comes from: 'online' (each prompt's visits) or 'constant' (counts follow lengths alone).",
        "online",
        rule=one_of("online", "constant"),
        acts=_COUNTS,
    )
    surrogate_warmup: int = config_field(
        "Observations before a prompt's own sigma is used.",
        1,
        rule=at_least(1),
        acts=_ONLINE,
    )
    threshold_window: int = config_field(
        "Kept rollouts to whose lengths K1 and K2 are refitted.",
        1024,
        rule=at_least(1),
        acts=GATED,
    )
    threshold_interval: int = config_field("Steps between two refits of K1 and K2.", 10, rule=at_least(1), acts=GATED)


class Paper(Gated):
    """The paper's controller of counts and stops."""

    def __init__(self, config: Any, setting: Setting) -> None:
        super().__init__(config, setting, _allocator(config), _thresholds(config), ENTROPY_WINDOW)

    def judge(self, done: Rollouts) -> Judgement:
        """Lines 29-38: advantages over all rollouts, the mask, and w = (1 - I) / (s_pre p) for unmasked ones."""
        kept = propensity(done.replay.outcome, self.keep_probability)
        weight = rollout_weights(np.bincount(done.prompt), done.prompt, kept, done.aborted)
        return Judgement(group_relative(done, self.setting), weight, ~done.aborted, ~done.aborted, kept)

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Lines 41-50: lengths, the window of K1 and K2, and sigma (Eq. 3)."""
        self.learn(done, judgement)
        self._metrics |= {"surcharge": self._surcharge(done, judgement, sum_logps)}
        if isinstance(self.allocator, NeymanAllocator):
            mass = np.abs(judgement.weight * judgement.advantages) * done.replay.length
            cold = self.allocator.cold
            self._metrics |= {
                "cold_prompts": float(cold.sum()),
                "cold_gradient_share": float(mass[cold[done.prompt]].sum()) / max(float(mass.sum()), 1e-12),
            }
        # A rollout with advantage 0 contributes exactly 0 whatever its log-probability, so it needs no forward pass.
        known = np.where((judgement.advantages == 0) & ~np.isinf(sum_logps), 0.0, sum_logps)
        use = judgement.in_divisor & done.scored & np.isfinite(known)
        self.allocator.observe_sigma(done.prompts.keys, done.prompt, judgement.advantages, known, use)

    def _surcharge(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> float:
        """Factor by which the abort raises the second moment of the update (Theorem 2, Eq. 8); 1 is free."""
        known = np.isfinite(sum_logps)
        return surcharge(
            np.where(known, judgement.advantages, 0.0),
            np.where(known, sum_logps, 0.0),
            done.replay.length,
            done.prompt,
            judgement.propensity,
            done.aborted,
            num_prompts=len(done.prompts),
            keep_probability=self.keep_probability,
        )


def _allocator(config: Any) -> UniformAllocator:
    budget, options = budget_of(config), config.options
    if not config.allocate:
        return UniformAllocator(budget, price_aborted=False, **bounds_of(config))
    warmup = None if options.surrogate == "constant" else options.surrogate_warmup
    return NeymanAllocator(budget, warmup=warmup, price_aborted=False, **bounds_of(config))


def _thresholds(config: Any) -> LengthThresholds:
    options = config.options
    return LengthThresholds(
        config.max_completion_length,
        keep_probability=config.keep_probability,
        window=options.threshold_window,
        refit_every=options.threshold_interval,
    )
