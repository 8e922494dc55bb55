# SPDX-License-Identifier: Apache-2.0
"""How far an update may go: transformers' gradient clipping and learning rate, under the rules of `update/`, and the
log-probs from which TRL measures how far it went."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from trl import GRPOTrainer

from ..update.clipping import NormHistory
from ..update.kl_rate import KLRate
from .train_rows import ReplayBatch


class UpdateSize(GRPOTrainer):
    """The part of `DUETGRPOTrainer` that clips gradients, moves the learning rate and knows where updates began."""

    _sampled_logps: torch.Tensor | None = None  # of the rows that TRL is about to score

    @contextmanager
    def old_logps_of(self, batch: ReplayBatch) -> Iterator[None]:
        """While TRL makes rows of a batch: what it takes for the log-probs before the updates (`old_logps`)."""
        if self.args.old_logps == "engine":
            self._sampled_logps = batch.sampled_logps(self.pad_to_multiple_of).to(self.accelerator.device)
        try:
            yield
        finally:
            self._sampled_logps = None

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple:
        if self._sampled_logps is None:
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)
        known, self._sampled_logps = self._sampled_logps, None  # a reference model is asked after them
        return known, None, None

    @cached_property
    def _unmoved(self) -> dict[int, torch.Tensor]:
        """Log-probs of the first optimizer step's micro-batches before it, by micro-batch."""
        return {}

    @cached_property
    def norms(self) -> NormHistory | None:
        """Norms of the gradients so far; None: they are clipped to max_grad_norm alone."""
        quantile = self.args.grad_norm_quantile
        return None if quantile is None else NormHistory(quantile)

    @cached_property
    def kl_rate(self) -> KLRate | None:
        """What multiplies the learning rate; None: nothing."""
        desired = self.args.desired_kl
        return None if desired is None else KLRate(desired)

    def _clip_grad_norm(self, model: torch.nn.Module) -> torch.Tensor | float | None:
        if self.norms is None:
            return super()._clip_grad_norm(model)
        stock = self.args.max_grad_norm
        self.args.max_grad_norm = min(stock, self.norms.limit)
        try:
            norm = super()._clip_grad_norm(model)
        finally:
            self.args.max_grad_norm = stock
        self.norms.add(float(norm))
        return norm

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LRScheduler:
        """transformers' schedule, times the factor of `kl_rate`."""
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        if self.kl_rate is not None:
            self.kl_rate.steer(scheduler)
        return scheduler

    def note_kl(self, inputs: dict[str, Any], logps: torch.Tensor, position: int) -> None:
        """Note how far the rollouts of a micro-batch have moved since they were generated.

        Those of the first optimizer step pass the model before it moves, so the first pass tells where they started,
        in the trainer's own arithmetic: an engine's log-probs would add its rounding to every token.

        Args:
            inputs (dict[str, Any]): The micro-batch.
            logps (torch.Tensor): Log-probs of its tokens now, (B, T).
            position (int): Micro-batches of this generation step before it, over all passes.
        """
        chunk = position % self.args.steps_per_generation
        if self.kl_rate is None or chunk >= self.args.gradient_accumulation_steps:
            return
        if position == chunk:
            self._unmoved[chunk] = logps
        else:
            self.kl_rate.note(logps - self._unmoved[chunk], inputs["completion_mask"])

    def follow_kl(self) -> dict[str, float]:
        """After the last pass over a generation step: move the learning rate; the KL divergence, as a metric."""
        if self.kl_rate is None:
            return {}
        self._unmoved.clear()
        sums = self.kl_rate.take().to(self.accelerator.device)
        total, rollouts = self.accelerator.reduce(sums, reduction="sum").tolist()
        return self.kl_rate.follow(total / rollouts) if rollouts else {}

    def update_state(self) -> dict[str, Any]:
        """What a checkpoint must hold of it."""
        return {k: v for part in (self.norms, self.kl_rate) if part is not None for k, v in part.state_dict().items()}

    def load_update_state(self, state: dict[str, Any]) -> None:
        """Restore `update_state()`."""
        for part in (self.norms, self.kl_rate):
            if part is not None:
                part.load_state_dict(state)
