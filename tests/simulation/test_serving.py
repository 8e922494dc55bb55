# SPDX-License-Identifier: Apache-2.0
"""The time of continuous batching: closed forms, and an engine that is run iteration by iteration."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duet_trl.simulation.serving import EngineCost, Machine, serve, step_seconds

COST = EngineCost(fixed=2.0, per_rollout=0.5, per_context=0.01, per_prompt=0.1, weights=1.0, most_running=3)


def one_by_one(cost: EngineCost, tokens: list[int], prompt_tokens: float) -> float:
    """Seconds of an engine that is asked what it does in every iteration."""
    waiting, running, seconds = [count for count in tokens if count], [], 0.0
    while waiting or running:
        while waiting and len(running) < cost.most_running:
            running.append([waiting.pop(0), prompt_tokens])
            seconds += cost.per_prompt * prompt_tokens
        seconds += cost.fixed + max(cost.weights, cost.per_rollout * len(running))
        seconds += cost.per_context * sum(context for _, context in running)
        running = [[left - 1, context + 1] for left, context in running if left > 1]
    return seconds


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), max_size=25), st.floats(0, 50), st.integers(1, 30))
def test_the_time_is_that_of_every_iteration(tokens, prompt_tokens, most_running):
    cost = EngineCost(0.7, 0.2, 0.03, 0.05, weights=0.9, most_running=most_running)
    served = serve(cost, tokens, prompt_tokens)
    assert served.seconds == pytest.approx(one_by_one(cost, tokens, prompt_tokens), rel=1e-9, abs=1e-9)
    assert 0.0 <= served.tail_seconds <= served.seconds


def test_equal_rollouts_take_as_many_iterations_as_one_has_tokens():
    # Three of 10 tokens behind 4: 10 x (2 + 1.5), contexts 3 x (4 + ... + 13), 12 prompt tokens; nothing drains.
    served = serve(COST, [10, 10, 10], 4.0)
    assert served.seconds == pytest.approx(35.0 + 0.01 * 3 * 85 + 1.2)
    assert served.tail_seconds == 0.0


def test_one_long_rollout_is_a_tail():
    # 10 iterations of three, then 90 of one, which costs the weights: 90 x (2 + 1).
    cost = EngineCost(2.0, 0.5, 0.0, 0.0, weights=1.0, most_running=3)
    served = serve(cost, [10, 100, 10], 0.0)
    assert served.seconds == pytest.approx(10 * 3.5 + 90 * 3.0)
    assert served.tail_seconds == pytest.approx(270.0)


def test_a_waiting_rollout_enters_when_another_leaves():
    cost = EngineCost(1.0, 0.0, 0.0, 0.0, most_running=1)
    assert serve(cost, [3, 4, 5], 0.0).seconds == 12.0
    assert serve(cost, [], 0.0).seconds == 0.0


ROUNDS = [np.random.default_rng(0).lognormal(6.0, 0.6, 512).astype(np.int64)]


def seconds(gpus: int, machine: Machine = Machine(), rounds=ROUNDS):  # noqa: B008 (frozen)
    return step_seconds(machine, gpus, rounds, 200.0, (len(rounds[0]), int(rounds[0].sum())), 1000)


def test_more_gpus_shorten_a_step_down_to_its_longest_rollout():
    found = [seconds(gpus) for gpus in (1, 2, 8, 64, 512)]
    totals = [one.total for one in found]
    assert totals == sorted(totals, reverse=True)
    # On an engine of its own the longest rollout still reads the weights for each of its tokens.
    machine = Machine()
    alone = ROUNDS[0].max() * (machine.iteration_seconds + 2 * machine.parameters / (0.6 * machine.bandwidth))
    assert alone < found[-1].generation < 1.1 * alone
    assert found[2].update == pytest.approx(found[1].update / 4)


def test_rounds_wait_for_each_other():
    half = [ROUNDS[0][:256], ROUNDS[0][256:]]
    assert seconds(64, rounds=half).generation > 1.3 * seconds(64).generation


def test_update_and_questions_are_forward_passes():
    machine, found = Machine(training_efficiency=0.5, flops=1e15, parameters=1e9), ROUNDS[0]
    one = seconds(4, machine)
    assert one.asking == pytest.approx(2e9 * 1000 / (0.5e15 * 4))
    assert one.update == pytest.approx(6e9 * (found.sum() + 512 * 200) / (0.5e15 * 4))
    assert one.total == pytest.approx(one.generation + one.asking + one.update + one.fixed)


def test_a_cache_that_fills_up_bounds_the_batch():
    # 0.9 x 80 GB less 16 GB of weights is 56 GB: 427,246 tokens of 131,072 bytes, 142 rollouts of 3,000.
    assert Machine().engine(3000.0).most_running == 142
    assert Machine().engine(300.0).most_running == 256


def test_what_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match="140 GB of weights leave no room.*Raise gpus_per_engine"):
        seconds(8, Machine(parameters=70e9))
    with pytest.raises(ValueError, match="8 GPUs are no multiple of gpus_per_engine=3"):
        seconds(8, Machine(gpus_per_engine=3))
