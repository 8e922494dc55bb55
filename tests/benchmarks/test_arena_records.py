# SPDX-License-Identifier: Apache-2.0
"""Records of the arena: what is written is what is read, and other fields are refused."""

import json
from pathlib import Path

import pytest

from benchmarks.arena.records import STOPPED, append, read
from tests.benchmarks.arena_runs import run, start, tuning_run

RUNS = [start(), tuning_run(1e-5, 0.5), run("duet_stop", seed=3, took=12.5, plan="0123"), run("grpo_8", seed=1)]


def test_finished_runs_are_appended_and_read_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "new" / "arena.jsonl"
    assert read(path) == []
    for count, one in enumerate(RUNS, start=1):
        append(path, one)
        assert read(path) == RUNS[:count]
    assert path.read_text().count("\n") == len(RUNS)
    assert len({one.key for one in RUNS}) == len(RUNS)


@pytest.mark.parametrize("place, lost", [("run", "took"), ("measurement", "seconds"), ("serving", "right")])
def test_a_record_with_other_fields_is_an_error(place: str, lost: str, tmp_path: Path) -> None:
    path = tmp_path / "arena.jsonl"
    for odd, change in {"horizon": lambda one: one.update(horizon=80), lost: lambda one: one.pop(lost)}.items():
        found = json.loads(RUNS[2].to_json())
        point = found["measurements"][0]
        change({"run": found, "measurement": point, "serving": point["servings"][STOPPED]}[place])
        path.write_text(json.dumps(found) + "\n")
        with pytest.raises(ValueError, match=f"not the record of a run: {odd} missing or unknown"):
            read(path)
