# SPDX-License-Identifier: Apache-2.0
"""What DUET would save on a finished run: closed forms, Algorithm 1 by hand, real outputs."""

import json
import math
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl import DUETGRPOConfig
from duet_trl.__main__ import main
from duet_trl.gate.markers import MARKERS, extract_answer, first_marker_end, get_marker
from duet_trl.gate.replay import GateSpec
from duet_trl.gate.thoughts import Delimiters, recognise
from duet_trl.report import estimate
from duet_trl.report.logged_completions import (
    Completions,
    completion_text,
    find_files,
    read_completions,
)
from duet_trl.report.tokens import cut_texts, find_thoughts
from tests.report.logged_run import BOX, EIGHT, EIGHT_FLAGS, TEXTS, by_marker, figures, projected, run, write
from tests.tiny import thinking_tokenizer

ROOT = Path(__file__).parents[2]
MODEL_OUTPUTS = ROOT.parent / "shared" / "data" / "model_outputs_math.jsonl"


def test_small_table_by_hand(tmp_path, capsys):
    # One rollout without a marker earns its reward at 100: nothing is aborted. Row 0 answers at 20 of 80, is polled at
    # 24 and stopped at 32.
    write(tmp_path / "run", 1, EIGHT)
    result = figures(capsys, tmp_path, tmp_path / "run", *EIGHT_FLAGS)
    marker = by_marker(result)
    expected = {
        "shown": 3 / 8,
        "tokens_after_answer": 60 / 450,
        "trim_saves": 48 / 450,
        "tail": 0.0,
        "abort_saves": 0.0,
        "answer_changes": 0.0,
        "gated_mean": (450 - 48) / 8,
    }
    assert {name: marker[name] for name in expected} == pytest.approx(expected)
    assert result["measured"]["lengths"] == {"total": 450, "mean": 450 / 8, "longest": 100}
    groups = result["measured"]["groups"]
    assert (groups["num_groups"], groups["num_scored"], groups["zero_variance"]) == (2, 2, 0.5)  # q: four zeros
    for budget in (1.0, 0.5, 0.25):
        item = projected(result, "math", budget)
        assert (item["rollouts"], item["tokens"]) == (8 * budget, pytest.approx(402 * budget))
        assert item["token_share"] == pytest.approx(402 * budget / 450)
        assert projected(result, None, budget)["tokens"] == pytest.approx(450 * budget)
    assert {item["marker"] for item in result["projected"]} == {None, "math"}  # nobody showed the others


def test_the_gate_is_that_of_the_trainer(tmp_path, capsys):
    config = DUETGRPOConfig(output_dir=str(tmp_path), use_cpu=True)
    assert (config.options.abort_rule, config.trim, config.abort, config.keep_probability) == (
        "price",
        True,
        True,
        None,
    )
    assert config.options.poll_interval == GateSpec(1, 1, 0).poll_interval
    path = write(tmp_path / "run", 1, [("p", "x" * config.max_completion_length, 0.0)])
    found = figures(capsys, tmp_path, path, "--chars_per_token", 1)
    assert found["measured"]["grace_window"] == config.grace_window


LATE = [  # 60 answer at 20, every second one rightly; 40 run to 100
    *[("p", "x" * 11 + BOX, float(number % 2)) for number in range(60)],
    *[("p", "x" * 100, 0.0)] * 40,
]


@pytest.mark.parametrize(("answered", "reward", "gate_at"), [(False, 0.0, 24), (True, 0.0, 24), (True, 1.0, 100)])
def test_the_abort_threshold_lies_behind_the_answers_that_pay(tmp_path, capsys, answered, reward, gate_at):
    # Without a right answer among the 40 there is nothing to wait for behind the poll at 24. If all of them are right,
    # 80 tokens for each: 0.0125 a token, and one more rollout of p earns 0.25 x (10.05 - 10) = 0.012 for 52 tokens.
    late = ("p", "x" * 91 + BOX if answered else "x" * 100, reward)
    write(tmp_path / "run", 1, [*LATE[:60], *[late] * 40])
    marker = by_marker(figures(capsys, tmp_path, tmp_path / "run", *EIGHT_FLAGS))
    assert marker["abort_threshold"] + 8 == gate_at
    # 40 of 100 would go on: the coin keeps 16 of them.
    assert marker["tail"] == pytest.approx(0.4 if gate_at == 24 else 0.0)
    assert marker["abort_saves"] == pytest.approx(0.6 * marker["tail_tokens"])


def test_one_more_rollout_earns_by_the_posterior_of_its_prompt(tmp_path, capsys):
    # Two ones of four: Beta(2.5, 2.5), x = 6.25 / (5 x 6); four zeros: Beta(0.5, 4.5), x = 2.25 / 30. Mean lengths
    # are 60 and 52.5; a fifth rollout adds sqrt(5) - 2.
    write(tmp_path / "run", 1, EIGHT)
    completions = read_completions(find_files([tmp_path / "run"]))
    lengths, reward = (np.array([of(row) for row in EIGHT]) for of in (lambda row: len(row[1]), lambda row: row[2]))
    expected = (6.25 + 2.25) / 30 * (math.sqrt(5) - 2) / (60 + 52.5)
    assert estimate.logged_price(completions, lengths, reward) == pytest.approx(expected)
    assert math.isnan(estimate.logged_price(completions, lengths, np.full(8, np.nan)))


def table_row(out, table, marker):
    """The row of a marker in one of the two tables of the text."""
    section = out.split(table)[1].split("\n\n")[0]
    return next(line for line in section.splitlines() if line.split()[:1] == [marker])


def test_a_marker_that_hardly_any_completion_shows_is_marked_in_its_row(tmp_path, capsys):
    # One of 125 shows <answer>: 0.8%. The others are rewarded without it, so its K2 waits for their ends.
    rows = [("p", "x" * 91 + BOX, 1.0)] * 62 + [("p", "x" * 991 + BOX, 1.0)] * 62
    write(tmp_path / "run", 1, [*rows, ("p", "<answer>4</answer>" + "y" * 300, 0.0)])
    found = figures(capsys, tmp_path, tmp_path / "run", "--chars_per_token", 1)
    assert by_marker(found, "qa")["abort_saves"] == by_marker(found, "math")["abort_saves"] == 0.0
    out = run(capsys, tmp_path / "run", "--chars_per_token", 1)[1]
    for table in ("MEASURED per marker", "PROJECTED"):
        assert "rare: wrong marker?" in table_row(out, table, "qa")
        assert "wrong" not in table_row(out, table, "math")
    assert table_row(out, "MEASURED per marker", "code").endswith("not shown: wrong marker?")


def test_without_rewards_there_is_no_price_and_nothing_is_aborted(tmp_path, capsys):
    write(tmp_path / "run", 1, [(*row[:2], np.nan) for row in LATE])
    marker = by_marker(figures(capsys, tmp_path, tmp_path / "run", *EIGHT_FLAGS))
    assert (marker["abort_threshold"] + 8, marker["tail"]) == (100, 0.0)


def test_a_custom_marker_is_measured_beside_the_others(tmp_path, capsys):
    write(tmp_path / "run", 1, [("p", "aaa ANSWER: 4;" + "b" * 14, 1.0), ("p", "c" * 4, 0.0)])
    result = figures(capsys, tmp_path, tmp_path / "run", *EIGHT_FLAGS, "--marker", "ANSWER: ...;")
    assert [m["marker"] for m in result["measured"]["markers"]] == [*MARKERS, "ANSWER: ...;"]
    assert by_marker(result, "ANSWER: ...;")["tokens_after_answer"] == pytest.approx(14 / 32)


def test_an_answer_that_the_cut_replaces_is_counted(tmp_path, capsys):
    # The answer at 100 is polled at 104; G = 8 cuts the second box off.
    revised = "x" * 91 + BOX + "y" * 30 + r"\boxed{2}" + "z" * 61
    write(tmp_path / "run", 1, [("p", revised, 1.0), ("p", "x" * 91 + BOX + "y" * 9, 0.0)])
    marker = by_marker(figures(capsys, tmp_path, tmp_path / "run", *EIGHT_FLAGS))
    assert marker["trim_saves"] == pytest.approx((200 - 112) / 309)
    assert marker["answer_changes"] == 1.0


@pytest.mark.parametrize(
    "flags",
    [
        ["--budgets", "50"],
        ["--budgets", "0"],
        ["--grace_window", "-1"],
        ["--chars_per_token", "0"],
        ["--marker", "regex:4"],
        ["--marker", "maths"],
        ["--budgets", "nan"],
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
    assert out.count("not shown: wrong marker?") == len(MARKERS)


def test_output_says_what_is_measured_and_what_is_not(tmp_path, capsys):
    write(tmp_path / "run", 1, EIGHT)
    _, out, _ = run(capsys, tmp_path / "run")
    assert out.index("MEASURED on the logged completions") < out.index("PROJECTED for the logged batches")
    assert "Accuracy is NOT predicted" in out
    assert max(len(line) for line in out.splitlines()[-12:]) <= 119


# Algorithm 1, token by token


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


def logged(texts, rewards, price, grace_window, ratio=1.0):
    """Completions of one batch and one prompt."""
    num = len(texts)
    completions = Completions(
        steps=(1,),
        batch=np.zeros(num, np.int64),
        prompts=("",) * num,
        group=np.zeros(num, np.int64),
        texts=tuple(texts),
        numbers={},
        advantage=np.full(num, np.nan),
        notes=(),
    )
    thoughts = find_thoughts(completions, [])
    return estimate.Logged(completions, cut_texts(texts, ratio), thoughts, np.array(rewards), price, grace_window)


REWARDED = TEXTS.flatmap(
    lambda texts: st.tuples(
        st.just(texts), st.lists(st.sampled_from([0.0, 1.0]), min_size=len(texts), max_size=len(texts))
    )
)
PRICES = st.floats(1e-4, 1.0)


@given(rewarded=REWARDED, marker=st.sampled_from(sorted(MARKERS)), price=PRICES, grace_window=st.integers(0, 12))
def test_mean_under_the_gate_is_that_of_algorithm_1(rewarded, marker, price, grace_window):
    texts, rewards = rewarded
    found = estimate.measure_marker(marker, logged(texts, rewards, price, grace_window))
    spec, eps = (1, found.abort_threshold, grace_window, 8), found.keep_probability
    kept = [stopped_by_algorithm_1(text, get_marker(marker), spec, keep=True) for text in texts]
    dropped = [stopped_by_algorithm_1(text, get_marker(marker), spec, keep=False) for text in texts]
    assert found.gated_mean == pytest.approx(eps * np.mean(kept) + (1 - eps) * np.mean(dropped), rel=1e-9)


@given(rewarded=REWARDED, price=PRICES, grace_window=st.integers(0, 20), budgets=st.lists(st.floats(0.01, 1.0)))
def test_projected_tokens_grow_with_the_budget_and_never_exceed_the_run(rewarded, price, grace_window, budgets):
    run = logged(*rewarded, price, grace_window, ratio=2.5)
    markers = [estimate.measure_marker(marker, run) for marker in MARKERS]
    for marker in markers:
        assert 0 <= marker.trim_saves <= marker.tokens_after_answer + 1e-12 <= 1
        assert 0 <= marker.abort_saves <= marker.tail_tokens <= 1
    rows = estimate.project(run.tokens.lengths, markers, sorted([*budgets, 1.0]))
    without = [row.token_share for row in rows if row.marker is None]
    for name in {row.marker for row in rows}:
        shares = [row.token_share for row in rows if row.marker == name]
        assert shares == sorted(shares)
        assert all(
            gated <= plain + 1e-12 for gated, plain in zip(shares, without, strict=True)
        )  # no gate costs tokens
    assert without[-1] == pytest.approx(1.0)


# thoughts

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
    assert by_marker(none, "math")["shown"] == 1.0
    assert none["measured"]["thought_delimiters"] == []


def test_delimiters_that_are_no_pair_are_an_error_of_the_command_line(tmp_path, capsys):
    write(tmp_path / "completions", 1, THINKING)
    status, _, errors = run(capsys, tmp_path, "--thought_delimiters", "<think>")
    assert status == 1 and "thought delimiters must be a list of two texts" in errors


def test_reasoning_that_a_template_split_off_is_a_thought():
    message = {"role": "assistant", "reasoning_content": r"maybe \boxed{4}", "content": r"\boxed{5}"}
    written = recognise(completion_text([message]))
    assert extract_answer("math", written) == "5"


# real outputs


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
    assert any(note.startswith("A rare marker saves little") for note in result["notes"])
    assert projected(result, "math", 1.0)["tokens"] < projected(result, None, 1.0)["tokens"]


def test_the_command_line_loads_no_training_library():
    code = (
        "import sys, duet_trl.__main__\n"
        "print(sorted({'torch', 'trl', 'transformers', 'vllm', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
