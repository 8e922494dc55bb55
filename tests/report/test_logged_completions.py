# SPDX-License-Identifier: Apache-2.0
"""Files that stock TRL leaves behind: completions in their forms, rewards, the log, and what cannot be read."""

import math

import pandas as pd
import pytest

from duet_trl.report.logged_completions import (
    RunLog,
    UnreadableRun,
    completion_text,
    find_files,
    read_completions,
    read_run_log,
)
from tests.report.logged_run import BOX, EIGHT, EIGHT_FLAGS, by_marker, figures, run, write, write_state


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
    weights = ["--reward_columns", "accuracy", "format", "--reward_weights", 1, 0]
    assert figures(capsys, tmp_path, tmp_path / "b", *weights)["measured"]["groups"]["zero_variance"] == 0.5


def test_advantages_that_are_one_number_say_nothing_where_there_are_rewards(tmp_path, capsys):
    path = write(tmp_path / "run", 1, EIGHT, advantage=[0.0] * 8)
    assert figures(capsys, tmp_path, path)["measured"]["groups"]["zero_variance"] == 0.5
    pd.read_parquet(path).drop(columns="accuracy").to_parquet(path)
    assert figures(capsys, tmp_path, path)["measured"]["groups"]["zero_variance"] == 1.0


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
    status, out, _ = run(capsys, path)
    assert status == 0
    assert "zero variance  not known" in out


def test_groups_are_recognised_by_step_and_prompt(tmp_path, capsys):
    for step in (1, 2):
        write(tmp_path / "completions", step, [("p", f"{step}", 1.0), ("p", f"{step}!", 0.0), ("q", "c", 1.0)])
    result = figures(capsys, tmp_path, tmp_path)
    assert result["measured"]["groups"]["num_groups"] == 4
    assert result["inputs"] == {"run": str(tmp_path / "completions"), "steps": [1, 2], "completions": 6}


def test_a_run_is_found_by_its_folders_and_its_files(tmp_path):
    path = write(tmp_path / "completions", 1, EIGHT)
    for paths in ([tmp_path], [tmp_path / "completions"], [path], [path, tmp_path]):
        assert find_files(paths) == [path]


def test_files_of_two_runs_are_refused(tmp_path, capsys):
    for name in "ab":
        write(tmp_path / name / "completions", 1, EIGHT)
    status, _, errors = run(capsys, tmp_path / "a", tmp_path / "b")
    assert (status, errors) == (1, "error: the files are of 2 folders. Estimate one run at a time.\n")


def test_a_batch_that_was_logged_again_counts_once(tmp_path):
    for step in (1, 2, 3):
        write(tmp_path, step, EIGHT if step < 3 else EIGHT[:4])
    completions = read_completions(find_files([tmp_path]))
    assert completions.steps == (1, 3)
    assert any("step 2" in note for note in completions.notes)


def test_uneven_groups_are_pointed_out(tmp_path):
    write(tmp_path, 1, EIGHT[:7])
    assert any("another size than" in note for note in read_completions(find_files([tmp_path])).notes)


def test_empty_files_are_skipped_with_a_note(tmp_path, capsys):
    write(tmp_path / "run", 1, EIGHT)
    write(tmp_path / "run", 2, [])
    (tmp_path / "run" / "completions_00003.parquet").touch()
    status, out, _ = run(capsys, tmp_path / "run")
    assert status == 0
    assert "2 files without rows: completions_00002.parquet, completions_00003.parquet" in out


def unreadable(tmp_path, kind):
    path = tmp_path / f"{kind}.parquet"
    if kind == "foreign":
        pd.DataFrame({"prompt": ["p"], "text": ["t"]}).to_parquet(path)
    elif kind == "text":
        path.write_text("not parquet at all")
    elif kind == "numbers":
        pd.DataFrame({"step": [1], "prompt": ["p"], "completion": [3]}).to_parquet(path)
    elif kind == "steps":
        pd.DataFrame({"step": ["one"], "prompt": ["p"], "completion": ["c"]}).to_parquet(path)
    elif kind == "several":
        pd.DataFrame({"step": [1, 2], "prompt": ["p", "p"], "completion": ["c", "d"]}).to_parquet(path)
    elif kind == "empty":
        pd.DataFrame({"step": [], "prompt": [], "completion": []}).to_parquet(path)
    elif kind == "wordless":
        write(tmp_path, 1, [("p", "", 0.0)], name=path.name)
    return path


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("foreign", "lacks the columns step, completion; it has prompt, text"),
        ("text", "is not a readable parquet file"),
        ("numbers", "must hold strings or lists of messages, got int64"),
        ("steps", "must hold one integer, got one"),
        ("several", "must hold one integer, got 1, 2"),
        ("empty", "no completions in"),
        ("wordless", "every completion is empty"),
        ("absent", "leads to no parquet file"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_a_remedy(tmp_path, capsys, kind, words):
    status, out, errors = run(capsys, unreadable(tmp_path, kind))
    assert (status, out) == (1, "")
    assert errors.startswith("error: ") and words in errors


def test_unknown_reward_column_names_those_there_are(tmp_path, capsys):
    write(tmp_path / "run", 1, EIGHT)
    status, _, errors = run(capsys, tmp_path / "run", "--reward_columns", "acuracy")
    assert (status, errors) == (1, "error: no numeric column acuracy in the files. Numeric columns: accuracy.\n")


def test_the_state_of_the_last_checkpoint_is_found(tmp_path):
    assert read_run_log(tmp_path / "completions") == RunLog()
    for step in (9, 10):
        write_state(tmp_path / f"checkpoint-{step}")
    assert read_run_log(tmp_path / "completions").path == tmp_path / "checkpoint-10" / "trainer_state.json"
    write_state(tmp_path)
    assert read_run_log(tmp_path / "completions").path == tmp_path / "trainer_state.json"


def test_the_log_gives_the_ratio_and_the_reward_names(tmp_path, capsys):
    # 450 characters of 8 completions; 18.75 tokens each make 3 characters per token
    write(tmp_path / "completions", 1, EIGHT, words=[float(n) for n in range(8)])
    write_state(
        tmp_path,
        {"step": 1, "completions/mean_length": 18.75, "rewards/accuracy/mean": 0.25},
        {"step": 2, "completions/mean_length": 99.0},
    )
    measured = figures(capsys, tmp_path, tmp_path)["measured"]
    assert measured["chars_per_token"] == pytest.approx(3.0)
    assert measured["reward_columns"] == ["accuracy"]
    given = figures(capsys, tmp_path, tmp_path, "--chars_per_token", 1)
    assert given["measured"]["chars_per_token"] == 1.0
    assert any("56.2 tokens per completion here, 18.8 in the run's log" in note for note in given["notes"])


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


@pytest.mark.parametrize("content", ["{", "[]", '{"log_history": 3}'])
def test_a_file_that_is_no_trainer_state_is_an_error(tmp_path, content):
    (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(UnreadableRun, match=r"trainer_state\.json"):
        read_run_log(tmp_path)
