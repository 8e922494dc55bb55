# SPDX-License-Identifier: Apache-2.0
"""The token automaton against the byte automaton it is composed of, over any tokenisation."""

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duet_trl.gate import automaton as module
from duet_trl.gate.automaton import compile_automaton
from duet_trl.gate.markers import MARKERS, completion_ends, get_marker

# one marker beside the built-in ones whose characters are longer than a byte
NAMES = [*MARKERS, "answer: ...é"]
PIECES = {
    "math": ["\\boxed{", "{", "}", "\\", "x", " ", "\n"],
    "math_paragraph": ["\\boxed{x}", "\\boxed{", "}", ":", "\n", "\n\n", "x"],
    "code": ["```", "`", "\n", "```py\n", "x", " "],
    "qa": ["<answer>", "</answer>", "Therefore the answer is ", "5", ". ", "\n", "<"],
    NAMES[-1]: ["Answer: ", "answer: ", "é", "ü", "x", "\n"],
}


def texts(name):
    return st.lists(st.sampled_from(PIECES[name]), max_size=20).map("".join)


def chunked(data, cuts):
    """The bytes cut at the given places, as tokens of a vocabulary made of these chunks in any order."""
    cuts = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    chunks = [data[begin:end] for begin, end in zip(cuts, cuts[1:], strict=False)]
    vocabulary = sorted(set(chunks)) or [b"x"]
    return vocabulary, [vocabulary.index(chunk) for chunk in chunks]


def byte_ends(marker, data):
    return list(completion_ends(marker, data))


def expected_positions(marker, vocabulary, ids):
    """1-based positions of the tokens inside which the byte automaton completes; None restarts it."""
    positions, data, ends = [], b"", 0
    for position, token in enumerate(ids, start=1):
        if vocabulary[token] is None:
            data, ends = b"", 0
            continue
        data += vocabulary[token]
        now = len(byte_ends(marker, data))
        positions += [position] * (now > ends)
        ends = now
    return positions


def positions_of(automaton, ids):
    return automaton.completions([ids])[1].tolist()


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_any_tokenisation_completes_where_the_bytes_do(name, data):
    raw = data.draw(texts(name)).encode()
    vocabulary, ids = chunked(raw, data.draw(st.lists(st.integers(0, 200))))
    automaton = compile_automaton(get_marker(name), vocabulary)
    ends_of_tokens = np.cumsum([len(vocabulary[token]) for token in ids])
    expected = sorted({int(np.searchsorted(ends_of_tokens, end)) + 1 for end in byte_ends(get_marker(name), raw)})
    assert positions_of(automaton, ids) == expected


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_advance_completions_and_torch_agree_step_by_step(name, data):
    vocabulary = [*(piece.encode() for piece in PIECES[name]), None, b"\xc3", b"\xa9", b""]
    rows = data.draw(st.lists(st.lists(st.integers(0, len(vocabulary) - 1), max_size=15), max_size=5))
    automaton = compile_automaton(get_marker(name), vocabulary)
    found = {(row, at) for row, at in zip(*(array.tolist() for array in automaton.completions(rows)), strict=True)}
    seen = set()
    for row, ids in enumerate(rows):
        states = np.full(1, automaton.start, np.uint8)
        for position, token in enumerate(ids, start=1):
            states, completed = automaton.advance(states, np.array([token]))
            assert states.dtype == np.uint8
            seen |= {(row, position)} if completed[0] else set()
        assert [at for r, at in sorted(seen) if r == row] == expected_positions(get_marker(name), vocabulary, ids)
    assert found == seen


def test_completions_are_ordered_by_row_then_position():
    vocabulary = [rb"\boxed{1}", b"x"]
    rows = [[1, 0, 1, 0], [], [0], [1, 1], [1, 1, 1, 1, 0, 0]]
    row, position = compile_automaton(MARKERS["math"], vocabulary).completions(rows)
    assert list(zip(row.tolist(), position.tolist(), strict=True)) == [(0, 2), (0, 4), (2, 1), (4, 5), (4, 6)]


def test_tokens_that_straddle_the_closing_brace_complete():
    vocabulary = [rb" \boxed", b"{", rb"{\frac{1}{2", b"4", b"}", b"}}", b"}$.", b"}}$.\n", rb"}\boxed{"]
    automaton = compile_automaton(MARKERS["math"], vocabulary)
    assert positions_of(automaton, [0, 1, 3, 6]) == [4]
    assert positions_of(automaton, [0, 2, 5]) == [3]
    assert positions_of(automaton, [0, 2, 7]) == [3]
    assert positions_of(automaton, [0, 2, 4]) == []
    assert positions_of(automaton, [0, 1, 3, 8, 3, 4]) == [4, 6]
    assert positions_of(automaton, [0, 1, 6]) == []  # empty box


def test_a_special_token_forgets_what_came_before_and_completes_nothing():
    vocabulary = [rb"\boxed{", b"1", b"}", None, b"```py", b"\nx\n```", b"a"]
    boxes = compile_automaton(MARKERS["math"], vocabulary)
    assert positions_of(boxes, [0, 1, 3, 2]) == []
    assert positions_of(boxes, [0, 1, 3, 0, 1, 2]) == [6]
    code = compile_automaton(MARKERS["code"], vocabulary)
    assert positions_of(code, [6, 4, 5]) == []  # not at the start of a line
    assert positions_of(code, [6, 3, 4, 5]) == [4]  # text starts behind the special token


@pytest.mark.parametrize("wrong", [-1, 2, 2**40])
def test_ids_outside_the_vocabulary_are_errors(wrong):
    automaton = compile_automaton(MARKERS["math"], [b"x", b"y"])
    with pytest.raises(ValueError, match=f"token id {wrong} is outside"):
        automaton.completions([[0], [1, wrong]])
    with pytest.raises(ValueError, match=f"token id {wrong} is outside"):
        automaton.advance(np.zeros(2, np.uint8), np.array([0, wrong]))


def test_an_empty_vocabulary_is_an_error():
    with pytest.raises(ValueError, match="vocabulary is empty"):
        compile_automaton(MARKERS["math"], [])


def test_equal_inputs_share_one_table_and_others_differ_in_fingerprint():
    vocabulary = [b"ab", b"}", None]
    first = compile_automaton(MARKERS["math"], vocabulary)
    assert compile_automaton(MARKERS["math"], list(vocabulary)) is first
    others = [
        compile_automaton(MARKERS["code"], vocabulary),
        compile_automaton(MARKERS["math"], [b"a", b"b}", None]),  # the same bytes, cut elsewhere
        compile_automaton(MARKERS["math"], [b"ab", b"}", b""]),
    ]
    assert len({first.fingerprint, *(other.fingerprint for other in others)}) == 4
    assert not first.table.flags.writeable
    assert first.table.flags.c_contiguous
    assert first.num_tokens == first.table.shape[1]


def test_examples_in_the_docstrings_run():
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
