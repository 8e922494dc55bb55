# SPDX-License-Identifier: Apache-2.0
"""Records of the arena: what is written is what is read, and the same runs are the same file."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.arena.records import Run, append, pack, read
from tests.benchmarks.arena_runs import measured, reported, tuned

RUNS = [*tuned("grpo_8", 3e-4), reported("duet", 3), reported("grpo_8", 4, took=12.5)]
RUNS.append(replace(RUNS[0], measurements=[replace(measured(3, of=5), greedy=[1, 0, 0, 1, 1], careful=0.25)], seed=7))


def test_finished_runs_are_appended_and_read_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "new" / "full.jsonl"
    assert read(path) == []
    for count, run in enumerate(RUNS, start=1):
        append(path, run)
        assert read(path) == RUNS[:count]


def test_packed_runs_are_the_same_runs_and_the_same_bytes_whatever_their_order(tmp_path: Path) -> None:
    first = pack(RUNS, tmp_path / "first.jsonl.xz")
    shuffled = random.Random(0).sample(RUNS, len(RUNS))
    assert shuffled != RUNS
    second = pack(shuffled, tmp_path / "second.jsonl.xz")
    assert first.read_bytes() == second.read_bytes()
    assert sorted(read(first), key=Run.to_json) == sorted(RUNS, key=Run.to_json)
    third = pack(RUNS[1:], tmp_path / "third.jsonl.xz")
    assert third.read_bytes() != first.read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found | {"reward": "first"},
        lambda found: {name: value for name, value in found.items() if name != "took"},
        lambda found: found | {"measurements": [found["measurements"][0] | {"right": [1]}]},
        lambda found: found | {"measurements": [{"step": 3}]},
    ],
    ids=["unknown field", "missing field", "unknown field of a measurement", "missing field of a measurement"],
)
def test_a_record_with_other_fields_is_an_error(change: Callable[[dict], dict], tmp_path: Path) -> None:
    path = tmp_path / "full.jsonl"
    path.write_text(json.dumps(change(json.loads(RUNS[0].to_json()))) + "\n")
    with pytest.raises(ValueError, match="not the record of a run: .* missing or unknown"):
        read(path)
