# SPDX-License-Identifier: Apache-2.0
"""Runs of the real methods: what holds in every step, and that the tallies see what breaks it."""

from types import SimpleNamespace

import numpy as np
import pytest

from duet_trl.methods import METHODS
from duet_trl.methods.grpo import GRPO, GRPOOptions
from duet_trl.methods.method import Setting
from duet_trl.report.simulate import method_of
from duet_trl.simulation.course import Course
from duet_trl.simulation.population import Population

SIZES = SimpleNamespace(num_generations=8, batch=16, max_completion_length=1024, budget_fraction=None, seed=0)


def course(name: str, num_prompts: int = 64, num_steps: int = 12) -> tuple[Course, list]:
    population = Population(num_prompts, 1024, num_steps, answer_tokens=200.0)
    found = Course(method_of(name, SIZES), population, SIZES.batch)
    return found, list(found.run(num_steps))


@pytest.mark.parametrize("name", [name for name in METHODS if name != "own"])
def test_every_method_keeps_to_its_bounds(name):
    found, steps = course(name)
    assert len(steps) == 12 and found.most_rollouts <= found.method.setting.max_rollouts
    assert found.over_budget <= 1 + 1e-9 and (found.over_budget > 0.5) == (name in {"duet", "paper", "pilot"})
    assert found.longest_wait == 0 or name == "greso"
    assert all(step.generated_tokens > 0 and step.trained_tokens > 0 for step in steps)
    assert (found.coins[0] > 0) == (name in {"duet", "paper"})
    assert found.right[0] > found.right[1] >= found.late_right[1]
    assert len(found.seconds) == 12 and min(found.seconds) > 0


def test_every_prompt_is_drawn_once_in_an_epoch():
    class Notes(GRPO):
        def jobs(self, prompts, done):
            if done is None:
                seen.setdefault(prompts.epoch, []).extend(prompts.keys)
            return super().jobs(prompts, done)

    seen: dict[int, list[str]] = {}
    method = Notes(Setting(16, 2, 1024, 1000), GRPOOptions())
    list(Course(method, Population(64, 1024, 10), 16).run(10))
    assert {epoch: len(set(keys)) for epoch, keys in seen.items()} == {0: 64, 1: 64, 2: 32}
    assert seen[0] != seen[1] and len(seen[0]) == 64


class Starves(GRPO):
    """Gives the prompts of even number nothing."""

    def jobs(self, prompts, done):
        jobs = super().jobs(prompts, done)
        return [job for job in jobs if int(prompts[job.prompt].key) % 2]


def test_a_starved_prompt_is_noticed():
    found = Course(Starves(Setting(16, 2, 1024, 1000), GRPOOptions()), Population(32, 1024, 10), 16)
    list(found.run(10))
    assert found.longest_wait == 5  # each epoch has two steps


@pytest.mark.parametrize("method", ["duet", "paper"])
def test_coins_are_those_of_the_keep_probability(method):
    found, _ = course(method, num_prompts=640, num_steps=120)
    (thrown, kept), (mean, variance) = found.coins, found.coin_law
    assert thrown > 300
    assert kept == pytest.approx(mean, abs=4 * np.sqrt(variance))
    if method == "paper":
        assert (mean, variance) == (pytest.approx(0.05 * thrown), pytest.approx(0.05 * 0.95 * thrown))
