# SPDX-License-Identifier: Apache-2.0
"""DUET's constants scaled to this task: rollouts of at most 320 tokens, runs of a few minutes, a tiny policy."""

from typing import Any

GRACE_WINDOW = 16  # tokens; paper: 150 of 3,072
REFITS: dict[str, Any] = {"threshold_interval": 5, "threshold_window": 512}
"""How often K1 and K2 of `paper` are refitted, and to how many rollouts; for `method_kwargs`."""
UPDATES: dict[str, Any] = {
    "num_iterations": 2,
    "desired_kl": 0.05,
    "grad_norm_quantile": 0.5,
    "adam_epsilon": 1e-3,
    "old_logps": "engine",
    "ema_decay": 0.8,
}
"""The updates that docs/recipes.md#updates recommends: two passes, clipped to the median norm, at a rate that follows
the KL divergence from `UPDATES_RATE` on; an epsilon of Adam above the usual size of a gradient's elements, so that it
does not magnify those that are noise; and the engine's log-probs as those before the updates, which saves a forward
pass; and the average of the weights over about the last five updates, for what is measured and saved."""
UPDATES_RATE = 2e-3
UPDATES_MINI_BATCHES = 2
"""Optimizer steps that a batch of rollouts is split into, in each pass."""
