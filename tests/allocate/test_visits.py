# SPDX-License-Identifier: Apache-2.0
"""Which prompts win a visit: the posterior by hand, ageing, the prior that follows the pool, and the state."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.allocate.visits import AGEING, LEAST_SHARE, Visits
from tests.states import plain

DECAY = 0.5


def seen(*visits: tuple[int, dict[str, list[float]]]) -> Visits:
    """After steps, each with the successes of its prompts' rollouts."""
    unit = Visits(DECAY)
    for step, of in visits:
        group = np.repeat(np.arange(len(of)), [len(own) for own in of.values()])
        unit.observe(list(of), group, np.concatenate([np.array(own, dtype=float) for own in of.values()]), step)
    return unit


def test_the_posterior_by_hand():
    unit = seen((1, {"a": [1, 0, 0, 1], "b": [1, 1]}))
    assert unit.pool_success(1) == pytest.approx(4 / 6)
    m = 4 / 6
    a, b = m + 2, 1 - m + 2  # one rollout of the pool's share beside two successes of four
    c, d = m + 2, 1 - m
    expected = [a * b / (5 * 6), c * d / (3 * 4), m * (1 - m) / 2]
    assert unit.openness(["a", "b", "new"], 1) == pytest.approx(expected)


def test_what_is_known_ages_with_steps_and_visits():
    unit = seen((1, {"a": [1, 1, 0, 0]}), (11, {"a": [0, 0]}))
    count = DECAY * AGEING**10 * 4 + 2
    right = DECAY * AGEING**10 * 2
    m = right / count
    a, b = m + AGEING**5 * right, 1 - m + AGEING**5 * (count - right)
    assert unit.openness(["a"], 16) == pytest.approx(a * b / ((a + b) * (a + b + 1)))


def test_an_open_prompt_wins_before_a_new_one_and_a_decided_one():
    unit = seen((1, {"solved": [1] * 4, "open": [1, 0, 1, 0], "hopeless": [0] * 4}))
    keys = ["solved", "hopeless", "new", "open"]
    assert unit.choose(keys, 1, 2).tolist() == [3]
    assert unit.choose(keys, 2, 2).tolist() == [2, 3]


def test_a_failure_of_long_ago_is_open_once_the_policy_solves_the_pool():
    first = {"failed": [0] * 4, "solved": [1] * 4}
    now = {f"p{n}": [1] * 4 for n in range(30)}
    before, after = seen((1, first)), seen((1, first), (30, now))
    level = before.openness(["failed", "solved"], 2)
    assert level[0] == pytest.approx(level[1])  # half of the pool is solved
    failed, solved = after.openness(["failed", "solved"], 31)
    assert failed > 2 * solved


@given(st.integers(1, 60), st.integers(0, 4))
def test_nobody_waits_for_ever(waited, right):
    """The longer ago it was visited, the nearer a prompt is to one that was never seen."""
    unit = seen((1, {"old": [1] * right + [0] * (4 - right)}))
    new = unit.openness(["new"], 1)[0]
    apart = [abs(unit.openness(["old"], 1 + steps)[0] - new) for steps in (0, waited, waited + 400)]
    assert apart[0] >= apart[1] >= apart[2]
    assert apart[2] < 1e-4


def test_the_share_of_the_pool_never_says_that_all_is_decided():
    assert seen((1, {"a": [1] * 100})).pool_success(1) == 1 - LEAST_SHARE
    assert seen((1, {"a": [0] * 100})).pool_success(1) == LEAST_SHARE


def test_a_prompt_twice_in_a_step_counts_its_rollouts_once():
    twice = Visits(DECAY)
    twice.observe(["a", "a", "idle"], np.array([0, 1, 1]), np.array([1.0, 0.0, 1.0]), 3)
    once = seen((3, {"a": [1, 0, 1]}))
    assert plain(twice.state_dict()) == plain(once.state_dict())
    assert len(twice) == 1


def test_the_state_is_restored_and_a_foreign_one_refused():
    unit, other = seen((1, {"a": [1, 0]}), (2, {"b": [0, 0]})), Visits(DECAY)
    other.load_state_dict(unit.state_dict())
    assert other.openness(["a", "b", "c"], 5).tolist() == unit.openness(["a", "b", "c"], 5).tolist()
    with pytest.raises(ValueError, match="Visits state"):
        other.load_state_dict({})
