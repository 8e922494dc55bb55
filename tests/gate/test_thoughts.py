# SPDX-License-Identifier: Apache-2.0
"""Thoughts: no answer counts inside of one, for marker, token automaton and extractor alike."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duet_trl.gate.automaton import compile_automaton
from duet_trl.gate.markers import MARKERS, completion_ends, extract_answer, first_marker_end, get_marker
from duet_trl.gate.thoughts import (
    KNOWN_DELIMITERS,
    Delimiters,
    Written,
    find_delimiters,
    parse_delimiters,
    prompt_opens_thought,
    recognise,
    shown_text,
)
from duet_trl.gate.vocabulary import vocabulary_bytes
from tests.tiny import END_OF_TURN, EOS, START_OF_TURN, thinking_tokenizer, tiny_tokenizer

THINK = Delimiters("<think>", "</think>")
CLOSED, LINE = "ANSWER: ...;", "#### ..."
NAMES = [*MARKERS, CLOSED, LINE]
PIECES = {
    "math": ["\\boxed{", "\\boxed{7}", "{", "}", "\\", "x", "\\boxed{ANSWER}"],
    "math_paragraph": ["\\boxed{x}", "\\boxed{", "}", "\n\n", ":\n", "x"],
    "code": ["```", "\n```", "\n", "```py\nx\n```", "x", " "],
    "qa": ["<answer>", "</answer>", "Therefore the answer is ", "5", ". ", "\n", "x"],
    CLOSED: ["ANSWER: ", "ANSWER: 5;", "1", "0", ";", " "],
    LINE: ["#### ", "#### 5\n", "1", "#", "\n", " "],
}
THOUGHT_PIECES = ["<think>", "</think>", "<think>", "</think>", "<thi", "nk>", "<", "</", "think>"]
# An answer that a text in search of one completes, and one more probe of those that tell an open sentence by its end.
PROBES = {
    "math": ("\\boxed{x}", None),
    "math_paragraph": ("\\boxed{x}\n\n", None),
    "code": ("x`\n```\nx\n```", None),  # the first backtick ends an info string, in which no block is open yet
    "qa": ("Therefore the answer is x\n", "x\n"),
    CLOSED: ("ANSWER: 5;", "x;"),
    LINE: ("#### 5\n", "x\n"),
}


def texts(name):
    return st.lists(st.sampled_from([*PIECES[name], *THOUGHT_PIECES]), max_size=16).map("".join)


def plain_ends(name, text):
    return list(completion_ends(get_marker(name), text.encode()))


def answer_is_open(name, text):
    """Whether a marker without thoughts is inside an answer at the end of a text."""
    probe, ending = PROBES[name]
    if ending is not None and len(text + ending) in plain_ends(name, text + ending):
        return True
    return len(text + probe) not in plain_ends(name, text + probe)


def regions(name, text, opened):
    """Begin and end of each stretch of answer region, by trying every delimiter with the marker that knows none."""
    begin, stretches = text.find(THINK.closing) + len(THINK.closing) if opened else 0, []
    if opened and THINK.closing not in text:
        return []
    while True:
        place = begin
        while (place := text.find(THINK.opening, place)) >= 0 and answer_is_open(name, text[begin:place]):
            place += 1
        if place < 0:
            return [*stretches, (begin, len(text))]
        stretches.append((begin, place))
        close = text.find(THINK.closing, place + len(THINK.opening))
        if close < 0:
            return stretches
        begin = close + len(THINK.closing)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=300)
def test_a_marker_completes_as_in_each_stretch_outside_of_thoughts(name, data):
    text, opened = data.draw(texts(name)), data.draw(st.booleans())
    expected = [begin + at for begin, end in regions(name, text, opened) for at in plain_ends(name, text[begin:end])]
    assert list(completion_ends(get_marker(name, THINK), text.encode(), opened)) == expected


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=250)
def test_a_completed_marker_means_an_answer_that_no_continuation_changes(name, data):
    text, opened = data.draw(texts(name)), data.draw(st.booleans())
    ends = list(completion_ends(get_marker(name, THINK), text.encode(), opened))
    prefixes = [text[:end] for end in [*ends[:1], *ends, len(text)]] if ends else []
    answers = [extract_answer(name, Written(prefix, THINK, opened)) for prefix in prefixes]
    assert all(answers) and len(set(answers)) <= 1
    assert all(extract_answer(name, Written(prefix, THINK, opened), "last") for prefix in prefixes)


@pytest.mark.parametrize("delimiters", KNOWN_DELIMITERS, ids=lambda pair: pair.opening)
@pytest.mark.parametrize("name", NAMES)
def test_every_marker_fits_beside_every_known_pair_of_delimiters(name, delimiters):
    marker = get_marker(name, delimiters)
    assert len(marker.table) <= 127
    assert len(set(marker.thought_states)) == len(delimiters.closing.encode())
    assert get_marker(name, delimiters) is marker


def test_a_marker_without_room_beside_the_delimiters_is_an_error_that_names_both():
    with pytest.raises(ValueError, match=r"'x+\.\.\.' with thoughts between '<think>' and .*at most 127 fit"):
        get_marker("x" * 120 + "...", THINK)


@pytest.mark.parametrize(
    ("text", "seen_in", "first", "last"),
    [
        (r"<think> maybe \boxed{4}? no wait", None, None, None),
        (r"<think>\boxed{4}</think> It is \boxed{5}.", r"<think>\boxed{4}</think> It is \boxed{5}", "5", "5"),
        (r"\boxed{1} <think>\boxed{2}</think>\boxed{3}", r"\boxed{1}", "1", "3"),
        (r"\boxed{1} <think>\boxed{2}", r"\boxed{1}", "1", "1"),
        (r"\boxed{a <think> b} \boxed{c}", r"\boxed{a <think> b}", "a <think> b", "c"),
        (r"<think>a</think>b<think>c</think>\boxed{d}", r"<think>a</think>b<think>c</think>\boxed{d}", "d", "d"),
        (r"\boxed{1}</think>\boxed{2}", r"\boxed{1}", "1", "2"),  # known not to begin in a thought: a stray delimiter
    ],
)
def test_boxes_count_outside_of_thoughts_only(text, seen_in, first, last):
    end = first_marker_end(get_marker("math", THINK), text)
    assert (None if end is None else text[:end]) == seen_in
    assert extract_answer("math", Written(text, THINK), "first") == first
    assert extract_answer("math", Written(text, THINK), "last") == last


def test_a_completion_that_begins_in_a_thought_answers_behind_it_and_text_begins_anew_there():
    text = r"maybe \boxed{4}</think>\boxed{5}"
    assert first_marker_end(get_marker("math", THINK), text, opened=True) == len(text)
    assert extract_answer("math", Written(text, THINK, opened=True)) == "5"
    assert extract_answer("math", Written(r"maybe \boxed{4}", THINK, opened=True), "last") is None
    code = "<think>x</think>```py\n1\n```"
    assert first_marker_end(get_marker("code", THINK), code) == len(code)
    for before in ("", "```"):  # no block is open in an info string
        assert extract_answer("code", Written(before + code, THINK)) == "1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"<think>\boxed{4}", (THINK, False)),
        (r"\boxed{4}</think>\boxed{5}<think>", (THINK, True)),
        ("<|begin_of_thought|> x <think>", (KNOWN_DELIMITERS[1], False)),
        ("[/THINK] x", (KNOWN_DELIMITERS[2], True)),
        (r"\boxed{4} < think >", (None, False)),
    ],
)
def test_thoughts_are_recognised_in_a_text_of_which_nothing_else_is_known(text, expected):
    written = recognise(text)
    assert (written.text, written.delimiters, written.opened) == (text, *expected)


@pytest.mark.parametrize("names", ["<think>", ["<think>"], ["a", "b", "c"], ["a", 1], ["", "b"], ["a", "ab"], [None]])
def test_delimiters_that_are_no_pair_are_an_error(names):
    with pytest.raises(ValueError, match="thought delimiters must be"):
        parse_delimiters(names)


def test_delimiters_come_from_added_tokens_else_from_the_chat_template_else_there_are_none():
    assert find_delimiters(tiny_tokenizer()) is None
    assert find_delimiters(thinking_tokenizer(THINK)) == THINK
    both = thinking_tokenizer(KNOWN_DELIMITERS[2], special=True)
    both.chat_template += "{# <think> </think> #}"
    assert find_delimiters(both) == KNOWN_DELIMITERS[2]
    template_only = tiny_tokenizer()
    template_only.chat_template += "{# <|begin_of_thought|> and <|end_of_thought|> #}"
    assert find_delimiters(template_only) == KNOWN_DELIMITERS[1]
    template_only.chat_template = None
    assert find_delimiters(template_only) is None


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(
    ("prompt", "opens"),
    [
        ("Say 4", False),
        ("Say 4 <think>\n", True),
        ("Say 4 <think>\nOkay, so", True),
        ("<think> old </think> Say 4", False),
        ("<think> old </think> Say 4 <think>", True),
        (f"{START_OF_TURN}user\nUse <think> tags.{END_OF_TURN}\n{START_OF_TURN}assistant\n", False),
        (f"{START_OF_TURN}user\nUse <think> tags.{END_OF_TURN}\n{START_OF_TURN}assistant\n<think>\n", True),
        (f"{START_OF_TURN}assistant\n<think>\n\n</think>\n\n", False),
    ],
)
def test_a_prompt_opens_a_thought_at_its_end_not_where_it_mentions_one(prompt, opens, special):
    tokenizer = thinking_tokenizer(THINK, special=special)
    ids = tokenizer(prompt)["input_ids"]
    assert prompt_opens_thought(ids, tokenizer, THINK) == opens
    assert prompt_opens_thought(ids, tokenizer, None) is False
    spelled = tiny_tokenizer()  # the same delimiters as several tokens each
    assert prompt_opens_thought(spelled(prompt)["input_ids"], spelled, THINK) == opens


def test_a_delimiter_that_is_a_special_token_is_read_as_its_text_and_shown():
    tokenizer = thinking_tokenizer(THINK, special=True)
    number = tokenizer.convert_tokens_to_ids
    vocabulary = vocabulary_bytes(tokenizer, shown=THINK.parts)
    assert vocabulary[number("<think>")] == b"<think>" and vocabulary[number("</think>")] == b"</think>"
    assert vocabulary[number(END_OF_TURN)] is None
    assert vocabulary_bytes(tokenizer)[number("<think>")] is None

    text = r"<think>\boxed{4}</think>\boxed{2}"
    ids = tokenizer(text + EOS)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == r"\boxed{4}\boxed{2}"
    assert shown_text(ids, tokenizer, THINK) == text
    row, position = compile_automaton(get_marker("math", THINK), vocabulary).completions([ids])
    assert position.tolist() == [len(ids) - 1]


@pytest.mark.parametrize("name", NAMES)
def test_a_token_without_text_leaves_no_thought(name):
    answer = "\\boxed{x}\n\n<answer>x</answer>\n```\nx\n```\nANSWER: 5;#### 5\n"  # of every marker
    vocabulary = [b"<thi", b"nk>", None, answer.encode(), b"</think>"]
    automaton = compile_automaton(get_marker(name, THINK), vocabulary)
    assert automaton.completions([[0, 1, 2, 3], [0, 2, 1, 3], [3, 2, 3]])[0].tolist() == [1, 2, 2]
    assert automaton.completions([[2, 3], [3, 4, 2, 3]], np.array([True, True]))[0].tolist() == [1]
