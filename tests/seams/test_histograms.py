# SPDX-License-Identifier: Apache-2.0
"""Histograms of counts and stop reasons, read back from the files that the trackers wrote."""

import os
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from duet_trl.gate.replay import Outcome
from duet_trl.seams.histograms import STOP_REASONS, Histograms, stop_reasons
from tests.runs import duet_trainer, logged

STEPS = 3
NAMES = ("num_rollouts", "stop_reason")


def test_each_stop_reason_is_told_from_the_others():
    """One rollout of each, a kept one that ended by itself, and one that another continues and that does not count."""
    outcomes = [Outcome.NATURAL, Outcome.NATURAL, Outcome.ANSWERED, Outcome.ABORTED, Outcome.NATURAL, Outcome.KEPT]
    replay = SimpleNamespace(
        outcome=np.array([*outcomes, Outcome.NATURAL]),
        trimmed=np.array([0, 0, 1, 0, 0, 0, 0], dtype=bool),
        length=np.array([10, 50, 20, 30, 49, 44, 50]),
    )
    terminated = np.array([1, 0, 0, 0, 0, 1, 0], dtype=bool)
    step = SimpleNamespace(
        replay=replay,
        done=SimpleNamespace(terminated=terminated),
        truncated=np.array([0, 1, 0, 0, 1, 0, 1], dtype=bool),
        counted=np.array([1] * 6 + [0], dtype=bool),
        jobs=[SimpleNamespace(max_tokens=None)] * 7,
    )
    found = [STOP_REASONS[reason] for reason in stop_reasons(step, 50)]
    assert found == ["own end", "length limit", "trimmed", "aborted", "engine", "own end"]


def train(model, folder, **settings):
    """A run of three steps with an audit log; counts and stop reasons of each step, recomputed from that log."""
    trainer = duet_trainer(model, folder, audit_log=True, max_steps=STEPS, logging_steps=1, **settings)
    trainer.train()
    by_step = []
    for path in sorted((folder / "duet_audit").glob("*.parquet")):
        rows = pd.read_parquet(path)
        reason = np.where(rows.length >= 96, "length limit", "own end")
        reason = np.where(rows.outcome == "aborted", "aborted", np.where(rows.trimmed, "trimmed", reason))
        by_step.append((rows.groupby("prompt").num_rollouts.first().value_counts(), pd.Series(reason).value_counts()))
    assert len(by_step) == STEPS
    return trainer, by_step


def check(by_step, read):
    """`read(name)` gives bins, (lower, upper, count), of each step."""
    for index, name in enumerate(NAMES):
        steps = read(name)
        assert len(steps) == STEPS
        for expected, bins in zip([step[index] for step in by_step], steps, strict=True):
            found = {round((low + high) / 2): count for low, high, count in bins if count}
            if name == "stop_reason":
                found = {STOP_REASONS[number]: count for number, count in found.items()}
            assert found == expected.to_dict()


def test_tensorboard_files_hold_scalars_and_histograms(tiny_path, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="extra trackers")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    trainer, by_step = train(tiny_path, tmp_path, report_to=["tensorboard"])
    events = EventAccumulator(str(tmp_path / "events"), size_guidance={"histograms": 0, "scalars": 0})
    events.Reload()
    for name in ("reward", "duet/generated_tokens", "duet/budget_tokens"):
        scalars = events.Scalars(f"train/{name}")
        assert [event.step for event in scalars] == [1, 2, 3]
        assert [event.value for event in scalars] == pytest.approx(logged(trainer, name), rel=1e-6)

    def read(name):
        histograms = [event.histogram_value for event in events.Histograms(f"train/duet/{name}")]
        bounds = [[histogram.bucket_limit[0] - 1, *histogram.bucket_limit] for histogram in histograms]
        return [
            list(zip(at[:-1], at[1:], histogram.bucket, strict=True))
            for at, histogram in zip(bounds, histograms, strict=True)
        ]

    check(by_step, read)
    assert [event.step for event in events.Histograms("train/duet/stop_reason")] == [1, 2, 3]


def test_trackio_keeps_scalars_and_histograms_without_a_server(tiny_path, tmp_path, monkeypatch):
    pytest.importorskip("trackio", reason="extra trackers")
    from trackio import sqlite_storage

    for module in [sys.modules[name] for name in list(sys.modules) if name.startswith("trackio")]:
        if hasattr(module, "TRACKIO_DIR"):
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    before = children()
    trainer, by_step = train(tiny_path, tmp_path, report_to=["trackio"], project="duet", run_name="tiny")
    assert children() == before
    entries = sqlite_storage.SQLiteStorage.get_logs("duet", "tiny")
    rewards = [entry["train/reward"] for entry in entries if "train/reward" in entry]
    assert rewards == pytest.approx(logged(trainer, "reward"))

    def read(name):
        found = [entry[f"train/duet/{name}"] for entry in entries if f"train/duet/{name}" in entry]
        return [list(zip(each["bins"][:-1], each["bins"][1:], each["values"], strict=True)) for each in found]

    check(by_step, read)


def children() -> set[str]:
    """Processes that this one has started and that still run."""
    folder = f"/proc/{os.getpid()}/task"
    return {pid for task in os.listdir(folder) for pid in open(f"{folder}/{task}/children").read().split()}


@pytest.mark.parametrize("trackers, named", [(["mlflow", "tensorboard"], ["mlflow"]), (["wandb"], []), (["none"], [])])
def test_trackers_that_take_none_are_named_at_the_start(trackers, named, capsys):
    args = SimpleNamespace(report_to=trackers)
    Histograms(None).on_train_begin(args, SimpleNamespace(is_world_process_zero=True), None)
    printed = capsys.readouterr().out
    assert [name for name in ("mlflow", "tensorboard:", "wandb:") if f"for {name}" in printed] == named
    assert bool(printed) == bool(named)
