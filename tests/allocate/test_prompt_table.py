# SPDX-License-Identifier: Apache-2.0
"""The table of prompts and its index: against dictionaries, over blocks, and under states that outlive a write."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duet_trl.allocate import key_index, prompt_table
from duet_trl.allocate.key_index import KeyIndex, hash_keys
from duet_trl.allocate.prompt_table import BLOCK, SAMPLE, PromptTable
from tests.states import plain


def add(table: PromptTable, keys: list[str], values: list[float], column: str = "a") -> None:
    with table.editing(keys) as (columns, place):
        np.add.at(columns[column], place, values)


def numbered(count: int, first: int = 0) -> list[str]:
    return [f"prompt {number}" for number in range(first, first + count)]


def empty_index() -> KeyIndex:
    return KeyIndex(np.zeros(0, dtype=np.uint64))


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 60), max_size=40), max_size=12))
def test_the_index_numbers_hashes_as_a_dictionary_would(batches):
    index, expected = empty_index(), {}
    for batch in batches:
        found = index.add(np.array(batch, dtype=np.uint64))
        assert found.tolist() == [expected.setdefault(one, len(expected)) for one in batch]
    asked = np.arange(70, dtype=np.uint64)
    assert index.find(asked).tolist() == [expected.get(one, -1) for one in range(70)]
    assert index.hashes().tolist() == list(expected) and len(index) == len(expected)
    assert KeyIndex(index.hashes()).find(asked).tolist() == index.find(asked).tolist()


def test_a_large_index_holds_few_runs_and_none_that_is_long(monkeypatch):
    monkeypatch.setattr(key_index, "LONGEST", 4096)
    hashes = np.random.default_rng(0).integers(0, 2**64, 4 * 4096, dtype=np.uint64)
    grown = empty_index()
    for first in range(0, len(hashes), 10):
        grown.add(hashes[first : first + 10])
    for index in (grown, KeyIndex(hashes)):
        np.testing.assert_array_equal(index.find(hashes), np.arange(len(hashes)))
        np.testing.assert_array_equal(index.hashes(), hashes)
        lengths = [len(run) for run, _ in index._runs]
        assert max(lengths) <= 4096 and len(lengths) < 20
    assert grown.find(hashes[:5] + np.uint64(1)).tolist() == [-1] * 5


def test_hashes_are_those_of_every_process():
    # blake2b("", 8 bytes) begins e4a6a0577479b2b4; read as a little-endian number.
    assert hash_keys(["", "a"]).tolist()[0] == int.from_bytes(bytes.fromhex("e4a6a0577479b2b4"), "little")
    assert len(hash_keys([])) == 0


def test_values_come_back_from_every_block_and_unknown_prompts_have_zeros():
    table, keys = PromptTable("test", ("a", "b")), numbered(2 * BLOCK + 10)
    add(table, keys, np.arange(len(keys)))
    add(table, keys[::1000], np.ones(len(keys[::1000])), "b")
    asked = ["nobody", *keys[:: BLOCK // 3], "nobody else", keys[0]]
    found = table.read(asked)
    assert found["a"].tolist() == [0, *range(0, len(keys), BLOCK // 3), 0, 0]
    assert table.read(keys)["b"].sum() == len(keys[::1000]) and len(table) == len(keys)
    assert table.read([])["a"].shape == (0,)


def test_a_prompt_twice_in_one_batch_is_one_row():
    table = PromptTable("test", ("a",))
    add(table, ["x", "y", "x"], [1.0, 2.0, 4.0])
    assert table.read(["x", "y", "x"])["a"].tolist() == [5.0, 2.0, 5.0]
    add(table, ["x", "y", "x"], [1.0, 1.0, 1.0])
    assert table.read(["x", "y", "x"])["a"].tolist() == [7.0, 3.0, 7.0]
    assert table.read(["y", "x"])["a"].tolist() == [3.0, 7.0] and len(table) == 2


def test_a_prompt_that_was_asked_for_before_it_was_known_is_found_afterwards():
    table = PromptTable("test", ("a",))
    assert table.read(["x", "y"])["a"].tolist() == [0.0, 0.0]
    add(table, ["y"], [2.0])
    assert table.read(["x", "y"])["a"].tolist() == [0.0, 2.0]
    other = PromptTable("test", ("a",))
    other.load_state_dict(table.state_dict())
    table.load_state_dict(PromptTable("test", ("a",)).state_dict())
    assert table.read(["x", "y"])["a"].tolist() == [0.0, 0.0] and other.read(["x", "y"])["a"].tolist() == [0.0, 2.0]


def test_the_pool_is_in_the_order_of_first_visits_and_whole_while_it_is_small():
    table = PromptTable("test", ("a", "b"))
    add(table, ["x"], [3.0])
    add(table, ["y", "x"], [5.0, 1.0])
    first, second = table.pool("b", "a")
    assert second[:2].tolist() == [4.0, 5.0] and not second[2:].any() and not first.any()
    assert [len(one) for one in PromptTable("test", ("a",)).pool("a")] == [0]


def test_of_a_large_pool_even_blocks_stand_for_all(monkeypatch):
    monkeypatch.setattr(prompt_table, "BLOCK", 8)
    table, size = PromptTable("test", ("a",)), 8 * (3 * SAMPLE + 1)
    add(table, numbered(size), np.arange(size))
    (found,) = table.pool("a")
    blocks = found.reshape(-1, 8)
    np.testing.assert_array_equal(np.diff(blocks[:, 0]), 32)  # every fourth block of eight
    assert SAMPLE / 2 < len(blocks) <= SAMPLE and found.mean() == pytest.approx(size / 2, rel=0.03)


def test_a_state_keeps_what_it_held_and_cannot_be_written():
    table, keys = PromptTable("test", ("a",)), numbered(BLOCK + 5)
    add(table, keys, np.ones(len(keys)))
    state = table.state_dict()
    before = plain(state)
    add(table, numbered(BLOCK, first=3), np.ones(BLOCK))
    assert plain(state) == before != plain(table.state_dict())
    with pytest.raises(ValueError, match="read-only"):
        state["blocks"]["0"][0, 0] = 7.0


def test_a_state_holds_the_blocks_themselves():
    """A checkpoint of ten million prompts must not double the memory."""
    table = PromptTable("test", ("a",))
    add(table, numbered(BLOCK), np.ones(BLOCK))
    states = [table.state_dict()["blocks"]["0"] for _ in range(2)]
    assert np.shares_memory(*states) and states[0].flags.c_contiguous


def test_a_restored_table_continues_alike():
    table = PromptTable("test", ("a", "b"))
    add(table, numbered(BLOCK + 9), np.arange(BLOCK + 9))
    restored = PromptTable("test", ("a", "b"))
    restored.load_state_dict(table.state_dict())
    for copy in (table, restored):
        add(copy, ["new", *numbered(3)], np.ones(4), "b")
    assert plain(restored.state_dict()) == plain(table.state_dict())


def columns(state: dict) -> None:
    state["columns"] = ["a", "c"]


def short(state: dict) -> None:
    state["blocks"]["0"] = state["blocks"]["0"][:, :1]


def missing_block(state: dict) -> None:
    del state["blocks"]["0"]


def repeated(state: dict) -> None:
    state["keys"] = np.array([7, 7], dtype=np.uint64)


def missing(state: dict) -> None:
    del state["keys"]


@pytest.mark.parametrize("damage", [columns, short, missing_block, repeated, missing])
def test_a_damaged_state_is_an_error_and_leaves_the_table_alone(damage):
    table = PromptTable("test", ("a", "b"))
    add(table, ["x", "y"], [1.0, 2.0])
    state = table.state_dict()
    damage(state)
    with pytest.raises(ValueError, match="test state"):
        table.load_state_dict(state)
    assert table.read(["x", "y"])["a"].tolist() == [1.0, 2.0]
