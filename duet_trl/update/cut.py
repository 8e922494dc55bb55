# SPDX-License-Identifier: Apache-2.0
"""What a batch of rollouts is cut into where it is trained on several times (`updates`)."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cut:
    """Passes over a batch, and the mini-batches of each pass: one optimizer step each."""

    passes: int
    mini_batches: int

    @property
    def updates(self) -> int:
        """Optimizer steps that a batch of rollouts is meant for."""
        return self.passes * self.mini_batches


CUTS = {"several": Cut(2, 2), "sfpo": Cut(4, 1)}
"""By the value of `updates`."""
CUT_FIELDS = ("num_iterations", "steps_per_generation", "gradient_accumulation_steps", "per_device_train_batch_size")
"""Fields that are set."""


def cut_batch(config: Any) -> None:
    """Set TRL's fields so that the batch they describe is cut, in place; `updates="once"` leaves them alone.

    Micro-batches are shared out over the mini-batches, or halved where there is an odd number of them. ValueError if
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
