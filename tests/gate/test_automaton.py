# SPDX-License-Identifier: Apache-2.0
"""The token automaton against the byte automaton it is composed of, over any tokenisation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=200)
def test_any_tokenisation_completes_where_the_bytes_do_in_one_pass_and_step_by_step(name, data):
    """Texts cut anywhere, as rows of tokens of a vocabulary made of these pieces, and of one without text."""
    cuts, rows = data.draw(st.lists(st.integers(0, 200))), []
    for text in data.draw(st.lists(texts(name), max_size=3)):
        raw = text.encode()
        places = sorted({cut % (len(raw) + 1) for cut in cuts} | {0, len(raw)})
        rows.append([raw[begin:end] for begin, end in zip(places, places[1:], strict=False)])
        for place in data.draw(st.lists(st.integers(0, len(rows[-1])), max_size=2)):
            rows[-1].insert(place, None)
    vocabulary = [None, b"", *sorted({piece for row in rows for piece in row if piece})]
    rows = [[vocabulary.index(piece) for piece in row] for row in rows]
    automaton = compile_automaton(get_marker(name), vocabulary)
    seen = []
    for row, ids in enumerate(rows):
        states = np.full(1, automaton.start, np.uint8)
        for position, token in enumerate(ids, start=1):
            states, completed = automaton.advance(states, np.array([token]))
            assert states.dtype == np.uint8
            seen += [(row, position)] if completed[0] else []
        assert [at for r, at in seen if r == row] == expected_positions(get_marker(name), vocabulary, ids)
    # By row, then position.
    assert list(zip(*(array.tolist() for array in automaton.completions(rows)), strict=True)) == seen


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
