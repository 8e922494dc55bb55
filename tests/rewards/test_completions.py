# SPDX-License-Identifier: Apache-2.0
"""Verifiers look for an answer where the marker does: outside of thoughts, with or without the trainer's column."""

import pytest

from duet_trl.gate.thoughts import Delimiters, Written
from duet_trl.rewards import ChoiceVerifier, CodeVerifier, MathVerifier, choice_reward, math_reward
from duet_trl.rewards.completions import WRITTEN, read_completions, written_completions
from tests.tiny import END_OF_TURN, thinking_tokenizer, tiny_tokenizer

THINK = Delimiters("<think>", "</think>")
BOXES = [
    (r"<think> maybe \boxed{4}? no wait", 0.0),  # a thought that never closes answers nothing
    (r"<think> maybe \boxed{5}? no wait</think> It is \boxed{4}.", 1.0),
    (r"<think> maybe \boxed{4}? no wait</think> It is \boxed{5}.", 0.0),
    (r"maybe \boxed{4}</think> It is \boxed{5}.", 0.0),  # the prompt opened the thought
    (r"maybe \boxed{5}</think> It is \boxed{4}.", 1.0),
    (r"maybe \boxed{4}</think> I do not know.", 0.0),
    (r"<|begin_of_thought|>\boxed{4}<|end_of_thought|>", 0.0),
    (r"[THINK]\boxed{5}[/THINK]\boxed{4}", 1.0),
    (r"\boxed{4}", 1.0),
    (r"It goes into \boxed{ANSWER}: \boxed{4}, not \boxed{\text{answer}}", 1.0),
    (r"\boxed{ANSWER}", 0.0),
]


def messages(text):
    return [{"role": "assistant", "content": text}]


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("4", "4"),
        (messages("4"), "4"),
        ([{"role": "user", "content": "q"}, *messages("4")], "4"),
        (messages([{"type": "text", "text": "4"}, {"type": "image"}, {"type": "text", "text": "2"}]), "42"),
        *((nothing, "") for nothing in ("", [], messages(None), messages(""), [{"role": "assistant"}])),
    ],
    ids=repr,
)
def test_text_of_a_completion_in_each_of_its_forms(completion, text):
    assert read_completions([completion], {}) == [Written(text)]


@pytest.mark.parametrize(
    ("verifier", "arguments", "named"),
    [(MathVerifier, {"timeout": 0}, "timeout"), (MathVerifier, {"timeout": -1.0}, "timeout")]
    + [(CodeVerifier, {"timeout": 0}, "cpu_seconds"), (CodeVerifier, {"isolation": "none"}, "isolation")]
    + [(verifier, {"workers": 0}, "workers") for verifier in (MathVerifier, CodeVerifier)]
    + [(verifier, {"which": "middle"}, "which") for verifier in (MathVerifier, ChoiceVerifier, CodeVerifier)]
    + [(ChoiceVerifier, {"marker": "quiz"}, "marker")],
    ids=str,
)
def test_bad_arguments_are_named(verifier, arguments, named):
    with pytest.raises(ValueError, match=named):
        verifier(**arguments)


def test_rows_must_match():
    for grade in (MathVerifier().grade, ChoiceVerifier().grade, CodeVerifier(isolation="limits").verify):
        with pytest.raises(ValueError, match="shorter"):
            grade(["1", "2"], [{}])


@pytest.mark.parametrize("which", ["first", "last"])
def test_boxes_inside_a_thought_earn_nothing_under_a_stock_trainer(which):
    golds, expected = ["4"] * len(BOXES), [reward for _, reward in BOXES]
    verifier = MathVerifier(which=which, workers=1)
    for build in (str, messages):
        completions = [build(text) for text, _ in BOXES]
        assert verifier(completions, answer=golds) == expected
        assert ChoiceVerifier(marker="math", which=which)(completions, answer=golds) == expected
    verifier.close()


def test_the_trainers_column_is_believed_before_the_text():
    text = r"maybe \boxed{4}"
    completions, golds = [text] * 4, ["4"] * 4
    written = [
        Written(text, THINK, opened=True),  # the text alone does not show it
        Written(text, THINK),
        Written(text),
        Written(rf"{text}</think>\boxed{{5}}", THINK, opened=True),  # with delimiters that decoding leaves out
    ]
    assert math_reward(completions, golds, **{WRITTEN: written}) == [0.0, 1.0, 1.0, 0.0]
    assert read_completions(completions, {WRITTEN: written}) == written
    tags = ["<think><answer>4</answer></think><answer>5</answer>"] * 2
    assert choice_reward(tags, ["5"] * 2, **{WRITTEN: [Written(tags[0], THINK), Written(tags[0])]}) == [1.0, 1.0]
    assert choice_reward(tags[:1], ["4"], **{WRITTEN: [Written(tags[0], THINK)]}) == [0.0]


def test_a_program_inside_a_thought_is_not_run():
    program = "```python\ndef f():\n    return {}\n```"
    thought = f"<think>\n{program.format(4)}\n</think>\n"
    columns = {"test_list": [["assert f() == 4"]] * 3}
    verifier = CodeVerifier(isolation="limits", workers=1)
    texts = [thought + program.format(5), thought, program.format(4)]
    assert verifier(texts, **columns) == [0.0, 0.0, 1.0]
    unfenced = CodeVerifier(isolation="limits", workers=1, fenced=False)
    bare = ["<think>hm</think>def f():\n    return 4", "<think>def f():\n    return 4"]
    assert unfenced(bare, test_list=columns["test_list"][:2]) == [1.0, 0.0]
    verifier.close(), unfenced.close()


def test_what_decoding_leaves_out_is_read_from_the_tokens():
    tokenizer = thinking_tokenizer(THINK, special=True)
    whole = r"<think>\boxed{4}</think>\boxed{5}"
    ids = tokenizer(whole + END_OF_TURN)["input_ids"]
    text = tokenizer.decode(ids, skip_special_tokens=True)
    assert text == r"\boxed{4}\boxed{5}"
    for completion in (text, messages(text)):
        assert written_completions([completion], [ids], [False], tokenizer, THINK) == [Written(whole, THINK)]
    plain = thinking_tokenizer(THINK)
    assert written_completions([whole], [[]], [True], plain, THINK) == [Written(whole, THINK, opened=True)]
    assert written_completions([whole], [[]], [False], tiny_tokenizer(), None) == [Written(whole)]
