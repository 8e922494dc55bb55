# SPDX-License-Identifier: Apache-2.0
"""What the extractors do beyond the markers; that they agree with them is tested beside the markers."""

import doctest

from duet_trl.gate import extract
from duet_trl.gate.extract import extract_boxed
from duet_trl.gate.markers import extract_answer


def test_last_box_is_read_behind_one_that_never_closes():
    text = r"\boxed{1} and \boxed{ or {\boxed{2}} or \boxed{3 \boxed{4}} {"
    assert extract_boxed(text, "first") == "1"
    assert extract_boxed(text, "last") == r"3 \boxed{4}"
    assert extract_boxed(r"\boxed{ \boxed{3 \boxed{4}}") == r"3 \boxed{4}"


def test_thousands_of_unclosed_openings_are_read_in_linear_time():
    # quadratic work would be 10^10 steps here: this test would not end within its time limit
    assert extract_boxed("\\boxed{" * 100_000) is None
    assert extract_answer("qa", "<answer>" * 100_000) is None
    assert extract_answer("qa", "Therefore the answer is x" + "!" * 100_000) == "x"
    assert extract_answer("code", "```\n" * 100_001) is None


def test_an_answer_sentence_may_end_with_the_finished_text():
    assert extract_answer("qa", "Therefore the answer is 3.14") == "3.14"
    assert extract_answer("qa", "Therefore the answer is 42.") == "42"
    assert extract_answer("qa", "Therefore the answer is ") is None


def test_examples_in_the_docstrings_run():
    assert doctest.testmod(extract).failed == 0
