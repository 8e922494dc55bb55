# SPDX-License-Identifier: Apache-2.0
"""The pilot and what follows it; what the two rounds estimate is enumerated in test_pilot_unbiased.py."""

import numpy as np
import pytest

from duet_trl.methods.pilot import Pilot, PilotOptions
from duet_trl.update.advantages import EPSILON

from .simulator import counts, make_prompts, run_step, setting, table

NAN = float("nan")


def rounds(done) -> tuple[list[int], list[int]]:
    """Rollouts of each prompt in round 1 and in round 2."""
    return tuple(np.bincount(done.prompt[done.round == r], minlength=len(done.prompts)).tolist() for r in (0, 1))


def test_the_second_round_goes_where_the_pilot_is_open() -> None:
    """Budget 0.5 x 8 x 4 = 16 rollouts, 8 for the pilot. a is undecided: x = E p(1 - p) is 3/2 * 3/2 / (3 * 4) = .1875
    after 1 of 2, and 1/2 * 5/2 / (3 * 4) = 0.104 after 2 of 2 or 0 of 2.

    Gains x (sqrt(m + 1) - sqrt(m)) for m = 2, 3, ...: a .0596 .0502 .0443 .0400 .0369 .0343, the others .0331 .0279.
    So a gets 6 more, at a cost of 10 each, then b, then c.
    """
    method = Pilot(setting(num_generations=8), PilotOptions())
    done, judgement = run_step(method, make_prompts("abcd"), table(a=(0, 1), b=(1,), c=(0,), d=(0,)))
    assert rounds(done) == ([2, 2, 2, 2], [6, 1, 1, 0])
    assert judgement.in_gradient.all() and (judgement.weight == 1).all()
    assert method.metrics() == {
        "budget_tokens": 160.0,
        "planned_tokens": 160.0,
        "pilot_rollouts": 8.0,
        "second_rollouts": 8.0,
        "second_prompts": 3.0,
        "mixed_prompts": 1.0,
    }


def test_gains_are_per_token() -> None:
    """Two equally open prompts, one four times as long: the first rollouts go to the short one."""
    method = Pilot(setting(num_prompts=2, num_generations=8), PilotOptions())
    long = {"a": 40, "b": 10}
    run_step(method, make_prompts("ab"), table(), lambda key, number: long[key])
    done, _ = run_step(method, make_prompts("ab"), table(), lambda key, number: long[key])
    # B = 4 (40 + 10) = 200, the pilot takes 100. A rollout of b gains more per token than a's third up to some 39.
    assert rounds(done) == ([2, 2], [0, 10])


def test_a_pilot_that_ran_long_leaves_less() -> None:
    method = Pilot(setting(num_prompts=2, num_generations=8), PilotOptions())
    run_step(method, make_prompts("ab"), table())
    done, _ = run_step(method, make_prompts("ab"), table(), lambda key, number: 16)  # 64 of 80 tokens, not 40
    assert rounds(done) == ([2, 2], [1, 0])
    done, _ = run_step(method, make_prompts("ab"), table(), lambda key, number: 60)
    assert rounds(done) == ([2, 2], [0, 0]) and done.round.max() == 0


def test_history_opens_and_closes_prompts() -> None:
    """b was solved in earlier visits, a was not: two right answers now close b and leave a open."""
    method = Pilot(setting(num_prompts=2, num_generations=8), PilotOptions())
    run_step(method, make_prompts("ab"), table(b=(1,)))
    done, _ = run_step(method, make_prompts("ab"), table(a=(1,), b=(1,)))
    first, second = rounds(done)
    assert second[0] > second[1]


def test_while_all_rewards_are_the_same_the_rest_is_spread_evenly() -> None:
    for value in (0.0, 1.0, NAN):
        done, judgement = run_step(
            Pilot(setting(num_generations=8), PilotOptions()),
            make_prompts("abcd"),
            table(**dict.fromkeys("abcd", (value,))),
        )
        assert counts(done) == [4, 4, 4, 4]
        assert not judgement.advantages.any()


def test_graded_rewards_are_shares_of_the_runs_range() -> None:
    """Rewards 2 and 6 to the run are 0 and 1: the same plan as for those."""
    plans = []
    for low, high in ((0, 1), (2, 6)):
        method = Pilot(setting(num_generations=8), PilotOptions())
        graded = table(a=(low, high), b=(high,), c=(low,), d=(low + 0.25 * (high - low),))
        plans.append(counts(run_step(method, make_prompts("abcd"), graded)[0]))
    assert plans[0] == plans[1] and plans[0][3] > plans[0][2]


def test_advantages_by_hand() -> None:
    """Pilot 1, 0, then 1, 1. Round 1: each against the other. Round 2: against 1, 0 and the other, mean 2/3."""
    method = Pilot(setting(num_prompts=1, num_generations=8, scale_rewards="none"), PilotOptions())
    for _ in range(2):  # what earlier visits earned is in no baseline
        _, judgement = run_step(method, make_prompts("a"), table(a=(1, 0, 1, 1)))
        assert judgement.advantages.tolist() == pytest.approx([1, -1, 1 / 3, 1 / 3])


def test_group_scale_is_the_spread_of_the_own_and_of_earlier_rounds() -> None:
    method = Pilot(setting(num_prompts=1, num_generations=8), PilotOptions())
    _, judgement = run_step(method, make_prompts("a"), table(a=(1, 0, 1, 1)))
    spread = [np.std([1, 0]) + EPSILON] * 2 + [np.std([1, 0, 1, 1]) + EPSILON] * 2
    assert judgement.advantages.tolist() == pytest.approx(np.array([1, -1, 1 / 3, 1 / 3]) / spread)


def test_scale_of_the_batch_is_that_of_the_pilot() -> None:
    raw, scaled = (
        run_step(
            Pilot(setting(num_prompts=2, num_generations=8, scale_rewards=scale), PilotOptions()),
            make_prompts("ab"),
            table(a=(1, 0, 1, 1), b=(1,)),
        )[1].advantages
        for scale in ("none", "batch")
    )
    assert scaled == pytest.approx(raw / (np.std([1, 0, 1, 1], ddof=1) + EPSILON))


def test_group_scale_of_the_pilot_ignores_the_second_round() -> None:
    found = []
    for later in (0, 1):
        method = Pilot(setting(num_prompts=1, num_generations=8), PilotOptions())
        _, judgement = run_step(method, make_prompts("a"), table(a=(1, 0, later, later)))
        found.append(judgement.advantages)
    assert found[0][:2].tolist() == found[1][:2].tolist()
    assert found[0][2:].tolist() != found[1][2:].tolist()


def test_rollouts_without_a_reward_teach_nothing_and_are_in_no_baseline() -> None:
    method = Pilot(setting(num_prompts=1, num_generations=8, scale_rewards="none"), PilotOptions(pilot_rollouts=3))
    _, judgement = run_step(method, make_prompts("a"), table(a=(1, NAN, 0, NAN)))
    assert judgement.advantages.tolist() == [1.0, 0.0, -1.0, 0.0]
