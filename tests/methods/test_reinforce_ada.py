# SPDX-License-Identifier: Apache-2.0
"""Reinforce-Ada's exits against hand-worked histories, who is trained, and what its rounds estimate."""

from itertools import product

import numpy as np
import pytest

from duet_trl.methods.reinforce_ada import ReinforceAda, ReinforceAdaOptions, balanced_subset
from duet_trl.update.advantages import EPSILON

from .simulator import counts, make_prompts, rollouts, run_step, setting, table

NAN = float("nan")
HISTORIES = {
    "even": (0, 1, 0, 1),  # 2 and 2 after round 1
    "late": (0, 0, 0, 1, 0, 0, 1, 0),  # the second positive comes in round 2
    "easy": (1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1),  # the second negative comes in round 3
    "hard": (0,),
}


def reinforce_ada(max_rollouts=10_000, scale_rewards="none", num_prompts=4, seed=0, **options) -> ReinforceAda:
    """Rounds of 4 rollouts; 4 of a prompt are trained."""
    run = setting(num_prompts, 4, max_rollouts, scale_rewards=scale_rewards, seed=seed)
    return ReinforceAda(run, ReinforceAdaOptions(**{"num_kept": 4, **options}))


def kept_rewards(done, judgement) -> list[list[float]]:
    """Rewards of the trained rollouts of each prompt, ascending."""
    return [sorted(done.rewards[(done.prompt == q) & judgement.in_gradient]) for q in range(len(done.prompts))]


def test_a_balanced_prompt_leaves_with_half_of_each_kind() -> None:
    method = reinforce_ada()
    done, judgement = run_step(method, make_prompts(HISTORIES), table(**HISTORIES))
    assert counts(done) == [4, 8, 12, 16]
    assert kept_rewards(done, judgement) == [[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0]]
    assert method.metrics() == {"num_kept": 16.0, "kept_tokens": 160.0, "further_rounds": 3.0, "open_prompts": 1.0}


def test_a_positive_focused_prompt_leaves_with_its_first_success() -> None:
    histories = HISTORIES | {"easy": (1,)}
    method = reinforce_ada(exit="positive_focused")
    done, judgement = run_step(method, make_prompts(histories), table(**histories))
    assert counts(done) == [4, 4, 4, 16]
    assert kept_rewards(done, judgement) == [[0, 0, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]]


@pytest.mark.parametrize("scale", ["none", "group"])
def test_the_baseline_is_the_mean_of_all_rollouts_not_of_those_that_are_kept(scale) -> None:
    """late: 2 of 8 are positive, so A = 3/4 and -1/4; hard: 0. The std of 2 of 8 is sqrt(8/7 x 3/16)."""
    histories = {"late": HISTORIES["late"], "hard": (0,)}
    done, judgement = run_step(
        reinforce_ada(scale_rewards=scale, num_prompts=2), make_prompts(histories), table(**histories)
    )
    late, kept = done.prompt == 0, judgement.in_gradient
    divisor = 1.0 if scale == "none" else np.sqrt(3 / 14) + EPSILON
    np.testing.assert_allclose(
        judgement.advantages[late & kept], np.where(done.rewards[late & kept] > 0, 0.75, -0.25) / divisor, rtol=1e-6
    )
    assert not judgement.advantages[~late].any() and not judgement.advantages[~kept].any()
    assert (judgement.in_divisor == kept).all()


def test_a_rollout_without_a_reward_is_neither_positive_nor_negative_and_never_kept() -> None:
    method = reinforce_ada(num_prompts=2)
    done, judgement = run_step(method, make_prompts("ab"), table(a=(0, NAN, 1, 1, 1, 0), b=(NAN,)))
    assert counts(done) == [8, 16]  # a: one negative in round 1, the second in round 2
    assert kept_rewards(done, judgement) == [[0, 0, 1, 1], []]


def test_positive_is_above_the_middle_of_the_runs_extremes() -> None:
    graded = table(a=(2, 2, 5, 5), b=(2, 2, 6, 6), c=(3, 3, 3, 3))
    done, _ = run_step(reinforce_ada(num_prompts=3), make_prompts("abc"), graded)
    assert counts(done) == [4, 4, 16]  # middle: 4
    method = reinforce_ada(num_prompts=2, exit="positive_focused")
    done, _ = run_step(method, make_prompts("ab"), table(a=(1,), b=(1,)))
    assert counts(done) == [16, 16]  # nothing says that 1 is a success
    run_step(method, make_prompts("ab"), table(a=(0,), b=(0,)))
    done, _ = run_step(method, make_prompts("ab"), table(a=(1,), b=(1,)))
    assert counts(done) == [4, 4]  # the run has seen 0


def test_a_round_without_room_goes_to_the_first_prompts() -> None:
    done, _ = run_step(reinforce_ada(max_rollouts=26), make_prompts("abcd"), table(**dict.fromkeys("abcd", (0, 0, 1))))
    assert counts(done) == [8, 8, 4, 4]


def test_balanced_subset_against_every_group_up_to_six() -> None:
    for count in range(7):
        for flags in product((False, True), repeat=count):
            positive = np.array(flags, dtype=bool)
            for size in (2, 3, 4):
                chosen = balanced_subset(positive, size, np.random.default_rng(0))
                yes, no = int(positive.sum()), int((~positive).sum())
                possible = [k for k in range(yes + 1) if 0 <= min(size, count) - k <= no]
                assert len(chosen) == len(set(chosen)) == min(size, count)
                assert positive[chosen].sum() == min(possible, key=lambda k: abs(k - size // 2))


def test_stopping_on_outcomes_biases_the_mean() -> None:
    """One prompt with success rate p = 0.3, rounds of 2 that end at the first success, by enumeration.

    With p = sigmoid(theta) the gradient of log pi is R - p, and grad J = p (1 - p). The expected sum of A grad log pi
    over the rollouts, all of them trained, is not the expected number of rollouts times grad J; the expected share of
    successes is above p.
    """
    p, found = 0.3, np.zeros(3)
    method = ReinforceAda(
        setting(1, 2, scale_rewards="none"), ReinforceAdaOptions(exit="positive_focused", num_kept=8)
    )
    run_step(method, make_prompts("a"), table(a=(0, 1)))  # 0 and 1 are the rewards there are
    prompts = make_prompts("b", step=2)

    def follow(rounds: list[list], rewards: tuple[int, ...]) -> None:
        more = method.jobs(prompts, rollouts(prompts, rounds, rewards) if rounds else None)
        if more:
            for outcome in product((0, 1), repeat=len(more)):
                follow([*rounds, more], rewards + outcome)
            return
        values = np.array(rewards, dtype=float)
        judgement = method.judge(rollouts(prompts, rounds, values))
        assert judgement.in_gradient.all()
        gradient = float(judgement.advantages @ (values - p))
        found[:] += np.prod(np.where(values > 0, p, 1 - p)) * np.array([gradient, len(values), values.mean()])

    follow([], ())
    total, number, share = found
    # Two a round, up to four rounds, each of which comes if all before failed.
    assert number == pytest.approx(2 * (1 + 0.49 + 0.49**2 + 0.49**3), rel=1e-12)
    assert share > p + 0.01 and abs(total / (number * p * (1 - p)) - 1) > 0.05
