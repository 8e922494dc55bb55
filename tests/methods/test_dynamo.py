# SPDX-License-Identifier: Apache-2.0
"""DynaMO: priorities and counts by hand, the token factor against a literal computation, its edges."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.field_types import Options
from duet_trl.methods.dynamo import BOOST_MAX, DECAY_AT, DECAY_MIN, Dynamo, priorities, water_filling
from duet_trl.methods.method import TokenBatch
from duet_trl.rollouts import Query

from .simulator import counts, make_prompts, run_step, setting, table


def dynamo(**run: object) -> Dynamo:
    return Dynamo(setting(num_generations=8, **run), Options())


# ---- Counts -----------------------------------------------------------------------------------------------------


def test_priority_is_four_times_the_unbiased_variance() -> None:
    """k = 1 of 4: 4 * 1 * 3 / (4 * 3) = 1. k = 2 of 8: 4 * 2 * 6 / (8 * 7) = 6/7. One rollout tells nothing."""
    count, success = np.array([4.0, 8.0, 8.0, 8.0, 1.0, 0.0]), np.array([0.25, 0.25, 0.0, 1.0, 1.0, 0.5])
    np.testing.assert_allclose(priorities(count, success), [1.0, 6 / 7, 0.0, 0.0, 1.0, 1.0], rtol=1e-15)


@given(st.integers(2, 12), st.floats(0.0, 1.0))
def test_the_variance_is_unbiased(count: int, p: float) -> None:
    """E P over a binomial k, which is exact, is 4 p (1 - p)."""
    k = np.arange(count + 1)
    chance = np.array([math.comb(count, i) * p**i * (1 - p) ** (count - i) for i in k])
    mean = chance @ priorities(np.full(count + 1, float(count)), k / count)
    assert mean == pytest.approx(4 * p * (1 - p), abs=1e-12)


def test_counts_follow_all_visits_within_half_and_one_and_a_half_times_the_budget() -> None:
    """Average 4, so 2 to 6. After the first epoch a: 2 of 4, P = 4/3; b: 1 of 4, P = 1; c, d: 0. 8 beyond the minimum:
    4.57 and 3.43 -> 5 and 3, 4 and 3 fit, the last one goes to b."""
    method = dynamo()
    rewards = table(a=(0, 1), b=(0, 0, 0, 1), c=(0,), d=(1,))
    done, judgement = run_step(method, make_prompts("abcd"), rewards)
    assert counts(done) == [4, 4, 4, 4] and method.metrics()["unseen_prompts"] == 4.0
    assert judgement.in_gradient.all() and (judgement.weight == 1).all()
    done, _ = run_step(method, make_prompts("abcd", epoch=1), rewards)
    assert counts(done) == [6, 6, 2, 2] and method.metrics()["unseen_prompts"] == 0.0


@given(
    priority=st.lists(st.sampled_from([0.0, 1e-300, 1e-8, 0.3, 1.0, 2.0, 1e6]), min_size=1, max_size=9),
    lowest=st.integers(0, 3),
    width=st.integers(0, 7),
    share=st.floats(0.0, 1.0),
)
def test_sum_and_bounds_hold(priority: list[float], lowest: int, width: int, share: float) -> None:
    size, most = len(priority), lowest + width
    total = size * lowest + round(share * size * width)
    found = water_filling(np.array(priority), total, lowest, most)
    assert found.sum() == total and lowest <= found.min() and found.max() <= most


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=9), st.integers(0, 60))
def test_below_the_maximum_every_share_is_kept_to_one_rollout(priority: list[float], extra: int) -> None:
    found = water_filling(np.array(priority), 2 * len(priority) + extra, 2, 100)
    share = extra * np.array(priority) / sum(priority)
    assert np.abs(found - 2 - share).max() < 1.0 + 1e-9


# ---- Token factor -----------------------------------------------------------------------------------------------


def literal(batch: TokenBatch, lowest: float, highest: float, largest: float) -> np.ndarray:
    """The formulas of the module, token by token."""
    rows, columns = batch.logps.shape
    found = np.ones((rows, columns))
    for i in range(rows):
        advantage, tokens = float(batch.advantages[i]), [t for t in range(columns) if batch.mask[i, t]]
        u = {t: math.exp(batch.logps[i, t]) * float(batch.logps[i, t] + batch.entropies[i, t]) for t in tokens}
        for t in tokens:
            if advantage == 0 or batch.rollout[i] < 0:
                continue
            change = abs(advantage * (u[t] - sum(u.values()) / len(u)))
            x = change / (largest + 1e-8)
            decay = DECAY_MIN + (1 - DECAY_MIN) / (1 + math.exp(50 * (x - DECAY_AT)))
            share = (highest - float(batch.entropies[i, t])) / (highest - lowest + 1e-8)
            boost = 1 + (BOOST_MAX - 1) * share if advantage > 0 else 1.0
            found[i, t] = boost * decay
    return found


def extremes(batch: TokenBatch) -> tuple[float, float, float]:
    """Smallest and largest entropy and the largest change over tokens with an advantage, token by token."""
    entropies, changes = [], [0.0]
    for i in range(len(batch.mask)):
        tokens = [t for t in range(batch.mask.shape[1]) if batch.mask[i, t]]
        if not tokens or batch.advantages[i] == 0 or batch.rollout[i] < 0:
            continue
        u = [math.exp(batch.logps[i, t]) * float(batch.logps[i, t] + batch.entropies[i, t]) for t in tokens]
        entropies += [float(batch.entropies[i, t]) for t in tokens]
        changes += [abs(float(batch.advantages[i]) * (value - sum(u) / len(u))) for value in u]
    return min(entropies), max(entropies), max(changes)


STEP_LENGTHS = 3 + np.arange(16) * 5 % 7


def step_of_tokens(seed: int) -> TokenBatch:
    """Tokens of 16 rollouts and a row of padding; what is masked holds what nobody may read."""
    draw = torch.Generator().manual_seed(seed)
    logps, entropies = -2 * torch.rand(17, 10, generator=draw), 2 * torch.rand(17, 10, generator=draw)
    if seed == 0:  # nothing to normalise by
        entropies[:] = 0.7
    mask = (torch.arange(10) < torch.tensor([*STEP_LENGTHS, 1])[:, None]).long()
    logps[mask == 0], entropies[mask == 0] = -torch.inf, 99.0
    return TokenBatch(logps, entropies, mask, torch.zeros(17), torch.tensor([*range(16), -1]))


@pytest.mark.parametrize("seed", range(5))
def test_the_factor_is_the_literal_formula_over_the_step_however_rows_share_micro_batches(seed: int) -> None:
    """The model is asked about rollouts with an advantage only."""
    method, asked, tokens = dynamo(), [], step_of_tokens(seed)

    def answer(key: str, query: Query) -> np.ndarray:
        row, size = query.ids[0], len(query.ids)
        assert query.entropies and set(query.ids) == {row} and size == STEP_LENGTHS[row]
        asked.append(row)
        return np.stack([tokens.logps[row, :size].numpy(), tokens.entropies[row, :size].numpy()])

    rewards, lengths = table(a=(0, 1), b=(1,), c=(0, 0, 0, 1), d=(0,)), STEP_LENGTHS.reshape(4, 4)
    length = lambda key, number: int(lengths["abcd".index(key), number])  # noqa: E731
    done, judgement = run_step(method, make_prompts("abcd"), rewards, length, answer)
    assert asked == [0, 1, 2, 3, 8, 9, 10, 11] == np.flatnonzero(judgement.advantages).tolist()
    whole = dataclasses.replace(tokens, advantages=torch.tensor([*judgement.advantages, 0.0]).float())
    expected = literal(whole, *extremes(whole))
    for part in (slice(0, 17), slice(0, 3), slice(3, 9), slice(9, 17)):
        piece = TokenBatch(*(values[part] for values in vars(whole).values()))
        factor = method.token_factor(piece)
        np.testing.assert_allclose(factor.numpy(), expected[part], rtol=2e-4)
        assert not factor.requires_grad
    lowest, highest, largest = extremes(whole)
    metrics = method.metrics()
    assert metrics["entropy_min"] == pytest.approx(lowest) and metrics["entropy_max"] == pytest.approx(highest)
    assert metrics["change_max"] == pytest.approx(largest, rel=1e-5)


def test_nothing_is_asked_without_need() -> None:
    def refuse(key: str, query: Query) -> np.ndarray:
        raise AssertionError("a question")

    method = dynamo()
    run_step(method, make_prompts("abcd"), table(**dict.fromkeys("abcd", (1,))), answer=refuse)  # no advantage
    assert method.token_factor(step_of_tokens(1)) is None


def test_bounds_scale_with_the_budget() -> None:
    for fraction, expected in ((1.0, [12, 12, 4, 4]), (0.5, [6, 6, 2, 2]), (0.25, [3, 3, 1, 1])):
        method = dynamo(budget_fraction=fraction)
        rewards = table(a=(0, 1), b=(1, 0), c=(0,), d=(1,))
        for epoch in range(2):
            done, _ = run_step(method, make_prompts("abcd", epoch=epoch), rewards)
        assert counts(done) == expected


@pytest.mark.parametrize(
    ("priority", "total", "expected"),
    [
        # 4 beyond the minimum of 2, shares 2.4 and 1.6: floors 2 and 1, the remainder .6 beats .4.
        ([0.6, 0.4, 0.0], 10, [4, 4, 2]),
        # 9 beyond: shares 7.2, 1.8 -> 7 and 2; the first holds 4 more at most; of the 3 left the second takes 2.
        ([0.8, 0.2, 0.0], 15, [6, 6, 3]),
        # Nobody has a priority: alike.
        ([0.0, 0.0, 0.0], 10, [4, 3, 3]),
        # Equal remainders of 1/3: the earlier prompt.
        ([1.0, 1.0, 1.0], 7, [3, 2, 2]),
    ],
)
def test_water_filling_by_hand(priority: list[float], total: int, expected: list[int]) -> None:
    assert water_filling(np.array(priority), total, 2, 6).tolist() == expected


def test_extremes_of_a_step_are_forgotten_in_the_next() -> None:
    method = dynamo()
    run_step(method, make_prompts("abcd"), table())
    run_step(method, make_prompts("abcd", step=2), table(a=(1,), b=(1,), c=(1,), d=(1,)))
    assert set(method.metrics()) == {"unseen_prompts"}


# ---- In training ------------------------------------------------------------------------------------------------
