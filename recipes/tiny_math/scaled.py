# SPDX-License-Identifier: Apache-2.0
"""DUET's constants scaled to this task: rollouts of at most 320 tokens, runs of a few minutes, a tiny policy."""

from typing import Any

GRACE_WINDOW = 16  # tokens; paper: 150 of 3,072
REFITS: dict[str, Any] = {"threshold_interval": 5, "threshold_window": 512}
"""How often K1 and K2 of `paper` are refitted, and to how many rollouts; for `method_kwargs`."""
UPDATES: dict[str, Any] = {"updates": "several", "old_logps": "engine"}
"""Several updates of a batch, and the engine's log-probs as those before them, which saves a forward pass."""
