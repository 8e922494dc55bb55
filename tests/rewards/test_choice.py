# SPDX-License-Identifier: Apache-2.0
"""The choice reward: letters and short answers as models write them, golds as data sets hold them, hostile texts."""

import logging
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duet_trl.gate.markers import extract_answer
from duet_trl.rewards.choice import ChoiceVerifier, choice_letter, choice_reward, normalize_answer

OPTIONS = ["A metal compound", "vitamin C", "4.5", "both"]
boxed = ChoiceVerifier(marker="math")


def grade(answer, gold, options=None):
    return ChoiceVerifier().grade([answer], [gold], [options])[0]


@pytest.mark.parametrize(
    "answer",
    ["B", "b", "(B)", "[B]", "B.", "B)", "(B).", "B:", " B ", r"\text{B}", r"\textbf{(B)}", r"\mathrm{B}", "$B$"]
    + [r"\text{(B)}", "**B**", "Option B", "answer: (B)", "B) some text", "(B) some text", "B. some text", "B: x"]
    + ["B) because A is wrong", "choice B) it is", "B) vitamin A", "Ｂ", "（B）", "B,", "B!", '"B"', "‘B’", "<B>"]
    + ["The answer is B", "the correct answer is (B)", "Final answer: B.", "the answer is option B"],
)
def test_letter_with_the_usual_decorations(answer):
    assert [grade(answer, letter) for letter in "ABCD"] == [0.0, 1.0, 0.0, 0.0]
    assert grade(answer, "B", OPTIONS) == 1.0


@pytest.mark.parametrize(
    "answer", ["A) or B)", "A or B", "A and B", "A, B", "AB", "A/B", "B: or C", "(B) and (C)", "B), C", "B) or (C)"]
)
def test_two_letters_are_no_answer(answer):
    assert [grade(answer, letter) for letter in "ABCD"] == [0.0] * 4
    assert [grade(answer, letter, OPTIONS) for letter in "ABCD"] == [0.0] * 4


def test_article_is_not_a_letter():
    assert grade("A thing", "A") == 0.0
    assert choice_letter("A metal compound", 4, ["x", "a metal compound", "y", "z"]) == "B"


@pytest.mark.parametrize(
    ("answer", "letter"),
    [("vitamin C", "B"), ("Vitamin c.", "B"), ("4.5", "C"), ("a metal compound", "A"), ("B vitamin C", "B")]
    + [
        ("D) both", "D"),
        ("B, vitamin C", "B"),
        ("D, vitamin", None),
        ("45", None),
        ("E", None),
        ("vitamin", None),
        ("C vitamin C", None),
    ],
)
def test_text_of_an_option_stands_for_its_letter(answer, letter):
    assert choice_letter(answer, 4, OPTIONS) == letter
    assert [grade(answer, gold, OPTIONS) for gold in "ABCD"] == [float(gold == letter) for gold in "ABCD"]


def test_gold_may_be_the_text_of_an_option():
    assert grade("B", "vitamin C", OPTIONS) == 1.0
    assert grade("A", "vitamin C", OPTIONS) == 0.0


def test_equal_options_have_no_text_of_their_own():
    assert choice_letter("same", 3, ["same", "Same", "other"]) is None
    assert choice_letter("B) same", 3, ["same", "Same", "other"]) == "B"


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("The mitochondria.", "mitochondria", True),
        ("mitochondrion", "mitochondria", False),
        ("X-ray", "x ray", True),
        ("Newton's law", "Newtons law", True),
        (r"\text{carbon dioxide}", "Carbon  dioxide", True),
        ("1,000", "1000", True),
        ("1,5", "15", False),
        ("3.5", "35", False),
        (".5", "0.5", True),
        ("5.", "5", True),
        ("3.50", "3.5", True),
        ("1000.0", "1,000", True),
        ("100", "10", False),
        ("0.05", "0.5", False),
        ("1.2.3", "1.2", False),
        ("U.S.A.", "USA", True),
        ("the U.S.", "US", True),
        (r"\text{CO}_2", "CO2", True),
        ("H_{2}O", "H₂O", True),
        ("10^5", "105", False),
        ("-2", "2", False),
        ("\u22122", "-2", True),
        ("\uff12", "2", True),  # full-width digit
        ("the", "The", True),  # nothing but an article
        ("!", "?", False),
        ("", "x", False),
    ],
)
def test_short_answers_by_exact_match_after_normalisation(answer, gold, right):
    assert grade(answer, gold) == float(right)
    assert grade(gold, answer) == (float(right) if answer.strip() else None)


@pytest.mark.parametrize(
    ("gold", "reward"),
    [
        ("Paris", 1.0),
        (["London", "paris"], 1.0),
        (("Rome",), 0.0),
        (np.array(["Paris"]), 1.0),
        (None, None),
        (float("nan"), None),
        (pd.NA, None),
        (pd.NaT, None),
        (np.float64("nan"), None),
        ("", None),
        (" ", None),
        ([], None),
        ([None, ""], None),
        ([None, "Paris"], 1.0),
    ],
)
def test_several_golds_and_none(gold, reward):
    assert grade("Paris", gold) == reward
    assert grade(None, gold) == (None if reward is None else 0.0)


def test_number_as_gold():
    assert grade("7", 7) == 1.0 and grade("8", 7) == 0.0


def test_missing_gold_is_reported_once(caplog):
    verifier = ChoiceVerifier()
    with caplog.at_level(logging.WARNING):
        assert verifier(["<answer>x</answer>"] * 3, ["x", None, ""]) == [1.0, None, None]
        verifier(["<answer>x</answer>"], [None])
    assert len(caplog.records) == 1 and "2 of this batch" in caplog.text


TEXTS = {
    "qa": "First <answer>London</answer>, no: <answer> Paris </answer> and an echo <answer></answer>",
    "math": r"First \boxed{London}, no: \boxed{Paris} and an echo \boxed{}",
    "Answer: ...": "Answer: London\nAnswer: Paris\n",
}


@pytest.mark.parametrize("marker", TEXTS)
def test_answer_is_what_the_marker_found(marker):
    text = TEXTS[marker]
    first, last = (ChoiceVerifier(marker=marker, which=which) for which in ("first", "last"))
    assert first([text], [extract_answer(marker, text, "first")]) == [1.0]
    assert first([text], ["London"]) == last([text], ["Paris"]) == [1.0]
    assert first([text], ["Paris"]) == last([text], ["London"]) == [0.0]


def test_sentence_form_and_no_answer():
    texts = ["Therefore the answer is Paris.", "Therefore, the answer is (B).\n", "Paris", ""]
    assert choice_reward(texts, answer=["Paris", "B", "Paris", "Paris"]) == [1.0, 1.0, 0.0, 0.0]


def test_plain_and_conversational_completions_score_alike():
    plain = ["<answer>B</answer>", "no", ""]
    conversational = [[{"role": "assistant", "content": text}] for text in plain]
    parts = [[{"role": "assistant", "content": [{"type": "text", "text": text}]}] for text in plain]
    odd = [[], [{"role": "assistant", "content": None}], [{"role": "assistant"}]]
    for completions in (plain, conversational, parts):
        assert choice_reward(completions, answer=["B"] * 3, options=[OPTIONS] * 3, prompts=["q"] * 3) == [
            1.0,
            0.0,
            0.0,
        ]
    assert choice_reward(odd, answer=["B"] * 3) == [0.0] * 3
    assert choice_reward([], answer=[]) == []


def test_rows_must_match():
    with pytest.raises(ValueError, match="shorter"):
        ChoiceVerifier().grade(["x", "y"], ["x"])


@pytest.mark.parametrize("arguments", [{"marker": "quiz"}, {"which": "middle"}])
def test_bad_arguments_are_named(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        ChoiceVerifier(**arguments)


def test_more_options_than_letters():
    options = [str(number) for number in range(40)]
    assert [grade(answer, "Z", options) for answer in ("Z", "25", "39", "A")] == [1.0, 1.0, 0.0, 0.0]


@given(answer=st.text(max_size=60), gold=st.text(max_size=60), options=st.none() | st.lists(st.text(max_size=9)))
@settings(max_examples=300, deadline=None)
def test_no_text_raises(answer, gold, options):
    assert grade(answer, gold, options) in (0.0, 1.0, None)
    if gold.strip():
        assert grade(gold, gold) == 1.0


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_normalisation_is_idempotent(text):
    assert normalize_answer(normalize_answer(text)) == normalize_answer(text)


def test_hostile_answers_take_no_time():
    hostile = ["B" * (1 << 20), r"\text{" * 300 + "}" * 300, "(" * 2000, "a " * 1000, ",1" * 999, "$" * 2000, "\ud800"]
    hostile += ["option " * 280, "A) " + "or " * 600, "-." * 1000, "1,000" * 390, "\\(" * 1000]
    start = time.thread_time()
    assert ChoiceVerifier().grade(hostile, ["B"] * len(hostile), [OPTIONS] * len(hostile)) == [0.0] * len(hostile)
    assert boxed([rf"\boxed{{{answer}}}" for answer in hostile], ["B"] * len(hostile)) == [0.0] * len(hostile)
    assert time.thread_time() - start < 2


ROD_OPTIONS = ["iron", "a copper rod", "helium", "none of these"]


@pytest.mark.parametrize(
    ("answer", "letter"),
    [("C because I computed the integral.", "C"), ("B because a car moves", "B"), ("A because it is a metal", "A")]
    + [("C, because it is light", "C"), ("C (because it floats)", "C"), ("C since it is light", "C")]
    + [
        ("C is correct", "C"),
        ("Option C is the best answer", "C"),
        ("C) helium is right because A and iron sink", "C"),
    ]
    + [
        ("b. a copper rod", "B"),
        ("c) helium", "C"),
        ("C - helium", "C"),
        ("C (helium)", "C"),
        ("c. it is a gas", "C"),
        ("It is C", "C"),
        ("It's (c)", "C"),
        ("C is correct because A and B are solid", "C"),
        ("C as it is light", "C"),
        ("C, which is a gas", "C"),
        ("C given that it floats", "C"),
    ],
)
def test_words_behind_a_letter_that_name_no_other_option(answer, letter):
    assert choice_letter(answer, 4, ROD_OPTIONS) == letter


@pytest.mark.parametrize(
    "answer",
    ["A. B. C. D.", "A) B) C) D)", "a) b) c) d)", "A B C D", "A;B", "A|B", "A - B", "A to D", "A & C", "(A)(B)(C)"]
    + ["A. iron B. a copper rod", "A. iron or helium", "A. iron, B. a copper rod, C. helium", "a. iron b. helium"]
    + ["A: iron; C: helium", "A. helium, iron", "A because iron or B because rods", "A and C because both float"]
    + ["(B) is incorrect", "B. is not correct", "B) is false", "B) incorrect", "B. No, it is C", "B. Actually C"]
    + ["B. no, I mean C", "C as well as B", "B isn't right", "it is B or C"]
    + ["C. iron", "C (iron)", "B. maybe C", "C is wrong", "A metal rod", "iron or helium"],
)
def test_a_list_of_options_or_another_ones_text_is_no_answer(answer):
    assert choice_letter(answer, 4, ROD_OPTIONS) is None


@pytest.mark.parametrize(
    ("gold", "options", "rewards"),
    [
        (2, ROD_OPTIONS, [None] * 3),  # an index: not known to begin at 0
        ("E", ROD_OPTIONS, [None] * 3),
        ("neon", ROD_OPTIONS, [None] * 3),
        (["E", "B"], ROD_OPTIONS, [0.0, 1.0, 0.0]),
        ("B", dict(zip("ABCD", ROD_OPTIONS, strict=True)), [0.0, 1.0, 0.0]),
    ],
)
def test_a_gold_that_is_no_option_is_ungraded(gold, options, rewards):
    assert [grade(answer, gold, options) for answer in ("C", "a copper rod", None)] == rewards


def test_a_letter_at_the_end_of_an_option_is_no_article():
    options = ["Both A and B", "Neither A nor B", "Only A", "Only B"]
    answers = ["Only A", "C. Only A", "C. Only B", "Only B", "D"]
    assert [grade(answer, "C", options) for answer in answers] == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert grade("vitamin", "vitamin A") == grade("C", "C++") == grade("C#", "C++") == 0.0


def test_a_list_of_letters_is_no_answer_without_options_either():
    assert [choice_letter(text) for text in ("A. B. C. D.", "A. x B. y", "A) B)")] == [None] * 3
    assert choice_letter("B. John F. Kennedy") == "B" and choice_letter("E: a polygenic score") == "E"
    assert choice_letter("B. is a gas") == choice_letter("B) False") == "B" and choice_letter("B) is false") is None
