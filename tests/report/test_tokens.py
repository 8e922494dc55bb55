# SPDX-License-Identifier: Apache-2.0
"""Tokens of logged texts: counted by a tokenizer, or pieces of so many characters."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.gate.markers import MARKERS, extract_answer, first_marker_end, get_marker
from duet_trl.gate.replay import NEVER
from duet_trl.report.tokens import cut_texts, load_tokenizer, tokenize
from tests.report.logged_run import EIGHT, PIECES, TEXTS, run, write
from tests.tiny import tiny_tokenizer


@given(text=st.lists(PIECES, min_size=1, max_size=12).map("".join), ratio=st.floats(0.3, 6.0))
def test_tokens_from_characters_are_rounded_up(text, ratio):
    tokens = cut_texts([text], ratio)
    assert tokens.lengths[0] == math.ceil(len(text) / ratio - 1e-9)
    assert tokens.prefix(0, len(tokens.ids[0])) == text


@given(texts=TEXTS, marker=st.sampled_from(sorted(MARKERS)), ratio=st.floats(0.3, 6.0))
def test_a_marker_completes_at_the_token_that_stands_for_its_last_character(texts, marker, ratio):
    found = cut_texts(texts, ratio).answered_at(get_marker(marker))
    ends = [first_marker_end(get_marker(marker), text) for text in texts]
    expected = [None if end is None else math.ceil(end / ratio - 1e-9) for end in ends]
    assert [None if at >= NEVER else at for at in found.tolist()] == expected


def test_a_prefix_has_as_many_characters_as_its_tokens_stand_for():
    assert cut_texts(["abcdefgh"], 2.5).prefix(0, 2) == "abcde"


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_tokenizer_counts_tokens_and_finds_the_one_that_completes_the_marker(tokenizer_folder):
    texts = [r"so \boxed{42}$. It is é", "no box", "", r" the answer is \boxed{\frac{1}{2}}" + "x" * 40]
    tokens, tokenizer = tokenize(texts, load_tokenizer(str(tokenizer_folder))), tiny_tokenizer()
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert tokens.lengths.tolist() == [len(row) for row in ids]
    for row, at in enumerate(tokens.answered_at(get_marker("math")).tolist()):
        ends = [n for n in range(len(ids[row]) + 1) if extract_answer("math", tokenizer.decode(ids[row][:n]))]
        assert at == (ends[0] if ends else NEVER)
    assert tokens.prefix(0, len(ids[0])) == texts[0]


def test_tokenizer_file_that_truncates_does_not(tokenizer_folder, tmp_path):
    tokenizer = load_tokenizer(str(tokenizer_folder / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert tokenize(["x" * 50], load_tokenizer(str(tmp_path))).lengths.tolist() == [50]


@pytest.mark.parametrize("name", ["no-such-folder/tokenizer.json", "not/a/hub/name"])
def test_missing_tokenizer_is_an_error_that_says_what_to_give(tmp_path, capsys, name):
    write(tmp_path / "run", 1, EIGHT)
    status, out, errors = run(capsys, tmp_path / "run", "--tokenizer", name)
    assert (status, out) == (1, "")
    assert name in errors and "tokenizer.json" in errors


def test_estimated_tokens_are_labelled_with_the_ratio(tmp_path, capsys):
    write(tmp_path / "run", 1, EIGHT)
    for flags, words in (
        ([], "ESTIMATED at 3 characters per token (the default"),
        (["--chars_per_token", "2.5"], "ESTIMATED at 2.5 characters per token (--chars_per_token)"),
    ):
        assert words in run(capsys, tmp_path / "run", *flags)[1]
