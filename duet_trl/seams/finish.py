# SPDX-License-Identifier: Apache-2.0
"""The end of a generation step: what its forward passes found, before the weights move."""

import numpy as np
import torch

from ..exchange import Exchange
from ..step_record import StepRecord
from . import train_rows


class AllNonfinite(RuntimeError):
    """No rollout of a step has a finite log-probability under the policy."""


def collect_logps(step: StepRecord, exchange: Exchange) -> None:
    """Fill `step.sum_logps` with what was captured on all processes, and mark broken rollouts in `step.nonfinite`.

    With a separate pass for old log-probabilities that is before the first update, else within it: always before the
    optimizer moves. Only rollouts that a pass has seen can be found broken: one that TRL masks as truncated has no
    log-probability, counts with its length and reward, and stays out of sigma.
    """
    captured = exchange.accelerator.gather(torch.cat(step.captured)).cpu().numpy()  # (W * rows, 3)
    step.captured = []
    seen = train_rows.fill_sum_logps(step, captured)
    broken = seen[~np.isfinite(step.sum_logps[seen])]
    if len(seen) and len(broken) == len(seen):
        raise AllNonfinite(
            f"no rollout of generation step {step.prompts.step} has a finite log-probability under the policy. Lower "
            "the learning rate, or check the model's weights"
        )
    step.nonfinite[broken] = True
    step.sum_logps[broken] = np.inf
