# SPDX-License-Identifier: Apache-2.0
"""What the arena makes of the runs of a task, by hand."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.arena.contest import MARGIN, SECONDS, TOKENS, Contest, _crossing, contests, pass_at
from benchmarks.arena.entrants import REFERENCE
from benchmarks.arena.records import CONFIRM, REPORT, STOPPED, Serving
from duet_trl.report.intervals import t_interval
from tests.benchmarks.arena_runs import TASK, line, measured, run, start

EXACT = 0.001  # half a sample on the way is 0.00025


def contest(*runs) -> Contest:
    (found,) = contests([start(), *runs]).values()
    return found


def test_accuracy_is_linear_between_measurements_at_shares_of_the_reference() -> None:
    found = contest(run(), run("duet_stop", line(0.64), tokens=500, seconds=1.5))
    # 12,000 and 18,000 of the reference's 48,000 tokens are 24 and 36 batches of 500; 24 of 96 seconds are 16.
    expected = {(TOKENS, 0.25): 0.52, (TOKENS, 0.375): 0.58, (TOKENS, 0.5): 0.64, (SECONDS, 0.25): 0.48}
    for (cost, share), accuracy in expected.items():
        assert found.accuracy("duet_stop", 0, cost, share) == pytest.approx(accuracy, abs=EXACT)
    assert found.accuracy("duet_stop", 0, TOKENS, 0.51) is None
    assert found.accuracy("duet_stop", 0, SECONDS, 0.76) is None


def test_a_lead_is_paired_by_the_seeds_that_all_have() -> None:
    reference = [run(seed=seed, tokens=tokens) for seed, tokens in ((0, 1000), (1, 800), (2, 800))]
    duet = [run("duet", line(0.6), seed, tokens=500) for seed in (0, 1, 2)]
    fewer = [run("grpo_2", line(end), seed, tokens=400) for seed, end in ((0, 0.48), (1, 0.64), (7, 0.9))]
    found = contest(*reference, *duet, *fewer)
    assert found.seeds("duet") == [0, 1, 2]
    assert found.seeds("duet", "grpo_2") == found.seeds("grpo_2") == [0, 1]
    # A quarter is 12,000 and 9,600 tokens: 24 and 19.2 batches of 500, 30 and 24 of 400.
    lead = found.lead("duet", "grpo_2", TOKENS, 0.25)
    assert lead.values == pytest.approx((0.5 - 0.45, 0.48 - 0.52), abs=EXACT)
    assert (lead.mean, *lead.interval) == pytest.approx((sum(lead.values) / 2, *t_interval(lead.values)))
    assert found.lead("duet", "grpo_2", TOKENS, 0.5) is None  # seed 0 of grpo_2 spent 19,200 of 24,000
    assert contest(reference[0], duet[0], fewer[1]).lead("duet", "grpo_2", TOKENS, 0.25) is None


def test_what_it_took_is_a_share_by_seed_and_may_be_never() -> None:
    assert MARGIN == 0.01
    reference = [run(seed=seed, accuracy=line(end)) for seed, end in ((0, 0.6), (1, 0.56), (2, 0.6))]
    ends = ((0, 0.64), (1, 0.62), (2, 0.58))
    found = contest(*reference, *(run("duet_stop", line(end), seed, tokens=500) for seed, end in ends))
    # Targets 0.59, 0.55 and 0.59: after 38 of 48 batches at half of the tokens a batch, after 32.7, and never
    tokens, seconds = (found.reached("duet_stop", cost) for cost in (TOKENS, SECONDS))
    assert tokens[:2] == pytest.approx([0.5 * 0.19 / 0.24, 0.5 * 0.15 / 0.22], abs=0.01)
    assert seconds[:2] == pytest.approx([0.19 / 0.24, 0.15 / 0.22], abs=0.01)
    assert tokens[2] is None is seconds[2]
    assert found.reached(REFERENCE, TOKENS)[0] == pytest.approx(0.19 / 0.2, abs=0.01)


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        # 0.62, 0.4 and 0.5 are pooled to 0.507 at batches 12 to 36; the target is 0.59, the end 0.62.
        ((0.62, 0.4, 0.5, 0.62), (36 + 12 * (0.59 - 0.5067) / (0.62 - 0.5067)) / 48),
        ((0.62, 0.7, 0.3, 0.3), None),  # it fell back
        ((0.5, 0.62, 0.62, 0.62), (12 + 12 * 0.09 / 0.12) / 48),
    ],
)
def test_a_noisy_peak_is_not_an_arrival(accuracies, expected) -> None:
    by_batch = dict(zip((12, 24, 36, 48), accuracies, strict=True))
    (found,) = contest(run(), run("duet", by_batch.__getitem__)).reached("duet", TOKENS)
    assert found == (None if expected is None else pytest.approx(expected, abs=0.01))


def test_a_curve_begins_at_the_start_and_counts_the_shared_problems_only() -> None:
    half, small = (Serving(right, 2, None, 20.0, 1.0) for right in ([2] * 300 + [0] * 300, [1] * 300))
    points = [measured(12, 1000, 1, **{STOPPED: half}), measured(24, 1000, 1, **{STOPPED: small})]
    found = replace(run("duet"), measurements=points)
    spent, accuracy = contest(run(), found).curve(found, TOKENS)
    assert spent.tolist() == [0, 12_000, 24_000]
    assert accuracy == pytest.approx([0.4, 1.0, 0.5], abs=EXACT)


@given(st.integers(1, 7), st.integers(1, 7), st.lists(st.integers(0, 7), min_size=1, max_size=4))
def test_pass_at_k_is_the_share_of_draws_with_a_right_sample(samples: int, k: int, right: list[int]) -> None:
    k, right = min(k, samples), [min(count, samples) for count in right]
    draws = [min(drawn) < count for count in right for drawn in itertools.combinations(range(samples), k)]
    assert pass_at(np.array(right), samples, k) == pytest.approx(np.mean(draws))


def test_runs_that_do_not_go_together_are_errors() -> None:
    with pytest.raises(ValueError, match=f"{TASK} {REFERENCE} seed 0: a run of the same seed"):
        contest(run(), run())
    with pytest.raises(ValueError, match=r"another learning rate than 0\.0001"):
        contest(run(), run(seed=1, rate=1e-4))
    with pytest.raises(ValueError, match=f"{TASK} grpo_9: no entrant of entrants.py"):
        contest(run(), run("grpo_9"))
    # Without the reference or the start a task is left out.
    assert contests([start(), run("duet")]) == contests([run()]) == contests([start(), run()], "confirm") == {}
    assert list(contest(run("duet"), run("grpo_8"), run()).runs) == [REFERENCE, "grpo_8", "duet"]


def test_confirming_runs_begin_at_their_first_measurement() -> None:
    """The start was measured on other problems."""
    spent = {}
    for stage in (REPORT, CONFIRM):
        (found,) = contests([start(), replace(run(), stage=stage)], stage).values()
        spent[stage], _ = found.curve(found.runs[REFERENCE][0], TOKENS)
    assert spent[REPORT].tolist() == [0.0, *spent[CONFIRM]] and spent[CONFIRM][0] > 0


def test_a_tie_with_the_target_reaches_it_in_spite_of_rounding() -> None:
    target = 301 / 600 - MARGIN
    assert 295 / 600 < target  # in exact numbers they are equal
    assert _crossing(np.array([0.0, 1.0]), np.array([0.4, 295 / 600]), target) == 1.0
