# SPDX-License-Identifier: Apache-2.0
"""Phase 4: the surrogate's observation and the last metrics of a step, from its captured log-probabilities."""

import time
from typing import TYPE_CHECKING

import torch

from ..update.filters import nonfinite_logps
from . import logs
from . import train_rows as rows
from .outcomes import surcharge_factor
from .step import Step

if TYPE_CHECKING:
    from ..trainer import DUETGRPOTrainer


def finish(trainer: "DUETGRPOTrainer", step: Step) -> None:
    """Close a step, once every trained rollout has been through the policy.

    With a separate pass for old log-probabilities that is before the first update, else within it: always before the
    optimizer moves. Only rollouts that a pass has seen can be found broken: one that TRL masks as truncated has no
    log-probability, counts with its length and reward, and stays out of sigma.

    Args:
        trainer (DUETGRPOTrainer): Its controller learns, its metrics grow.
        step (Step): Judged and trained.

    Raises:
        RuntimeError: If no log-probability is finite; a checkpoint of the state before is written.
    """
    captured = trainer.accelerator.gather(torch.cat(step.captured)).cpu().numpy()  # (W * rows, 3)
    step.captured, started = [], time.perf_counter()
    seen = rows.fill_sum_logps(step, captured)
    broken = seen[nonfinite_logps(step.sum_logps[seen])]
    if len(seen) and len(broken) == len(seen):
        trainer._stop_with_checkpoint(
            f"no rollout of generation step {step.plan.step} has a finite log-probability under the policy. Lower "
            "the learning rate, or check the model's weights"
        )
    step.nonfinite[broken] = True
    trainer.watch.values(step.nonfinite)
    raw, controller = step.raw_advantages, trainer.controller
    controller.observe_sigma(step.plan, raw, step.sum_logps, step.judgement.kept & ~step.nonfinite)
    own = {
        "surcharge": surcharge_factor(step, raw, trainer.args),
        "nonfinite_rollouts": float(step.nonfinite.sum()),
    }
    trainer._report(own | controller.metrics())
    if trainer.audit is not None and trainer.accelerator.is_main_process:
        trainer.audit.write(step.plan.step, logs.audit_columns(step, raw), step.examples, step.plan.group.tolist())
    step.seconds["overhead"] += time.perf_counter() - started
