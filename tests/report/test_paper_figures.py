# SPDX-License-Identifier: Apache-2.0
"""What the paper's figures show is what was logged, and what was not logged is said."""

import math
import re

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="needs the report extra")

from duet_trl.report.audit_data import density, difficulty, epochs_of, lengths, read_audit
from duet_trl.report.controller_figures import bound_of, worst_surcharge
from duet_trl.report.figure_data import (
    NotDrawn,
    accuracy_deltas,
    decompose,
    final_accuracy,
    find_subjects,
    mean_curve,
    metric_curve,
    on_one_machine,
    smooth,
    speed_ups,
    surrogate_arms,
    surrogate_gains,
)
from duet_trl.report.figure_style import method_look
from duet_trl.report.paper_figures import write_figures
from duet_trl.report.runs import read_runs, series
from duet_trl.report.titles import METHODS
from duet_trl.rollouts import Prompt
from duet_trl.seams.audit import AuditLog
from tests.report.paper_runs import rollouts_of, write_paper_runs
from tests.report.stored_runs import log_of, record, store

COMPARED = {"budget_frontier", "step_time", "surrogate_gain", "surrogate_ablation", "token_decomposition", "transfer"}
CONTROLLED = {
    "fan_out",
    "thresholds",
    "difficulty",
    "lengths",
    "dual",
    "marker_shares",
    "markerless_rate",
    "surcharge",
    "calibration",
}


def subject_of(folder, *records):
    subjects, _ = find_subjects(read_runs(store(folder, *records)).done)
    (subject,) = subjects.values()
    return subject


def duet(budget=1.0, seed=0, accuracies=(0.1, 0.2, 0.3), cell=None, **settings):
    options = {"surrogate": settings.pop("surrogate", "online")}
    own = {
        "keep_probability": 0.05,
        "allocate": True,
        "trim": True,
        "abort": True,
        **settings,
        "method_kwargs": options,
    }
    name = cell or f"duet_{budget:g}_{options['surrogate']}"
    return record("duet", budget, seed, accuracies=accuracies, settings=own, cell=name)


# ---- Which runs are shown


def test_one_arm_per_method_and_budget_is_shown_and_no_ablation(tmp_path):
    subject = subject_of(
        tmp_path,
        record(),
        duet(0.5),
        duet(),
        duet(0.5, surrogate="constant"),
        duet(0.5, abort=False, cell="allocation_only"),
        duet(0.5, keep_probability=0.2, cell="eps"),
    )
    assert [(arm.method, arm.budget, arm.first.cell) for arm in subject.shown] == [
        ("grpo", 1.0, "grpo_1"),
        ("duet", 1.0, "duet_1_online"),
        ("duet", 0.5, "duet_0.5_online"),
    ]
    assert len(subject.arms) == 6


def test_every_method_looks_different():
    looks = [method_look(method)[:3] for method in METHODS]
    assert len(set(looks)) == len(looks)


# ---- Lines


def test_a_line_is_the_mean_over_seeds_at_the_steps_that_all_of_them_have(tmp_path):
    logs = ([{"step": 1, "x": 1.0}, {"step": 2, "x": 3.0}], [{"step": 2, "x": 7.0}, {"step": 3, "x": 9.0}])
    (arm,) = subject_of(tmp_path, *(record(seed=s, log=log) for s, log in enumerate(logs))).shown
    line = mean_curve(arm, lambda run: series(run.log, "x"))
    assert (line.steps.tolist(), line.mean.tolist()) == ([2], [5.0])
    assert (line.low.tolist(), line.high.tolist()) == ([3.0], [7.0])


def test_a_metric_that_was_never_logged_is_an_empty_line(tmp_path):
    (arm,) = subject_of(tmp_path, record()).shown
    assert metric_curve(arm, "duet/dual").steps.size == 0


def test_a_long_line_is_a_running_median_without_made_up_ends(tmp_path):
    # 160 steps: a window of 2 x 2 + 1. A spike vanishes; at the ends the median is of 3 values: 2, of 1, 2, 3.
    log = [{"step": step, "x": 1e6 if step == 50 else float(step)} for step in range(1, 161)]
    (arm,) = subject_of(tmp_path, record(log=log)).shown
    line = smooth(metric_curve(arm, "x"))
    assert line.window == 5
    assert line.mean[[0, 10, 159]].tolist() == [2.0, 11.0, 159.0]
    assert line.mean.max() < 161


def test_a_short_line_is_drawn_as_it_is(tmp_path):
    (arm,) = subject_of(tmp_path, record(log=[{"step": s, "x": float(s)} for s in range(1, 80)])).shown
    assert smooth(metric_curve(arm, "x")).window == 1


# ---- Methods against each other


def test_accuracy_is_that_of_the_last_measurement_with_a_t_interval(tmp_path):
    runs = [record(seed=s, accuracies=(0.1, 0.9, last)) for s, last in enumerate((0.3, 0.5))]
    (arm,) = subject_of(tmp_path, *runs).shown
    score = final_accuracy(arm, "math500")
    assert score.mean == pytest.approx(0.4)
    assert score.half == pytest.approx(12.706 * 0.1)  # deviation 0.2 / sqrt 2, over sqrt 2 seeds


def test_speed_up_is_paired_by_seed_and_only_within_one_machine(tmp_path):
    runs = [record(seed=s, seconds=10.0 + 2 * s) for s in (0, 1)]  # 10 and 12
    runs += [record("dapo", seed=s, seconds=5.0 + s) for s in (0, 1)]  # 2 x and 2 x
    runs += [record("vip", hardware={"gpu": "A100"}), record("greso", engine="transformers")]
    speeds, notes = speed_ups(subject_of(tmp_path, *runs))
    assert speeds["dapo", 1.0].mean == pytest.approx(2.0)
    assert speeds["dapo", 1.0].half == pytest.approx(0.0)
    assert set(speeds) == {("grpo", 1.0), ("dapo", 1.0)}
    assert any("VIP 100% not given" in note and "hardware" in note for note in notes)
    assert any("GRESO 100% not given" in note and "engines" in note for note in notes)


def test_seconds_over_training_are_those_of_the_common_machine(tmp_path):
    runs = [record(seed=s) for s in (0, 1, 2)] + [record("vip", seed=s, engine="e" * (s + 1)) for s in (0, 1)]
    arms, notes = on_one_machine(subject_of(tmp_path, *runs).shown)
    assert [arm.method for arm in arms] == ["grpo"]
    assert notes == [
        "2 of 2 runs of VIP 100% had another engine or machine than most: their seconds are left out.",
    ]


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
    (arm,) = subject_of(tmp_path, record(log=log_of(8.0, 100.0, (0.1, 0.2, 0.3), **more))).shown
    tokens = decompose(arm)
    assert (tokens.trained, tokens.aborted, tokens.untrained) == (trained, aborted, untrained)
    assert tokens.trained + tokens.aborted + tokens.untrained == 100
    assert tokens.reused == logged.get("reused", 0)


def test_deltas_are_against_grpo_at_the_same_budget_paired_by_seed(tmp_path):
    runs = [record("grpo", 0.5, s, accuracies=(0, 0, 0.2 + 0.2 * s)) for s in (0, 1)]
    runs += [record("dapo", 0.5, s, accuracies=(0, 0, 0.3 + 0.2 * s)) for s in (0, 1)]
    ((arm, found),), notes = accuracy_deltas(subject_of(tmp_path, *runs, record("dapo", 1.0)).shown)
    assert (arm.method, arm.budget) == ("dapo", 0.5)
    assert found["math500"].mean == pytest.approx(0.1)
    assert found["math500"].half == pytest.approx(0.0, abs=1e-12)
    assert notes[0].startswith("without DAPO 100%: GRPO has no run at this budget")


def test_deltas_without_any_reference_are_not_drawn(tmp_path):
    with pytest.raises(NotDrawn, match="GRPO has no run at this budget"):
        accuracy_deltas(subject_of(tmp_path, record("dapo"), record("grpo", 0.5)).shown)


def test_gain_of_the_online_surrogate_is_by_budget(tmp_path):
    runs = [duet(b, surrogate=one) for b in (1.0, 0.5) for one in ("online", "constant")]
    runs[1] = duet(1.0, accuracies=(0, 0, 0.25), surrogate="constant")
    runs += [duet(0.5, accuracies=(0, 0, 0.1), surrogate="ridge")]
    subject = subject_of(tmp_path, *runs)
    gains = surrogate_gains(subject.arms, "math500")
    assert list(gains) == ["constant", "ridge"]
    assert {budget: round(gain.mean, 12) for budget, gain in gains["constant"].items()} == {1.0: 0.05, 0.5: 0.0}
    assert {budget: round(gain.mean, 12) for budget, gain in gains["ridge"].items()} == {0.5: 0.2}
    assert list(surrogate_arms(subject.arms)[0.5]) == ["online", "constant", "ridge"]


def test_a_static_surrogate_with_another_setting_is_no_partner(tmp_path):
    subject = subject_of(tmp_path, duet(0.5), duet(0.5, surrogate="constant", keep_probability=0.2, cell="other"))
    with pytest.raises(NotDrawn, match="surrogate: constant"):
        surrogate_gains(subject.arms, "math500")


# ---- Single rollouts


def audited(tmp_path, steps, levels=(1, 5), log=None):
    """A run with an audit log: `steps` has (prompts, lengths, outcomes) of each step."""
    prompts = [Prompt(f"prompt {index}", {"level": level}) for index, level in enumerate(levels)]
    ends = [{"step": step, "epoch": step / 2} for step in range(1, len(steps) + 1)]
    subject = subject_of(tmp_path, record(log=ends if log is None else log))
    audit = AuditLog(str(tmp_path / "grpo_1" / "seed_0"), ["level"])
    for step, (group, length, outcome) in enumerate(steps, 1):
        audit.write(step, rollouts_of(prompts, group, length, outcome), prompts, group)
    return subject, subject.shown[0]


def test_difficulty_counts_a_prompt_as_often_as_it_has_rollouts(tmp_path):
    # two steps an epoch; epoch 1: levels 1, 1, 1, 5 -> 2; epoch 2: 1, 5, 5, 5 -> 4; the superseded beginning of a
    # rollout is none of its own
    steps = [([0, 0], [5, 5], "natural"), ([0, 1, 1], [5, 5, 5], ["natural", "natural", "superseded"])]
    steps += [([0, 1], [5, 5], "natural"), ([1, 1], [5, 5], "aborted")]
    found = difficulty(*audited(tmp_path, steps))
    assert found.epochs == [1, 2]
    assert [mean.mean for mean in found.by_epoch] == [2.0, 4.0]
    assert (found.average.mean, found.reference) == (3.0, 3.0)


def test_prompts_without_a_level_are_left_out(tmp_path):
    found = difficulty(*audited(tmp_path, [([0, 0, 1], [5, 5, 5], "natural")], levels=(4, None)))
    assert (found.average.mean, found.reference) == (4.0, 4.0)


def test_epoch_of_a_step_between_two_logged_ones(tmp_path):
    # an epoch has 4 steps, every third is logged: 3 -> 0.75, 6 -> 1.5
    (arm,) = subject_of(tmp_path, record(log=[{"step": 3, "epoch": 0.75}, {"step": 6, "epoch": 1.5}])).shown
    assert epochs_of(arm.first, np.arange(1, 7)).tolist() == [1, 1, 1, 1, 2, 2]


def test_lengths_are_of_the_first_step_and_of_the_last_tenth(tmp_path):
    subject, arm = audited(tmp_path, [([0], [step], "natural") for step in range(1, 21)])
    assert lengths(subject, arm, late=False).tolist() == [1]
    assert lengths(subject, arm, late=True).tolist() == [19, 20]


def test_density_of_one_length_is_a_gaussian_of_one_token():
    at = np.array([99.0, 100.0, 102.0])
    expected = [math.exp(-((x - 100) ** 2) / 2) / math.sqrt(2 * math.pi) for x in at]
    np.testing.assert_allclose(density(np.array([100, 100, 100]), at), expected, rtol=1e-12)


def test_density_has_mass_one_above_zero():
    values = np.random.default_rng(0).integers(1, 60, 500)  # close to 0, where mass is reflected
    at = np.linspace(0, 400, 8001)
    assert np.trapezoid(density(values, at), at) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("levels", "log", "reason"),
    [
        ((None, None), None, "no number in the column 'level'"),
        ((1, 5), [{"step": 1, "loss": 0.0}], "no epoch in the log"),
    ],
)
def test_difficulty_that_cannot_be_known_says_why(tmp_path, levels, log, reason):
    with pytest.raises(NotDrawn, match=reason):
        difficulty(*audited(tmp_path, [([0, 1], [5, 5], "natural")], levels, log))


def test_a_run_without_audit_log_or_column_says_how_to_get_it(tmp_path):
    subject, arm = audited(tmp_path, [([0, 1], [5, 5], "natural")])
    with pytest.raises(NotDrawn, match=r"no subject in the audit log. Train with audit_columns=\['subject'\]"):
        read_audit(subject, arm.first, ["subject"])
    bare = subject_of(tmp_path / "bare", record())
    with pytest.raises(NotDrawn, match="no audit log. Train with audit_log=True"):
        difficulty(bare, bare.shown[0])


# ---- Surcharge


def test_bound_on_the_surcharge_is_that_of_the_paper(tmp_path):
    # Theorem 2: (1 - p) (1 - eps) / eps above 1; the paper's worst case at eps = 0.05 is 19
    assert worst_surcharge(0.05) == pytest.approx(1 + 19)
    assert worst_surcharge(0.05, 0.0) == 1.0
    run = duet()
    run.log[1]["duet/share_marker_less"] = 0.1
    (arm,) = subject_of(tmp_path, run).shown
    assert bound_of(arm).mean.tolist() == pytest.approx([1 + 0.1 * 19])


def test_a_bound_without_keep_probability_is_not_drawn(tmp_path):
    with pytest.raises(NotDrawn, match="keep_probability is not in the settings"):
        bound_of(subject_of(tmp_path, record()).shown[0])


# ---- Files


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn")
    write_paper_runs(folder / "runs", methods=("grpo", "dapo", "duet"), budgets=(1.0, 0.5), seeds=(0, 1), steps=8)
    write_paper_runs(folder / "runs" / "again", methods=("spec_rl",), budgets=(0.5,), seeds=(0,), surrogates=False)
    store(folder / "runs", record("vip", status="failed", error="no memory left"))
    return folder / "figures", *write_figures(folder / "runs", folder / "figures")


def test_every_figure_is_there_as_png_and_svg(drawn):
    folder, written, _ = drawn
    names = COMPARED | {f"{name}_duet" for name in CONTROLLED}
    expected = {folder / "qwen3_1.7b" / f"{name}{ending}" for name in names for ending in (".png", ".svg")}
    assert set(written) == expected
    assert set(folder.rglob("*.*g")) == expected


def test_what_is_not_drawn_says_why(drawn):
    _, _, notes = drawn
    assert "left out: grid/vip_1, seed 0: failed (no memory left)" in notes
    assert any("dual is not drawn of DAPO, SPEC-RL: no duet/dual in the log" in note for note in notes)
    assert any("fan_out is not drawn of DAPO, SPEC-RL: every prompt had the same" in note for note in notes)
    assert any("lengths is not drawn of DAPO, SPEC-RL: no audit log. Train with audit_log=True." in n for n in notes)
    assert any("ablations and other settings): duet_50_constant, duet_50_ridge" in note for note in notes)


def words(drawn, name):
    folder, _, _ = drawn
    return re.findall(r"<text[^>]*>([^<]+)</text>", (folder / "qwen3_1.7b" / f"{name}.svg").read_text())


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("budget_frontier", ["GRPO", "DUET 50%", "MATH-500 mean@4 (%)", "Generated tokens in the whole run"]),
        ("step_time", ["Seconds per step", "Speed-up (x)", "DUET 50%"]),
        ("token_decomposition", ["SPEC-RL 50%", "aborted", "reused, not generated", "in trimmed rollouts"]),
        ("transfer", ["GPQA-D", "(b) Against GRPO at 50% of the rollouts", "Difference (points)"]),
        ("surrogate_gain", ["over constant", "over ridge", "MATH-500 gain (points)"]),
        ("surrogate_ablation", ["online surrogate", "(b) GSM8K, 50% of the rollouts"]),
        ("fan_out_duet", ["fewest to most", "MATH-500 accuracy", "Rollouts per prompt"]),
        ("difficulty_duet", ["each prompt once", "Epoch", "50%"]),
        ("surcharge_duet", ["realised", "bound without markers"]),
        ("marker_shares_duet", ["marker seen", "aborted", "Share of rollouts (%)"]),
        ("markerless_rate_duet", ["No marker at the abort gate", "50%"]),
        ("thresholds_duet", ["Threshold (tokens)"]),
        ("calibration_duet", ["Calibration of the surrogate"]),
        ("dual_duet", ["Dual of the budget"]),
        ("lengths_duet", ["Response length (tokens)"]),
    ],
)
def test_a_figure_says_what_it_shows(drawn, name, labels):
    assert set(labels) <= set(words(drawn, name))


def test_figures_are_as_wide_as_a_column_and_their_letters_can_be_read(drawn):
    folder, _, _ = drawn
    for path in folder.rglob("*.svg"):
        text = path.read_text()
        assert float(re.search(r'width="([\d.]+)pt"', text)[1]) <= 489.6, path.name  # 6.8 inches
        assert min(float(size) for size in re.findall(r"font-size: ([\d.]+)px", text)) >= 7, path.name


def test_a_run_of_grpo_alone_draws_what_it_can_and_says_the_rest(tmp_path):
    bare = record(log=[{"step": 1, "loss": 0.0}])
    written, notes = write_figures(store(tmp_path / "runs", bare), tmp_path / "figures")
    assert written == []
    for name in COMPARED:
        assert any(f"{name} is not drawn: " in note for note in notes), name
    assert "tiny: what a controller did is not drawn: only GRPO was run." in notes


def test_tasks_of_one_model_are_drawn_apart(tmp_path):
    runs = [record(cell=task, settings={"dataset_name": task}) for task in ("code", "math")]
    store(tmp_path, *runs, record(model="other", cell="other"))
    subjects, _ = find_subjects(read_runs(tmp_path).done)
    assert set(subjects) == {"tiny code", "tiny math", "other"}
