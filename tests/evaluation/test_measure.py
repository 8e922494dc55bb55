# SPDX-License-Identifier: Apache-2.0
"""Measuring a policy whose answers are known: every figure against its closed form, on all kinds of suites."""

import pytest

from duet_trl.evaluation.measure import Settings, build_graders, measure
from duet_trl.evaluation.prompts import eos_token_ids
from duet_trl.evaluation.suites import load_suite
from duet_trl.gate.thoughts import Delimiters
from duet_trl.rewards import SandboxError
from tests.evaluation.policy import TOKENIZER, Scripted, ids, write_jsonl
from tests.tiny import END_OF_TURN, thinking_tokenizer

EOS_IDS = eos_token_ids(TOKENIZER)
RIGHT, WRONG, CUT = ids(r"so \boxed{42}"), ids(r"so \boxed{41}"), ids("so so", end=None)


@pytest.fixture
def math_file(tmp_path):
    rows = [{"problem": f"{word}?", "answer": "42", "unique_id": word} for word in ("alpha", "beta", "gamma")]
    return write_jsonl(tmp_path / "math.jsonl", rows)


def run(policy, suites, settings, **options):
    graders = build_graders(suites, **options)
    return measure(policy, suites, graders, TOKENIZER, EOS_IDS, settings)


def test_all_figures_of_a_suite_follow_from_its_completions(math_file):
    policy = Scripted(
        {"alpha": [RIGHT] * 4, "beta": [WRONG, RIGHT, CUT, WRONG], "gamma": [CUT] * 4},
        {"alpha": RIGHT, "beta": WRONG, "gamma": RIGHT},
    )
    found = run(policy, {"math500": load_suite("math500", math_file)}, Settings(max_tokens=50))["math500"]
    scores = {figure: score.value for figure, score in found.scores.items()}
    # per problem 4/4, 1/4, 0/4 right; at least one right in two of three; greedy right in two of three
    assert scores == pytest.approx(
        {
            "mean@4": 5 / 12,
            "best@4": 2 / 3,
            "greedy": 2 / 3,
            "truncated": 5 / 12,
            "mean_length": (7 * len(RIGHT) + 5 * len(CUT)) / 12,
        }
    )
    # standard error of (1, 1/4, 0): sample deviation sqrt(((7/12)^2 + (2/12)^2 + (5/12)^2) / 2) over sqrt(3)
    assert found.scores["mean@4"].standard_error == pytest.approx(((49 + 4 + 25) / 144 / 2 / 3) ** 0.5)
    sampled = found.graded["sampled"]
    assert sampled.truncated.tolist() == [[False] * 4, [False, False, True, False], [True] * 4]
    assert sampled.lengths[1].tolist() == [len(WRONG), len(RIGHT), len(CUT), len(WRONG)]
    assert sampled.texts[0][0] == r"so \boxed{42}" and sampled.num_ungraded == 0
    assert found.sandbox is None


def test_the_paper_s_decoding_is_the_default_and_reaches_the_sampler(math_file):
    policy = Scripted(
        dict.fromkeys(("alpha", "beta", "gamma"), [RIGHT] * 4), dict.fromkeys(("alpha", "beta", "gamma"), RIGHT)
    )
    run(policy, {"math500": load_suite("math500", math_file)}, Settings())
    assert policy.calls == [(3, 4, 0.9, 0.95, 3072), (3, 1, 0.0, None, 3072)]


def test_what_an_engine_says_after_the_end_of_turn_is_neither_graded_nor_counted(math_file):
    # An engine that knows only the end of text goes on with an invented user, whose box is the last one.
    runaway = ids(r"so \boxed{42}", end=END_OF_TURN) + ids(r"user: \boxed{1}", end=None)
    policy = Scripted(dict.fromkeys(("alpha", "beta", "gamma"), [runaway]))
    settings = Settings(num_samples=1)
    found = run(policy, {"math500": load_suite("math500", math_file)}, settings)["math500"]
    assert found.scores["mean@1"].value == 1.0
    assert found.graded["sampled"].lengths.tolist() == [[len(RIGHT)]] * 3
    assert not found.graded["sampled"].truncated.any()


def test_a_gold_without_a_verdict_counts_as_wrong_and_is_reported(tmp_path):
    rows = [{"problem": "alpha", "answer": ""}, {"problem": "beta", "answer": "42"}]
    suites = {"math500": load_suite("math500", write_jsonl(tmp_path / "m.jsonl", rows))}
    policy = Scripted({"alpha": [RIGHT] * 2, "beta": [RIGHT] * 2})
    found = run(policy, suites, Settings(num_samples=2))["math500"]
    assert found.graded["sampled"].correct.tolist() == [[False] * 2, [True] * 2]
    assert found.graded["sampled"].num_ungraded == 2


@pytest.fixture
def code_file(tmp_path):
    row = {
        "task_id": "T/0",
        "prompt": "def add(a, b):\n    '''alpha'''\n",
        "entry_point": "add",
        "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    }
    return write_jsonl(tmp_path / "code.jsonl", [row])


def test_code_suite_runs_programs_in_the_mode_asked_for_and_names_it(code_file):
    good, bad = (f"```python\ndef add(a, b):\n    return a {sign} b\n```" for sign in "+-")
    policy = Scripted({"alpha": [ids(good), ids(bad)]}, {"alpha": ids(good)})
    suites = {"humaneval": load_suite("humaneval", code_file)}
    found = run(policy, suites, Settings(num_samples=2), sandbox="limits")["humaneval"]
    assert found.graded["sampled"].correct.tolist() == [[True, False]]
    assert found.graded["greedy"].correct.tolist() == [[True]]
    assert found.sandbox == "limits"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"num_samples": 0}, "num_samples must be at least 1, got 0"),
        ({"temperature": 0.0}, "temperature must be positive, got 0.0"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0.0"),
        ({"top_p": 95}, r"top_p must be in \(0, 1\], got 95"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        Settings(**setting)


def test_an_unknown_sandbox_is_refused_before_anything_runs():
    with pytest.raises((ValueError, SandboxError), match="castle"):
        build_graders(["humaneval"], "castle")


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("opened", [False, True])
def test_answers_inside_a_thought_do_not_count(math_file, special, opened):
    tokenizer = thinking_tokenizer(Delimiters("<think>", "</think>"), special=special)
    if opened:
        tokenizer.chat_template = tokenizer.chat_template.replace("assistant\n", "assistant\n<think>\n")
    begin = "" if opened else "<think>"

    def written(text):
        return tokenizer(begin + text + END_OF_TURN)["input_ids"]

    never_closed = written(r"\boxed{42}")
    policy = Scripted(
        {
            "alpha": [written(r"\boxed{41}</think>so \boxed{42}"), written(r"\boxed{42}</think>so")],
            "beta": [never_closed, never_closed],
            "gamma": [written(r"hm</think>\boxed{42}"), written("hm")],
        },
        {},
    )
    suites = {"math500": load_suite("math500", math_file)}
    graders, eos_ids = build_graders(suites), eos_token_ids(tokenizer)
    settings = Settings(num_samples=2)
    found = measure(policy, suites, graders, tokenizer, eos_ids, settings)["math500"].graded["sampled"]
    assert found.correct.tolist() == [[True, False], [False, False], [True, False]]
    none = Settings(num_samples=2, thought_delimiters=())
    found = measure(policy, suites, graders, tokenizer, eos_ids, none)["math500"].graded["sampled"]
    assert found.correct.tolist() == [[True, True], [True, True], [True, False]]
