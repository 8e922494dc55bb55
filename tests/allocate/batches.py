# SPDX-License-Identifier: Apache-2.0
"""Batches to allocate rollouts to, and whether a plan keeps its budget."""

import numpy as np
from hypothesis import strategies as st

from duet_trl.allocate.neyman import BUDGET_ROUNDING, Allocation


def over_budget(plan: Allocation) -> bool:
    """Whether a plan costs more than its budget, beyond the rounding of a float64 sum."""
    return plan.planned_tokens > plan.budget_tokens * (1.0 + 2.0 * BUDGET_ROUNDING)


@st.composite
def batches(draw: st.DrawFn, max_prompts: int = 24) -> tuple[np.ndarray, np.ndarray, float]:
    """sigma (M,) over twelve orders of magnitude, lengths (M,) with ties, and a budget above one rollout each."""
    num_prompts = draw(st.integers(1, max_prompts))
    exponents = draw(st.lists(st.floats(-6.0, 6.0), min_size=num_prompts, max_size=num_prompts))
    length = draw(st.lists(st.integers(1, 3000), min_size=num_prompts, max_size=num_prompts))
    mean_count = draw(st.floats(1.0, 34.0))
    length = np.array(length, dtype=np.float64)
    return 10.0 ** np.array(exponents), length, mean_count * float(length.sum())


def lognormal_batch(rng: np.random.Generator, num_prompts: int) -> tuple[np.ndarray, np.ndarray]:
    """sigma (M,), a third of it at the floor, and lengths (M,), as training produces them."""
    sigma = rng.lognormal(4.0, 1.0, num_prompts)
    sigma[rng.random(num_prompts) < 0.3] = 0.01
    return sigma, rng.lognormal(6.0, 0.6, num_prompts)
