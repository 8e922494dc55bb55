# SPDX-License-Identifier: Apache-2.0
"""Best, last, the paper's shift, and the rows of a table, on figures small enough to do by hand."""

import pytest

from duet_trl.evaluation.compare import best_and_last, candidates, metric_title, shift_of, shown, table
from duet_trl.evaluation.results import Figure, Results

HEADLINE = "mean@4,sampled"


def run(step, math, gsm, model="m", metric=HEADLINE):
    figures = {"math500": {metric: Figure(math, math - 0.01, math + 0.01)}, "gsm8k": {metric: Figure(gsm)}}
    return Results(model, step, figures)


RUNS = [run(0, 0.9, 0.1), run(30, 0.5, 0.6), run(60, 0.4, 0.9), run(90, 0.3, 0.2)]


def values(results):
    return {suite: metrics[HEADLINE].value for suite, metrics in results.figures.items()}


def test_best_of_each_suite_is_the_papers_headline_and_leaves_step_zero_out():
    of_each, best, last = best_and_last(RUNS)
    assert of_each.model == "best of each suite"
    assert values(of_each) == {"math500": 0.5, "gsm8k": 0.9}  # step 30 and step 60; step 0 had 0.9
    assert best.model == "best: m, step 60" and values(best) == {"math500": 0.4, "gsm8k": 0.9}
    assert last.model == "last: m, step 90" and values(last) == {"math500": 0.3, "gsm8k": 0.2}


def test_order_of_the_files_does_not_matter_and_a_tie_goes_to_the_earlier_step():
    assert best_and_last(RUNS[::-1]) == best_and_last(RUNS)
    assert best_and_last([run(60, 0.5, 0.5), run(30, 0.4, 0.6)])[1].model == "best: m, step 30"


def test_a_model_without_a_step_is_the_beginning_of_a_run_or_one_of_a_list():
    base = run(None, 0.99, 0.99, model="base")
    assert candidates([base, *RUNS[1:]]) == RUNS[1:]
    models = [run(None, 0.2, 0.2, model="a"), run(None, 0.3, 0.3, model="b"), run(None, 0.1, 0.1, model="c")]
    assert [found.model for found in best_and_last(models)] == ["best of each suite", "best: b", "last: c"]


def test_nothing_is_selected_among_nothing():
    assert best_and_last([run(0, 0.5, 0.5)]) == []
    assert best_and_last([run(30, 0.5, 0.5, metric="mean@1,greedy")]) == []


def test_checkpoints_that_were_not_measured_alike_are_refused():
    other = Results("m", 60, {"math500": {HEADLINE: Figure(0.5)}})
    with pytest.raises(ValueError, match="not measured alike"):
        best_and_last([RUNS[1], other])
    with pytest.raises(ValueError, match="same --suites and --samples"):
        best_and_last([RUNS[1], run(60, 0.5, 0.5, metric="mean@8,sampled")])


def test_shift_is_own_step_zero_minus_the_common_one():
    shift = shift_of(run(0, 0.451, 0.6), run(0, 0.431, 0.65))
    assert shift["math500"][HEADLINE] == pytest.approx(0.02)
    assert shift["gsm8k"][HEADLINE] == pytest.approx(-0.05)


def test_shifted_column_stands_beside_the_raw_one_which_it_never_replaces():
    reference = run(0, 0.80, 0.15)
    shift = shift_of(RUNS[0], reference)  # math -0.10 from 0.9 to 0.8; gsm8k +0.05
    headers, rows = table(RUNS, [shift] * 4)
    assert headers == ["model", "metric", "MATH-500", "MATH-500 shifted", "GSM8K", "GSM8K shifted", "mean of suites"]
    # the paper's: value - (own step 0 - reference): .5 - (.9 - .8) = .4 and .6 - (.1 - .15) = .65
    assert rows[1] == ["m, step 30", "mean@4 (sampled)", "50.0 [49.0, 51.0]", "40.0", "60.0", "65.0", "55.0"]
    assert rows[0][3] == "80.0" and rows[0][5] == "15.0"  # step 0 becomes the reference exactly
    raw_headers, raw_rows = table(RUNS)
    assert raw_headers == ["model", "metric", "MATH-500", "GSM8K", "mean of suites"]
    assert [[row[i] for i in (0, 1, 2, 4, 6)] for row in rows] == raw_rows


def test_shift_leaves_lengths_and_files_without_a_shift_alone():
    own = Results("m", 0, {"gsm8k": {HEADLINE: Figure(0.5), "mean_length,sampled": Figure(100.0)}})
    shift = shift_of(own, own)
    assert shift == {"gsm8k": {HEADLINE: 0.0}}
    other = Results("x", None, {"gsm8k": {"mean@8,sampled": Figure(0.6, 0.5, 0.7)}})
    _, rows = table([own, other], [shift, None])
    assert rows == [
        ["m, step 0", "mean@4 (sampled)", "50.0", "50.0"],
        ["m, step 0", "mean length, tokens (sampled)", "100.0", None],
        ["x", "mean@8 (sampled)", "60.0 [50.0, 70.0]", None],
    ]


def test_shift_without_a_common_figure_is_refused():
    with pytest.raises(ValueError, match="no accuracy in common"):
        shift_of(run(0, 0.1, 0.1), run(0, 0.1, 0.1, metric="mean@8,sampled"))


def test_suites_have_their_order_and_a_suite_without_a_title_comes_last():
    other = Results("x", None, {"own_suite": {HEADLINE: Figure(0.25)}})
    headers, rows = table([other, RUNS[1]])
    assert headers == ["model", "metric", "MATH-500", "GSM8K", "own_suite", "mean of suites"]
    # a mean over fewer suites would not compare
    assert rows[0] == ["x", "mean@4 (sampled)", None, None, "25.0", None] and rows[1][-1] is None
    assert table([RUNS[1]])[1][0][2:] == ["50.0 [49.0, 51.0]", "60.0", "55.0"]


def test_units():
    assert shown(HEADLINE, Figure(1.0, 0.9, 1.0)) == "100.0 [90.0, 100.0]"
    assert shown("mean_length,sampled", Figure(0.5)) == "0.5"
    assert shown("mean_length,sampled", Figure(1234.56)) == "1,234.6"
    assert metric_title("truncated,sampled") == "cut at the limit (sampled)"
    assert metric_title("best@4,sampled") == "best@4 (sampled)"
