# SPDX-License-Identifier: Apache-2.0
"""What DUET would save on a finished run: closed forms, Algorithm 1 by hand, real outputs and a real TRL run."""

import json
import math
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl import DUETGRPOConfig
from duet_trl.gate.markers import MARKERS, extract_answer, first_marker_end, get_marker
from duet_trl.gate.thoughts import Delimiters, recognise
from duet_trl.report import estimate
from duet_trl.report.__main__ import main
from duet_trl.report.logged_completions import (
    Completions,
    UnreadableRun,
    completion_text,
    find_files,
    find_trainer_state,
    read_completions,
    read_run_log,
)
from duet_trl.report.logged_thoughts import find_thoughts
from duet_trl.report.tokens import CharacterCounts, TokenizerCounts, load_tokenizer
from tests.runs import count_fours, prompts, settings
from tests.tiny import thinking_tokenizer, tiny_tokenizer

ROOT = Path(__file__).parents[2]
MODEL_OUTPUTS = ROOT.parent / "shared" / "data" / "model_outputs_math.jsonl"

BOX = r"\boxed{1}"  # 9 characters


def write(folder, step, rows, name=None, **columns):
    """One file as TRL writes it. rows: (prompt, completion, reward) triples."""
    folder.mkdir(parents=True, exist_ok=True)
    table = {
        "step": [step] * len(rows),
        "prompt": [prompt for prompt, _, _ in rows],
        "completion": [completion for _, completion, _ in rows],
        "accuracy": [reward for _, _, reward in rows],
        **columns,
    }
    path = folder / (name or f"completions_{step:05d}.parquet")
    pd.DataFrame(table).to_parquet(path)
    return path


def run(capsys, *arguments):
    """Exit status, output and errors of the command line."""
    status = main(["estimate", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def figures(capsys, tmp_path, *arguments):
    """What the command line writes with --json."""
    path = tmp_path / "estimate.json"
    status, _, errors = run(capsys, *arguments, "--json", path)
    assert status == 0, errors
    return json.loads(path.read_text())


def by_marker(result, name="math"):
    return next(marker for marker in result["measured"]["markers"] if marker["marker"] == name)


def projected(result, marker, budget):
    return next(p for p in result["projected"] if p["marker"] == marker and p["budget"] == budget)


# ----------------------------------------------------------------------------------------------- closed forms

EIGHT = [  # prompt, completion, reward; one character is one token
    ("p", "x" * 11 + BOX + "y" * 60, 1.0),  # answer at 20 of 80
    ("p", "x" * 11 + BOX, 0.0),  # answer at 20 of 20
    ("p", "x" * 40, 0.0),
    ("p", "x" * 100, 1.0),
    ("q", "x" * 91 + BOX, 0.0),  # answer at 100 of 100
    ("q", "x" * 20, 0.0),
    ("q", "x" * 30, 0.0),
    ("q", "x" * 60, 0.0),
]
EIGHT_FLAGS = (
    "--chars_per_token 1 --grace_window 10 --poll_interval 4 --keep_probability 0.1 --abort_quantile 0.5"
    " --abort_answer_quantile 0"
).split()


def test_small_table_by_hand(tmp_path, capsys):
    # Lengths 20 20 30 40 60 80 100 100: K1 is the 3rd (0.3 * 8 = 2.4), K2 the 4th, so K1 = 30, K2 = 40, gate at 50.
    # Row 0 is polled at 32, stopped at 42. Rows 3, 4 and 7 have no marker at 50 and 50 + 50 + 10 tokens beyond it.
    write(tmp_path / "run", 1, EIGHT)
    result = figures(capsys, tmp_path, tmp_path / "run", *EIGHT_FLAGS)
    lengths = result["measured"]["lengths"]
    assert (lengths["total"], lengths["poll_threshold"], lengths["abort_threshold"]) == (450, 30, 40)
    math_marker = by_marker(result)
    assert math_marker["abort_threshold"] == 40
    assert math_marker["shown"] == pytest.approx(3 / 8)
    assert math_marker["tokens_after_answer"] == pytest.approx(60 / 450)
    assert math_marker["trim_saves"] == pytest.approx(38 / 450)
    assert math_marker["tail"] == pytest.approx(3 / 8)
    assert math_marker["tail_tokens"] == pytest.approx(110 / 450)
    assert math_marker["abort_saves"] == pytest.approx(0.9 * 110 / 450)
    assert math_marker["tail_above_mean"] == pytest.approx(1 / 3)  # row 3; rows 4 and 7 are as good as their group
    assert math_marker["answer_changes"] == 0.0
    assert math_marker["gated_mean"] == pytest.approx((450 - 38 - 99) / 8)


def test_the_gate_is_by_default_that_of_the_trainer(tmp_path):
    config = DUETGRPOConfig(output_dir=str(tmp_path), use_cpu=True)
    assumed, options = estimate.Settings(), config.options
    assert assumed.quantiles == (options.poll_quantile, options.abort_quantile)
    for name, field in {"answer_quantile": "abort_answer_quantile", "answer_slack": "abort_answer_slack"}.items():
        assert getattr(assumed, name) == getattr(options, field)
    assert assumed.poll_interval == options.poll_interval
    for name in ("keep_probability", "trim", "abort"):
        assert getattr(assumed, name) == getattr(config, name)
    assert assumed.with_limit(config.max_completion_length).grace_window == config.grace_window
    assert options.abort_cold_fraction == estimate.COLD_ABORT


@pytest.mark.parametrize(
    ("flags", "abort_threshold", "tail_tokens"),
    [
        # K1 = 30. Polls would see the answers of rows 0 and 1 at 32, that of row 4 at 100: the 0.5-quantile is 32, and
        # of the rewarded ones there is only row 0.
        (["--abort_answer_slack", "1.5"], 48, 2 + 42 + 42),  # gate at 58: rows 7 (60 tokens), 3 and 4 (100) are beyond
        (["--abort_answer_slack", "1"], 32, 18 + 58 + 58),
        (["--abort_answer_slack", "9"], 100, 0),  # no later than the longest
        (["--abort_answer_quantile", "0.95", "--abort_answer_slack", "1"], 100, 0),
        (["--poll_quantile", "0.7", "--abort_quantile", "0.7", "--abort_answer_slack", "1"], 80, 10 + 10),  # K1
    ],
)
def test_the_abort_threshold_lies_behind_the_answers(tmp_path, capsys, flags, abort_threshold, tail_tokens):
    write(tmp_path / "run", 1, EIGHT)
    result = figures(capsys, tmp_path, tmp_path / "run", *EIGHT_FLAGS, "--abort_answer_quantile", 0.5, *flags)
    marker = by_marker(result)
    assert marker["abort_threshold"] == abort_threshold
    assert marker["tail_tokens"] == pytest.approx(tail_tokens / 450)


@pytest.mark.parametrize(("reward", "abort_threshold"), [(1.0, 100), (0.0, 32)])
def test_a_late_answer_holds_the_abort_threshold_up_only_if_it_was_rewarded(tmp_path, capsys, reward, abort_threshold):
    # Row 4 answers at 100, as in the table above; no other answer comes after the poll at 32.
    rows = [(*row[:2], reward if number == 4 else row[2]) for number, row in enumerate(EIGHT)]
    write(tmp_path / "run", 1, rows)
    flags = ["--abort_answer_quantile", 0.5, "--abort_answer_slack", 1]
    result = figures(capsys, tmp_path, tmp_path / "run", *EIGHT_FLAGS, *flags)
    assert by_marker(result)["abort_threshold"] == abort_threshold


def table_row(out, table, marker):
    """The row of a marker in one of the two tables of the text."""
    section = out.split(table)[1].split("\n\n")[0]
    return next(line for line in section.splitlines() if line.split()[:1] == [marker])


def test_a_marker_that_hardly_any_completion_shows_is_marked_in_its_row(tmp_path, capsys):
    # One of 125 shows <answer>: 0.8%, early, so that its K2 of 1.25 x 104 = 130 would abort half of the others.
    rows = [("p", "x" * 91 + BOX, 1.0)] * 62 + [("p", "x" * 991 + BOX, 1.0)] * 62
    write(tmp_path / "run", 1, [*rows, ("p", "<answer>4</answer>" + "y" * 300, 0.0)])
    found = figures(capsys, tmp_path, tmp_path / "run", "--chars_per_token", 1)
    assert by_marker(found, "qa")["abort_saves"] > 0.7 > by_marker(found, "math")["abort_saves"] == 0.0
    out = run(capsys, tmp_path / "run", "--chars_per_token", 1)[1]
    for table in ("MEASURED per marker", "PROJECTED"):
        assert table_row(out, table, "qa").endswith("rare: wrong marker?")
        assert "wrong" not in table_row(out, table, "math")
    assert table_row(out, "MEASURED per marker", "code").endswith("not shown: wrong marker?")


def test_a_gate_that_cannot_act_is_said_in_the_row_instead_of_a_saving_of_zero(tmp_path, capsys):
    # Of at most 256 tokens; answers at 109. K1 = 109, first poll 112; K2 = 1.25 x 112 = 140.
    write(tmp_path / "run", 1, [("p", "x" * 100 + BOX, 1.0)] * 9 + [("p", "x" * 256, 0.0)])
    absolute = run(capsys, tmp_path / "run", "--chars_per_token", 1, "--grace_window", 150)[1]
    row = table_row(absolute, "MEASURED per marker", "math")
    assert row.endswith("trim cannot act; abort cannot act")
    marker, k2, shown, after, trim, tail, tail_tokens, abort, *_ = row.split()
    assert (k2, trim, abort) == ("140", "-", "-")
    # In proportion G is 12: the gate comes at 152 and saves 0.95 of the last 104 tokens of the long one.
    scaled = figures(capsys, tmp_path, tmp_path / "run", "--chars_per_token", 1)
    assert scaled["settings"]["grace_window"] == 12
    assert by_marker(scaled)["abort_saves"] == pytest.approx(0.95 * 104 / (9 * 109 + 256))
    assert "cannot act;" not in run(capsys, tmp_path / "run", "--chars_per_token", 1)[1]


def test_without_answers_the_abort_threshold_is_the_one_training_begins_with(tmp_path, capsys):
    write(tmp_path / "run", 1, EIGHT)
    result = figures(capsys, tmp_path, tmp_path / "run", *EIGHT_FLAGS, "--abort_answer_quantile", 0.95)
    assert by_marker(result, "code")["abort_threshold"] == 70


def test_rewards_by_hand(tmp_path, capsys):
    # p: two ones of four, std = sqrt(1/3), mean length 60; q: no spread, mean length 52.5.
    # Theorem 1: (s_p sqrt(60))^2 / 112.5 against s_p^2 for equal counts.
    write(tmp_path / "run", 1, EIGHT)
    groups = figures(capsys, tmp_path, tmp_path / "run", *EIGHT_FLAGS)["measured"]["groups"]
    assert (groups["num_groups"], groups["num_scored"], groups["zero_variance"]) == (2, 2, 0.5)
    assert groups["mean_std"] == pytest.approx(math.sqrt(1 / 3) / 2)
    assert groups["std_quantiles"]["p50"] == pytest.approx(math.sqrt(1 / 3) / 2)
    assert groups["neyman_variance"] == pytest.approx(60 / 112.5)


def test_projection_by_hand(tmp_path, capsys):
    write(tmp_path / "run", 1, EIGHT)
    flags = [*EIGHT_FLAGS, "--seconds_per_step", "10", "--generation_share", "0.6"]
    result = figures(capsys, tmp_path, tmp_path / "run", *flags)
    gated = 450 - 38 - 99
    for budget in (1.0, 0.5, 0.25):
        item = projected(result, "math", budget)
        assert item["rollouts"] == 8 * budget
        assert item["tokens"] == pytest.approx(gated * budget)
        assert item["token_share"] == pytest.approx(gated * budget / 450)
        assert item["seconds_per_step_low"] == pytest.approx(10 * gated * budget / 450)
        assert item["seconds_per_step_high"] == pytest.approx(4 + 6 * gated * budget / 450)
        assert projected(result, None, budget)["tokens"] == pytest.approx(450 * budget)
    assert {item["marker"] for item in result["projected"]} == {None, "math"}  # nobody showed the others


@pytest.mark.parametrize(
    ("flags", "saved"),
    [(["--no_abort"], 38), (["--no_trim"], 99), (["--no_trim", "--no_abort"], 0), (["--keep_probability", "1"], 38)],
)
def test_each_half_of_the_gate_switches_off(tmp_path, capsys, flags, saved):
    write(tmp_path / "run", 1, EIGHT)
    result = figures(capsys, tmp_path, tmp_path / "run", *EIGHT_FLAGS, *flags)
    assert projected(result, "math", 1.0)["tokens"] == pytest.approx(450 - saved)


def test_a_completion_that_ends_at_the_gate_was_not_decided_about(tmp_path, capsys):
    # K2 = 40 and G = 10: the coin is thrown before token 51, so one of 50 tokens is no tail, one of 51 is.
    rows = [("p", "x" * length, 0.0) for length in (40, 40, 50, 51)]
    write(tmp_path / "run", 1, rows)
    marker = by_marker(figures(capsys, tmp_path, tmp_path / "run", *EIGHT_FLAGS))
    assert (marker["tail"], marker["tail_tokens"]) == (0.25, pytest.approx(1 / 181))


def test_a_custom_marker_is_measured_beside_the_others(tmp_path, capsys):
    write(tmp_path / "run", 1, [("p", "aaa ANSWER: 4;" + "b" * 14, 1.0), ("p", "c" * 4, 0.0)])
    result = figures(
        capsys,
        tmp_path,
        tmp_path / "run",
        "--chars_per_token",
        1,
        "--marker",
        r"regex:ANSWER: \d+;",
        "--grace_window",
        0,
    )
    assert [m["marker"] for m in result["measured"]["markers"]] == [*MARKERS, r"regex:ANSWER: \d+;"]
    assert by_marker(result, r"regex:ANSWER: \d+;")["tokens_after_answer"] == pytest.approx(14 / 32)


def test_an_answer_that_the_cut_replaces_is_counted(tmp_path, capsys):
    # K1 = 109, so the first poll at or after it comes at 112; G = 8 cuts the second box off.
    revised = "x" * 91 + BOX + "y" * 30 + r"\boxed{2}" + "z" * 61
    write(tmp_path / "run", 1, [("p", revised, 1.0), ("p", "x" * 91 + BOX + "y" * 9, 0.0)])
    flags = "--chars_per_token 1 --grace_window 8 --poll_quantile 0.3 --abort_quantile 0.5".split()
    marker = by_marker(figures(capsys, tmp_path, tmp_path / "run", *flags))
    assert marker["trim_saves"] == pytest.approx((200 - 120) / 309)
    assert marker["answer_changes"] == 1.0


# ------------------------------------------------------------------------------------- Algorithm 1, token by token


def stopped_by_algorithm_1(text, marker, spec, keep):
    """Tokens generated when one character is one token: the loop of Algorithm 1, lines 12 to 28."""
    poll_threshold, abort_threshold, grace_window, poll_interval = spec
    tau = None
    for t in range(1, len(text)):  # before each further token
        at_gate = t == abort_threshold + grace_window
        polls = t >= poll_threshold and (t % poll_interval == 0 or at_gate)
        if tau is None and polls and first_marker_end(marker, text[:t]) is not None:
            tau = t
        if tau is not None and t >= tau + grace_window:
            return t
        if tau is None and at_gate:
            return len(text) if keep else t
    return len(text)


PIECES = st.sampled_from(["a", "bc", BOX, r"\boxed{", "}", "\n\n", "<answer>4</answer>", "é", "```\n", "x = 1"])
TEXTS = st.lists(st.lists(PIECES, max_size=12).map("".join), min_size=1, max_size=6).filter(any)


@given(
    texts=TEXTS,
    marker=st.sampled_from(sorted(MARKERS)),
    quantiles=st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted),
    answer_quantile=st.sampled_from([0.0, 0.5, 0.95]),
    grace_window=st.integers(0, 12),
    poll_interval=st.integers(1, 5),
    eps=st.floats(0.01, 1.0),
)
def test_mean_under_the_gate_is_that_of_algorithm_1(
    texts, marker, quantiles, answer_quantile, grace_window, poll_interval, eps
):
    assumed = estimate.Settings(
        quantiles=tuple(quantiles),
        answer_quantile=answer_quantile,
        grace_window=grace_window,
        poll_interval=poll_interval,
        keep_probability=eps,
    )
    completions = of_texts(texts)
    counts = CharacterCounts(texts, 1.0)
    lengths = estimate.measure_lengths(completions, counts, assumed)
    thoughts, unknown = find_thoughts(completions, None), np.full(len(texts), np.nan)
    found = estimate.measure_marker(marker, completions, counts, thoughts, lengths, assumed, unknown)
    if not answer_quantile:
        assert found.abort_threshold == lengths.abort_threshold
    spec = (lengths.poll_threshold, found.abort_threshold, grace_window, poll_interval)
    kept = [stopped_by_algorithm_1(text, get_marker(marker), spec, keep=True) for text in texts]
    dropped = [stopped_by_algorithm_1(text, get_marker(marker), spec, keep=False) for text in texts]
    assert found.gated_mean == pytest.approx(eps * np.mean(kept) + (1 - eps) * np.mean(dropped), rel=1e-9)


@given(texts=TEXTS, grace_window=st.integers(0, 20), eps=st.floats(0.01, 1.0), budgets=st.lists(st.floats(0.01, 1.0)))
def test_projected_tokens_grow_with_the_budget_and_never_exceed_the_run(texts, grace_window, eps, budgets):
    assumed = estimate.Settings(
        budgets=tuple(sorted([*budgets, 1.0])), grace_window=grace_window, keep_probability=eps
    )
    completions, counts = of_texts(texts), CharacterCounts(texts, 2.5)
    lengths = estimate.measure_lengths(completions, counts, assumed)
    unknown = np.full(len(texts), np.nan)
    none = find_thoughts(completions, [])
    markers = [estimate.measure_marker(m, completions, counts, none, lengths, assumed, unknown) for m in MARKERS]
    for marker in markers:
        assert 0 <= marker.trim_saves <= marker.tokens_after_answer + 1e-12 <= 1
        assert 0 <= marker.abort_saves <= marker.tail_tokens <= 1
    rows = estimate.project(lengths, markers, len(texts), assumed)
    for name in {row.marker for row in rows}:
        shares = [row.token_share for row in rows if row.marker == name]
        assert shares == sorted(shares)
        assert shares[-1] <= 1.0 + 1e-12
        if name is not None:  # a gate never costs tokens
            without = [row.token_share for row in rows if row.marker is None]
            assert all(a <= b + 1e-12 for a, b in zip(shares, without, strict=True))
    assert all(row.time_share_low <= row.time_share_high + 1e-12 <= 1 + 1e-11 for row in rows)


def of_texts(texts):
    """Completions of one batch and one prompt."""
    num = len(texts)
    return Completions(
        runs=(Path("run"),),
        num_files=1,
        batches=((Path("run"), 1),),
        batch=np.zeros(num, np.int64),
        prompts=("",) * num,
        group=np.zeros(num, np.int64),
        texts=tuple(texts),
        numbers={},
        advantage=np.full(num, np.nan),
        notes=(),
    )


# ----------------------------------------------------------------------------------------------------- tokens


@given(texts=TEXTS, marker=st.sampled_from(sorted(MARKERS)))
def test_characters_find_the_marker_where_the_text_does(texts, marker):
    found = CharacterCounts(texts, 1.0).answered_at(get_marker(marker))
    expected = [first_marker_end(get_marker(marker), text) for text in texts]
    assert [None if at >= estimate.NEVER else at for at in found.tolist()] == expected


@given(text=st.lists(PIECES, min_size=1, max_size=12).map("".join), ratio=st.floats(0.3, 6.0))
def test_tokens_from_characters_are_rounded_up(text, ratio):
    assert CharacterCounts([text], ratio).lengths[0] == math.ceil(len(text) / ratio - 1e-9)


def test_a_prefix_has_as_many_characters_as_its_tokens_stand_for():
    assert CharacterCounts(["abcdefgh"], 2.5).prefix(0, 2) == "abcde"


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_tokenizer_counts_tokens_and_finds_the_one_that_completes_the_marker(tokenizer_folder):
    texts = [r"so \boxed{42}$. It is é", "no box", "", r" the answer is \boxed{\frac{1}{2}}" + "x" * 40]
    counts, tokenizer = TokenizerCounts(texts, load_tokenizer(str(tokenizer_folder))), tiny_tokenizer()
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert counts.lengths.tolist() == [len(row) for row in ids]
    for row, at in enumerate(counts.answered_at(get_marker("math")).tolist()):
        ends = [n for n in range(len(ids[row]) + 1) if extract_answer("math", tokenizer.decode(ids[row][:n]))]
        assert at == (ends[0] if ends else estimate.NEVER)
    assert counts.prefix(0, len(ids[0])) == texts[0]


def test_tokenizer_file_that_truncates_does_not(tokenizer_folder, tmp_path):
    tokenizer = load_tokenizer(str(tokenizer_folder / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert TokenizerCounts(["x" * 50], load_tokenizer(str(tmp_path))).lengths.tolist() == [50]


@pytest.mark.parametrize("name", ["no-such-folder/tokenizer.json", "not/a/hub/name"])
def test_missing_tokenizer_is_an_error_that_says_what_to_give(tmp_path, capsys, name):
    write(tmp_path / "run", 1, EIGHT)
    status, out, errors = run(capsys, tmp_path / "run", "--tokenizer", name)
    assert (status, out) == (1, "")
    assert name in errors and "tokenizer.json" in errors


def test_estimated_tokens_are_labelled_with_the_ratio(tmp_path, capsys):
    write(tmp_path / "run", 1, EIGHT)
    for flags, words in (
        ([], "ESTIMATED at 3 characters per token (the default"),
        (["--chars_per_token", "2.5"], "ESTIMATED at 2.5 characters per token (--chars_per_token)"),
    ):
        assert words in run(capsys, tmp_path / "run", *flags)[1]


# --------------------------------------------------------------------------------------------- files and columns


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
        ([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "image", "text": None}]}], "a"),
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
    write(tmp_path / "run", 1, EIGHT, advantage=[1.0, -1.0, -1.0, 1.0, 0.1, -0.1, 0.0, 0.0])
    marker = by_marker(figures(capsys, tmp_path, tmp_path / "run", *EIGHT_FLAGS))
    assert marker["tail_above_mean"] == pytest.approx(2 / 3)  # rows 3 and 4 of 3, 4 and 7


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


def test_groups_are_recognised_by_run_step_and_prompt(tmp_path, capsys):
    for name in "ab":
        for step in (1, 2):
            write(tmp_path / name / "completions", step, [("p", f"{name}{step}", 1.0), ("p", f"{name}{step}!", 0.0)])
    result = figures(capsys, tmp_path, tmp_path / "a", tmp_path / "b" / "completions" / "*.parquet")
    assert result["measured"]["groups"]["num_groups"] == 4
    assert [(Path(b["run"]).parent.name, b["step"]) for b in result["inputs"]["batches"]] == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
        ("b", 2),
    ]


def test_one_step_over_two_files_is_one_batch(tmp_path):
    write(tmp_path, 3, EIGHT[:2], name="one.parquet")
    write(tmp_path, 3, EIGHT[2:], name="two.parquet")
    completions = read_completions(find_files([tmp_path]))
    assert completions.batches == ((tmp_path, 3),)
    assert np.bincount(completions.group).tolist() == [4, 4]


def test_a_file_named_twice_counts_once(tmp_path):
    path = write(tmp_path, 1, EIGHT)
    assert find_files([path, tmp_path, str(tmp_path / "*.parquet")]) == [path]


def test_a_batch_that_was_logged_again_counts_once(tmp_path):
    for step in (1, 2, 3):
        write(tmp_path, step, EIGHT if step < 3 else EIGHT[:4])
    completions = read_completions(find_files([tmp_path]))
    assert [step for _, step in completions.batches] == [1, 3]
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
        ("steps", "must hold an integer in every row"),
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


@pytest.mark.parametrize(
    "flags",
    [
        ["--budgets", "50"],
        ["--budgets", "0"],
        ["--keep_probability", "0"],
        ["--grace_window", "-1"],
        ["--poll_interval", "0"],
        ["--chars_per_token", "0"],
        ["--poll_quantile", "0.9"],
        ["--abort_answer_quantile", "1"],
        ["--abort_answer_slack", "0.9"],
        ["--marker", "regex:("],
        ["--marker", "maths"],
        ["--generation_share", "nan"],
    ],
)
def test_a_flag_out_of_range_is_wrong_usage(tmp_path, capsys, flags):
    write(tmp_path / "run", 1, EIGHT)
    with pytest.raises(SystemExit) as stopped:
        main(["estimate", str(tmp_path / "run"), *flags])
    assert stopped.value.code == 2
    assert flags[0] in capsys.readouterr().err


def test_no_marker_anywhere_is_said_plainly(tmp_path, capsys):
    write(tmp_path / "run", 1, [("p", f"the answer might be {n} " * 100, float(n % 2)) for n in range(8)])
    status, out, _ = run(capsys, tmp_path / "run", "--grace_window", 8)
    assert status == 0
    assert "NO COMPLETION SHOWS ANY OF THE MARKERS: trimming saves nothing" in out
    assert out.count("no completion shows it, so trimming saves nothing. Wrong marker?") == len(MARKERS)


def test_output_says_what_is_measured_and_what_is_not(tmp_path, capsys):
    write(tmp_path / "run", 1, EIGHT)
    _, out, _ = run(capsys, tmp_path / "run")
    assert out.index("MEASURED on the logged completions") < out.index("PROJECTED for the logged batches")
    assert "Accuracy is NOT predicted" in out
    assert max(len(line) for line in out.splitlines()[-12:]) <= 119


# ---------------------------------------------------------------------------------------------------- the log


def write_state(folder, *entries, steps=2):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": steps, "log_history": list(entries)}))


def test_the_state_of_the_last_checkpoint_is_found(tmp_path):
    assert find_trainer_state(tmp_path / "completions") is None
    for step in (9, 10):
        write_state(tmp_path / f"checkpoint-{step}")
    assert find_trainer_state(tmp_path / "completions") == tmp_path / "checkpoint-10" / "trainer_state.json"
    write_state(tmp_path)
    assert find_trainer_state(tmp_path / "completions") == tmp_path / "trainer_state.json"


def test_the_log_gives_seconds_ratio_and_reward_names(tmp_path, capsys):
    # 450 characters of 8 completions; 18.75 tokens each make 3 characters per token
    write(tmp_path / "completions", 1, EIGHT, words=[float(n) for n in range(8)])
    write_state(
        tmp_path,
        {"step": 1, "step_time": 3.0, "completions/mean_length": 18.75, "rewards/accuracy/mean": 0.25},
        {"step": 2, "step_time": 5.0, "completions/mean_length": 99.0},
        {"step": 2, "train_runtime": 1000.0},
    )
    measured = figures(capsys, tmp_path, tmp_path)["measured"]
    assert (measured["seconds_per_step"], measured["num_steps"]) == (4.0, 2)
    assert measured["chars_per_token"] == pytest.approx(3.0)
    assert measured["reward_columns"] == ["accuracy"]
    given = figures(capsys, tmp_path, tmp_path, "--seconds_per_step", 7, "--chars_per_token", 1)
    assert (given["measured"]["seconds_per_step"], given["measured"]["chars_per_token"]) == (7.0, 1.0)
    assert any("56.2 tokens per completion here, 18.8 in the run's log" in note for note in given["notes"])


def test_runtime_stands_in_for_step_times(tmp_path, capsys):
    write(tmp_path / "completions", 1, EIGHT)
    write_state(tmp_path / "state", {"step": 2, "train_runtime": 1000.0})
    flags = ["--trainer_state", tmp_path / "state" / "trainer_state.json"]
    assert figures(capsys, tmp_path, tmp_path, *flags)["measured"]["seconds_per_step"] == 500.0


def test_without_a_log_time_is_relative_only(tmp_path, capsys):
    write(tmp_path / "completions", 1, EIGHT)
    _, out, _ = run(capsys, tmp_path)
    assert "seconds        not known" in out and "s/step" not in out


def test_steps_that_an_evaluation_overwrote_are_left_out(tmp_path, capsys):
    write(tmp_path / "completions", 1, EIGHT)
    write(tmp_path / "completions", 2, [("held out", "x" * 9, 1.0)])
    write_state(tmp_path, {"step": 2, "eval_loss": 0.1})
    result = figures(capsys, tmp_path, tmp_path)
    assert [batch["step"] for batch in result["inputs"]["batches"]] == [1]
    assert any(note.startswith("Left out: step 2.") for note in result["notes"])


def test_a_run_that_was_gated_already_is_pointed_out(tmp_path, capsys):
    write(tmp_path / "completions", 1, EIGHT)
    write_state(tmp_path, {"step": 1, "duet/abort_rate": 0.1})
    assert "gated already" in run(capsys, tmp_path)[1]


@pytest.mark.parametrize("content", ["{", "[]", '{"log_history": 3}'])
def test_a_file_that_is_no_trainer_state_is_an_error(tmp_path, content):
    (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(UnreadableRun, match=r"trainer_state\.json"):
        read_run_log(tmp_path / "trainer_state.json")


# ---------------------------------------------------------------------------------------------------- thoughts

LONG_THOUGHT = r"<think>so \boxed{4}? no wait" + " hm" * 50 + r"</think>It is \boxed{5}."
THINKING = [
    ("a <think>\n", r"maybe \boxed{4}" + " hm" * 50 + r"</think>\boxed{5} done", 1.0),  # the prompt opened it
    ("a <think>\n", r"maybe \boxed{4} and so on" + " hm" * 50, 0.0),  # never closed
    ("b", LONG_THOUGHT, 1.0),
    ("b", "<think>hm</think>" + r"\boxed{6} and good bye", 0.0),
]


@pytest.mark.parametrize("tokenizer", [False, True])
def test_boxes_inside_a_thought_are_counted_and_do_not_count_as_answers(tmp_path, capsys, tokenizer):
    write(tmp_path / "completions", 1, THINKING)
    special = thinking_tokenizer(Delimiters("<think>", "</think>"), special=True)
    special.save_pretrained(tmp_path / "tokenizer")
    options = ("--tokenizer", tmp_path / "tokenizer") if tokenizer else ("--chars_per_token", 1)
    result = figures(capsys, tmp_path, tmp_path, *options)
    math_row = by_marker(result, "math")
    assert math_row["in_thought"] == 0.75  # all but the last show their first box inside
    assert math_row["shown"] == 0.75  # all but the one that never closes answer
    assert result["measured"]["thought_delimiters"] == ["<think>", "</think>"]
    assert result["measured"]["begin_in_thought"] == 2
    assert any("Thoughts stand between <think> and </think>" in note for note in result["notes"])
    if not tokenizer:
        texts = [text for _, text, _ in THINKING]
        after = sum(len(text) - text.rindex("}") - 1 for text in (texts[0], texts[2], texts[3]))
        assert math_row["tokens_after_answer"] == pytest.approx(after / sum(map(len, texts)))

    told = figures(capsys, tmp_path, tmp_path, *options, "--thought_delimiters", "<think>", "</think>")
    assert told["measured"]["markers"] == result["measured"]["markers"]
    none = figures(capsys, tmp_path, tmp_path, *options, "--thought_delimiters")
    assert by_marker(none, "math")["shown"] == 1.0 and by_marker(none, "math")["in_thought"] == 0.0
    assert none["measured"]["thought_delimiters"] == []
    assert "in thought" not in run(capsys, tmp_path, "--thought_delimiters")[1]
    assert "in thought" in run(capsys, tmp_path)[1]


def test_delimiters_that_are_no_pair_are_an_error_of_the_command_line(tmp_path, capsys):
    write(tmp_path / "completions", 1, THINKING)
    status, _, errors = run(capsys, tmp_path, "--thought_delimiters", "<think>")
    assert status == 1 and "thought delimiters must be a list of two texts" in errors


def test_reasoning_that_a_template_split_off_is_a_thought():
    message = {"role": "assistant", "reasoning_content": r"maybe \boxed{4}", "content": r"\boxed{5}"}
    written = recognise(completion_text([message]))
    assert extract_answer("math", written) == "5"


# ------------------------------------------------------------------------------------------------- real outputs


@pytest.fixture(scope="module")
def real_outputs(tmp_path_factory):
    if not MODEL_OUTPUTS.exists():
        pytest.skip(f"{MODEL_OUTPUTS} is absent")
    rows = [json.loads(line) for line in MODEL_OUTPUTS.read_text(encoding="utf-8").splitlines()]
    folder = tmp_path_factory.mktemp("real") / "completions"
    triples = [(r["problem"], r["text"], math.nan if r["label"] is None else float(r["label"])) for r in rows]
    write(folder, 1, triples)
    return folder, rows


def test_real_outputs_against_plain_python(real_outputs, capsys, tmp_path):
    folder, rows = real_outputs
    result = figures(capsys, tmp_path, folder, "--chars_per_token", 1, "--thought_delimiters")  # without thoughts
    total = sum(len(row["text"]) for row in rows)
    for name in MARKERS:
        ends = [first_marker_end(get_marker(name), row["text"]) for row in rows]
        after = sum(len(row["text"]) - end for row, end in zip(rows, ends, strict=True) if end is not None)
        assert by_marker(result, name)["shown"] == pytest.approx(sum(end is not None for end in ends) / len(rows))
        assert by_marker(result, name)["tokens_after_answer"] == pytest.approx(after / total)
    labels = defaultdict(list)
    for row in rows:
        if row["label"] is not None:
            labels[row["problem"]].append(row["label"])
    groups = [group for group in labels.values() if len(group) > 1]
    zero = sum(len(set(group)) == 1 for group in groups) / len(groups)
    assert result["measured"]["groups"]["zero_variance"] == pytest.approx(zero)


def test_real_outputs_show_that_the_papers_literal_marker_is_the_wrong_one(real_outputs, capsys, tmp_path):
    result = figures(capsys, tmp_path, real_outputs[0])
    assert by_marker(result, "math")["shown"] > 0.3
    assert by_marker(result, "math_paragraph")["shown"] < 0.01
    assert any(note.startswith("math_paragraph: only") for note in result["notes"])
    assert projected(result, "math", 1.0)["tokens"] < projected(result, None, 1.0)["tokens"]


# --------------------------------------------------------------------------------------- a run of stock TRL


@pytest.fixture(scope="module", params=[False, True], ids=["strings", "messages"])
def stock_run(request, tiny_path, tmp_path_factory):
    """`trl.GRPOTrainer`, two steps; the second one with an evaluation after it if completions are messages."""
    from trl import GRPOConfig, GRPOTrainer

    output_dir = tmp_path_factory.mktemp("stock")
    evaluation = {"eval_strategy": "steps", "eval_steps": 2} if request.param else {}
    arguments = settings(
        output_dir, max_steps=2, log_completions=True, save_strategy="steps", save_steps=2, **evaluation
    )
    trainer = GRPOTrainer(
        str(tiny_path),
        count_fours,
        args=GRPOConfig(**arguments),
        train_dataset=prompts(conversational=request.param),
        eval_dataset=prompts(8, conversational=request.param) if evaluation else None,
    )
    trainer.train()
    return output_dir, [1] if evaluation else [1, 2], trainer.state.log_history


def test_completions_of_a_stock_run_from_the_command_line(stock_run, tmp_path):
    output_dir, steps, history = stock_run
    command = [sys.executable, "-m", "duet_trl.report", "estimate", str(output_dir / "completions" / "*.parquet")]
    command += ["--grace_window", "8", "--json", str(tmp_path / "out.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads((tmp_path / "out.json").read_text())
    assert [batch["step"] for batch in result["inputs"]["batches"]] == steps
    logged = {entry["step"]: entry for entry in history if "completions/mean_length" in entry}
    measured = result["measured"]
    # 32 completions a step in 8 groups; the log knows their tokens, their flat groups and the seconds
    assert result["inputs"]["completions"] == 32 * len(steps)
    assert measured["groups"]["num_groups"] == 8 * len(steps)
    tokens = sum(32 * logged[step]["completions/mean_length"] for step in steps)
    assert measured["lengths"]["total"] == pytest.approx(tokens, abs=32 * len(steps))  # each is rounded up
    flat = np.mean([logged[step]["frac_reward_zero_std"] for step in steps])
    assert measured["groups"]["zero_variance"] == pytest.approx(flat)
    assert measured["reward_columns"] == ["count_fours"]
    assert measured["seconds_per_step"] == pytest.approx(np.mean([e["step_time"] for e in logged.values()]))
    assert by_marker(result, "math")["shown"] > 0
    assert "Left out: step 2" in done.stdout or len(steps) == 2


def test_tokenizer_of_a_stock_run_counts_its_tokens(stock_run, capsys, tmp_path):
    """The tiny policy writes bytes that are no UTF-8, which text cannot give back: a tolerance, not equality."""
    output_dir, steps, history = stock_run
    result = figures(capsys, tmp_path, output_dir, "--tokenizer", output_dir / "checkpoint-2")
    logged = [entry["completions/mean_length"] for entry in history if "completions/mean_length" in entry][
        : len(steps)
    ]
    assert result["measured"]["lengths"]["mean"] == pytest.approx(np.mean(logged), rel=0.15)
    assert not result["measured"]["tokens_are_estimated"]


def test_the_command_line_loads_no_training_library():
    code = (
        "import sys, duet_trl.report.__main__\n"
        "print(sorted({'torch', 'trl', 'transformers', 'vllm', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
