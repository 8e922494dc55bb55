# SPDX-License-Identifier: Apache-2.0
"""What holds for every method: sound judgements, ceilings, resumes, and what is refused when a method is built."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duet_trl.methods import METHODS as ENTRIES
from duet_trl.methods.arrol import Arrol
from duet_trl.methods.dapo import Dapo
from duet_trl.methods.greso import Greso
from duet_trl.methods.knapsack import Knapsack
from duet_trl.methods.method import Method, Setting
from duet_trl.methods.reinforce_ada import ReinforceAda
from duet_trl.methods.spec_rl import SpecRL
from duet_trl.methods.vip import Vip

from .simulator import make_prompts, run_step, setting

CLASSES = {
    "dapo": Dapo,
    "greso": Greso,
    "knapsack": Knapsack,
    "reinforce_ada": ReinforceAda,
    "vip": Vip,
    "arrol": Arrol,
    "spec_rl": SpecRL,
}
METHODS = {
    **{name: (name, {}) for name in CLASSES if name not in ("dapo", "greso", "arrol")},
    "dapo": ("dapo", {"oversample": 1.4}),
    "greso": ("greso", {"max_batches": 5}),
    "arrol": ("arrol", {"detect_at": 9, "head_warmup_steps": 1}),
    "reinforce_ada to the first success": ("reinforce_ada", {"exit": "positive_focused", "num_kept": 3}),
}


def build(name: str, run: Setting, **options: object) -> Method:
    method = CLASSES[name](run, ENTRIES[name].options(**options))
    if name == "vip":  # over vectors that lie on a line
        method.embed = lambda prompts: np.array([[float(prompt.key[1:]), 1.0] for prompt in prompts], np.float32)
    return method


def fresh(case: str, run: Setting) -> Method:
    name, options = METHODS[case]
    return build(name, run, **options)


def stored(state: dict) -> dict:
    """A state as a checkpoint gives it back: JSON, with arrays kept apart; anything else is refused."""
    return {
        key: stored(value)
        if isinstance(value, dict)
        else value.copy()
        if isinstance(value, np.ndarray)
        else json.loads(json.dumps(value))
        for key, value in state.items()
    }


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_prompts=st.integers(1, 5),
    num_others=st.integers(0, 12),
    num_generations=st.sampled_from([4, 6]),
    scale=st.sampled_from(["group", "batch", "none"]),
    success=st.sampled_from([0.0, 0.2, 0.7, 1.0]),
    missing=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_random_worlds(
    name: str,
    seed: int,
    num_prompts: int,
    num_others: int,
    num_generations: int,
    scale: str,
    success: float,
    missing: float,
) -> None:
    """Two steps in each of two epochs. `run_step` checks judgement, rounds and `max_rollouts`; a method that is
    restored before every step does the same."""
    run = setting(num_prompts, num_generations, 3 * num_prompts * num_generations, scale_rewards=scale, seed=seed)
    world = np.random.default_rng(seed)
    pool = [f"p{number}" for number in range(num_prompts + num_others)]
    draws = world.random((4, len(pool), 100, 3))
    method, restored = fresh(name, run), fresh(name, run)
    for step in range(1, 5):

        def draw(key: str, number: int, step: int = step) -> np.ndarray:
            return draws[step - 1, int(key[1:]), number]

        def reward(key: str, number: int) -> float:
            return np.nan if draw(key, number)[1] < missing else float(draw(key, number)[0] < success)

        def length(key: str, number: int) -> int:
            return 1 + int(40 * draw(key, number)[2])

        keys = world.choice(pool, num_prompts, replace=seed % 2 == 1).tolist()  # rows of data may be equal
        (done, judgement), (again, judged) = (
            run_step(each, make_prompts(keys, pool, step, (step - 1) // 2), reward, length)
            for each in (method, restored)
        )
        assert done.jobs == again.jobs and done.prompts.keys == again.prompts.keys
        for field in ("advantages", "weight", "in_gradient", "in_divisor"):
            assert (getattr(judgement, field) == getattr(judged, field)).all()
        assert not judgement.advantages[~done.scored].any()
        assert method.metrics() == restored.metrics()
        assert all(type(value) is float for value in method.metrics().values())
        state = stored(method.state_dict())
        restored = fresh(name, run)
        restored.load_state_dict(state)
    assert json.dumps(method.identity)


@pytest.mark.parametrize("name", CLASSES)
def test_a_foreign_state_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} state has keys"):
        build(name, setting(num_generations=8)).load_state_dict({"foreign": {}})


NAN = float("nan")
REFUSED = [
    ("dapo", {}, {"oversample": 0.5}, "oversample must be at least 1, got 0.5"),
    ("dapo", {}, {"oversample": NAN}, "oversample must be at least 1, got nan"),
    ("dapo", {}, {"max_batches": 0}, "max_batches must be at least 1, got 0"),
    ("dapo", {}, {"max_batches": 2.0}, "max_batches must be an integer, got 2.0"),
    ("dapo", {"max_rollouts": 47}, {"oversample": 1.5}, "6 prompts x num_generations=8 are 48 rollouts, above max_"),
    ("greso", {"num_generations": 1}, {}, "num_generations must be at least 2, got 1"),
    ("knapsack", {"num_rollouts_min": 5}, {}, "16 rollouts cannot be shared by 4 prompts.*num_rollouts_min and"),
    ("knapsack", {"num_rollouts_max": 3}, {}, "16 rollouts cannot be shared by 4 prompts"),
    ("knapsack", {"num_generations": 2}, {}, "a single one, and no step has a gradient"),
    ("reinforce_ada", {}, {"num_kept": 33}, "num_kept=33 is above 4 rounds of num_generations=8"),
    ("reinforce_ada", {"max_rollouts": 31}, {}, "4 prompts x num_generations=8 are 32 rollouts, above max_rollouts"),
    ("vip", {"budget_fraction": 0.125}, {}, "budget of 1 rollouts per prompt .* no step has a gradient"),
    ("vip", {}, {"embeddings": " "}, "embeddings must be a name or a path, got ' '"),
    ("arrol", {}, {"detect_at": 100}, "detect_at=100 is not below max_completion_length=100"),
    ("arrol", {"max_rollouts": 63}, {}, "are 64 rollouts, above max_rollouts=63"),
    ("arrol", {}, {"keep_rate": 0.05}, r"keep_rate must be in \(0.05, 1\], got 0.05"),
    ("spec_rl", {}, {"lenience": float("inf")}, "lenience must be at least 0 and finite, got inf"),
]


@pytest.mark.parametrize(("name", "run", "options", "message"), REFUSED)
def test_what_cannot_work_is_refused_with_its_value_and_a_remedy(
    name: str, run: dict, options: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, setting(**{"num_generations": 8, **run}), **options)
