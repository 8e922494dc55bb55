# SPDX-License-Identifier: Apache-2.0
"""The choice reward: letters and short answers as models write them, golds as data sets hold them, hostile texts."""

import logging
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duet_trl.gate.markers import extract_answer
from duet_trl.rewards.choice import ChoiceVerifier, choice_letter, choice_reward, normalize_answer
from duet_trl.rewards.completions import MAX_ANSWER_LENGTH
from tests.rewards.case_files import cases, verdict

CASES = cases("choice")
OPTIONS = ["A metal compound", "vitamin C", "4.5", "both"]
RODS = ["iron", "a copper rod", "helium", "none of these"]
OPTIONS_OF = {
    "one letter": (None, OPTIONS),
    "two letters": (None, OPTIONS),
    "text of an option": (OPTIONS,),
    "words behind a letter": (RODS,),
    "several options, or one denied": (RODS,),
    "without options": (None,),
    "options of their own": (None,),
}
"""By kind, what the letters of an answer may stand for; a case's own options come first."""
boxed = ChoiceVerifier(marker="math")


def grade(answer, gold, options=None):
    return ChoiceVerifier().grade([answer], [gold], [options])[0]


@pytest.mark.parametrize("kind", OPTIONS_OF)
def test_letter_that_an_answer_names(kind):
    wrong = []
    for case in CASES[kind]:
        for options in OPTIONS_OF[kind]:
            options = case.get("options", options)
            letters = "ABCD"[: len(options or "ABCD")]
            rewards = [grade(case["answer"], gold, options) for gold in letters]
            found = choice_letter(case["answer"], 4 if options else 26, options or ())
            if rewards != [float(gold == case["letter"]) for gold in letters] or found != case["letter"]:
                wrong.append((case, options, found, rewards))
    assert wrong == []


def test_short_answers_by_exact_match_after_normalisation():
    wrong = []
    for answer, gold, right in ((case["answer"], case["gold"], case["right"]) for case in CASES["short answers"]):
        expected = [verdict(right), verdict(right if answer.strip() else None)]
        if [grade(answer, gold), grade(gold, answer)] != expected:
            wrong.append((answer, gold))
    assert wrong == []


def test_an_answer_longer_than_any_is_wrong_unread():
    gold = "a" * MAX_ANSWER_LENGTH
    assert [grade(gold, gold), grade(gold + "a", gold + "a")] == [1.0, 0.0]


@pytest.mark.parametrize("kind", ["golds", "golds of options"])
def test_gold_as_data_sets_hold_it(kind):
    graded = [grade(case["answer"], case["gold"], case.get("options")) for case in CASES[kind]]
    assert [case for case, given in zip(CASES[kind], graded, strict=True) if given != verdict(case["right"])] == []
    missing = [grade(None, case["gold"], case.get("options")) for case in CASES[kind]]
    assert missing == [None if reward is None else 0.0 for reward in graded]


@pytest.mark.parametrize(
    ("gold", "reward"),
    [(("Rome",), 0.0), (np.array(["Paris"]), 1.0)]
    + [(missing, None) for missing in (float("nan"), np.float64("nan"), pd.NA, pd.NaT)],
    ids=repr,
)
def test_gold_as_tables_hold_it(gold, reward):
    assert grade("Paris", gold) == reward
    assert grade(None, gold) == (None if reward is None else 0.0)


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


@given(answer=st.text(max_size=60), gold=st.text(max_size=60), options=st.none() | st.lists(st.text(max_size=9)))
@settings(max_examples=300)
def test_no_text_raises(answer, gold, options):
    assert grade(answer, gold, options) in (0.0, 1.0, None)
    if gold.strip():
        assert grade(gold, gold) == 1.0


@given(st.text(max_size=60))
@example("\\$)")
@example("*$*")
@settings(max_examples=300)
def test_normalisation_is_idempotent(text):
    assert normalize_answer(normalize_answer(text)) == normalize_answer(text)


def test_hostile_answers_take_no_time():
    hostile = ["B" * (1 << 20), r"\text{" * 300 + "}" * 300, "(" * 2000, "a " * 1000, ",1" * 999, "$" * 2000, "\ud800"]
    hostile += ["option " * 280, "A) " + "or " * 600, "-." * 1000, "1,000" * 390, "\\(" * 1000]
    start = time.thread_time()
    assert ChoiceVerifier().grade(hostile, ["B"] * len(hostile), [OPTIONS] * len(hostile)) == [0.0] * len(hostile)
    assert boxed([rf"\boxed{{{answer}}}" for answer in hostile], ["B"] * len(hostile)) == [0.0] * len(hostile)
    assert time.thread_time() - start < 2
