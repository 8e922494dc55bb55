# SPDX-License-Identifier: Apache-2.0
"""Figures are drawn from a log history, and what is drawn is what was logged."""

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="needs the report extra")

from matplotlib.image import imread

from duet_trl.report import figures


def history(num_steps=30):
    entries = []
    for step in range(1, num_steps + 1):
        before, aborted, kept, trimmed = 0.3, 0.25, 0.01, 0.25
        entries.append({"step": step, "held_out/mean@4": 0.4})  # another kind of entry at the same step
        entries.append(
            {
                "step": step,
                "duet/num_rollouts/min": 2.0,
                "duet/num_rollouts/mean": 4.0,
                "duet/num_rollouts/max": 4.0 + step % 7,
                "duet/poll_threshold": 96.0 if step < 6 else 60.0,
                "duet/abort_threshold": 224.0 if step < 6 else 120.0,
                "duet/share_ended_before_gate": before,
                "duet/share_marker_seen": 1 - before - aborted - kept,
                "duet/share_marker_less": aborted + kept,
                "duet/abort_rate": aborted,
                "duet/keep_rate": kept,
                "duet/trim_rate": trimmed,
            }
        )
    return entries


def curve(name, shift):
    accuracy = np.array([0.4, 0.5, 0.55]) + shift
    return figures.AccuracyCurve(name, [0, 1e5, 2e5], [0, 60, 130], accuracy, accuracy - 0.04, accuracy + 0.04)


def test_series_keeps_order_and_skips_entries_without_the_metric():
    steps, values = figures.series([{"step": 1, "a": 2.0}, {"step": 1, "b": 9.0}, {"step": 3, "a": 4.0}], "a")
    assert steps.tolist() == [1, 3]
    assert values.tolist() == [2.0, 4.0]


def test_series_of_a_metric_that_was_never_logged_is_empty():
    steps, values = figures.series(history(), "duet/no_such_metric")
    assert steps.size == values.size == 0


@pytest.mark.parametrize("draw", [figures.fan_out_figure, figures.thresholds_figure, figures.outcomes_figure])
def test_every_step_figure_writes_a_readable_png(draw, tmp_path):
    path = draw(history(), tmp_path / "sub" / "figure.png")
    image = imread(path)
    assert image.shape[1] > image.shape[0] > 400
    assert image.std() > 0.05  # something is drawn


def pixels_of(path, color):
    pixels = imread(path)[..., :3].reshape(-1, 3)
    wanted = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return int((np.abs(pixels - wanted).max(axis=1) < 0.01).sum())


def test_curves_that_could_not_be_told_apart_are_refused(tmp_path):
    with pytest.raises(ValueError, match="7 curves in one figure; at most 6"):
        figures.accuracy_figure([curve(str(i), 0.0) for i in range(7)], tmp_path / "accuracy.png")


def test_the_accuracy_figure_draws_both_runs(tmp_path):
    path = figures.accuracy_figure([curve("GRPO", 0.0), curve("DUET", 0.02)], tmp_path / "accuracy.png")
    assert pixels_of(path, figures.GREY) > 200
    assert pixels_of(path, figures.BLUE) > 200


def test_outcomes_take_the_area_of_their_shares(tmp_path):
    # never polled .30, marker seen .44 of which trimmed .25, kept .01, aborted .25 (hatched, so some of it is white)
    path = figures.outcomes_figure(history(), tmp_path / "outcomes.png")
    unit = pixels_of(path, figures.SKY) / 0.30
    assert pixels_of(path, figures.BLUE) / unit == pytest.approx(0.19, rel=0.1)
    assert pixels_of(path, figures.GREEN) / unit == pytest.approx(0.25, rel=0.1)
    assert 0.12 < pixels_of(path, figures.RED) / unit < 0.25
