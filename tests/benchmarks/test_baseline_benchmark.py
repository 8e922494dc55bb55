# SPDX-License-Identifier: Apache-2.0
"""How well baselines predict: against success rates that are known."""

import numpy as np
import pytest

from benchmarks.baseline import BASELINES, Observer, ratios

PROMPTS, VISITED, ROLLOUTS, STEPS = 320, 16, 4, 120
GROUP = np.repeat(np.arange(VISITED), ROLLOUTS)


def observed(share: np.ndarray) -> dict[str, float]:
    """Ratios over the last third of a run that visits prompts in turn; share has shape (STEPS, PROMPTS)."""
    random, observer = np.random.default_rng(0), Observer()
    for step, of_step in enumerate(share):
        visited = (step * VISITED + np.arange(VISITED)) % PROMPTS
        rewards = (random.random(len(GROUP)) < of_step[visited][GROUP]).astype(float)
        observer.observe([f"prompt {number}" for number in visited], GROUP, rewards)
    return {name: parts[-2] for name, parts in ratios(observer.errors).items()}


def test_of_a_policy_that_stands_still_every_history_is_right() -> None:
    found = observed(np.tile(np.random.default_rng(1).uniform(size=PROMPTS), (STEPS, 1)))
    assert found["group"] == pytest.approx(ROLLOUTS / (ROLLOUTS - 1), rel=0.03)
    assert found["measured"] < found["history"] * 1.02 < 1.2


def test_of_a_policy_that_forgets_its_prompts_the_history_is_worse_than_nothing() -> None:
    found = observed(np.random.default_rng(2).choice([0.05, 0.95], size=(STEPS, PROMPTS)))
    assert found["history"] > 1.2 * found["group"] > 1.2 * found["measured"]


def test_a_policy_that_learns_leaves_its_history_behind() -> None:
    found = observed(np.tile(np.linspace(0.05, 0.95, STEPS)[:, None], (1, PROMPTS)))
    assert found["measured"] < 1.06
    assert found["history"] > 1.2


def test_the_parts_of_a_run_are_apart() -> None:
    errors = [[9.0, 9.0, 9.0, 9.0], [2.0, 4.0, 6.0, 2.0], [3.0, 3.0, 3.0, 1.0], [1.0, 1.0, 1.0, 1.0]]
    found = ratios(errors)  # the first step, before which nothing was known, is left out
    assert list(found) == list(BASELINES)
    assert found["history"] == [2.0, 3.0, 1.0, 2.0]
