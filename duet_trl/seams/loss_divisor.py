# SPDX-License-Identifier: Apache-2.0
"""What the loss of a generation step divides by (N_t of Eq. 6, or its rollouts), and who counts in it.

TRL divides by what stands in a micro-batch under five loss types: by its rows (`grpo`, `dr_grpo`, `luspo`, `sapo`) or
its tokens (`bnpo`). Here rollouts leave the batch, others pad it, and rows are placed by length. So a micro-batch is
scaled by TRL's divisor over its share of the right one: all rollouts that count, or all their tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ..config import DUETGRPOConfig
from ..methods.grouping import spread_within
from ..step_record import StepRecord
from .train_rows import only_padding

BY_TOKENS = ("dapo", "cispo", "vespo")
"""Loss types that divide by the tokens of the generation step, which TRL is told."""
_ONE_REWARD = 1e-6
"""Spread of a prompt's rewards up to which they are equal."""
_ROUNDING = 1e-2
"""Below it an advantage of equal rewards is what float32 leaves of them over the 1e-4 added to their deviation."""


def count_tokens(step: StepRecord, mask_truncated: bool, exclude_zero_variance: bool, teaches_ending: bool) -> None:
    """Policy tokens that get a forward pass, who counts, and N_t of Eq. 6: the tokens of those who do.

    With `teaches_ending` a trimmed rollout is trained as far as its answer goes: no reward is for what follows. Where
    the answer was good, an EOS is trained behind it, which is no token of the policy and counts nowhere.
    """
    judgement = step.judgement
    cut = teaches_ending & step.replay.trimmed & (step.replay.completed_at > 0)
    step.row_tokens = np.where(cut, step.replay.completed_at, step.replay.length)
    step.taught_to_end = cut & judgement.in_gradient & (judgement.weight * judgement.advantages > 0)
    step.loss_tokens = np.where(mask_truncated & step.truncated, 0, step.row_tokens)
    step.num_train_tokens = int(step.loss_tokens[judgement.in_gradient].sum())
    step.in_divisor = judgement.in_divisor & ~_zero_variance(step) if exclude_zero_variance else judgement.in_divisor
    step.num_kept_tokens = int(step.loss_tokens[step.in_divisor].sum())


def _zero_variance(step: StepRecord) -> np.ndarray:
    """Rollouts of prompts whose rewards are all equal, and of which none moves the policy, shape (N,), bool."""
    judgement, group = step.judgement, step.done.prompt
    spread = spread_within(step.done.rewards, group, len(step.prompts))
    moves = judgement.in_gradient & (np.abs(judgement.weight * judgement.advantages) > _ROUNDING)
    moved = np.bincount(group, weights=moves, minlength=len(spread)) > 0
    return ((spread <= _ONE_REWARD) & ~moved)[group]


def scale(step: StepRecord, batch: dict[str, torch.Tensor], args: DUETGRPOConfig, num_processes: int) -> float:
    """TRL's divisor of a micro-batch over the right one, which all micro-batches of a step share alike.

    Raises:
        RuntimeError: If TRL would divide by another number of tokens than N_t.
    """
    told = int(batch["num_items_in_batch"])
    if told != step.num_kept_tokens:
        raise RuntimeError(f"The loss would divide by {told} tokens where {step.num_kept_tokens} were kept.")
    if args.loss_type in BY_TOKENS:
        return 1.0
    stands, counts = len(batch["advantages"]), int(step.in_divisor.sum())
    if args.loss_type == "bnpo":
        if args.method == "grpo" and not args.exclude_zero_variance_groups:
            return 1.0  # TRL's own: a mean over micro-batches, whatever their tokens
        stands, counts = int(batch["completion_mask"].sum()), step.num_kept_tokens
    return max(stands, 1) * args.steps_per_generation * num_processes / max(counts, 1)


@contextmanager
def scaled_terms(trainer: Any, batch: dict[str, torch.Tensor], factor: float) -> Iterator[None]:
    """While TRL computes a loss: the KL term has the scale of the advantages, and padding no router loss."""
    beta, router = trainer.beta, trainer.router_aux_loss_coef
    trainer.beta = beta * factor
    if trainer.aux_loss_enabled and only_padding(batch):
        trainer.router_aux_loss_coef = 0.0
    try:
        yield
    finally:
        trainer.beta, trainer.router_aux_loss_coef = beta, router
