# SPDX-License-Identifier: Apache-2.0
"""Custom markers against Python's own regular expressions."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duet_trl.generate.markers import completion_ends, extract_answer, first_marker_end, get_marker, pattern_marker

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


def shortest_matches(pattern, text):
    """Ends of matches, found by brute force: the shortest prefix that holds a match, again and again behind it."""
    compiled, found, begin = re.compile(pattern, re.ASCII), [], 0
    while True:
        ends = range(begin + 1, len(text) + 1)
        end = next((e for e in ends if any(compiled.fullmatch(text, s, e) for s in range(begin, e))), None)
        if end is None:
            return found
        found.append(end)
        begin = end


def seen_ends(marker, text):
    data = text.encode()
    return [len(data[:end].decode()) for end in completion_ends(marker, data)]


@pytest.mark.parametrize("pattern", PATTERNS)
@given(TEXTS)
@settings(max_examples=150, deadline=None)
def test_pattern_completes_at_the_earliest_end_of_each_match(pattern, text):
    assert seen_ends(get_marker("regex:" + pattern), text) == shortest_matches(pattern, text)


def patterns():
    """Random regular expressions that do not match the empty string, some of which match nothing at all."""
    atoms = st.sampled_from(["a", "b", ".", r"\n", "[^a]", "[ab]", "é", "[^é]", r"\d", "(?m:^)", r"\w"])
    grown = st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map("".join),
            st.tuples(inner, inner).map("(?:{0[0]}|{0[1]})".format),
            st.tuples(inner, st.sampled_from(["*", "+", "?", "{1,2}", "*?"])).map("(?:{0[0]}){0[1]}".format),
        ),
        max_leaves=5,
    )
    return grown.filter(lambda pattern: not re.fullmatch(pattern, ""))


@given(patterns(), st.text(st.sampled_from("ab1é\n"), max_size=8))
@example("(?:a*b)+", "aabb")
@settings(max_examples=300, deadline=None)
def test_random_patterns_agree_with_pythons_engine(pattern, text):
    try:
        marker = pattern_marker("random", pattern)
    except ValueError as error:  # for example a(?m:^)
        assert "can never complete" in str(error)
        assert not shortest_matches(pattern, text)
    else:
        assert seen_ends(marker, text) == shortest_matches(pattern, text)


@given(st.sampled_from(PATTERNS), TEXTS)
@settings(max_examples=500, deadline=None)
def test_a_seen_pattern_can_be_extracted(pattern, text):
    end = first_marker_end(get_marker("regex:" + pattern), text)
    if end is not None:
        assert extract_answer("regex:" + pattern, text[:end])


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
        ("x{200}", "at most 127 fit"),
        ("A.{40}B", "grows past 2048"),
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
