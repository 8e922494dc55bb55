# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.gate.replay import keep_coins, occurrence

NUM_PROMPTS, NUM_ROLLOUTS = 500, 40
KEYS = [f"prompt {q}" for q in range(NUM_PROMPTS) for _ in range(NUM_ROLLOUTS)]
INDEX = np.tile(np.arange(NUM_ROLLOUTS), NUM_PROMPTS)


def z_score(coins: np.ndarray, probability: float) -> float:
    """Standard deviations between the observed and the expected count of independent coins."""
    return (coins.sum() - coins.size * probability) / np.sqrt(coins.size * probability * (1 - probability))


@pytest.mark.parametrize("probability", [0.01, 0.05, 0.2, 0.5])
def test_coins_come_up_with_their_probability(probability):
    coins = np.concatenate([keep_coins(0, step, KEYS, INDEX, probability) for step in range(10)])
    assert abs(z_score(coins, probability)) < 4  # 200,000 coins


@pytest.mark.parametrize(
    "neighbour",
    [
        lambda: keep_coins(0, 1, KEYS, INDEX, 0.5),
        lambda: keep_coins(1, 0, KEYS, INDEX, 0.5),
        lambda: keep_coins(0, 0, KEYS, INDEX + 1, 0.5),
        lambda: keep_coins(0, 0, [key + " " for key in KEYS], INDEX, 0.5),
    ],
    ids=["step", "seed", "rollout", "prompt"],
)
def test_changing_any_part_of_the_key_gives_an_independent_coin(neighbour):
    agree = keep_coins(0, 0, KEYS, INDEX, 0.5) == neighbour()
    assert abs(z_score(agree, 0.5)) < 4  # 20,000 coins


@given(st.permutations(range(12)), st.integers(0, 2**63), st.integers(0, 10**6))
def test_a_coin_does_not_depend_on_the_batch_it_is_thrown_in(order, seed, step):
    keys, index = [f"p{q}" for q in range(3) for _ in range(4)], np.tile(np.arange(4), 3)
    coins = keep_coins(seed, step, keys, index, 0.5)
    shuffled = keep_coins(seed, step, [keys[i] for i in order], index[list(order)], 0.5)
    assert shuffled.tolist() == coins[list(order)].tolist()
    halves = [keep_coins(seed, step, keys[part], index[part], 0.5) for part in (slice(0, 5), slice(5, 12))]
    assert np.concatenate(halves).tolist() == coins.tolist()


def test_coins_are_pinned_because_a_resumed_run_must_throw_them_again():
    pinned = [1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1]
    assert keep_coins(0, 0, ["p"] * 16, np.arange(16), 0.5).astype(int).tolist() == pinned
    assert keep_coins(5, 9, ["a", "b\u00e9"] * 4, np.arange(8), 0.5).astype(int).tolist() == [1, 0, 0, 0, 1, 0, 1, 0]


def test_probability_one_keeps_every_rollout_and_the_smallest_probability_is_not_zero():
    assert keep_coins(0, 0, KEYS, INDEX, 1.0).all()
    assert not keep_coins(0, 0, KEYS, INDEX, 1e-300).any()


def test_a_prompt_that_stands_again_in_a_batch_has_another_number():
    assert occurrence(["a", "b", "a", "a", "b"]).tolist() == [0, 0, 1, 2, 1]
