# SPDX-License-Identifier: Apache-2.0
"""The record of a run: written, read back, refused where it is none, and what is taken from its log."""

import json
from dataclasses import replace

import pytest
from stored_runs import log_of, record, store

from duet_trl.report import runs
from duet_trl.report.runs import UnreadableRuns, read_runs, write_run


def test_a_record_is_read_as_it_was_written_at_any_depth(tmp_path):
    written = record(settings={"method_kwargs": {"surrogate_warmup": 2}}, seed=3)
    write_run(tmp_path / "a" / "b" / "seed_3", written)
    write_run(tmp_path / "c", record("duet", 0.5))
    (tmp_path / "a" / "b" / "seed_3" / "trainer_state.json").write_text("{")  # others' files are left alone
    found = read_runs(tmp_path)
    assert [one.record for one in found.done] == [record("duet", 0.5), written]
    assert [one.folder for one in found.done] == [tmp_path / "c", tmp_path / "a" / "b" / "seed_3"]
    assert found.left_out == []


def test_a_record_replaces_the_one_before_and_leaves_nothing_beside_it(tmp_path):
    write_run(tmp_path, record(status="running"))
    write_run(tmp_path, record())
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert read_runs(tmp_path).done[0].record.status == "done"


def test_runs_that_are_not_done_are_left_out_and_named(tmp_path):
    store(tmp_path, record(), record(seed=1, status="failed", error="out of memory"), record(seed=2, status="running"))
    found = read_runs(tmp_path)
    assert [one.record.seed for one in found.done] == [0]
    assert found.left_out == ["grid/grpo_1, seed 1: failed (out of memory)", "grid/grpo_1, seed 2: running"]


def test_one_cell_of_two_models_or_grids_is_two_runs(tmp_path):
    for number, changes in enumerate(({}, {"model": "small"}, {"grid": "other"}, {"grid": None})):
        write_run(tmp_path / str(number), record(**changes))
    assert len(read_runs(tmp_path).done) == 4


def damaged(**changes):
    return json.dumps(json.loads(json.dumps(vars(record()))) | changes)


def without(name):
    return json.dumps({key: value for key, value in vars(record()).items() if key != name})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "run.json is no JSON.*repeat the run"),
        ("[]", "no record of a run: it has no version.*experiment.py"),
        ("{}", "no record of a run: it has no version.*experiment.py"),
        (damaged(version=2), "has layout 2, and this report reads layout 1"),
        (without("engine"), r"it lacks \['engine'\]"),
        (damaged(extra=1), r"has the unknown \['extra'\]"),
        (damaged(seed="0"), "seed must be of type int, got '0'"),
        (damaged(budget="half"), "budget must be of type float, got 'half'"),
        (damaged(max_steps=True), "max_steps must be of type int, got True"),
        (damaged(status="finished"), "status must be one of .*, got 'finished'"),
        (damaged(log=[{"loss": 1.0}]), "every entry of log must be a mapping with its step"),
    ],
)
def test_another_layout_is_refused_with_its_path(tmp_path, content, message):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(UnreadableRuns, match=message) as caught:
        read_runs(tmp_path)
    assert str(tmp_path / "run.json") in str(caught.value)


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(UnreadableRuns, match="no folder .*missing"):
        read_runs(tmp_path / "missing")
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(UnreadableRuns, match="has no run.json, in no folder below it either. Give the folder that"):
        read_runs(tmp_path)
    store(tmp_path, record(status="failed", error="killed"))
    with pytest.raises(UnreadableRuns, match="no run of .* is done: grid/grpo_1, seed 0: failed .killed."):
        read_runs(tmp_path)


def test_a_run_twice_is_refused_with_both_places(tmp_path):
    for name in ("first", "second"):
        write_run(tmp_path / name, record())
    with pytest.raises(UnreadableRuns, match="second.*first.*are both grid/grpo_1, seed 0 of tiny. Move one"):
        read_runs(tmp_path)


def test_what_cannot_be_read_back_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="status must be one of"):
        write_run(tmp_path, record(status="over"))
    with pytest.raises(TypeError):
        write_run(tmp_path, record(settings={"reward": object()}))
    assert list(tmp_path.iterdir()) == []


def test_accuracy_of_the_final_and_of_the_best_checkpoint_never_counts_step_0():
    steps, values = runs.curve(record(accuracies=(0.9, 0.4, 0.3)), "math500")
    assert steps.tolist() == [0, 1, 2]
    assert values.tolist() == [0.9, 0.4, 0.3]
    falling = record(accuracies=(0.9, 0.4, 0.3))
    assert runs.accuracy(falling, "math500") == 0.3
    assert runs.accuracy(falling, "math500", "best") == 0.4
    assert runs.untrained(falling, "math500") == 0.9
    assert runs.suites(falling) == {"math500": 4}  # mean@1 is the greedy one
    with pytest.raises(ValueError, match="checkpoint must be one of"):
        runs.accuracy(falling, "math500", "last")


def test_a_suite_that_was_not_measured_has_no_figures():
    assert runs.curve(record(), "gsm8k")[0].size == 0
    assert runs.accuracy(record(), "gsm8k") is None
    assert runs.untrained(record(), "gsm8k") is None
    early = record(log=[{"step": 0, "held_out/math500/mean@4": 0.5}])
    assert runs.accuracy(early, "math500") is None


def test_the_later_of_two_measurements_of_a_step_holds():
    again = record()
    again.log.append({"step": 2, "held_out/math500/mean@4": 0.7})
    assert runs.curve(again, "math500")[1].tolist() == [0.1, 0.2, 0.7]


def test_an_entry_counts_for_all_steps_since_the_one_before():
    """Steps 1 to 10 at 8 s and 100 tokens each, 11 to 20 alike: 160 s and 2,000 tokens."""
    tens = record(log=log_of(8.0, 100.0, (0.1, 0.2, 0.3), every=10))
    assert runs.training_seconds(tens) == 160.0
    assert runs.step_seconds(tens) == 8.0
    assert runs.generated_tokens(tens) == 2000.0
    # A measurement at step 7 makes the trainer log there: 7 x 1 s, then 3 x 5 s.
    uneven = record(log=[{"step": 7, "step_time": 1.0}, {"step": 10, "step_time": 5.0}])
    assert runs.training_seconds(uneven) == 22.0
    assert runs.step_seconds(uneven) == 2.2
    assert runs.generated_tokens(uneven) is None


def test_rollouts_of_several_optimizer_steps_count_once():
    """Two optimizer steps per generation step: rollouts at steps 1, 3 and 5, of 100, 200 and 400 tokens."""
    tokens = {1: 100.0, 3: 200.0, 5: 400.0}
    settings = {"gradient_accumulation_steps": 4, "steps_per_generation": 8}
    log = [
        {"step": step, "step_time": 1.0} | ({"duet/generated_tokens": tokens[step]} if step in tokens else {})
        for step in range(1, 7)
    ]
    found = record(settings=settings, log=log)
    assert found.steps_per_rollouts == 2.0
    assert runs.generated_tokens(found) == 700.0
    assert runs.running_total(found, "duet/generated_tokens")[0].tolist() == [1, 3, 5]
    assert runs.training_seconds(found) == 6.0
    # Logged every three steps: (100 + 200) / 2 for two generation steps, then 400 for one.
    means = [
        {"step": 3, "step_time": 1.0, "duet/generated_tokens": 150.0},
        {"step": 6, "step_time": 1.0, "duet/generated_tokens": 400.0},
    ]
    assert runs.generated_tokens(replace(found, log=means)) == 700.0


def test_options_stand_beside_the_settings():
    found = record(settings={"keep_probability": 0.1, "method_kwargs": {"surrogate_warmup": 2}})
    assert found.options == {"learning_rate": 1e-6, "seed": 0, "keep_probability": 0.1, "surrogate_warmup": 2}
    assert record(settings={"method_kwargs": None}).options == {"learning_rate": 1e-6, "seed": 0}
