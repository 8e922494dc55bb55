# SPDX-License-Identifier: Apache-2.0
"""GRESO: what is skipped and how often, the refill, the filter with its adaptive batches, the two probabilities."""

import numpy as np
import pytest

from duet_trl.methods.dapo import DapoOptions
from duet_trl.methods.greso import Greso

from .simulator import counts, make_prompts, plan, run_step, setting, table

NAN = float("nan")
MANY = [f"p{number}" for number in range(4000)]


def trained(streaks: dict[str, int], easy: float = 0.5, hard: float = 0.5, **options) -> Greso:
    """A method that remembers streaks: positive for visits in a row that were easy, negative for hard ones."""
    method = Greso(setting(num_prompts=len(MANY), num_generations=2), DapoOptions(**options))
    method.load_state_dict({"visits_in_a_row": streaks, "probability": [easy, hard], "reward_range": [0.0, 1.0]})
    return method


@pytest.mark.parametrize(
    ("streak", "taken"),
    # p_easy = 0.6, p_hard = 0.3; no prompt is taken with less than 0.01, and none without a streak is skipped.
    [(0, 1.0), (1, 0.6), (3, 0.6**3), (-1, 0.3), (-2, 0.3**2), (-9, 0.01)],
)
def test_prompts_are_taken_with_the_probability_of_their_streak(streak: int, taken: float) -> None:
    method = trained({key: streak for key in MANY if streak}, easy=0.6, hard=0.3)
    jobs = method.jobs(make_prompts(MANY), None)
    spread = (taken * (1 - taken) / len(MANY)) ** 0.5
    assert len(jobs) / 2 / len(MANY) == pytest.approx(taken, abs=4 * spread)


def test_skipped_prompts_are_replaced_by_others_that_pass_the_same_test() -> None:
    """Solved prompts have p = 0.01 at most: the drawn ones and the first of the pool go, the new ones stay."""
    solved = [f"s{number}" for number in range(40)]
    method = trained(dict.fromkeys(solved, 30))
    prompts = make_prompts(solved[:8], [*solved[8:], *(f"n{number}" for number in range(20))], epoch=1)
    jobs = method.jobs(prompts, None)
    taken = {prompts[job.prompt].key for job in jobs}
    assert len(jobs) == 2 * 8 and len(taken) == 8
    assert sum(key.startswith("n") for key in taken) >= 6  # each of 40 solved ones has a chance of 1 in 100
    assert len(prompts) >= 40  # all the solved ones were asked about first

    done, _ = run_step(method, make_prompts(solved[:8], [*solved[8:], *(f"n{i}" for i in range(20))]), table())
    assert method.metrics()["skipped_prompts"] == counts(done).count(0) >= 30
    assert method.metrics()["added_prompts"] >= 6


def test_skipping_ends_with_the_data_set() -> None:
    """Two of the three are skipped and nothing replaces them."""
    method = trained({"a": 30, "b": -30})
    done, judgement = run_step(method, make_prompts("abc"), table())
    assert counts(done) == [0, 0, 2] and judgement.in_gradient.all()
    assert method.metrics()["unfilled_prompts"] == 2.0


def test_a_step_whose_prompts_are_all_skipped_takes_them_after_all() -> None:
    method = trained({"a": 30, "b": -30})
    assert plan(method.jobs(make_prompts("ab"), None)) == [0, 0, 1, 1]


def visit(method: Greso, epoch: int = 0, step: int = 1, **rewards) -> None:
    run_step(method, make_prompts(list(rewards), step=step, epoch=epoch), table(**rewards))


def streaks(method: Greso, keys: str) -> list[int]:
    """What its state remembers about some prompts."""
    return [method.state_dict()["visits_in_a_row"].get(key, 0) for key in keys.split()]


def test_streaks_count_visits_in_a_row_of_one_kind() -> None:
    method = Greso(setting(), DapoOptions(max_batches=1))
    method.probability = np.ones(2)  # none is skipped
    visit(method, easy=(1,), hard=(0,), inside=(0.5,), mixed=(0, 1), silent=(NAN,))
    kinds = "easy hard inside mixed silent"
    assert streaks(method, kinds) == [1, -1, 0, 0, 0]
    visit(method, easy=(1,), hard=(0,), inside=(1,), mixed=(0,))
    assert streaks(method, kinds) == [2, -2, 1, -1, 0]
    visit(method, easy=(0,), hard=(0, 1), inside=(NAN,))
    assert streaks(method, kinds) == [-1, 0, 0, -1, 0]


def test_one_reward_so_far_is_neither_top_nor_bottom() -> None:
    method = Greso(setting(), DapoOptions(max_batches=1))
    visit(method, a=(0,), b=(0,))
    assert streaks(method, "a b") == [0, 0]
    visit(method, a=(0,), c=(1, 0))
    assert streaks(method, "a b c") == [-1, 0, 0]


def test_probabilities_move_toward_their_targets_from_the_second_epoch_on() -> None:
    """Targets 0.25 / 3 and 0.25 * 2 / 3: one easy of five is above the first, none hard below the second."""
    method = Greso(setting(num_prompts=5), DapoOptions(max_batches=1))
    rewards = {"a": (1,), "b": (0, 1), "c": (0, 1), "d": (0, 1), "e": (0, 1)}
    visit(method, **rewards)
    assert tuple(method.probability) == (0.5, 0.5)
    visit(method, epoch=1, **{**rewards, "a": (1, 0), "b": (1,)})  # b was never easy, so it is never skipped
    assert tuple(method.probability) == pytest.approx((0.49, 0.51))
    assert method.metrics()["p_easy"] == pytest.approx(0.49) and method.metrics()["easy_prompts"] == 1.0
    for _ in range(60):
        method.visits_in_a_row.clear()  # none is skipped
        visit(method, epoch=1, **{**rewards, "a": (1,)})
    assert tuple(method.probability) == pytest.approx((0.05, 0.95))


def test_degenerate_groups_leave_gradient_and_divisor_and_a_smaller_batch_replaces_them() -> None:
    """8 prompts, 2 degenerate: 1.25 * 2 / (6 / 8) = 3.3, so 3 more are drawn, and none after them."""
    rewards = table(a=(1,), b=(0,), n0=(1,), n1=(1,))
    method = Greso(setting(num_prompts=8), DapoOptions())
    done, judgement = run_step(method, make_prompts("abcdefgh", [f"n{i}" for i in range(20)]), rewards)
    assert len(done.prompts) == 11 and done.round.max() == 1
    assert sorted(set(done.prompt[judgement.in_gradient])) == [2, 3, 4, 5, 6, 7, 10]
    assert (judgement.in_divisor == judgement.in_gradient).all()
    found = method.metrics()
    assert (found["degenerate_prompts"], found["unfilled_prompts"], found["resampled_batches"]) == (4.0, 1.0, 1.0)
    assert (found["added_prompts"], found["skipped_prompts"]) == (3.0, 0.0)


def test_a_batch_is_at_least_a_sixth() -> None:
    """1.25 * 1 / (11 / 12) = 1.4 prompts would do; a sixth of 12 is 2."""
    method = Greso(setting(num_prompts=12), DapoOptions())
    done, _ = run_step(method, make_prompts("abcdefghijkl", [f"n{i}" for i in range(20)]), table(a=(1,)))
    assert len(done.prompts) == 14


def test_full_batches_follow_while_the_remainder_needs_more_than_one() -> None:
    """1 of 4, then 2 of 8 differ: 1.25 * 3 * 4 = 15 and 1.25 * 2 * 4 = 10 prompts are needed; 3 of 12: 5; 4 end it."""
    same = dict.fromkeys(["b", "c", "d", "n1", "n2", "n3", "n5", "n6", "n7"], (1,))
    method = Greso(setting(), DapoOptions())
    done, judgement = run_step(method, make_prompts("abcd", [f"n{i}" for i in range(40)]), table(**same))
    assert counts(done) == [4] * 16 and done.round.max() == 3
    assert sorted(set(done.prompt[judgement.in_gradient])) == [0, 4, 8, 12]


def test_ceilings_end_a_step_in_which_nothing_differs() -> None:
    same = dict.fromkeys(["a", "b", *(f"n{i}" for i in range(40))], (1,))
    pool = [f"n{i}" for i in range(40)]
    for others, options, num_rollouts in (
        ({}, {"max_batches": 3}, 24),
        ({"max_rollouts": 31}, {}, 28),
        ({}, {"max_batches": 40}, 4 * 42),  # all there are
    ):
        method = Greso(setting(num_prompts=2, **others), DapoOptions(**options))
        done, judgement = run_step(method, make_prompts("ab", pool), table(**same))
        assert len(done) == num_rollouts
        assert not judgement.in_gradient.any() and method.metrics()["unfilled_prompts"] == 2.0


def test_coins_follow_seed_and_step() -> None:
    method = trained(dict.fromkeys(MANY, 1))
    first = plan(method.jobs(make_prompts(MANY, step=1), None))
    assert first == plan(method.jobs(make_prompts(MANY, step=1), None))
    assert first != plan(method.jobs(make_prompts(MANY, step=2), None))
