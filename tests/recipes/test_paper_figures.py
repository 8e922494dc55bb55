# SPDX-License-Identifier: Apache-2.0
"""What the paper's figures show is what was logged, and what was not logged is said."""

import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from duet_trl.methods import METHODS as REGISTERED
from tests.recipes.paper_runs import write_paper_runs
from tests.recipes.stored_runs import log_of, record, store  # isort: split

from paper import paper_figures as figures
from paper.runs import METHODS, read

COMPARED = {"budget_frontier", "step_time", "surrogate_gain", "token_decomposition"}
CONTROLLED = {"fan_out", "thresholds", "dual", "marker_shares", "surcharge", "calibration"}


def report_of(folder, *records):
    return read(store(folder, *records), reference=records[0].method)


def duet(budget=1.0, seed=0, accuracies=(0.1, 0.2, 0.3), cell=None, surrogate="online", **settings):
    own = {"keep_probability": 0.05, "trim": True, "abort": True, **settings}
    own["method_kwargs"] = {"surrogate": surrogate}
    name = cell or f"duet_{budget:g}_{surrogate}"
    return record("duet", budget, seed, accuracies=accuracies, settings=own, cell=name)


def test_every_method_has_a_title_and_a_look_of_its_own():
    assert METHODS.keys() == REGISTERED.keys() - {"own"}
    looks = {tuple(figures.look_of(method).values()) for method in [*METHODS, "own"]}
    assert len(looks) == len(METHODS) + 1


def test_one_arm_per_method_and_budget_is_shown_and_no_ablation(tmp_path):
    runs = [record(), duet(0.5), duet(), duet(0.5, surrogate="constant"), duet(0.5, keep_probability=0.2, cell="eps")]
    report = report_of(tmp_path, *runs, duet(0.5, abort=False, cell="allocation_only"))
    assert [arm.cell for arm in figures.shown(report)] == ["grpo_1", "duet_1_online", "duet_0.5_online"]
    assert len(report.arms) == 6


def test_a_line_is_the_mean_over_seeds_at_the_steps_that_all_of_them_have(tmp_path):
    logs = ([{"step": 1, "x": 1.0}, {"step": 2, "x": 3.0}], [{"step": 2, "x": 7.0}, {"step": 3, "x": 9.0}])
    report = report_of(tmp_path, *(record(seed=s, log=log) for s, log in enumerate(logs)))
    values = figures.curve(report, report.arms[0], "x")
    assert (values.index.tolist(), values.to_numpy().tolist()) == ([2], [[3.0, 7.0]])
    assert figures.curve(report, report.arms[0], "duet/dual").empty
    axes = Figure().subplots()
    figures.draw_curve(axes, values, "x", figures.look(0))
    assert axes.lines[0].get_xydata().tolist() == [[2.0, 5.0]]


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        # 160 steps: a window of 2 x 2 + 1. A spike vanishes; at the ends the median is of 3 values: 2, of 1, 2, 3.
        (160, {0: 2.0, 10: 11.0, 49: 50.0, 159: 159.0}),
        (79, {0: 1.0, 10: 11.0, 49: 1e6, 78: 79.0}),  # a short line is drawn as it is
    ],
)
def test_a_long_line_is_a_running_median_without_made_up_ends(tmp_path, last, expected):
    log = [{"step": step, "x": 1e6 if step == 50 else float(step)} for step in range(1, last + 1)]
    report, axes = report_of(tmp_path, record(log=log)), Figure().subplots()
    figures.draw_curve(axes, figures.curve(report, report.arms[0], "x"), "x", figures.look(0))
    drawn = axes.lines[0].get_ydata()
    assert {n: drawn[n] for n in expected} == pytest.approx(expected, rel=0.03)


def test_points_are_means_with_t_intervals_and_what_is_not_known_is_not_drawn(tmp_path):
    runs = [record(seed=s, accuracies=(0.1, 0.9, last)) for s, last in enumerate((0.3, 0.5))]
    report, axes = report_of(tmp_path, *runs, record("dapo", log=[{"step": 1, "loss": 0.0}])), Figure().subplots()
    scores = [report.of(arm)["accuracy/math500"] for arm in report.arms]
    figures.draw_points(axes, [0, 1], scores, "x", figures.look(0))
    assert axes.lines[0].get_ydata().tolist() == pytest.approx([0.4, np.nan], nan_ok=True)
    # deviation 0.2 / sqrt 2, over sqrt 2 seeds, by the quantile of one degree of freedom
    low, high = axes.collections[0].get_segments()[0][:, 1]
    assert (low, high) == pytest.approx((0.4 - 12.706 * 0.1, 0.4 + 12.706 * 0.1))


@pytest.mark.parametrize(
    ("logged", "trained", "aborted", "untrained"),
    [
        ({"trained": 60, "aborted": 25}, 60, 25, 15),
        ({"trained": 100, "aborted": 25}, 100, 0, 0),  # aborted rollouts are trained as failures
        ({"trained": 120, "aborted": 0, "reused": 40}, 80, 0, 20),  # of 140 tokens 20 are not trained
    ],
)
def test_tokens_of_a_step_add_up_to_what_was_generated(tmp_path, logged, trained, aborted, untrained):
    more = {f"duet/{name}_tokens": float(value) for name, value in logged.items()}
    report = report_of(tmp_path, record(log=log_of(8.0, 100.0, (0.1, 0.2, 0.3), **more)))
    tokens = figures.tokens_of_a_step(report, report.arms[0])
    parts = tokens[["trained", "aborted", "ended, not trained"]].tolist()
    assert parts == [trained, aborted, untrained] and sum(parts) == 100
    assert tokens["reused"] == logged.get("reused", 0)


def test_bound_on_the_surcharge_is_that_of_the_paper(tmp_path):
    # Theorem 2: (1 - p) (1 - eps) / eps above 1; the paper's worst case at eps = 0.05 is 19
    log = [{"step": 1, "duet/share_marker_less": 1.0}, {"step": 2, "duet/share_marker_less": 0.1}]
    report = report_of(tmp_path, record("duet", settings={"keep_probability": 0.05}, log=log))
    bound = figures.surcharge_bound(report, report.arms[0])
    assert bound.to_numpy().ravel().tolist() == pytest.approx([1 + 19, 1 + 0.1 * 19])


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn")
    write_paper_runs(folder / "runs", methods=("grpo", "dapo", "duet"), budgets=(1.0, 0.5), seeds=(0, 1), steps=8)
    write_paper_runs(folder / "runs" / "again", methods=("spec_rl",), budgets=(0.5,), seeds=(0,), surrogates=False)
    store(folder / "runs", record("vip", status="running"))
    return folder, figures.write_figures(read(folder / "runs"), folder)


def test_every_figure_is_there_as_png_and_svg_and_says_what_it_shows(drawn):
    folder = drawn[0] / "qwen3_1.7b"
    names = {*COMPARED, *(f"{name}_duet" for name in CONTROLLED)}
    names |= {f"{name}_{method}" for name in ("fan_out", "marker_shares") for method in ("dapo", "spec_rl")}
    assert {path.name for path in folder.iterdir()} == {name + end for name in names for end in (".png", ".svg")}
    for name, labels in {
        "budget_frontier": ["GRPO", "DUET 50%", "MATH-500 mean@4 (%)", "Generated tokens in the whole run"],
        "step_time": ["Seconds per step", "Speed-up", "DUET 50%"],
        "token_decomposition": ["SPEC-RL 50%", "aborted", "reused", "in trimmed rollouts"],
        "surrogate_gain": ["over constant", "MATH-500 gain (points)"],
        "fan_out_duet": ["fewest", "most", "Rollouts per prompt"],
        "surcharge_duet": ["realised", "bound"],
        "marker_shares_duet": ["marker seen", "aborted", "Share of rollouts"],
        "thresholds_duet": ["Threshold (tokens)", "K1"],
    }.items():
        assert set(labels) <= set(re.findall(r"<text[^>]*>([^<]+)</text>", (folder / f"{name}.svg").read_text())), name


def test_what_is_not_drawn_says_why(drawn):
    _, notes = drawn
    assert "grid/vip_1, seed 0 is left out: it is not done." in notes
    for method in ("dapo", "spec_rl"):
        assert f"qwen3_1.7b: dual_{method} is not drawn: no duet/dual in the log." in notes
    assert any("duet_50_constant" in note for note in notes)
