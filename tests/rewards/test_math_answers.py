# SPDX-License-Identifier: Apache-2.0
"""The math reward on answers of every kind of MATH as models write them, and on a hundred and more hostile ones."""

import doctest
import logging
import random
import re
import string
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("math_verify", reason="needs the extra 'math'")

from duet_trl.rewards import MathVerifier, math_pairs, math_text
from duet_trl.rewards.math_pairs import comparable, contradicts
from duet_trl.rewards.math_text import readable
from tests.rewards.case_files import cases, rows_of, verdict
from tests.rewards.hostile_answers import HOSTILE_ANSWERS, HOSTILE_TEXTS

CASES = cases("math")


@pytest.fixture(scope="module")
def verifier():
    verifier = MathVerifier(timeout=5.0, workers=2)
    yield verifier
    verifier.close()


@pytest.fixture(scope="module")
def golds():
    found = {row["answer"] for row in rows_of("math_train_clean.jsonl")}
    return random.Random(0).sample(sorted(gold for gold in found if gold and not re.fullmatch(r"-?\d+", gold)), 120)


def graded_other_than(verifier, verdict, pairs):
    verdicts = verifier.grade(*zip(*pairs, strict=True))
    return [pair for pair, given in zip(pairs, verdicts, strict=True) if given != verdict]


@pytest.mark.parametrize("kind", CASES)
def test_answers_are_graded_as_a_person_would(verifier, kind):
    listed = CASES[kind]
    verdicts = verifier.grade([case["answer"] for case in listed], [case["gold"] for case in listed])
    assert [case for case, given in zip(listed, verdicts, strict=True) if given != verdict(case["right"])] == []


@pytest.mark.parametrize("module", [math_pairs, math_text])
def test_examples_in_the_docstrings_run(module):
    assert doctest.testmod(module).failed == 0


def test_towers_of_powers_are_told_apart_without_being_computed(verifier, caplog):
    towers = ["10^{10^{10}}", "-10^{10^{10}}", "10^{-10^{10}}", r"\frac{1}{9^{9^9}}", "2^{2^{40}}"]
    assert verifier.grade(towers, ["7"] * len(towers)) == [0.0] * len(towers)
    assert verifier.grade(["10^{10^{10}}"], ["10^{10^{11}}"]) == [0.0]
    assert "used up its time" not in caplog.text


def test_a_gold_that_is_a_sentence_is_ungraded_and_said_once(caplog):
    verifier = MathVerifier(workers=1)
    prose = "The function grows because its derivative is positive."
    with caplog.at_level(logging.WARNING):
        assert verifier.grade(["5", "positive"], [prose, prose + " So it has one zero."]) == [None, None]
    assert [record.message.count("stay ungraded") for record in caplog.records] == [1]
    assert "The function grows" in caplog.text
    verifier.close()


@pytest.mark.parametrize(("gold", "reward"), [(np.float64(2.5), 1.0), (float("nan"), None), (pd.NA, None)], ids=str)
def test_golds_as_tables_hold_them(verifier, gold, reward):
    assert verifier.grade([r"\frac52"], [gold]) == [reward]


def test_no_letter_is_its_other_case_or_a_unit(verifier):
    lower = string.ascii_lowercase
    pairs = [
        pair
        for one, other in zip(lower, lower[-1] + lower, strict=False)
        for pair in ((f"1+2{one.upper()}", f"1+2{one}"), (one, one.upper()), (f"x_{one}", f"x_{one.upper()}"))
        + ((f"5{one}", "5"), ("5", f"5 {one}"), (f"5{one}", f"5{other}"))
    ]
    assert graded_other_than(verifier, 0.0, pairs) == []
    assert graded_other_than(verifier, 1.0, [(f"2{one} + 1", f"1+2{one}") for one in lower + lower.upper()]) == []


WRITINGS = {
    "in dollars": lambda gold: f"${gold}$",
    "in round brackets": lambda gold: rf"\({gold}\)",
    "in square brackets": lambda gold: rf"\[ {gold} \]",
    "in braces": lambda gold: f"{{{gold}}}",
    "bold": lambda gold: rf"\mathbf{{{gold}}}",
    "with a full stop": lambda gold: gold.rstrip(".") + ".",
    "between thin spaces": lambda gold: rf"\,{gold}\;",
    "in display style": lambda gold: rf"\displaystyle {gold}",
    "with lines broken": lambda gold: gold.replace(" ", "\n"),
    "with large fractions": lambda gold: gold.replace(r"\frac", r"\dfrac"),
    "with ties before units": lambda gold: gold.replace(r"\text{ ", r"~\text{"),
    "in Unicode": lambda gold: (
        gold.replace(r"\pi", "π").replace(r"\infty", "∞").replace(r"\cup", "∪").replace(r"^\circ", "°")
    ),
}


@pytest.mark.parametrize("name", WRITINGS)
def test_gold_answers_of_math_written_otherwise_are_right(verifier, golds, name):
    assert graded_other_than(verifier, 1.0, [(WRITINGS[name](gold), gold) for gold in golds]) == []


def test_gold_answers_of_math_with_another_digit_are_wrong(verifier, golds):
    def change(gold: str) -> str:
        return re.sub(r"\d(?!\d*\}?$|[^{]*\}\^\d$)", lambda found: str((int(found[0]) + 1) % 10), gold, count=1)

    changed = [(change(gold), gold) for gold in golds if change(gold) != gold and r"\infty" not in gold]
    assert len(changed) > 50 and graded_other_than(verifier, 0.0, changed) == []


LATEX = st.lists(
    st.sampled_from(
        ["\\text{", "\\mathrm{", "\\frac", "}", "{", "_", "^", "cm", "th", "m", "E", "I", "(C)", " or ", "1e-5"]
    )
    | st.sampled_from("0123456789,.{}[]()\\$^_ \n~!abtxi°∞\u200b√²\ud800\x00")
).map("".join) | st.text(st.characters())


@given(LATEX, LATEX)
@example("x^\n(2)", "sqrt\t(4)")
@settings(max_examples=300)
def test_rewriting_never_raises_and_settles(text, other):
    once = readable(text)
    assert contradicts(once, once) is False
    assert comparable(once, once) == (once, once)
    comparable(once, readable(other))
    assert len(once) <= 20 * len(text) + 100


@pytest.mark.parametrize("name", [n for n, answer in HOSTILE_ANSWERS.items() if len(answer) <= 2_000])
def test_rewriting_a_hostile_answer_takes_no_time(name):
    begin = time.process_time()
    comparable(readable(HOSTILE_ANSWERS[name]), readable(HOSTILE_ANSWERS[name] + r"\text{ cm}"))
    assert time.process_time() - begin < 1.5  # a blow-up takes minutes


@pytest.mark.slow
def test_hostile_answers_are_wrong_and_leave_the_pool_alive():
    assert len(HOSTILE_ANSWERS) + len(HOSTILE_TEXTS) > 150
    verifier = MathVerifier(timeout=0.5, workers=2)
    texts = [rf"\boxed{{{answer}}}" for answer in HOSTILE_ANSWERS.values()] + list(HOSTILE_TEXTS.values())
    begin = time.monotonic()
    verdicts = verifier([part for text in texts for part in (text, r"\boxed{7.0}")], ["7"] * (2 * len(texts)))
    assert time.monotonic() - begin < 0.5 * 10 * len(texts)
    assert verdicts[1::2] == [1.0] * len(texts)
    names = [*HOSTILE_ANSWERS, *HOSTILE_TEXTS]
    assert [name for name, verdict in zip(names, verdicts[::2], strict=True) if verdict != 0.0] == []
    assert verifier.grade(["123/2", "61"], ["61.5", "61.5"]) == [1.0, 0.0]
    verifier.close()


@pytest.mark.slow
def test_hostile_gold_answers_do_not_raise_either():
    verifier = MathVerifier(timeout=0.5, workers=2)
    hostile = [answer for answer in HOSTILE_ANSWERS.values() if len(answer) <= 2_000][::3]
    assert set(verifier.grade(["7"] * len(hostile), hostile)) <= {0.0, None}
    verifier.close()
