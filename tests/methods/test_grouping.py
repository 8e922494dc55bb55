# SPDX-License-Identifier: Apache-2.0
import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.methods.grouping import best_counts

MOST = 4
GAINS = st.lists(st.floats(0.0, 9.0), min_size=MOST, max_size=MOST)


@given(st.lists(st.tuples(GAINS, st.integers(0, MOST)), min_size=1, max_size=4), st.integers(0, 18))
def test_no_counts_of_that_sum_are_worth_more(prompts, total):
    gains = np.array([sorted(one, reverse=True) for one, _ in prompts]).T
    lowest = np.array([least for _, least in prompts])
    value = np.vstack([np.zeros(len(prompts)), np.cumsum(gains, axis=0)])
    counts = best_counts(value, lowest, total)
    assert (counts >= lowest).all() and (counts <= MOST).all()
    assert counts.sum() == min(max(total, lowest.sum()), MOST * len(prompts))
    others = itertools.product(*(range(least, MOST + 1) for least in lowest))
    equal = [value[list(one), range(len(one))].sum() for one in others if sum(one) == counts.sum()]
    assert value[counts, range(len(counts))].sum() >= max(equal) - 1e-9


def test_equal_prompts_stay_equal_and_the_first_get_what_is_left():
    value = np.sqrt(np.arange(5))[:, None] * np.ones(4)
    assert best_counts(value, np.zeros(4, dtype=int), 8).tolist() == [2, 2, 2, 2]
    assert best_counts(value, np.zeros(4, dtype=int), 6).tolist() == [2, 2, 1, 1]
