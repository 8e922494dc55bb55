# SPDX-License-Identifier: Apache-2.0
"""Whole rollouts in turn and in proportion: by hand, and what holds for every input."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.allocate.units import round_robin, water_filling

EVERYBODY = np.ones(3, dtype=bool)


def test_turns_go_in_order_and_pass_over_the_full() -> None:
    counts = np.array([1, 3, 2])
    assert round_robin(counts, 4, 3, EVERYBODY) == 1  # 3 fit: +1 +. +1, then +1 for the first
    assert counts.tolist() == [3, 3, 3]
    counts = np.array([0, 0, 0])
    assert round_robin(counts, 5, 9, np.array([True, False, True])) == 0
    assert counts.tolist() == [3, 0, 2]


@pytest.mark.parametrize(
    ("priority", "total", "expected"),
    [
        # 4 beyond the minimum of 2, shares 2.4 and 1.6: floors 2 and 1, the remainder .6 beats .4.
        ([0.6, 0.4, 0.0], 10, [4, 4, 2]),
        # 9 beyond: shares 7.2, 1.8 -> 7 and 2; the first holds 4 more at most; of the 3 left the second takes 2.
        ([0.8, 0.2, 0.0], 15, [6, 6, 3]),
        # Nobody has a priority: in turn.
        ([0.0, 0.0, 0.0], 10, [4, 3, 3]),
        # Equal remainders of 1/3: the earlier prompt.
        ([1.0, 1.0, 1.0], 7, [3, 2, 2]),
    ],
)
def test_water_filling_by_hand(priority: list[float], total: int, expected: list[int]) -> None:
    assert water_filling(np.array(priority), total, 2, 6).tolist() == expected


@given(
    priority=st.lists(st.sampled_from([0.0, 1e-300, 1e-8, 0.3, 1.0, 2.0, 1e6]), min_size=1, max_size=9),
    lowest=st.integers(0, 3),
    width=st.integers(0, 7),
    share=st.floats(0.0, 1.0),
)
def test_sum_and_bounds_hold(priority: list[float], lowest: int, width: int, share: float) -> None:
    size, most = len(priority), lowest + width
    total = size * lowest + round(share * size * width)
    counts = water_filling(np.array(priority), total, lowest, most)
    assert counts.sum() == total and lowest <= counts.min() and counts.max() <= most


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=9), st.integers(0, 60))
def test_below_the_maximum_every_share_is_kept_to_one_rollout(priority: list[float], extra: int) -> None:
    counts = water_filling(np.array(priority), 2 * len(priority) + extra, 2, 100)
    share = extra * np.array(priority) / sum(priority)
    assert np.abs(counts - 2 - share).max() < 1.0 + 1e-9


@given(st.permutations(range(5)))
def test_counts_move_with_their_prompts(order: list[int]) -> None:
    priority = np.array([0.1, 0.25, 0.4, 0.7, 0.9])  # no two remainders are equal at 23 rollouts
    counts = water_filling(priority, 23, 2, 9)
    assert water_filling(priority[order], 23, 2, 9).tolist() == counts[order].tolist()


@pytest.mark.parametrize("total", [5, 19])
def test_bounds_that_cannot_hold_the_total_are_refused(total: int) -> None:
    with pytest.raises(ValueError, match=f"{total} rollouts cannot be shared by 3 prompts with 2 to 6 each"):
        water_filling(np.ones(3), total, 2, 6)
