# SPDX-License-Identifier: Apache-2.0
"""Several updates of one batch: how it is cut, how far they move the policy, and the learning rate adapted to that.

A KL-adaptive rate (Rudin et al., arXiv 2109.11978; Schulman et al., arXiv 1707.06347) learns that a step was too long
only after it is made, and one such step can ruin a model. So the divergence is measured after every update of a batch.
It grows with the square of the distance: where the next update would come to more than `CEILING` times the desired
divergence, the remaining ones are skipped. Where an update went beyond `LIMIT` times, the weights are pulled back
towards where the batch began until the divergence is the desired one.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim.lr_scheduler import LambdaLR, LRScheduler


@dataclass(frozen=True)
class Cut:
    """Passes over a batch, and the mini-batches of each pass: one optimizer step each."""

    passes: int
    mini_batches: int

    @property
    def updates(self) -> int:
        """Optimizer steps planned for a batch of rollouts."""
        return self.passes * self.mini_batches


CUTS = {"several": Cut(2, 2), "sfpo": Cut(4, 1)}
"""By the value of `updates`."""
CUT_FIELDS = ("num_iterations", "steps_per_generation", "gradient_accumulation_steps", "per_device_train_batch_size")
"""Fields that are set."""


def cut_batch(config: Any) -> None:
    """Set TRL's fields so that the batch they describe is cut, in place; `updates="once"` leaves them alone.

    Micro-batches are distributed over the mini-batches, or halved where there is an odd number of them. ValueError if
    passes or mini-batches were set by hand, the batch is too small to cut, or a loss scaler is used.
    """
    if config.updates == "once":
        return
    cut = CUTS[config.updates]
    if config.updates == "several" and config.fp16:
        raise ValueError(
            "updates='several' skips updates, which the loss scaler of fp16=True cannot do. Set bf16=True, or "
            "updates='once'."
        )
    for name, stock in (("num_iterations", 1), ("steps_per_generation", None), ("generation_batch_size", None)):
        value = getattr(config, name)
        if value != stock:
            raise ValueError(
                f"updates={config.updates!r} cuts the batch itself, and {name}={value} was set by hand. Remove "
                f"{name}; a batch is per_device_train_batch_size x gradient_accumulation_steps rollouts on each "
                "process. Or set updates='once' and choose passes and mini-batches yourself."
            )
    micro_batches, size = config.gradient_accumulation_steps, config.per_device_train_batch_size
    if micro_batches % cut.mini_batches == 0:
        config.steps_per_generation = micro_batches
        config.gradient_accumulation_steps = micro_batches // cut.mini_batches
    elif size % cut.mini_batches == 0:
        config.steps_per_generation = micro_batches * cut.mini_batches
        config.per_device_train_batch_size = size // cut.mini_batches
    else:
        raise ValueError(
            f"updates={config.updates!r} cuts a batch into {cut.mini_batches} mini-batches, and one of "
            f"per_device_train_batch_size={size} x gradient_accumulation_steps={micro_batches} is too small or odd. "
            f"Make one of the two a multiple of {cut.mini_batches}."
        )
    config.num_iterations = cut.passes


DESIRED_KL = 3e-3
"""Divergence of the policy before the updates of a batch from the one after, nats per token. Chosen on two policies,
of 0.6M and 135M parameters: three times as much ruined one of them, and a third of it trains the other one slowly."""
CEILING, LIMIT = 2.0, 5.0
"""In units of the desired divergence."""
SEARCH, RISE, FALL = 1.5, 1.1, 0.5
"""Bounds of the rate's change from one batch to the next: up by the first until it had to fall, then by the second."""
LOWEST, HIGHEST = 1e-4, 1e2
"""Bounds of the whole factor on the rate that the user gave."""
_SHORTEST = 1e-6
"""Share of the way below which all of it is undone."""


class TrustRegion:
    """The updates of a batch, one after the other, and the factor on the learning rate.

    `desired` is the KL divergence that the `num_updates` of a batch should come to, nats per token; `closed`: the
    remaining updates are skipped.
    """

    def __init__(self, desired: float, num_updates: int) -> None:
        self.desired, self.num_updates = desired, num_updates
        self.factor = 1.0
        self.skipped = self.pulled_back = 0  # over the run
        self._searching, self._rose = True, False
        self._steered: LRScheduler | None = None
        self.begin(worth=False)

    def steer(self, scheduler: LRScheduler) -> None:
        """Multiply the rates of a schedule by the factor, from its next step on; ValueError unless a `LambdaLR`."""
        if scheduler is self._steered:
            return
        if not isinstance(scheduler, LambdaLR):
            raise ValueError(
                "several updates of a batch need a LambdaLR schedule, such as that of lr_scheduler_type='constant'; "
                f"got {type(scheduler).__name__}. Choose another schedule, or updates='once'"
            )
        self._steered = scheduler
        scheduler.lr_lambdas = [lambda step, stock=stock: stock(step) * self.factor for stock in scheduler.lr_lambdas]

    def begin(self, *, worth: bool) -> None:
        """Start a batch; with nothing to train, none of its updates is worth making."""
        self.closed = not worth
        self.divergence, self._way = 0.0, 0.0  # so far; updates made, a part of one after a pull-back

    def after_update(self, divergence: float, again: Callable[[float], float]) -> None:
        """Judge an update: the divergence of the policy before the batch from the policy now, nats per token.

        `again` puts the weights at a share, in [0, 1), of the way from where the batch began, and measures there.
        """
        self._way += 1.0
        self.divergence = divergence
        if not divergence <= LIMIT * self.desired:  # NaN is beyond
            self._pull_back(again)
        elif divergence * ((self._way + 1.0) / self._way) ** 2 > CEILING * self.desired:
            self.closed = True

    def _pull_back(self, again: Callable[[float], float]) -> None:
        share = 1.0
        while not self.divergence <= CEILING * self.desired:
            known = math.isfinite(self.divergence)
            step = math.sqrt(self.desired / self.divergence) if known else 0.0
            step = min(max(step, 0.01), 0.7)
            if share * step < _SHORTEST:
                step = 0.0
            share *= step
            self.divergence = again(step)
            if share == 0.0:
                break
        self._way *= share
        self.closed = True
        self.pulled_back += 1

    def end(self, num_made: int) -> dict[str, float]:
        """Adapt the factor after the last of `num_made` updates; return their outcome as metrics."""
        if not num_made:
            return {}
        self.skipped += self.num_updates - num_made
        pulled = self._way < num_made
        if self.divergence > 0.0:
            whole = self.divergence * (self.num_updates / self._way) ** 2
            step = math.sqrt(self.desired / whole)
            fell = pulled or step < 1.0
            self._searching &= not (fell and self._rose)
            self._rose |= not fell
            step = min(step, 1.0 if pulled else SEARCH if self._searching else RISE)
            self.factor *= step if pulled else max(step, FALL)
        elif pulled:  # all of it was undone
            self.factor *= _SHORTEST**0.25
        self.factor = min(max(self.factor, LOWEST), HIGHEST)
        return {
            "update_kl": self.divergence,
            "desired_kl": self.desired,
            "rate_factor": self.factor,
            "updates": float(num_made),
            "updates_skipped": float(self.skipped),
            "batches_pulled_back": float(self.pulled_back),
        }

    def state_dict(self) -> dict[str, Any]:
        """The factor, whether the search for it continues, and the counts of skipped and pulled-back updates."""
        return {
            "rate_factor": self.factor,
            "searching": self._searching,
            "rose": self._rose,
            "skipped": self.skipped,
            "pulled_back": self.pulled_back,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict()`."""
        self.factor, self._searching, self._rose = state["rate_factor"], state["searching"], state["rose"]
        self.skipped, self.pulled_back = state["skipped"], state["pulled_back"]
