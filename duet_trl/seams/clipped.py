# SPDX-License-Identifier: Apache-2.0
"""Where transformers clips gradients: `grad_norm_quantile` lowers the limit."""

from functools import cached_property

import torch
from trl import GRPOTrainer

from ..update.clipping import NormHistory


class Clipped(GRPOTrainer):
    """The part of `DUETGRPOTrainer` that clips gradients."""

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
