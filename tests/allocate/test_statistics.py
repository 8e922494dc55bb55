# SPDX-License-Identifier: Apache-2.0
import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duet_trl.allocate.statistics import PromptStatistics

NAN = float("nan")


def observe(statistics: PromptStatistics, keys: list[str], rollouts: list[tuple[int, int, int, bool]]) -> None:
    """Observe rollouts given as (prompt, policy tokens, generated tokens, kept)."""
    group, lengths, tokens, kept = (np.array(column) for column in zip(*rollouts, strict=True))
    statistics.observe_lengths(keys, group, lengths, tokens, kept.astype(bool))


def test_sigma_is_the_running_mean_of_its_observations():
    statistics = PromptStatistics()
    for value in (4.0, 1.0, 1.0):
        statistics.observe_sigma(["a"], np.array([value]))
    view = statistics.lookup(["a", "unknown"])
    assert view.sigma[0] == 2.0 and np.isnan(view.sigma[1])
    assert view.num_observations.tolist() == [3, 0]


def test_visits_without_an_observation_wait_and_a_zero_is_an_observation():
    statistics = PromptStatistics()
    for value in (NAN, NAN):
        statistics.observe_sigma(["a", "b"], np.array([value, 0.0]))
    assert statistics.lookup(["a", "b"]).visits_waiting.tolist() == [2, 0]
    statistics.observe_sigma(["a"], np.array([3.0]))
    view = statistics.lookup(["a", "b"])
    assert view.visits_waiting.tolist() == [0, 0]
    assert view.num_observations.tolist() == [1, 2]
    assert view.sigma.tolist() == [3.0, 0.0]


def test_lengths_count_kept_rollouts_and_costs_count_all():
    statistics = PromptStatistics()
    observe(statistics, ["a", "b"], [(0, 100, 100, True), (0, 40, 50, False), (1, 30, 30, False)])
    view = statistics.lookup(["a", "b"])
    assert view.mean_length[0] == 100.0 and np.isnan(view.mean_length[1])
    assert view.mean_cost.tolist() == [75.0, 30.0]


def test_the_published_code_needs_two_kept_rollouts_for_a_length():
    paper, release = PromptStatistics(), PromptStatistics(min_kept_for_length=2)
    for statistics in (paper, release):
        observe(statistics, ["a", "b"], [(0, 10, 10, True), (0, 90, 90, False), (1, 20, 20, True), (1, 40, 40, True)])
    assert paper.lookup(["a", "b"]).mean_length.tolist() == [10.0, 30.0]
    assert np.isnan(release.lookup(["a"]).mean_length[0])
    assert release.lookup(["b"]).mean_length[0] == 30.0


def test_a_prompt_twice_in_one_batch_learns_from_both():
    statistics = PromptStatistics()
    statistics.observe_sigma(["a", "a", "b"], np.array([1.0, 3.0, NAN]))
    observe(statistics, ["a", "a"], [(0, 10, 10, True), (1, 30, 30, True)])
    view = statistics.lookup(["a", "a"])
    assert view.sigma.tolist() == [2.0, 2.0]
    assert view.num_observations.tolist() == [2, 2]
    assert view.mean_length.tolist() == [20.0, 20.0]
    assert len(statistics) == 2


def test_a_prompt_without_a_length_takes_the_mean_over_prompts_not_over_rollouts():
    statistics = PromptStatistics()
    expect = {"price_aborted": False, "default": 3072.0}
    assert statistics.expected_tokens(["new"], **expect).tolist() == [3072.0]
    # Prompt a: three rollouts of 100; prompt b: one of 500. Means 100 and 500, so a new prompt expects 300.
    observe(statistics, ["a", "b"], [(0, 100, 100, True)] * 3 + [(1, 500, 500, True)])
    assert statistics.expected_tokens(["new", "a"], **expect).tolist() == [300.0, 100.0]


def test_pricing_aborted_rollouts_uses_generated_tokens():
    statistics = PromptStatistics()
    observe(statistics, ["a"], [(0, 100, 100, True), (0, 400, 400, False)])
    assert statistics.expected_tokens(["a"], price_aborted=False, default=1.0).tolist() == [100.0]
    assert statistics.expected_tokens(["a"], price_aborted=True, default=1.0).tolist() == [250.0]


def test_the_pool_holds_prompts_with_enough_observations():
    statistics = PromptStatistics()
    statistics.observe_sigma(["a", "b", "c"], np.array([1.0, NAN, 5.0]))
    statistics.observe_sigma(["c"], np.array([7.0]))
    assert statistics.pool_sigma().tolist() == [1.0, 6.0]
    assert statistics.pool_sigma(min_observations=2).tolist() == [6.0]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcde"), st.one_of(st.just(NAN), st.floats(0.0, 1e4))), max_size=40))
def test_any_history_matches_a_dictionary_of_lists(history):
    statistics, seen = PromptStatistics(), {}
    for key, value in history:
        statistics.observe_sigma([key], np.array([value]))
        seen.setdefault(key, []).append(value)
    view = statistics.lookup(list("abcde"))
    for index, key in enumerate("abcde"):
        values = [value for value in seen.get(key, []) if not np.isnan(value)]
        assert view.num_observations[index] == len(values)
        assert np.isnan(view.sigma[index]) if not values else view.sigma[index] == pytest.approx(np.mean(values))


def test_a_restored_state_continues_bit_for_bit():
    rng = np.random.default_rng(0)
    keys = [f"prompt {index}" for index in range(50)]
    original = PromptStatistics()

    def step(*copies: PromptStatistics) -> None:
        batch = list(rng.choice(keys, 8))
        sigma = np.where(rng.random(8) < 0.3, NAN, rng.lognormal(3.0, 1.0, 8))
        rollouts = [(int(q), int(n), int(n) + 3, bool(k)) for q, n, k in rng.integers((0, 1, 0), (8, 900, 2), (30, 3))]
        for statistics in copies:
            statistics.observe_sigma(batch, sigma)
            observe(statistics, batch, rollouts)

    for _ in range(5):
        step(original)
    restored = PromptStatistics()
    restored.load_state_dict(json.loads(json.dumps(original.state_dict())))
    for _ in range(5):
        step(original, restored)
    assert restored.state_dict() == original.state_dict()


@pytest.mark.parametrize("damage", ["missing", "foreign", "short", "repeated"])
def test_a_damaged_state_is_an_error(damage):
    statistics = PromptStatistics()
    statistics.observe_sigma(["a", "b"], np.array([1.0, 2.0]))
    state = statistics.state_dict()
    if damage == "missing":
        del state["cost_sum"]
    elif damage == "foreign":
        state["other"] = 1
    elif damage == "short":
        state["sigma_sum"] = [1.0]
    else:
        state["keys"] = ["a", "a"]
    with pytest.raises(ValueError, match="state"):
        PromptStatistics().load_state_dict(state)


@pytest.mark.parametrize("sigma", [[-1.0], [np.inf], [1.0, 2.0]])
def test_impossible_sigmas_are_errors(sigma):
    with pytest.raises(ValueError, match="sigma_obs"):
        PromptStatistics().observe_sigma(["a"], np.array(sigma))


@pytest.mark.parametrize(("group", "lengths"), [([0, 2], [5, 5]), ([0, -1], [5, 5]), ([0, 1], [5])])
def test_rollouts_outside_the_step_are_errors(group, lengths):
    with pytest.raises(ValueError, match="group"):
        PromptStatistics().observe_lengths(
            ["a", "b"], np.array(group), np.array(lengths), np.array([5, 5]), np.ones(2)
        )


def test_a_pool_of_a_million_prompts_stays_fast():
    statistics = PromptStatistics()
    keys = [str(index) for index in range(1_000_000)]
    statistics.observe_sigma(keys, np.ones(len(keys)))
    batch = keys[:: len(keys) // 128]
    start = time.perf_counter()
    for _ in range(10):
        statistics.observe_sigma(batch, np.ones(len(batch)))
        statistics.lookup(batch)
    assert time.perf_counter() - start < 1.0  # 100 ms a step; measured: under 1 ms
