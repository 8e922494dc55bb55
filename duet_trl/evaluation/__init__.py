# SPDX-License-Identifier: Apache-2.0
"""Held-out evaluation: mean@k and best@k with intervals over problems, and a callback that measures while training."""

from .protocol import Score, best_at_k, mean_at_k, paired_difference

__all__ = ["Score", "best_at_k", "mean_at_k", "paired_difference"]
