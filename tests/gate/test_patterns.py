# SPDX-License-Identifier: Apache-2.0
"""Custom markers against Python's own regular expressions."""

import random
import re
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duet_trl.gate.automaton import compile_automaton
from duet_trl.gate.markers import completion_ends, extract_answer, first_marker_end, get_marker, pattern_marker

PATTERNS = [
    r"ab*c",
    r"a|ab|[^a]b",
    r"(?:ab){2,3}c?b",
    r"^a",
    r"(?m)^a.b",
    r"(?m:^)[ab]+\n",
    r"\Aab",
    r"(?s)a.{2}b",
    r"a.?\n",
    r"(?i)aB[^c]",
    r"(?i:a)b",
    r"(?i)[a-c]+[^A]1",
    r"\d+\.\s",
    r"\w\W\D\S",
    r"[^\wé]b",
    r"[à-ü€]b",
    r"a(?#comment)+?b",
    r"(?x) a  b  # comment",
    r"(a|b)(?P<name>c*)\n",
    r"a{0}b{2,}",
    r"𝔸?b[𝔸-𝔹]",
    r"[^\x00-\U00010000]a",
    r"x*ab|y(?:^a|b)",
]
# mostly the characters that patterns begin and end with, so that matches are frequent
TEXTS = st.text(st.sampled_from("aaaabbbb\n\nABccxy1. é€ü𝔸𝔹_"), max_size=12)


def first_match(compiled, text, begin=0):
    """Span of the leftmost-longest match, by trying Python's fullmatch on every span; None without one."""
    found = compiled.search(text, begin)  # the start is the leftmost one, the end need not be the longest
    if found is None:
        return None
    return next(
        (found.start(), end) for end in range(len(text), 0, -1) if compiled.fullmatch(text, found.start(), end)
    )


def all_matches(pattern, text):
    """Spans of all matches of a finished text."""
    compiled, spans, begin = re.compile(pattern, re.ASCII), [], 0
    while span := first_match(compiled, text, begin):
        spans.append(span)
        begin = span[1]
    return spans


def settled_ends(pattern, text, continuations):
    """Lengths of the prefixes in which one more match than before is the same whatever follows, by trying what may."""
    compiled, ends, begin, length = re.compile(pattern, re.ASCII), [], 0, 0
    while span := first_match(compiled, text, begin):
        length = max(length, span[1])
        while any(first_match(compiled, text[:length] + more, begin) != span for more in continuations):
            length += 1
            if length > len(text):
                return sorted(set(ends))
        ends.append(length)
        begin = span[1]
    return sorted(set(ends))


def seen_ends(marker, text):
    """Completions in characters: one that only the first byte of the next character settles is that character's."""
    data = text.encode()
    return sorted({len(data[:end].decode(errors="replace")) for end in completion_ends(marker, data)})


LETTERS = "ab1\né"
LONGEST_GROWTH = 4
CONTINUATIONS = [
    "".join(letters) for size in range(LONGEST_GROWTH + 1) for letters in product(LETTERS, repeat=size)
]  # 781: no pattern below needs more letters than LONGEST_GROWTH from one end of a match to the next


def random_pattern(rng, leaves):
    """A regular expression of so many atoms, greedy and lazy, with and without groups."""
    if leaves == 1:
        return rng.choice(["a", "b", ".", r"\n", "[^a]", "[ab]", "é", "[^é]", r"\d", "(?m:^)", r"\w"])
    if rng.random() < 0.5:
        return f"(?:{random_pattern(rng, leaves - 1)}){rng.choice(['*', '+', '?', '*?', '+?', '??'])}"
    first = rng.randint(1, leaves - 1)
    parts = random_pattern(rng, first), random_pattern(rng, leaves - first)
    return "".join(parts) if rng.random() < 0.7 else "({}|{})".format(*parts)


def random_markers(num, seed):
    """Random patterns that a marker can be made of, each with a text and tokens that spell it."""
    rng = random.Random(seed)
    while num:
        pattern = random_pattern(rng, rng.randint(1, LONGEST_GROWTH))
        if re.match(pattern, ""):
            continue
        try:
            marker = pattern_marker("random", pattern)
        except ValueError as error:  # for example a(?m:^)b, or (?:.|\n)+
            assert "can never complete" in str(error)
            continue
        num -= 1
        text = "".join(rng.choices("aab1\né", k=rng.randint(3, 8)))
        cuts = sorted({0, len(text), *(rng.randint(0, len(text)) for _ in range(4))})
        yield pattern, marker, text, [text[begin:end] for begin, end in zip(cuts, cuts[1:], strict=False)]


def test_longest_match_of_1000_random_patterns_and_texts_agrees_with_pythons_engine():
    grown = 0
    for pattern, marker, text, tokens in random_markers(1000, seed=12):
        expected = settled_ends(pattern, text, CONTINUATIONS)
        assert seen_ends(marker, text) == expected, (pattern, text)

        answers = [re.compile(pattern, re.ASCII).fullmatch(text, *span) for span in all_matches(pattern, text)]
        answers = [match[min(1, match.re.groups)] or match[0] for match in answers]
        assert extract_answer(f"regex:{pattern}", text, "first") == next(iter(answers), None), (pattern, text)
        assert extract_answer(f"regex:{pattern}", text, "last") == next(iter(answers[-1:]), None), (pattern, text)

        automaton = compile_automaton(marker, [token.encode() for token in tokens])
        ends_of_tokens = np.cumsum([len(token) for token in tokens])
        in_tokens = sorted({int(np.searchsorted(ends_of_tokens, end)) + 1 for end in expected})
        ids = list(range(len(tokens)))
        assert automaton.completions([ids])[1].tolist() == in_tokens, (pattern, text, tokens)
        state, streamed = np.full(1, automaton.start, np.uint8), []
        for token in ids:
            state, completed = automaton.advance(state, np.array([token]))
            streamed += [token + 1] * bool(completed[0])
        assert streamed == in_tokens, (pattern, text, tokens)
        grown += any(end > span[1] for end, span in zip(expected, all_matches(pattern, text), strict=False))
    assert grown > 100  # matches that had to wait for what follows them


@pytest.mark.parametrize("pattern", PATTERNS)
@given(TEXTS, TEXTS)
@settings(max_examples=60, deadline=None)
def test_the_answer_of_a_completed_pattern_is_the_same_in_every_continuation(pattern, text, more):
    end = first_marker_end(get_marker("regex:" + pattern), text)
    if end is not None:
        answer = extract_answer("regex:" + pattern, text[:end])
        assert answer
        assert extract_answer("regex:" + pattern, text) == answer
        assert extract_answer("regex:" + pattern, text[:end] + more) == answer


@pytest.mark.parametrize("pattern", PATTERNS)
@given(TEXTS)
@settings(max_examples=60, deadline=None)
def test_a_text_ends_the_match_that_was_growing(pattern, text):
    spans = all_matches(pattern, text)
    assert (extract_answer("regex:" + pattern, text) is None) == (not spans)
    assert len(seen_ends(get_marker("regex:" + pattern), text)) <= len(spans)


@pytest.mark.parametrize(
    ("pattern", "text", "seen_in", "answer"),
    [
        (r"ANSWER: \d+", "so ANSWER: 1088. ", "so ANSWER: 1088.", "ANSWER: 1088"),
        (r"ANSWER: (\d+)", "ANSWER: 10\n", "ANSWER: 10\n", "10"),
        (r"ANSWER: \d+", "ANSWER: 1088", None, "ANSWER: 1088"),  # the text ends it, a rollout might go on
        (r"ANSWER: (\d+)\n", "ANSWER: 10\nx", "ANSWER: 10\n", "10"),
        (r"</answer>", "5</answer> x", "5</answer>", "</answer>"),
        (r"ANSWER: \d+(?: dollars)?", "ANSWER: 5 dollops", "ANSWER: 5 dollo", "ANSWER: 5"),
        (r"ANSWER: \d+(?: dollars)?", "ANSWER: 5 dollars!", "ANSWER: 5 dollars", "ANSWER: 5 dollars"),
        (r"ANSWER: (?:1|10|1088)", "ANSWER: 1088", "ANSWER: 1088", "ANSWER: 1088"),  # Python's first end is 1
        (r"ANSWER: \d+?", "ANSWER: 1088 ", "ANSWER: 1088 ", "ANSWER: 1088"),  # lazy makes no difference
        (r"abcd|b", "abce", "abce", "b"),  # the match that starts first comes first
    ],
)
def test_a_pattern_waits_for_what_cannot_continue_it(pattern, text, seen_in, answer):
    end = first_marker_end(get_marker("regex:" + pattern), text)
    assert (None if end is None else text[:end]) == seen_in
    assert extract_answer("regex:" + pattern, text) == answer


UTF8_EDGES = [0, 0x7F, 0x80, 0x7FF, 0x800, 0xFFF, 0x1000, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x1FFFF, 0x10FFFF]
CODE_POINTS = st.one_of(
    st.integers(0, 0x10FFFF),
    st.tuples(st.sampled_from(UTF8_EDGES), st.integers(-2, 2)).map(sum).filter(lambda code: 0 <= code <= 0x10FFFF),
)


def is_surrogate(code):
    return 0xD800 <= code <= 0xDFFF  # no text holds them


@given(
    st.tuples(CODE_POINTS, CODE_POINTS).map(sorted).filter(lambda ends: not all(map(is_surrogate, ends))),
    st.lists(CODE_POINTS, max_size=20),
)
@example([0x7F, 0x800], [])
@example([0x0, 0x10FFFF], [])
@settings(max_examples=300, deadline=None)
def test_a_class_reads_its_characters_and_no_other(ends, others):
    low, high = ends
    marker = pattern_marker("class", f"[\\U{low:08x}-\\U{high:08x}]a")
    for code in {*UTF8_EDGES, *others, low, high, max(low - 1, 0), min(high + 1, 0x10FFFF)}:
        if not is_surrogate(code):
            assert (first_marker_end(marker, chr(code) + "a") == 2) == (low <= code <= high), hex(code)


def test_broken_utf8_is_no_character():
    marker = pattern_marker("two", "a.b")
    assert list(completion_ends(marker, b"a\xc3b a\xffb a\xc3\xa9b")) == [len(b"a\xc3b a\xffb a\xc3\xa9b")]


def test_extraction_prefers_the_first_group():
    assert extract_answer(r"regex:Answer: (\w+)\n", "Answer: yes\nAnswer: no\n") == "yes"
    assert extract_answer(r"regex:Answer: (\w+)\n", "Answer: yes\nAnswer: no\n", "last") == "no"
    assert extract_answer(r"regex:#### \d+\n", "so #### 12\n") == "#### 12\n"


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a*", "matches the empty string"),
        ("^", "matches the empty string"),
        ("(?=a)b", "look-around"),
        ("a(?!b)c", "look-around"),
        (r"(a)\1", "a back-reference"),
        ("(a)?(?(1)b|c)", "a conditional group"),
        ("(?>a)b", "an atomic group"),
        ("a++b", "a possessive repetition"),
        ("a$", r"the anchor \$"),
        (r"a\Z", r"the anchor \\Z"),
        (r"a\b", r"the word boundary \\b"),
        (r"a\Bb", r"uses \\B"),
        ("(?u:a)", "the flag u"),
        ("(?u)a", "not a regular expression"),
        ("(a", "not a regular expression"),
        (r"a\Ab", "can never complete"),
        (r"[^\x00-\U0010ffff]", "can never complete"),
        (r"(?s)<answer>.*?</answer>", "every match can always grow"),
        ("x{200}", "at most 127 fit"),
        ("A.{40}B", "grows past 4096"),
        ("(?:a{900}){900}", "too large"),
        ("(?:){4000000000}", "matches the empty string"),
    ],
)
def test_what_cannot_be_a_marker_is_an_error_that_says_why(pattern, reason):
    with pytest.raises(ValueError, match=reason):
        get_marker("regex:" + pattern)


def test_the_largest_pattern_that_fits_is_accepted():
    # n literals need one state per prefix that is not the whole: n states
    assert pattern_marker("long", "x{127}").num_states == 127
    with pytest.raises(ValueError, match="needs 128 automaton states"):
        pattern_marker("long", "x{128}")
