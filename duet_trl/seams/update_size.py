# SPDX-License-Identifier: Apache-2.0
"""How far an update may go: transformers' gradient clipping and learning rate, under the rules of `update/`, and the
log-probs from which TRL measures how far it went."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from trl import GRPOTrainer

from ..update.clipping import NormHistory
from .several_updates import SeveralUpdates
from .train_rows import ReplayBatch


class UpdateSize(GRPOTrainer):
    """The part of `DUETGRPOTrainer` that clips gradients, moves the learning rate and knows where updates began."""

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

    @cached_property
    def norms(self) -> NormHistory | None:
        """Norms of the gradients so far; None: they are clipped to max_grad_norm alone."""
        quantile = self.args.grad_norm_quantile
        return None if quantile is None else NormHistory(quantile)

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

    def update_state(self) -> dict[str, Any]:
        """What a checkpoint must hold of it."""
        return {k: v for part in (self.norms, self.several) if part is not None for k, v in part.state_dict().items()}

    def load_update_state(self, state: dict[str, Any]) -> None:
        """Restore `update_state()`."""
        for part in (self.norms, self.several):
            if part is not None:
                part.load_state_dict(state)
