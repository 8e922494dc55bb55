# SPDX-License-Identifier: Apache-2.0
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.allocate.statistics import PromptStatistics

NAN = float("nan")


def observe(statistics: PromptStatistics, keys: list[str], rollouts: list[tuple[int, int, bool]]) -> None:
    """Observe rollouts given as (prompt, tokens, kept)."""
    group, lengths, kept = (np.array(column) for column in zip(*rollouts, strict=True))
    statistics.observe_lengths(keys, group, lengths, kept.astype(bool))


def test_lengths_count_kept_rollouts_and_costs_count_all():
    statistics = PromptStatistics()
    observe(statistics, ["a", "b"], [(0, 100, True), (0, 50, False), (1, 30, True)])
    for price_aborted, expected in ((False, [100.0, 30.0]), (True, [75.0, 30.0])):
        found = statistics.expected_tokens(["a", "b"], price_aborted=price_aborted, default=9.0)
        assert found.tolist() == expected


def test_a_prompt_twice_in_one_batch_learns_from_both():
    statistics = PromptStatistics()
    statistics.observe_sigma(["a", "a", "b"], np.array([1.0, 3.0, NAN]))
    observe(statistics, ["a", "a"], [(0, 10, True), (1, 30, True)])
    mean, observations = statistics.sigma(["a", "a"])
    assert (mean.tolist(), observations.tolist()) == ([2.0, 2.0], [2, 2])
    assert statistics.expected_tokens(["a", "a"], price_aborted=False, default=9.0).tolist() == [20.0, 20.0]
    assert len(statistics) == 2


def test_a_prompt_without_a_length_takes_the_mean_over_prompts_not_over_rollouts():
    statistics = PromptStatistics()
    expect = {"price_aborted": False, "default": 3072.0}
    assert statistics.expected_tokens(["new"], **expect).tolist() == [3072.0]
    # Prompt a: three rollouts of 100; prompt b: one of 500. Means 100 and 500, so a new prompt expects 300.
    observe(statistics, ["a", "b"], [(0, 100, True)] * 3 + [(1, 500, True)])
    assert statistics.expected_tokens(["new", "a"], **expect).tolist() == [300.0, 100.0]


def test_the_pool_holds_prompts_with_an_observation():
    statistics = PromptStatistics()
    statistics.observe_sigma(["a", "b", "c"], np.array([1.0, NAN, 5.0]))
    statistics.observe_sigma(["c"], np.array([7.0]))
    assert statistics.pool_sigma().tolist() == [1.0, 6.0]


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.one_of(st.just(NAN), st.floats(0.0, 1e4))), max_size=40))
def test_any_history_matches_a_dictionary_of_lists(history):
    statistics, seen = PromptStatistics(), {}
    for key, value in history:
        statistics.observe_sigma([key], np.array([value]))
        seen.setdefault(key, []).append(value)
    mean, observations = statistics.sigma(list("abcde"))
    for index, key in enumerate("abcde"):
        values = [value for value in seen.get(key, []) if not np.isnan(value)]
        assert observations[index] == len(values)
        assert np.isnan(mean[index]) if not values else mean[index] == pytest.approx(np.mean(values))


# ---- Rewards ----------------------------------------------------------------------------------------------------


def earn(statistics: PromptStatistics, keys: list[str], rollouts: list[tuple[int, float]], use=None) -> None:
    """Observe rewards given as (prompt, reward)."""
    group, rewards = (np.array(column) for column in zip(*rollouts, strict=True))
    use = np.ones(len(group), dtype=bool) if use is None else np.array(use)
    statistics.observe_rewards(keys, group, rewards, use)


def test_a_success_is_measured_between_the_lowest_and_the_highest_reward_of_the_run():
    statistics = PromptStatistics()
    assert statistics.success_share(np.array([NAN, 3.0])).tolist() == [0.5, 0.5]
    earn(statistics, ["a"], [(0, -1.0)])
    assert statistics.success_share(np.array([-1.0, 3.0])).tolist() == [0.5, 0.5]
    earn(statistics, ["b"], [(0, 3.0), (0, 100.0)], use=[True, False])
    assert statistics.success_share(np.array([-1.0, 0.0, 3.0, 9.0])).tolist() == [0.0, 0.25, 1.0, 1.0]


@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-4, 4), st.booleans()), max_size=6), max_size=8))
def test_any_history_of_rewards_matches_weights_by_age(visits):
    """A visit with a reward ages a prompt once, however often it stands in the batch; others do not."""
    statistics, seen = PromptStatistics(), {}
    for visit in visits:
        if visit:
            keys, rewards, use = zip(*visit, strict=True)
            earn(statistics, keys, list(enumerate(rewards)), use)
        for key in {key for key, _, usable in visit if usable}:
            old = [(weight * 0.7, reward) for weight, reward in seen.get(key, [])]
            seen[key] = old + [(1.0, reward) for name, reward, usable in visit if name == key and usable]
    history = statistics.reward_history(list("abcd"))
    past = {key: np.array(rewards).T for key, rewards in seen.items()}
    means = {key: np.average(rewards, weights=weights) for key, (weights, rewards) in past.items()}
    for index, key in enumerate("abcd"):
        assert history.count[index] == pytest.approx(0.7 * sum(weight for weight, _ in seen.get(key, [])))
        if key in means:
            assert history.mean[index] == pytest.approx(means[key], abs=1e-9)
        else:
            assert np.isnan(history.mean[index])


def test_a_reward_that_nobody_earns_again_leaves_the_range_while_others_differ():
    statistics = PromptStatistics()
    earn(statistics, ["a"], [(0, -3.0)])
    for _ in range(20):
        earn(statistics, ["a", "b"], [(0, 0.0), (1, 1.0)])
    assert statistics.reward_range == [pytest.approx(-3.0 * 0.9**20), 1.0]
    for _ in range(20):  # a batch of solved prompts says nothing of what a failure earns
        earn(statistics, ["a", "b"], [(0, 1.0), (1, 1.0)])
    assert statistics.reward_range == [pytest.approx(-3.0 * 0.9**20), 1.0]


def test_a_pool_of_a_million_prompts_stays_fast():
    statistics = PromptStatistics()
    keys = [str(index) for index in range(1_000_000)]
    statistics.observe_sigma(keys, np.ones(len(keys)))
    batch = keys[:: len(keys) // 128]
    start = time.perf_counter()
    for _ in range(10):
        statistics.observe_sigma(batch, np.ones(len(batch)))
        statistics.sigma(batch)
    assert time.perf_counter() - start < 1.0  # 100 ms a step; measured: under 1 ms
    group, rewards = np.arange(len(keys)), np.ones(len(keys))
    statistics.observe_rewards(keys, group, rewards, np.ones(len(keys), dtype=bool))
    start = time.perf_counter()
    for _ in range(5):
        statistics.reward_history(batch)
    assert time.perf_counter() - start < 1.0  # measured: under 1 ms each
