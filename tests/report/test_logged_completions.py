# SPDX-License-Identifier: Apache-2.0
"""Files that stock TRL leaves behind: completions in their forms, rewards, the log, and what cannot be read."""

import math

import pandas as pd
import pytest

from duet_trl.report.logged_completions import UnreadableRun, completion_text, read_run
from tests.report.logged_run import (
    BOX,
    EIGHT,
    EIGHT_FLAGS,
    by_marker,
    char_tokenizer,
    figures,
    run,
    write,
    write_state,
)


def test_messages_and_strings_are_the_same_completions(tmp_path, capsys):
    messages = [
        ([{"role": "user", "content": prompt}], [{"role": "assistant", "content": text}], reward)
        for prompt, text, reward in EIGHT
    ]
    write(tmp_path / "a", 1, EIGHT)
    write(tmp_path / "b", 1, messages)
    results = [figures(capsys, tmp_path, tmp_path / name) for name in "ab"]
    assert results[0]["measured"] == results[1]["measured"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        ([], ""),
        ([{"role": "assistant", "content": None}], ""),
        ([{"role": "assistant", "reasoning_content": "why ", "content": "4"}], "<think>why </think>4"),
        (
            [
                {"role": "assistant", "content": "a"},
                {"role": "tool", "content": "no"},
                {"role": "assistant", "content": "b"},
            ],
            "ab",
        ),
    ],
)
def test_text_of_a_completion(value, text):
    assert completion_text(value) == text


def test_advantage_decides_where_a_reward_has_no_weight(tmp_path, capsys):
    # 'format' differs within p but has weight 0 in the run: its advantages are equal.
    rows = [("p", "a" * 9, 1.0), ("p", "b" * 9, 1.0), ("q", "c" * 9, 1.0), ("q", "d" * 9, 0.0)]
    extra = {"format": [0.0, 1.0, 0.0, 0.0]}
    write(tmp_path / "a", 1, rows, **extra, advantage=[0.0, 0.0, 0.7, -0.7])
    write(tmp_path / "b", 1, rows, **extra)
    zero = [figures(capsys, tmp_path, tmp_path / name)["measured"]["groups"]["zero_variance"] for name in "ab"]
    assert zero == [0.5, 0.0]
    weights = ["--reward_weights", 1, 0]
    assert figures(capsys, tmp_path, tmp_path / "b", *weights)["measured"]["groups"]["zero_variance"] == 0.5


def test_advantages_that_are_one_number_say_nothing_where_there_are_rewards(tmp_path, capsys):
    path = write(tmp_path / "run", 1, EIGHT, advantage=[0.0] * 8)
    assert figures(capsys, tmp_path, path.parent)["measured"]["groups"]["zero_variance"] == 0.5
    pd.read_parquet(path).drop(columns="accuracy").to_parquet(path)
    assert figures(capsys, tmp_path, path.parent)["measured"]["groups"]["zero_variance"] == 1.0


def test_the_tail_is_judged_by_its_advantages(tmp_path, capsys):
    # All 40 of 100 tokens are the tail. By their rewards none is above its group, by its advantages every second one.
    rows = [("p", "x" * 11 + BOX, float(number % 2)) for number in range(60)] + [("p", "x" * 100, 0.0)] * 40
    for name, columns, above in (("a", {}, 0.0), ("b", {"advantage": [-1.0, 1.0] * 50}, 0.5)):
        write(tmp_path / name, 1, rows, **columns)
        marker = by_marker(figures(capsys, tmp_path, tmp_path / name, *EIGHT_FLAGS))
        assert (marker["tail"], marker["tail_above_mean"]) == (0.4, above)


def test_completion_that_no_function_scored_is_left_out_of_its_group(tmp_path, capsys):
    rows = [
        ("p", "a" * 9, 1.0),
        ("p", "b" * 9, 1.0),
        ("p", "c" * 9, math.nan),
        ("q", "d" * 9, math.nan),
        ("q", "e", 1.0),
    ]
    write(tmp_path / "run", 1, rows)
    groups = figures(capsys, tmp_path, tmp_path / "run")["measured"]["groups"]
    assert (groups["num_groups"], groups["num_scored"], groups["zero_variance"]) == (2, 1, 1.0)


def test_files_without_rewards_still_give_tokens(tmp_path, capsys):
    path = write(tmp_path / "run", 1, EIGHT)
    pd.read_parquet(path).drop(columns="accuracy").to_parquet(path)
    status, out, _ = run(capsys, path.parent)
    assert status == 0
    assert "zero variance  not known" in out


def test_groups_are_recognised_by_step_and_prompt(tmp_path, capsys):
    for step in (1, 2):
        write(tmp_path / "completions", step, [("p", f"{step}", 1.0), ("p", f"{step}!", 0.0), ("q", "c", 1.0)])
    result = figures(capsys, tmp_path, tmp_path)
    assert result["measured"]["groups"]["num_groups"] == 4
    assert result["inputs"] == {"run": str(tmp_path), "steps": [1, 2], "completions": 6}


def test_a_batch_that_was_logged_again_counts_once(tmp_path):
    for step in (1, 2, 3):
        write(tmp_path, step, EIGHT if step < 3 else EIGHT[:4])
    found = read_run(tmp_path)
    assert found.steps == [1, 3]
    assert any("step 2" in note for note in found.notes)


def test_empty_files_are_skipped(tmp_path):
    write(tmp_path / "run", 1, EIGHT)
    write(tmp_path / "run", 2, [])
    (tmp_path / "run" / "completions_00003.parquet").touch()
    assert read_run(tmp_path / "run").steps == [1]


def test_booleans_are_rewards_and_the_log_names_those_that_are(tmp_path, capsys):
    path = write(tmp_path / "completions", 1, EIGHT, words=[float(n) for n in range(8)], right=[True, False] * 4)
    assert read_run(tmp_path).rewards == ["accuracy", "words", "right"]
    assert any(note.startswith("Added as rewards") for note in figures(capsys, tmp_path, tmp_path)["notes"])
    write_state(tmp_path / "checkpoint-9", {"step": 1, "rewards/accuracy/mean": 0.25})
    write_state(tmp_path / "checkpoint-10", {"step": 1, "rewards/right/mean": 0.25})
    assert read_run(path.parent).rewards == ["right"]


GOOD = {"step": [1], "prompt": ["p"], "completion": ["c"]}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"prompt": ["p"], "text": ["t"]}, "completions_00001.parquet is not a file that TRL writes"),
        (GOOD | {"completion": [3]}, "is not a file that TRL writes"),
        (GOOD | {"step": ["one"]}, "is not a file that TRL writes"),
        (GOOD | {"completion": [""]}, "every completion is empty"),
        (GOOD | {"r": [math.inf]}, "infinite rewards in r"),
        ({"step": [], "prompt": [], "completion": []}, "no completions of a training step in"),
        ("not parquet at all", "is not a file that TRL writes"),
        (None, "no completions of a training step in"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_a_remedy(tmp_path, capsys, rows, words):
    char_tokenizer().save(str(tmp_path / "tokenizer.json"))
    path = tmp_path / "completions_00001.parquet"
    if isinstance(rows, str):
        path.write_text(rows)
    elif rows is not None:
        pd.DataFrame(rows).to_parquet(path)
    status, out, errors = run(capsys, tmp_path)
    assert (status, out) == (1, "")
    assert errors.startswith("error: ") and words in errors


def test_a_run_without_a_tokenizer_asks_for_one(tmp_path, capsys):
    write(tmp_path, 1, EIGHT)
    (tmp_path / "tokenizer.json").unlink()
    status, _, errors = run(capsys, tmp_path)
    assert status == 1 and "Name it: --tokenizer" in errors


def test_steps_that_an_evaluation_overwrote_are_left_out(tmp_path, capsys):
    write(tmp_path / "completions", 1, EIGHT)
    write(tmp_path / "completions", 2, [("held out", "x" * 9, 1.0)])
    write_state(tmp_path, {"step": 2, "eval_loss": 0.1})
    result = figures(capsys, tmp_path, tmp_path)
    assert result["inputs"]["steps"] == [1]
    assert any(note.startswith("Left out: step 2.") for note in result["notes"])


def test_a_run_that_was_gated_already_is_pointed_out(tmp_path, capsys):
    write(tmp_path / "completions", 1, EIGHT)
    write_state(tmp_path, {"step": 1, "duet/abort_rate": 0.1})
    assert "gated already" in run(capsys, tmp_path)[1]


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_file_that_is_no_trainer_state_is_an_error(tmp_path, content):
    (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(UnreadableRun, match=r"trainer_state\.json"):
        read_run(tmp_path)
