# SPDX-License-Identifier: Apache-2.0
"""The costs of an engine's iteration from the times of whole runs, which are linear in them."""

import numpy as np

from duet_trl.simulation.serving import EngineCost, serve

UNITS = ("fixed", "per_rollout", "per_context", "per_prompt")


def features(tokens: np.ndarray, capacity: int, prompt_tokens: float) -> list[float]:
    """Seconds of a run if each cost in turn were 1 and the others 0: the time is linear in them."""
    zero = dict.fromkeys(UNITS, 0.0)
    return [
        serve(EngineCost(**{**zero, unit: 1.0}, most_running=capacity), tokens, prompt_tokens).seconds
        for unit in UNITS
    ]


def fit(rows: list[list[float]], seconds: list[float]) -> dict[str, float]:
    """Costs, none below 0, with the least squared relative error: the largest group of them that comes out so."""
    table = np.array(rows) / np.array(seconds)[:, None]
    used = np.ones(len(UNITS), dtype=bool)
    while True:
        found = np.zeros(len(UNITS))
        found[used] = np.linalg.lstsq(table[:, used], np.ones(len(table)), rcond=None)[0]
        if (found >= 0).all():
            return dict(zip(UNITS, found.tolist(), strict=True))
        used &= found > found.min()
