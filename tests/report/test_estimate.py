# SPDX-License-Identifier: Apache-2.0
"""What DUET would save on a finished run: closed forms, Algorithm 1 by hand, intervals, thoughts."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl import DUETGRPOConfig
from duet_trl.__main__ import main
from duet_trl.gate.markers import MARKERS, completion_ends, get_marker
from duet_trl.gate.replay import GateSpec
from duet_trl.report import estimate
from duet_trl.report.intervals import ratio_interval
from duet_trl.report.logged_completions import LoggedRun, read_run
from tests.gate.oracle import algorithm_1
from tests.report.logged_run import (
    BOX,
    EIGHT,
    EIGHT_FLAGS,
    TEXTS,
    by_marker,
    char_tokenizer,
    figures,
    projected,
    run,
    write,
)

ROOT = Path(__file__).parents[2]


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
        assert item["token_share"] == pytest.approx(402 * budget / 450)
        assert projected(result, None, budget)["token_share"] == budget
    assert {item["marker"] for item in result["projected"]} == {None, "math"}  # nobody showed the others


def test_the_gate_is_that_of_the_trainer(tmp_path, capsys):
    config = DUETGRPOConfig(output_dir=str(tmp_path), use_cpu=True)
    assert (config.trim, config.abort, config.keep_probability) == (True, True, None)
    assert config.options.poll_interval == GateSpec(1, 1, 0).poll_interval
    path = write(tmp_path / "run", 1, [("p", "x" * config.max_completion_length, 0.0)])
    found = figures(capsys, tmp_path, path.parent)
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
    found, lengths = read_run(tmp_path / "run"), np.array([len(text) for _, text, _ in EIGHT])
    expected = (6.25 + 2.25) / 30 * (math.sqrt(5) - 2) / (60 + 52.5)
    assert estimate.logged_price(found, lengths) == pytest.approx(expected)


def table_row(out, marker):
    """The row of a marker in the text."""
    section = out.split("MEASURED per marker")[1].split("\n\n")[0]
    return next(line for line in section.splitlines() if line.split()[:1] == [marker])


def test_a_marker_that_hardly_any_completion_shows_is_marked_in_its_row(tmp_path, capsys):
    # One of 125 shows <answer>: 0.8%. The others are rewarded without it, so its K2 waits for their ends.
    rows = [("p", "x" * 91 + BOX, 1.0)] * 62 + [("p", "x" * 991 + BOX, 1.0)] * 62
    write(tmp_path / "run", 1, [*rows, ("p", "<answer>4</answer>" + "y" * 300, 0.0)])
    found = figures(capsys, tmp_path, tmp_path / "run")
    assert by_marker(found, "qa")["abort_saves"] == by_marker(found, "math")["abort_saves"] == 0.0
    out = run(capsys, tmp_path / "run")[1]
    assert "rare: wrong marker?" in table_row(out, "qa")
    assert "wrong" not in table_row(out, "math")
    assert table_row(out, "code").endswith("not shown: wrong marker?")


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
    ("flags", "said"),
    [
        (["--grace_window", "-1"], "grace_window"),
        (["--reward_weights", "1", "2"], "2 reward weights for the columns accuracy"),
        (["--tokenizer", "no-such-folder/tokenizer.json"], "no-such-folder/tokenizer.json"),
    ],
)
def test_a_flag_that_does_not_fit_is_named(tmp_path, capsys, flags, said):
    write(tmp_path / "run", 1, EIGHT)
    status, out, errors = run(capsys, tmp_path / "run", *flags)
    assert (status, out) == (1, "") and said in errors


@pytest.mark.parametrize("name", ["regex:4", "maths"])
def test_a_marker_that_is_none_is_wrong_usage(tmp_path, capsys, name):
    with pytest.raises(SystemExit) as stopped:
        main(["estimate", str(tmp_path), "--marker", name])
    assert stopped.value.code == 2 and "--marker" in capsys.readouterr().err


def test_no_marker_anywhere_is_said_plainly(tmp_path, capsys):
    write(tmp_path / "run", 1, [("p", f"the answer might be {n} " * 100, float(n % 2)) for n in range(8)])
    status, out, _ = run(capsys, tmp_path / "run", "--grace_window", 8)
    assert status == 0
    assert "NO COMPLETION SHOWS ANY OF THE MARKERS: trimming saves nothing" in out
    assert "50.0% at a budget of 50%, 25.0% at a budget of 25%, without a gate" in " ".join(out.split())
    assert out.count("not shown: wrong marker?") == len(MARKERS)


# Algorithm 1, token by token


def logged(texts, rewards):
    """Completions of one batch and one prompt, in tokens."""
    num = len(texts)
    zeros, rewards = np.zeros(num, np.int64), np.array(rewards)
    found = LoggedRun([1], ["r"], ["p"] * num, texts, zeros, zeros, rewards, rewards - rewards.mean(), [])
    return estimate.tokenize(found, char_tokenizer())


REWARDED = TEXTS.flatmap(
    lambda texts: st.tuples(
        st.just(texts), st.lists(st.sampled_from([0.0, 1.0]), min_size=len(texts), max_size=len(texts))
    )
)
PRICES = st.floats(1e-4, 1.0)


@given(rewarded=REWARDED, marker=st.sampled_from(sorted(MARKERS)), price=PRICES, grace_window=st.integers(0, 12))
def test_mean_under_the_gate_is_that_of_algorithm_1(rewarded, marker, price, grace_window):
    texts, rewards = rewarded
    found = estimate.measure_marker(marker, logged(texts, rewards), grace_window, price)
    spec, expected = GateSpec(1, found.abort_threshold, grace_window, poll_interval=8), 0.0
    for keep, share in ((True, found.keep_probability), (False, 1.0 - found.keep_probability)):
        for text in texts:  # one character is one token
            ends = list(completion_ends(get_marker(marker), text.encode()))
            expected += share * len(algorithm_1(spec, text, keep, [np.inf] * len(text), ends).ids) / len(texts)
    assert found.gated_mean == pytest.approx(expected, rel=1e-9)
    assert 0 <= found.trim_saves <= found.tokens_after_answer + 1e-12 <= 1
    assert 0 <= found.abort_saves <= found.tail_tokens <= 1


# Intervals


def test_intervals_are_over_prompts_with_all_their_visits(tmp_path, capsys):
    # The answer is at 40; the first two of four completions go on behind it, and odd prompts differ in reward.
    rows = [
        (step, q, i, (20 + 10 * (q % 3) + step) * (i < 2)) for step in range(3) for q in range(12) for i in range(4)
    ]
    for step in range(3):
        texts = [(q, i, "x" * (40 - len(BOX)) + BOX + "y" * after) for s, q, i, after in rows if s == step]
        write(tmp_path / "run", step + 1, [(f"p{q}", text, float(q % 2 and i % 2)) for q, i, text in texts])
    result = figures(capsys, tmp_path, tmp_path / "run", *EIGHT_FLAGS)
    _, prompt, _, after = (np.array(column) for column in zip(*rows, strict=True))
    marker, groups = by_marker(result), result["measured"]["groups"]
    assert marker["tokens_after_answer"] == pytest.approx(after.sum() / (40 + after).sum())
    assert marker["tokens_after_answer_interval"] == pytest.approx(ratio_interval(after, 40 + after, prompt))
    # The poll at 40 sees the answer, so that a trimmed completion has 48 tokens.
    share = np.array(ratio_interval(np.minimum(40 + after, 48), 40 + after, prompt))
    for budget in (1.0, 0.5, 0.25):
        assert projected(result, "math", budget)["token_share_interval"] == pytest.approx(budget * share)
        assert projected(result, None, budget)["token_share_interval"] is None
    # Six of the twelve prompts never differ; each is one draw, in however many steps it stands.
    flat = np.array([q % 2 == 0 for _ in range(3) for q in range(12)], dtype=float)
    expected = ratio_interval(flat, np.ones(36), np.tile(np.arange(12), 3))
    assert (groups["zero_variance"], groups["zero_variance_interval"]) == (0.5, pytest.approx(expected))
    assert marker["tail_interval"] == [0.0, 0.0]
    low, high = (f"{50 * end:.1f}" for end in share)
    assert f"[{low}, {high}] at a budget of 50%" in " ".join(run(capsys, tmp_path / "run", *EIGHT_FLAGS)[1].split())


# thoughts

LONG_THOUGHT = r"<think>so \boxed{4}? no wait" + " hm" * 50 + r"</think>It is \boxed{5}."
THINKING = [
    ("a <think>\n", r"maybe \boxed{4}" + " hm" * 50 + r"</think>\boxed{5} done", 1.0),  # the prompt opened it
    ("a <think>\n", r"maybe \boxed{4} and so on" + " hm" * 50, 0.0),  # never closed
    ("b", LONG_THOUGHT, 1.0),
    ("b", "<think>hm</think>" + r"\boxed{6} and good bye", 0.0),
]


def test_boxes_inside_a_thought_do_not_count_as_answers(tmp_path, capsys):
    write(tmp_path / "completions", 1, THINKING)
    result = figures(capsys, tmp_path, tmp_path)
    assert by_marker(result)["shown"] == 0.75  # all but the one that never closes answer
    assert any("Thoughts are between <think> and </think>" in note for note in result["notes"])
    assert any("2 completions begin inside one" in note for note in result["notes"])
    texts = [text for _, text, _ in THINKING]
    after = sum(len(text) - text.rindex("}") - 1 for text in (texts[0], texts[2], texts[3]))
    assert by_marker(result)["tokens_after_answer"] == pytest.approx(after / sum(map(len, texts)))


def test_the_command_line_loads_no_training_library():
    code = (
        "import sys, duet_trl.__main__\n"
        "print(sorted({'torch', 'trl', 'transformers', 'vllm', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
