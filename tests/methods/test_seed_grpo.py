# SPDX-License-Identifier: Apache-2.0
"""SEED-GRPO: semantic entropy and what it does to the advantages, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from duet_trl.methods.seed_grpo import SeedGRPO, SeedGRPOOptions, mean_logps, semantic_entropy
from duet_trl.rollouts import Query

from .simulator import make_prompts, rollouts, run_step, setting, table

LN2, LN4 = np.log(2.0), np.log(4.0)


def entropy(classes: list[int], logps: list[float] | None = None) -> float:
    count = len(classes)
    logps = [0.0] * count if logps is None else logps
    return float(semantic_entropy(np.array(classes), np.zeros(count, dtype=int), np.array(logps), 1)[0])


def test_entropy_by_hand() -> None:
    assert entropy([0, 0, 0, 0]) == 0.0
    assert entropy([0]) == entropy([-1]) == 0.0
    assert entropy([0, 1, 2, 3]) == pytest.approx(LN4)
    assert entropy([0, 0, 1, 1]) == pytest.approx(LN2)
    assert entropy([0, -1, -1, 0]) == pytest.approx(0.5 * LN2 + 0.5 * LN4)  # no answer is a class of its own, twice
    assert entropy([0, 1], [0.0, -np.log(3.0)]) == pytest.approx(0.75 * np.log(4 / 3) + 0.25 * LN4)  # weights 3 : 1
    assert entropy([0, 1], [0.0, -5000.0]) == 0.0


def test_advantages_at_half_of_the_largest_entropy() -> None:
    """Two classes of two among four rollouts: x = ln 2 / ln 4 = 1/2, alpha = 0.4: 1 / 1.2."""
    method = SeedGRPO(setting(num_prompts=1, scale_rewards="none"), SeedGRPOOptions(alpha=0.4))
    _, judgement = run_step(method, make_prompts("a"), table(a=(0, 1)))
    np.testing.assert_allclose(judgement.advantages, np.array([-0.5, 0.5, -0.5, 0.5]) / 1.2)
    assert judgement.in_gradient.all()
    assert method.metrics() == pytest.approx({"semantic_entropy": LN2, "advantage_factor": 1 / 1.2})


def test_rao_asks_about_rollouts_only_where_the_engine_has_no_log_probs() -> None:
    prompts, method = make_prompts("ab"), SeedGRPO(setting(num_prompts=2), SeedGRPOOptions())
    done = rollouts(prompts, [method.jobs(prompts, None)], [0, 1] * 4, [3] * 8)
    assert method.jobs(prompts, done) == []
    without = replace(done, tokens=lambda rows: [([int(row)] * 3, None) for row in rows])
    queries = method.jobs(prompts, without)
    assert queries == [Query(row // 4, (row,) * 3) for row in range(8)]
    assert method.jobs(prompts, replace(without, answers=tuple(np.zeros(3) for _ in queries))) == []


def test_answers_and_sampling_log_probs_weigh_alike_and_longer_is_not_less_likely() -> None:
    """Mean log-probs 0 and -ln 3 of rollouts of 1 and 5 tokens: weights 3 : 1 for each such pair."""
    prompts = make_prompts("a")
    method = SeedGRPO(setting(num_prompts=1, scale_rewards="none"), SeedGRPOOptions(alpha=1.0))
    logprobs = [[0.0], [-np.log(3.0)] * 5] * 2
    done = rollouts(prompts, [method.jobs(prompts, None)], [0, 1] * 2, [1, 5] * 2)
    sampled = replace(done, tokens=lambda rows: [([0], logprobs[row]) for row in rows])
    asked = replace(
        done, tokens=lambda rows: [([0], None) for _ in rows], answers=tuple(np.array(one) for one in logprobs)
    )
    expected = 1 / (1 + (0.75 * np.log(4 / 3) + 0.25 * LN4) / LN4)
    for each in (sampled, asked):
        np.testing.assert_allclose(method.judge(each).advantages, expected * np.array([-0.5, 0.5, -0.5, 0.5]))


def test_a_log_prob_that_is_not_known_is_left_out() -> None:
    """TRL makes None of a NaN of vLLM's. A rollout of such tokens alone weighs as the others do on average."""
    np.testing.assert_array_equal(mean_logps([[-1.0, None, -3.0], [None], [-4.0]]), [-2.0, -3.0, -4.0])
    np.testing.assert_array_equal(mean_logps([[None, None], [None]]), [0.0, 0.0])
    prompts, method = make_prompts("a"), SeedGRPO(setting(num_prompts=1), SeedGRPOOptions())
    done = rollouts(prompts, [method.jobs(prompts, None)], [0, 1] * 2, [3] * 4)
    unknown = replace(done, tokens=lambda rows: [([7] * 3, [-1.0, None, -1.0]) for _ in rows])
    known = replace(done, tokens=lambda rows: [([7] * 3, [-1.0] * 3) for _ in rows])
    np.testing.assert_array_equal(method.judge(unknown).advantages, method.judge(known).advantages)
