# SPDX-License-Identifier: Apache-2.0
"""Evaluation on suites: mean@k and best@k with intervals over problems, callbacks for training."""

from .protocol import Score, best_at_k, mean_at_k, paired_difference

__all__ = ["Score", "best_at_k", "mean_at_k", "paired_difference"]
