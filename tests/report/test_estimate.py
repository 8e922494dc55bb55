# SPDX-License-Identifier: Apache-2.0
"""What DUET would save on a finished run: closed forms, Algorithm 1 by hand, real outputs and a real TRL run."""

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
from tests.runs import count_fours, prompts, settings
from tests.tiny import thinking_tokenizer

ROOT = Path(__file__).parents[2]
MODEL_OUTPUTS = ROOT.parent / "shared" / "data" / "model_outputs_math.jsonl"


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
    for name in ("abort_rule", "poll_quantile", "abort_quantile", "poll_interval"):
        assert getattr(assumed, name) == getattr(options, name)
    for name in ("keep_probability", "trim", "abort"):
        assert getattr(assumed, name) == getattr(config, name)
    assert assumed.with_limit(config.max_completion_length).grace_window == config.grace_window
    assert (
        DUETGRPOConfig(output_dir=str(tmp_path), use_cpu=True, method="paper").keep_probability == estimate.PAPER_KEEP
    )


LATE = [  # 60 answer at 20, every second one rightly; 40 run to 100
    *[("p", "x" * 11 + BOX, float(number % 2)) for number in range(60)],
    *[("p", "x" * 100, 0.0)] * 40,
]
PRICED = "--chars_per_token 1 --grace_window 8 --poll_interval 4".split()


@pytest.mark.parametrize(("answered", "reward", "gate_at"), [(False, 0.0, 20), (True, 0.0, 20), (True, 1.0, 100)])
def test_the_abort_threshold_lies_behind_the_answers_that_pay(tmp_path, capsys, answered, reward, gate_at):
    # Without a right answer among the 40 there is nothing to wait for behind the poll at 20. If all of them are right,
    # 80 tokens for each: 0.0125 a token, and one more rollout of p earns 0.25 x (10.05 - 10) = 0.012 for 52 tokens.
    late = ("p", "x" * 91 + BOX if answered else "x" * 100, reward)
    write(tmp_path / "run", 1, [*LATE[:60], *[late] * 40])
    marker = by_marker(figures(capsys, tmp_path, tmp_path / "run", *PRICED))
    assert marker["abort_threshold"] + 8 == gate_at
    # 40 of 100 would go on: the coin keeps 16 of them.
    assert marker["tail"] == pytest.approx(0.4 if gate_at == 20 else 0.0)
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


def test_a_gate_that_cannot_act_is_said_in_the_row_instead_of_a_saving_of_zero(tmp_path, capsys):
    # Of at most 256 tokens; answers at 109, so that K1 = K2 = 109 and the first poll comes at 112.
    write(tmp_path / "run", 1, [("p", "x" * 100 + BOX, 1.0)] * 9 + [("p", "x" * 256, 0.0)])
    flags = [tmp_path / "run", "--chars_per_token", 1, "--abort_rule", "length"]
    absolute = run(capsys, *flags, "--grace_window", 150)[1]
    row = table_row(absolute, "MEASURED per marker", "math")
    assert row.endswith("trim cannot act; abort cannot act")
    marker, k2, shown, after, trim, tail, tail_tokens, abort, *_ = row.split()
    assert (k2, trim, abort) == ("109", "-", "-")
    # In proportion G is 12: the gate comes at 121 and saves 0.95 of the last 135 tokens of the long one.
    scaled = figures(capsys, tmp_path, *flags)
    assert scaled["settings"]["grace_window"] == 12
    assert by_marker(scaled)["abort_saves"] == pytest.approx(0.95 * 135 / (9 * 109 + 256))
    assert "cannot act;" not in run(capsys, *flags)[1]


def test_without_rewards_there_is_no_price_and_nothing_is_aborted(tmp_path, capsys):
    write(tmp_path / "run", 1, [(*row[:2], np.nan) for row in LATE])
    marker = by_marker(figures(capsys, tmp_path, tmp_path / "run", *PRICED))
    assert (marker["abort_threshold"] + 8, marker["tail"]) == (100, 0.0)


def test_rewards_by_hand(tmp_path, capsys):
    # p: two ones of four; q: four zeros.
    write(tmp_path / "run", 1, EIGHT)
    groups = figures(capsys, tmp_path, tmp_path / "run", *EIGHT_FLAGS)["measured"]["groups"]
    assert (groups["num_groups"], groups["num_scored"], groups["zero_variance"]) == (2, 2, 0.5)


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
        "ANSWER: ...;",
        "--grace_window",
        0,
    )
    assert [m["marker"] for m in result["measured"]["markers"]] == [*MARKERS, "ANSWER: ...;"]
    assert by_marker(result, "ANSWER: ...;")["tokens_after_answer"] == pytest.approx(14 / 32)


def test_an_answer_that_the_cut_replaces_is_counted(tmp_path, capsys):
    # The answer at 100 is polled at 104; G = 8 cuts the second box off.
    revised = "x" * 91 + BOX + "y" * 30 + r"\boxed{2}" + "z" * 61
    write(tmp_path / "run", 1, [("p", revised, 1.0), ("p", "x" * 91 + BOX + "y" * 9, 0.0)])
    flags = "--chars_per_token 1 --grace_window 8".split()
    marker = by_marker(figures(capsys, tmp_path, tmp_path / "run", *flags))
    assert marker["trim_saves"] == pytest.approx((200 - 112) / 309)
    assert marker["answer_changes"] == 1.0


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
        ["--abort_rule", "quantile"],
        ["--marker", "regex:4"],
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


@given(
    texts=TEXTS,
    marker=st.sampled_from(sorted(MARKERS)),
    quantiles=st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted),
    grace_window=st.integers(0, 12),
    poll_interval=st.integers(1, 5),
    eps=st.floats(0.01, 1.0),
)
def test_mean_under_the_gate_is_that_of_algorithm_1(texts, marker, quantiles, grace_window, poll_interval, eps):
    assumed = estimate.Settings(
        poll_quantile=quantiles[0],
        abort_quantile=quantiles[1],
        abort_rule="length",
        grace_window=grace_window,
        poll_interval=poll_interval,
        keep_probability=eps,
    )
    completions = of_texts(texts)
    tokens = cut_texts(texts, 1.0)
    lengths = estimate.measure_lengths(completions, tokens, assumed)
    thoughts, unknown = find_thoughts(completions, None), np.full(len(texts), np.nan)
    found = estimate.measure_marker(
        marker, completions, estimate.Logged(tokens, thoughts, lengths, assumed, unknown, math.nan)
    )
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
    completions, tokens = of_texts(texts), cut_texts(texts, 2.5)
    lengths = estimate.measure_lengths(completions, tokens, assumed)
    unknown = np.full(len(texts), np.nan)
    none = find_thoughts(completions, [])
    logged = estimate.Logged(tokens, none, lengths, assumed, unknown, 1e-3)
    markers = [estimate.measure_marker(m, completions, logged) for m in MARKERS]
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
        steps=(1,),
        batch=np.zeros(num, np.int64),
        prompts=("",) * num,
        group=np.zeros(num, np.int64),
        texts=tuple(texts),
        numbers={},
        advantage=np.full(num, np.nan),
        notes=(),
    )


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


# a run of stock TRL


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
    command = [sys.executable, "-m", "duet_trl", "estimate", str(output_dir)]
    command += ["--grace_window", "8", "--json", str(tmp_path / "out.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["inputs"]["steps"] == steps
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
        "import sys, duet_trl.__main__\n"
        "print(sorted({'torch', 'trl', 'transformers', 'vllm', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
