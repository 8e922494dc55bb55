# SPDX-License-Identifier: Apache-2.0
"""Further prompts: each row once, at random under seed and step."""

from collections import Counter

import pytest
from datasets import Dataset

from duet_trl.rollouts import NoMorePrompts
from duet_trl.seams.data_checks import PromptSource

ROWS = 40
DATA = Dataset.from_dict({"prompt": [f"{number}+1=" for number in range(ROWS)], "name": list(range(ROWS))})


def drawn(seed: int, step: int, counts: list[int], taken: set[str] = frozenset()) -> list[list[str]]:
    draw = PromptSource(DATA, "name", seed).of_step(step)
    return [[prompt.key for prompt in draw(count, set(taken))] for count in counts]


def test_every_row_comes_once_and_then_there_are_no_more():
    first, second = drawn(0, 1, [10, ROWS - 10])
    assert sorted(map(int, first + second)) == list(range(ROWS))
    with pytest.raises(NoMorePrompts, match="only 35 of 40 rows"):
        drawn(0, 1, [36], taken={str(number) for number in range(5)})


def test_seed_and_step_alone_decide():
    assert drawn(0, 1, [6, 6]) == drawn(0, 1, [6, 6])
    assert len({str(drawn(seed, step, [6])) for seed in (0, 1) for step in (1, 2)}) == 4


def test_all_rows_are_as_likely():
    seen = Counter(key for step in range(400) for key in drawn(0, step, [8])[0])
    # 400 steps x 8 of 40: each row 80 times, standard deviation 8.
    assert len(seen) == ROWS and all(40 < count < 120 for count in seen.values())


def test_a_stream_has_no_source():
    assert PromptSource(DATA.to_iterable_dataset(), None, 0).of_step(1) is None
