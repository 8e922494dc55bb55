# SPDX-License-Identifier: Apache-2.0
"""What two rounds estimate, by enumerating every outcome of both on a small Markov policy.

The policy emits "b" (the end) or "a" and then a second token: completions b, ab, aa, of 1, 2, 2 tokens, with two
parameters per prompt. Rewards take three values: with two, any function of the rewards of a group points along the
prompt's gradient, and a direction could not go wrong.
"""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from duet_trl.methods.grouping import group_relative
from duet_trl.methods.pilot import Pilot, PilotOptions
from duet_trl.rollouts import Rollouts

from .simulator import make_prompts, rollouts, run_step, setting, table

KEYS = "qr"
LOGITS = {"q": (0.4, -0.9), "r": (-1.1, 0.6)}
REWARDS = np.array([0.0, 0.3, 1.0])
LENGTHS = np.array([1, 2, 2])


def policy(logits: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Probability of each completion, shape (3,), and the gradient of its log, shape (3, 2)."""
    a, b = (1 / (1 + np.exp(-logit)) for logit in logits)  # P(a), P(b | a)
    probability = np.array([1 - a, a * b, a * (1 - b)])
    return probability, np.array([[-a, 0.0], [1 - a, 1 - b], [1 - a, -b]])


POLICY = {key: policy(LOGITS[key]) for key in KEYS}
GRADIENT = {key: (POLICY[key][0] * REWARDS) @ POLICY[key][1] for key in KEYS}
"""Exact gradient of each prompt's expected reward, shape (2,)."""


def enumerated(
    method: Pilot, advantages: Callable[[Rollouts], np.ndarray] | None = None
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Expected sum of w A grad log pi of each prompt, shape (2,), and the expected rollouts of round 2, shape (2,).

    Args:
        method: Asked for both rounds and, without `advantages`, for the judgement of each outcome.
        advantages: Another rule for w A, shape (N,).
    """

    def outcomes(jobs: list) -> list[tuple[float, list[int]]]:
        keys = [KEYS[job.prompt] for job in jobs]
        every = product(range(3), repeat=len(jobs))
        return [(float(np.prod([POLICY[k][0][i] for k, i in zip(keys, o, strict=True)])), list(o)) for o in every]

    total, extra = {key: np.zeros(2) for key in KEYS}, np.zeros(2)
    prompts = make_prompts(KEYS)
    first = list(method.jobs(prompts, None))
    for probability, pilot in outcomes(first):
        second = list(method.jobs(prompts, rollouts(prompts, [first], REWARDS[pilot], LENGTHS[pilot])))
        extra += probability * np.bincount([job.prompt for job in second], minlength=2)
        for later, rest in outcomes(second):
            taken = pilot + rest
            done = rollouts(prompts, [first, second], REWARDS[taken], LENGTHS[taken])
            if advantages is None:
                judgement = method.judge(done)
                weighted = judgement.weight * judgement.advantages
            else:
                weighted = advantages(done)
            for row, completion in enumerate(taken):
                key = KEYS[done.prompt[row]]
                total[key] += probability * later * weighted[row] * POLICY[key][1][completion]
    return total, extra


def pilot(remembers: bool = True, num_generations: int = 6, **others) -> Pilot:
    """Budget of half of num_generations rollouts per prompt, 2 of them in the pilot of each."""
    method = Pilot(
        setting(num_prompts=2, num_generations=num_generations, scale_rewards="none", **others),
        PilotOptions(),
    )
    if remembers:
        run_step(method, make_prompts("q"), table(q=(0.3, 1.0, 0.0)), lambda key, number: 2)
    return method


@pytest.mark.parametrize("remembers", [True, False])
def test_a_prompt_counts_by_its_expected_rollouts(remembers: bool) -> None:
    """(k + E[n2]) grad J_q, to the last bit that float64 sums leave, for a second round that follows the outcomes."""
    method = pilot(remembers=remembers)
    total, extra = enumerated(method)
    assert extra.min() > 0.2 and abs(extra - np.round(extra)).max() > 0.01  # the counts are random
    for index, key in enumerate(KEYS):
        assert total[key] == pytest.approx((2 + extra[index]) * GRADIENT[key], abs=1e-12)


def direction_error(total: np.ndarray, gradient: np.ndarray) -> float:
    """Sine of the angle between two vectors of shape (2,)."""
    across = total[0] * gradient[1] - total[1] * gradient[0]
    return float(abs(across) / np.linalg.norm(total) / np.linalg.norm(gradient))


def others_of_both_rounds(done: Rollouts) -> np.ndarray:
    """Each rollout against all others of its prompt, of whichever round."""
    size = np.bincount(done.prompt)[done.prompt]
    total = np.bincount(done.prompt, weights=done.rewards)[done.prompt]
    return done.rewards - (total - done.rewards) / (size - 1)


def group_mean(done: Rollouts) -> np.ndarray:
    """Each rollout against the mean of its group: GRPO's advantage, without its scale."""
    return group_relative(done, setting(scale_rewards="none"))


@pytest.mark.parametrize(("naive", "most_aside"), [(others_of_both_rounds, 0.01), (group_mean, 0.03)])
def test_a_baseline_over_both_rounds_is_biased(naive: Callable[[Rollouts], np.ndarray], most_aside: float) -> None:
    """It has neither the coefficient nor the direction: round 2 exists because of the rollouts it is held against."""
    method = pilot()
    total, extra = enumerated(method, naive)
    aside = [direction_error(total[key], GRADIENT[key]) for key in KEYS]
    length = [
        np.linalg.norm(total[key]) / np.linalg.norm((2 + extra[index]) * GRADIENT[key])
        for index, key in enumerate(KEYS)
    ]
    assert max(aside) > most_aside and min(length) < 0.94
    right, _ = enumerated(method)
    assert max(direction_error(right[key], GRADIENT[key]) for key in KEYS) < 1e-12


def test_stopping_on_outcomes_is_what_biases() -> None:
    """With as many rollouts in round 2 whatever round 1 showed, the naive baseline points the right way."""
    method = pilot(num_generations=16, num_rollouts_max=3)  # a budget that always pays for the third
    total, extra = enumerated(method, others_of_both_rounds)
    assert extra.tolist() == pytest.approx([1.0, 1.0])
    for key in KEYS:
        assert total[key] == pytest.approx(3 * GRADIENT[key], abs=1e-12)
