# SPDX-License-Identifier: Apache-2.0
"""What several updates of a batch ask of transformers and TRL: a schedule, the gradient's norm, and the log-probs from
which TRL measures how far an update went."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from trl import GRPOTrainer

from .several_updates import SeveralUpdates
from .train_rows import ReplayBatch


class UpdateSize(GRPOTrainer):
    """The part of `DUETGRPOTrainer` that moves the learning rate and knows where updates began."""

    several: SeveralUpdates | None
    clipped_norm: float  # of the last gradient, as the optimizer gets it
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

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LRScheduler:
        """transformers' schedule, times the factor of several updates."""
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        if self.several is not None:
            self.several.steer(scheduler)
        return scheduler

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)
        if self.several is not None:
            self.clipped_norm = min(float(norm), self.args.max_grad_norm or math.inf)
        return norm
