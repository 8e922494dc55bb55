# SPDX-License-Identifier: Apache-2.0
"""The table of prompts: against a dictionary, and under states that outlive a write."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.allocate import statistics
from duet_trl.allocate.statistics import PromptTable, hash_keys
from tests.states import plain


def add(table: PromptTable, keys: list[str], values: list[float], column: str = "a") -> None:
    with table.editing(keys) as (columns, place):
        np.add.at(columns[column], place, values)


def numbered(count: int, first: int = 0) -> list[str]:
    return [f"prompt {number}" for number in range(first, first + count)]


@given(st.lists(st.lists(st.integers(0, 60), max_size=40), max_size=12))
def test_sums_are_those_of_a_dictionary_in_the_order_of_first_visits(batches):
    table, expected = PromptTable("test", ("a", "b")), {}
    for batch in batches:
        for one in batch:
            expected[str(one)] = expected.get(str(one), 0.0) + one
        add(table, list(map(str, batch)), batch)
        add(table, list(map(str, batch)), np.negative(batch), "b")
        assert table.read([str(one) for one in batch])["a"].tolist() == [expected[str(one)] for one in batch]
    first, second = table.pool("a", "b")
    assert first.tolist() == list(expected.values()) and second.tolist() == (-first).tolist()
    assert len(table) == len(expected)
    asked = list(map(str, range(70)))  # some were never seen
    assert table.read(asked)["a"].tolist() == [expected.get(one, 0.0) for one in asked]


def test_hashes_are_those_of_every_process():
    # blake2b("", 8 bytes) begins e4a6a0577479b2b4; read as a little-endian number.
    assert hash_keys(["", "a"]).tolist()[0] == int.from_bytes(bytes.fromhex("e4a6a0577479b2b4"), "little")
    assert len(hash_keys([])) == 0


def test_of_a_large_pool_even_prompts_stand_for_all(monkeypatch):
    monkeypatch.setattr(statistics, "SAMPLE", 16)
    table, size = PromptTable("test", ("a",)), 16 * 3 + 1
    add(table, numbered(size), np.arange(size))
    assert table.pool("a")[0].tolist() == list(range(0, size, 4))


def test_a_state_keeps_what_it_held():
    table = PromptTable("test", ("a",))
    add(table, numbered(5), np.ones(5))
    state = table.state_dict()
    before = plain(state)
    add(table, numbered(5, first=3), np.ones(5))
    assert plain(state) == before != plain(table.state_dict())


def other_columns(state: dict) -> None:
    state["columns"]["c"] = state["columns"].pop("b")


def short(state: dict) -> None:
    state["columns"]["a"] = state["columns"]["a"][:1]


def repeated(state: dict) -> None:
    state["keys"] = np.array([7, 7], dtype=np.uint64)


def missing(state: dict) -> None:
    del state["keys"]


@pytest.mark.parametrize("damage", [other_columns, short, repeated, missing])
def test_a_damaged_state_is_an_error_and_leaves_the_table_alone(damage):
    table = PromptTable("test", ("a", "b"))
    add(table, ["x", "y"], [1.0, 2.0])
    state = table.state_dict()
    damage(state)
    with pytest.raises(ValueError, match="test state"):
        table.load_state_dict(state)
    assert table.read(["x", "y"])["a"].tolist() == [1.0, 2.0]
