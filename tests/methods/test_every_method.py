# SPDX-License-Identifier: Apache-2.0
"""What holds for every method, over random worlds: sound judgements, ceilings, and the same again after a resume."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duet_trl.methods.arrol import Arrol, ArrolOptions
from duet_trl.methods.dapo import Dapo, DapoOptions
from duet_trl.methods.dynamo import Dynamo, DynamoOptions
from duet_trl.methods.greso import Greso, GresoOptions
from duet_trl.methods.grpo import GRPO, GRPOOptions
from duet_trl.methods.knapsack import Knapsack, KnapsackOptions
from duet_trl.methods.method import Method, Setting
from duet_trl.methods.pilot import Pilot, PilotOptions
from duet_trl.methods.pods import Pods, PodsOptions
from duet_trl.methods.reinforce_ada import ReinforceAda, ReinforceAdaOptions
from duet_trl.methods.reuse import Reuse, ReuseOptions
from duet_trl.methods.seed_grpo import SeedGRPO, SeedGRPOOptions
from duet_trl.methods.vip import Vip, VipOptions

from .simulator import make_prompts, run_step, setting


def vip(run: Setting, **options: object) -> Method:
    """VIP over vectors that lie on a line."""
    method = Vip(run, VipOptions(**options))
    method.embed = lambda prompts: np.array([[float(prompt.key[1:]), 1.0] for prompt in prompts], dtype=np.float32)
    return method


METHODS: dict[str, Callable[[Setting], Method]] = {
    "pods": lambda run: Pods(run, PodsOptions()),
    "dapo": lambda run: Dapo(run, DapoOptions(oversample=1.4, max_tokens_per_step=600)),
    "greso": lambda run: Greso(run, GresoOptions(max_batches=5)),
    "knapsack": lambda run: Knapsack(run, KnapsackOptions()),
    "dynamo": lambda run: Dynamo(run, DynamoOptions()),
    "pilot": lambda run: Pilot(run, PilotOptions()),
    "spec_rl": lambda run: Reuse(GRPO(run, GRPOOptions()), ReuseOptions(), "spec_rl"),
    "vip": vip,
    "vip that skips and remembers": lambda run: vip(run, skip_prompts=True, reuse_mean=True, lower=2, upper=5),
    "pilot of equals": lambda run: Pilot(run, PilotOptions(weighting="prompts", pilot_rollouts=1)),
    "reinforce_ada": lambda run: ReinforceAda(run, ReinforceAdaOptions()),
    "reinforce_ada with a history": lambda run: ReinforceAda(
        run, ReinforceAdaOptions(exit="positive_focused", round_size=2, baseline="history", positive_reward=0.5)
    ),
    "arrol": lambda run: Arrol(run, ArrolOptions(detect_at=9, head_warmup_steps=1)),
    "seed_grpo": lambda run: SeedGRPO(run, SeedGRPOOptions(form="linear", alpha=0.9)),
}


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
@settings(max_examples=60, deadline=None)
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
    method, restored = METHODS[name](run), METHODS[name](run)
    for step in range(1, 5):

        def draw(key: str, number: int, step: int = step) -> np.ndarray:
            return draws[step - 1, int(key[1:]), number]

        def reward(key: str, number: int) -> float:
            return np.nan if draw(key, number)[1] < missing else float(draw(key, number)[0] < success)

        def length(key: str, number: int) -> int:
            return 1 + int(40 * draw(key, number)[2])

        keys = world.permutation(pool)[:num_prompts].tolist()
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
        restored = METHODS[name](run)
        restored.load_state_dict(state)
    assert json.dumps(method.identity)


@pytest.mark.parametrize("name", METHODS)
def test_a_prompt_that_stands_several_times_in_a_batch(name: str) -> None:
    """Rows of data may be equal: `run_step` checks what holds for every judgement, and a resume changes nothing."""
    run = setting(5, 4, 60, seed=3)
    method, restored = METHODS[name](run), METHODS[name](run)
    keys, pool = ["p0", "p0", "p1", "p0", "p1"], [f"p{number}" for number in range(8)]
    for step in range(1, 5):

        def reward(key: str, number: int, step: int = step) -> float:
            return float((number * 7 + step + int(key[1:])) % 3 == 0)

        (done, judgement), (again, judged) = (
            run_step(each, make_prompts(keys, pool, step), reward) for each in (method, restored)
        )
        assert done.jobs == again.jobs and (judgement.advantages == judged.advantages).all()
        assert np.bincount(done.prompt, minlength=5)[:5].sum() > 0
        state = stored(method.state_dict())
        restored = METHODS[name](run)
        restored.load_state_dict(state)
