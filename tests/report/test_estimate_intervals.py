# SPDX-License-Identifier: Apache-2.0
"""What the estimate is sure of: intervals over prompts, the notes about them, and the sentence on top."""

import numpy as np
import pytest

from duet_trl.report.intervals import ratio_interval
from tests.report.logged_run import BOX, by_marker, figures, projected, run, write

FLAGS = "--chars_per_token 1 --grace_window 8".split()
ANSWER = 40
"""Tokens of a completion up to its answer."""


def write_run(folder, num_prompts=12, num_steps=3, size=4, reward=lambda q, i: float(q % 2 and i % 2)):
    """Each prompt comes in every step; the first half of its completions go on behind the answer, odd prompts longer.

    No two steps are alike: a batch that is logged twice counts once.
    """
    for step in range(num_steps):
        rows = [
            (f"p{q}", "x" * (ANSWER - len(BOX)) + BOX + "y" * behind(q, i, step, size), reward(q, i))
            for q in range(num_prompts)
            for i in range(size)
        ]
        write(folder, step + 1, rows)
    return folder


def behind(q, i, step, size):
    """Tokens behind the answer."""
    return (20 + 10 * (q % 3) + step) * (i < size / 2)


def test_intervals_of_measured_shares_are_over_prompts_with_all_their_visits(tmp_path, capsys):
    result = figures(capsys, tmp_path, write_run(tmp_path / "run"), *FLAGS)
    rows = [(q, behind(q, i, step, 4)) for step in range(3) for q in range(12) for i in range(4)]
    prompt, after = (np.array(column) for column in zip(*rows, strict=True))
    marker = by_marker(result)
    assert marker["tokens_after_answer"] == pytest.approx(after.sum() / (ANSWER + after).sum())
    assert marker["tokens_after_answer_interval"] == pytest.approx(ratio_interval(after, ANSWER + after, prompt))
    # The poll at 40 sees the answer, so that a trimmed completion has 48 tokens.
    left = np.minimum(ANSWER + after, ANSWER + 8)
    share = np.array(ratio_interval(left, ANSWER + after, prompt))
    for budget in (1.0, 0.5, 0.25):
        item = projected(result, "math", budget)
        assert item["token_share_interval"] == pytest.approx(budget * share)
        assert item["token_share_interval"][0] < item["token_share"] < item["token_share_interval"][1]
        assert projected(result, None, budget)["token_share_interval"] is None
    # Six of the twelve prompts never differ; each is one draw, in however many steps it stands.
    flat = np.array([q % 2 == 0 for _ in range(3) for q in range(12)], dtype=float)
    groups = result["measured"]["groups"]
    assert groups["zero_variance"] == 0.5
    expected = ratio_interval(flat, np.ones(36), np.tile(np.arange(12), 3))
    assert groups["zero_variance_interval"] == pytest.approx(expected)
    assert marker["tail"] == 0.0 and marker["tail_interval"] == [0.0, 0.0]


def test_a_share_stays_a_share(tmp_path, capsys):
    """Two prompts, of which one never differs: the t-interval of one degree of freedom is wider than all shares."""
    result = figures(capsys, tmp_path, write_run(tmp_path / "run", num_prompts=2), *FLAGS)
    assert result["measured"]["groups"]["zero_variance_interval"] == [0.0, 1.0]


def test_the_first_sentence_has_the_tokens_of_every_budget_with_the_marker_that_fits(tmp_path, capsys):
    folder = write_run(tmp_path / "run")
    result = figures(capsys, tmp_path, folder, *FLAGS, "--budgets", 1, 0.5)
    out = run(capsys, folder, *FLAGS, "--budgets", 1, 0.5)[1]
    said = " ".join(out.split("\n\n")[0].split())
    for budget in (1.0, 0.5):
        item = projected(result, "math", budget)
        low, high = (f"{100 * end:.1f}" for end in item["token_share_interval"])
        assert f"{100 * item['token_share']:.1f}% [{low}, {high}] at a budget of {100 * budget:g}%" in said
    assert said.endswith("with the gate of marker math.")


def test_without_a_marker_the_first_sentence_is_about_fewer_rollouts(tmp_path, capsys):
    rows = [(f"p{q}", f"it may be {number} " * 9, float(number % 2)) for q in range(3) for number in range(4)]
    write(tmp_path / "run", 1, rows)
    said = run(capsys, tmp_path / "run", "--budgets", 0.5)[1].split("\n\n")[0]
    assert "50.0% at a budget of 50%, without a gate, as no completion shows a marker." in " ".join(said.split())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_prompts": 1}, "All completions are of one prompt: there are no intervals."),
        ({"num_prompts": 3}, "9 groups: the intervals are rough."),
        ({"num_steps": 1}, "One batch is logged: the intervals know nothing of how the run changes."),
        ({"reward": lambda q, i: float(q % 2)}, "No group differs in reward: nothing is learnt by any method"),
    ],
)
def test_what_the_intervals_do_not_know_is_noted(tmp_path, capsys, change, said):
    assert said in run(capsys, write_run(tmp_path / "changed", **change), *FLAGS)[1]
    assert said not in run(capsys, write_run(tmp_path / "run"), *FLAGS)[1]
