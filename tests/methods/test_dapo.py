# SPDX-License-Identifier: Apache-2.0
"""Dynamic sampling: whole groups, when a step ends, and what it says when it stays under-full."""

import logging

import pytest

from duet_trl.methods.dapo import Dapo, DapoOptions
from duet_trl.methods.grouping import group_relative

from .simulator import SAME, counts, make_prompts, run_step, setting, table

POOL = "efghijklmnop"
NAN = float("nan")


def test_a_full_first_batch_ends_the_step() -> None:
    method = Dapo(setting(), DapoOptions())
    done, judgement = run_step(method, make_prompts("abcd", POOL), table())
    assert counts(done) == [4, 4, 4, 4] and done.round.max() == 0
    assert judgement.in_gradient.all()
    assert judgement.advantages.tolist() == group_relative(done, method.setting).tolist()
    assert set(method.metrics().values()) == {0.0}


def test_batches_are_drawn_until_enough_groups_differ_and_the_surplus_is_discarded() -> None:
    # Batch 1: b and d differ. Batch 2 (e, f, g, h): f, g, h do: M = 4 is reached with g, and h is surplus.
    method = Dapo(setting(), DapoOptions())
    done, judgement = run_step(method, make_prompts("abcd", POOL), table(a=SAME, c=SAME, e=SAME))
    kept = {done.prompts[prompt].key for prompt in done.prompt[judgement.in_gradient]}
    assert done.prompts.keys == tuple("abcdefgh") and kept == set("bdfg")
    assert (judgement.in_divisor == judgement.in_gradient).all() and judgement.in_gradient.sum() == 16
    assert (judgement.advantages[~judgement.in_gradient] == 0).all()
    assert method.metrics() == {
        "resampled_batches": 1.0,
        "degenerate_prompts": 3.0,
        "unfilled_prompts": 0.0,
        "surplus_prompts": 1.0,
    }


def test_groups_are_kept_whole_and_compared_exactly() -> None:
    """[1, 0, 0, 0] stays with all its rollouts, though the others of the 1 agree; 1 and 1 + 1e-9 differ."""
    method = Dapo(setting(num_prompts=2), DapoOptions())
    done, judgement = run_step(method, make_prompts("ab"), table(a=(1, 0, 0, 0), b=(1, 1 + 1e-9)))
    assert judgement.in_gradient.all() and done.round.max() == 0


def test_a_group_without_rewards_is_degenerate_and_a_missing_reward_is_no_difference() -> None:
    method = Dapo(setting(num_prompts=3), DapoOptions(max_batches=1))
    done, judgement = run_step(method, make_prompts("abc"), table(a=(NAN,), b=(1, NAN), c=(1, NAN, 0, 0)))
    assert set(done.prompt[judgement.in_gradient]) == {2}
    assert judgement.advantages[done.prompt == 2][1] == 0.0


ALL_SAME = dict.fromkeys("abcd" + POOL, SAME)


@pytest.mark.parametrize(
    ("options", "others", "num_prompts", "message"),
    [
        # 4 prompts x 4 rollouts x 10 tokens = 160 a batch.
        ({"max_batches": 2}, {}, 8, "max_batches=2, max_rollouts=10000 or"),
        ({}, {"max_rollouts": 27}, 6, "max_batches=10, max_rollouts=27 or"),
        ({}, {}, 16, "the data set leaves no more. Raise these"),
    ],
)
def test_an_under_full_step_names_its_counts_and_the_remedy_once(
    options: dict, others: dict, num_prompts: int, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    method = Dapo(setting(**others), DapoOptions(**options))
    with caplog.at_level(logging.WARNING, logger="duet_trl"):
        for step in (1, 2):
            done, judgement = run_step(method, make_prompts("abcd", POOL, step=step), table(**ALL_SAME))
            assert len(done.prompts) == num_prompts
            assert not judgement.in_gradient.any() and not judgement.advantages.any()
    (record,) = caplog.records
    text = record.getMessage()
    assert "Step 1 trains on 0 prompts instead of 4" in text
    assert f"of the {num_prompts} in" in text and f"({num_prompts * 40} generated tokens)" in text
    assert message in text
    assert method.metrics()["unfilled_prompts"] == 4.0


def test_a_run_without_a_source_of_prompts_trains_on_what_it_has() -> None:
    method = Dapo(setting(num_prompts=2), DapoOptions())
    prompts = make_prompts("ab")
    prompts._source = None
    done, judgement = run_step(method, prompts, table(a=SAME))
    assert set(done.prompt[judgement.in_gradient]) == {1}


def test_oversampled_batches() -> None:
    """Half more prompts than M in every batch, of which M are trained."""
    method = Dapo(setting(), DapoOptions(oversample=1.5))
    done, judgement = run_step(method, make_prompts("abcd", POOL), table(a=SAME))
    assert counts(done) == [4] * 6 and done.round.max() == 0
    assert sorted(set(done.prompt[judgement.in_gradient])) == [1, 2, 3, 4]
