# SPDX-License-Identifier: Apache-2.0
"""The record of a run: written, read back, and refused where it is none."""

import json

import pytest

from tests.recipes.stored_runs import record, write_run  # isort: split

from run_file import UnreadableRuns, read_runs


def test_a_record_is_read_as_it_was_written_at_any_depth(tmp_path):
    written = record(settings={"method_kwargs": {"surrogate_warmup": 2}}, seed=3)
    write_run(tmp_path / "a" / "b" / "seed_3", written)
    write_run(tmp_path / "c", record("duet", 0.5))
    (tmp_path / "a" / "b" / "seed_3" / "trainer_state.json").write_text("{")  # others' files are left alone
    found = {tmp_path / "c": record("duet", 0.5), tmp_path / "a" / "b" / "seed_3": written}
    assert list(read_runs(tmp_path).items()) == list(found.items())


def test_a_record_replaces_the_one_before_and_leaves_nothing_beside_it(tmp_path):
    write_run(tmp_path, record(status="running"))
    write_run(tmp_path, record())
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert read_runs(tmp_path)[tmp_path].status == "done"


def damaged(**changes):
    return json.dumps(json.loads(json.dumps(vars(record()))) | changes)


def without(name):
    return json.dumps({key: value for key, value in vars(record()).items() if key != name})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "run.json is not JSON.*repeat the run"),
        ("[]", "has layout None, and this report reads layout 2"),
        (damaged(version=1), "has layout 1, and this report reads layout 2"),
        (without("engine"), r"these keys are missing or unknown: \['engine'\]"),
        (damaged(extra=1), r"these keys are missing or unknown: \['extra'\]"),
    ],
)
def test_another_layout_is_refused_with_its_path(tmp_path, content, message):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(UnreadableRuns, match=message) as caught:
        read_runs(tmp_path)
    assert str(tmp_path / "run.json") in str(caught.value)


def test_a_folder_without_runs_is_refused(tmp_path):
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(UnreadableRuns, match="has no run.json, nor has any folder below it. Give the folder that"):
        read_runs(tmp_path)


def test_a_run_twice_is_refused_with_both_places(tmp_path):
    for name in ("first", "second"):
        write_run(tmp_path / name, record())
    with pytest.raises(UnreadableRuns, match="second.*first.*are both grid/grpo_1, seed 0 of tiny. Move one"):
        read_runs(tmp_path)
