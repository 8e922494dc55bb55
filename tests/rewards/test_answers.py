# SPDX-License-Identifier: Apache-2.0
"""Classes of equal answers against the partition that made them, and what the verifiers take for equal."""

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.rewards import AnswerVerifier, ChoiceVerifier, CodeVerifier, choice_reward
from duet_trl.rewards.answers import answer_classes


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 4), st.integers(0, 2)), max_size=24))
def test_classes_are_those_of_the_equivalence(rows: list[tuple[int, int, int]]) -> None:
    """(group, class, way to write it): numbers count the classes of a group in the order of first answers."""
    group = np.array([one for one, _, _ in rows], dtype=np.int64)
    answers = [None if kind < 0 else f"{kind}{'abc'[way]}" for _, kind, way in rows]
    asked = []

    def equivalent(pairs: list[tuple[str, str]]) -> list[bool]:
        asked.extend(pairs)
        return [answer[0] == first[0] for answer, first in pairs]

    found = answer_classes(answers, group, equivalent)
    orders: list[list[int]] = [[], [], []]
    for one, kind, _ in rows:
        if kind >= 0 and kind not in orders[one]:
            orders[one].append(kind)
    assert found.tolist() == [-1 if kind < 0 else orders[one].index(kind) for one, kind, _ in rows]
    assert all(answer != first for answer, first in asked)  # equal texts are one answer unasked
    sizes = [len({text for text, one in zip(answers, group, strict=True) if one == g and text}) for g in range(3)]
    assert len(asked) <= sum(size * len(order) for size, order in zip(sizes, orders, strict=True))


def test_a_verdict_for_each_pair_is_asked_for() -> None:
    with pytest.raises(ValueError, match="a verdict for each of 1 pairs, got 0"):
        answer_classes(["1", "2"], np.zeros(2, dtype=int), lambda pairs: [])


def test_choice_compares_letters_words_and_options() -> None:
    verifier = ChoiceVerifier(marker="math")
    texts = [r"\boxed{(B)}", r"\boxed{B.}", r"\boxed{A}", r"\boxed{a cat}", r"\boxed{Cat!}", "no box"]
    answers = verifier.answers(texts)
    assert answers == ["(B)", "B.", "A", "a cat", "Cat!", None]
    assert answer_classes(answers, np.zeros(6, dtype=int), verifier.equivalent).tolist() == [0, 0, 1, 2, 2, -1]
    options = [["dog", "cat"]] * 2
    assert verifier.answers([r"\boxed{the cat}", r"\boxed{(B)}"], options=options, answer=["A", "A"]) == ["B", "B"]


def test_only_objects_with_both_functions_compare_answers() -> None:
    assert isinstance(ChoiceVerifier(), AnswerVerifier)
    assert not isinstance(choice_reward, AnswerVerifier) and not isinstance(CodeVerifier(), AnswerVerifier)


def test_math_compares_by_value_without_a_word_about_gold_answers(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("math_verify", reason="needs the extra 'math'")
    from duet_trl.rewards import MathVerifier

    verifier = MathVerifier(timeout=1.0, workers=1)
    texts = [
        r"so \boxed{\frac{1}{2}}",
        r"\boxed{0.5}",
        r"\boxed{3}",
        r"\boxed{1 \over 2}",
        "none",
        r"\boxed{1/",
        "x" * 9,
    ]
    texts += [rf"\boxed{{{'1' * 2001}}}", r"\boxed{((}", r"\boxed{))}"]
    answers = verifier.answers(texts)
    assert answers[:4] == [r"\frac{1}{2}", "0.5", "3", r"1 \over 2"] and answers[4:8] == [None] * 4
    with caplog.at_level(logging.WARNING):
        classes = answer_classes(answers, np.zeros(len(texts), dtype=int), verifier.equivalent)
    verifier.close()
    assert classes.tolist()[:8] == [0, 0, 1, 0, -1, -1, -1, -1]
    assert "gold" not in caplog.text
