# SPDX-License-Identifier: Apache-2.0
"""The paper's tables from records of runs that are small enough to do by hand."""

import csv
import json
from dataclasses import replace

import pytest
from stored_runs import HARDWARE, SWITCHES, log_of, record, store
from test_layout import check_latex

from duet_trl.__main__ import main
from duet_trl.report.paper_tables import write_tables
from duet_trl.report.runs import UnreadableRuns

WARM = {"method_kwargs": {"surrogate_warmup": 1}}


def duet(budget=0.5, seed=0, method="paper", settings=None, **changes):
    own = SWITCHES | {"budget_fraction": budget} | WARM | (settings or {})
    return record(method, budget, seed, settings=own, **changes)


def table(folder, name):
    """Lines of the CSV of a table by section and row."""
    with (folder / f"{name}.csv").open() as file:
        return {(line["section"], line["row"]): line for line in csv.DictReader(file)}


def figure(line, key):
    """Mean, lower and upper end, None where there are none."""
    return tuple(float(line[key + end]) if line[key + end] else None for end in ("", "_low", "_high"))


THREE_SEEDS = [
    # finals: GRPO 0.30, 0.34, 0.32; DUET 0.36, 0.37, 0.41
    *(record(seed=s, accuracies=(0.10 + 0.01 * s, 0.5, 0.30 + d)) for s, d in enumerate((0.0, 0.04, 0.02))),
    *(
        duet(seed=s, accuracies=(0.10 + 0.01 * s, 0.2, a), seconds=t, tokens=n)
        for s, (a, t, n) in enumerate(((0.36, 4.0, 40.0), (0.37, 5.0, 50.0), (0.41, 2.0, 45.0)))
    ),
]


def test_means_intervals_speed_ups_and_tokens_of_three_seeds(tmp_path):
    write_tables(store(tmp_path / "runs", *THREE_SEEDS), tmp_path)
    lines = table(tmp_path, "table1")
    grpo, half = lines["tiny", "+GRPO"], lines["tiny", "+DUET (paper) (50% budget)"]
    # mean 0.32, sd 0.02, standard error 0.02 / sqrt(3); t of two degrees of freedom: 4.303
    assert figure(grpo, "math500") == pytest.approx((0.32, 0.32 - 4.303 * 0.02 / 3**0.5, 0.32 + 4.303 * 0.02 / 3**0.5))
    # 0.36, 0.37, 0.41: mean 0.38, sd sqrt((4 + 1 + 9) / 2) / 100 = 0.0264575
    reach = 4.303 * 0.0264575 / 3**0.5
    assert figure(half, "math500") == pytest.approx((0.38, 0.38 - reach, 0.38 + reach), rel=1e-5)
    # 16 s of GRPO over 8, 10 and 4 s: 2, 1.6 and 4; mean 2.5333, sd sqrt((0.5333^2 + 0.9333^2 + 1.4667^2) / 2)
    reach = 4.303 * 1.2858201 / 3**0.5
    assert figure(half, "speed_up") == pytest.approx((2.533333, 2.533333 - reach, 2.533333 + reach), rel=1e-5)
    # two steps of 40, 50 and 45 tokens against 200
    assert float(half["generated_tokens"]) == 90.0
    assert figure(half, "share_of_tokens")[0] == pytest.approx(0.45)
    assert (grpo["budget"], half["budget"], grpo["seeds"], half["seeds"]) == ("1.0", "0.5", "3", "3")
    # step 0 of both runs of a seed: 0.10, 0.11, 0.12; t-interval of three values 0.01 apart
    reach = 4.303 * 0.01 / 3**0.5
    assert figure(lines["tiny", "Baseline"], "math500") == pytest.approx((0.11, 0.11 - reach, 0.11 + reach))


def test_differences_are_paired_by_seed(tmp_path):
    """0.06, 0.03 and 0.09 by seed: mean 0.06, sd 0.03. Unpaired the interval would be another one."""
    write_tables(store(tmp_path / "runs", *THREE_SEEDS), tmp_path)
    (line,) = table(tmp_path, "table1_differences").values()
    reach = 4.303 * 0.03 / 3**0.5
    assert figure(line, "math500") == pytest.approx((0.06, 0.06 - reach, 0.06 + reach))
    assert line["seeds"] == "3"


def test_the_best_checkpoint_is_chosen_only_where_it_is_asked_for(tmp_path):
    runs = store(tmp_path / "runs", *THREE_SEEDS)
    text = write_tables(runs, tmp_path, checkpoint="best")
    assert figure(table(tmp_path, "table1")["tiny", "+GRPO"], "math500") == pytest.approx((0.5, 0.5, 0.5))
    assert "best checkpoint of each suite, which selects on the test set" in text
    assert "at the last step" in write_tables(runs, tmp_path)


def test_one_seed_has_no_interval_and_says_so(tmp_path):
    text = write_tables(store(tmp_path / "runs", record(), record(seed=1), duet(accuracies=(0.1, 0.2, 0.4))), tmp_path)
    assert figure(table(tmp_path, "table1")["tiny", "+DUET (paper) (50% budget)"], "math500") == (0.4, None, None)
    assert "One seed, so no interval: +DUET (paper) (50% budget) (tiny)." in text
    assert "| +GRPO | 100% | <u>30.0</u> ± 0.0 | 1.00× |" in text
    assert "| +DUET (paper) (50% budget) | 50% | **40.0** | 1.00× |" in text
    assert "| Baseline | – | 10.0 ± 0.0 | – |" in text  # never marked
    alone = write_tables(store(tmp_path / "alone", record()), tmp_path)
    assert "One seed, so no interval: all rows." in alone


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hardware": HARDWARE | {"gpu": "A100"}}, "ran on different hardware"),
        ({"engine": "transformers"}, "ran on the engines 'transformers' and 'vllm'"),
        ({"max_steps": 3}, "has 3 and 2 steps"),
        ({"seed": 5}, "seed 5 has no run of GRPO"),
        ({"log": [{"step": 2, "held_out/math500/mean@4": 0.5}]}, "has no step_time in its log"),
    ],
)
def test_a_speed_up_across_machines_engines_or_lengths_is_a_dash_and_a_note(tmp_path, changes, reason):
    text = write_tables(store(tmp_path / "runs", record(), duet(**changes)), tmp_path)
    (line,) = [line for (_, row), line in table(tmp_path, "table1").items() if "DUET" in row]
    assert line["speed_up"] == ""
    (note,) = [line for line in text.splitlines() if line.startswith("Speed-up of +DUET")]
    assert "not given" in note and reason in note


def test_a_speed_up_uses_the_seeds_that_can_be_paired(tmp_path):
    other = duet(seed=1, seconds=1.0, hardware={"gpu": "A100"})
    text = write_tables(store(tmp_path / "runs", record(), record(seed=1), duet(seconds=4.0), other), tmp_path)
    assert figure(table(tmp_path, "table1")["tiny", "+DUET (paper) (50% budget)"], "speed_up") == (2.0, None, None)
    assert "partly, seed 1 ran on different hardware" in text


def test_table_2_shows_the_parts_at_each_budget_against_grpo_at_that_budget(tmp_path):
    runs = []
    for budget, seconds in ((0.5, 6.0), (0.25, 3.0)):
        runs += [
            record("grpo", budget, num_generations=int(8 * budget), seconds=seconds),
            duet(budget, cell=f"both{budget}", seconds=seconds / 3),
            duet(budget, cell=f"gate{budget}", settings={"allocate": False}, seconds=seconds / 2),
        ]
    off = {"trim": False, "abort": False, "keep_probability": None}
    runs.append(duet(0.5, cell="anything", settings=off, accuracies=(0.1, 0.2, 0.4)))
    text = write_tables(store(tmp_path / "runs", *runs, record()), tmp_path)
    lines = table(tmp_path, "table2")
    section = "tiny, DUET (paper), 50% budget"
    assert [row for title, row in lines if title == section] == [
        "Baseline",
        "+GRPO",
        "+ allocation only",
        "+ gate only",
        "+ both",
    ]
    assert figure(lines[section, "+ allocation only"], "math500")[0] == 0.4
    assert figure(lines[section, "+ gate only"], "speed_up")[0] == pytest.approx(2.0)
    quarter = "tiny, DUET (paper), 25% budget"
    assert figure(lines[quarter, "+ both"], "speed_up")[0] == pytest.approx(3.0)
    assert f"{quarter}: no run of allocation only." in text
    # ablations are no rows of Table 1
    assert {row for _, row in table(tmp_path, "table1")} == {"Baseline", "+GRPO", "+DUET (paper) (50% budget)"}


def test_tables_3_and_5_are_sweeps_of_one_setting(tmp_path):
    eps = [duet(cell=f"e{p}", settings={"keep_probability": p}, seconds=8 * p * 10) for p in (0.01, 0.05, 0.2)]
    late = {"keep_probability": 0.01, "method_kwargs": {"surrogate_warmup": 2}}
    runs = [record(), *eps, duet(cell="k2", settings=late, seconds=120.0)]
    text = write_tables(store(tmp_path / "runs", *runs), tmp_path)
    third = table(tmp_path, "table3")
    assert [row for _, row in third] == ["0.01", "0.05 (default)", "0.2"]
    # 16 s of full-budget GRPO over 1.6, 8 and 32 s
    assert [figure(line, "speed_up")[0] for line in third.values()] == pytest.approx([10.0, 2.0, 0.5])
    assert "tiny, DUET (paper), 50% budget: no run of 0.1." in text
    fifth = table(tmp_path, "table5")
    assert list(fifth) == [
        ("tiny, DUET (paper), 50% budget, keep_probability=0.01", row) for row in ("1 (default)", "2")
    ]
    # 2 x 0.8 s and 2 x 120 s
    assert [figure(line, "minutes")[0] for line in fifth.values()] == pytest.approx([1.6 / 60, 4.0])
    # of the sweep Table 1 takes the paper's value
    assert figure(table(tmp_path, "table1")["tiny", "+DUET (paper) (50% budget)"], "speed_up")[0] == pytest.approx(2.0)


def test_minutes_of_two_machines_are_marked_as_such(tmp_path):
    late = {"method_kwargs": {"surrogate_warmup": 2}}
    runs = [record(), duet(), duet(cell="k2", settings=late, hardware={"gpu": "A100"})]
    text = write_tables(store(tmp_path / "runs", *runs), tmp_path)
    assert "minutes of different engines or hardware are not to be compared" in text


def test_table_6_compares_at_the_same_budget(tmp_path):
    runs = [record(seconds=8.0), record("grpo", 0.25, num_generations=2, seconds=3.0, tokens=25.0)]
    runs += [duet(0.25, seconds=1.5, tokens=20.0), record("vip", 0.25, num_generations=2, seconds=4.0)]
    text = write_tables(store(tmp_path / "runs", *runs), tmp_path)
    lines = table(tmp_path, "table6")
    section = "tiny, 25% budget"
    assert list(lines) == [(section, row) for row in ("Baseline", "+GRPO", "+VIP", "+DUET (paper)")]
    assert figure(lines[section, "+DUET (paper)"], "speed_up")[0] == pytest.approx(2.0)
    assert figure(lines[section, "+VIP"], "speed_up")[0] == pytest.approx(0.75)
    assert figure(lines[section, "+DUET (paper)"], "share_of_tokens")[0] == pytest.approx(0.8)
    assert "no run of DAPO at 25%, ARRoL at 25%, any method at 50%." in text


def test_table_7_is_the_keep_rate_of_arrol_with_what_it_pruned(tmp_path):
    """Pruned at 0.5: 38 of 50 in each step; at 0.25: 14 of 20 in one and 54 of 60 in the other."""
    entries = {
        0.5: [{"duet/scored_rollouts": 50.0, "duet/pruned_rollouts": 38.0}] * 2,
        0.25: [
            {"duet/scored_rollouts": 20.0, "duet/pruned_rollouts": 14.0},
            {"duet/scored_rollouts": 60.0, "duet/pruned_rollouts": 54.0},
        ],
    }
    runs = [record()]
    for keep, (first, second) in entries.items():
        log = log_of(8.0, 100.0, (0.1, 0.2, keep), **{"completions/mean_length": 630.0})
        log[1] |= first
        log[3] |= second
        runs.append(record("arrol", cell=f"k{keep}", settings={"method_kwargs": {"keep_rate": keep}}, log=log))
    write_tables(store(tmp_path / "runs", *runs), tmp_path)
    lines = table(tmp_path, "table7")
    assert [row for _, row in lines] == ["0.25", "0.5 (default)"]
    assert [figure(line, "pruned_share")[0] for line in lines.values()] == pytest.approx([68 / 80, 0.76])
    assert {figure(line, "mean_length")[0] for line in lines.values()} == {630.0}


def test_what_no_run_covers_is_said(tmp_path):
    text = write_tables(store(tmp_path / "runs", record(), record(seed=1, status="failed", error="killed")), tmp_path)
    assert "tiny: no run of DAPO at 100%, ARRoL at 100%, VIP at 100%, DUET (paper) or DUET at 50%" in text
    for number, reason in (
        (2, "no run of paper or duet has one of allocate, trim and abort off"),
        (3, "no two runs differ in keep_probability alone; the values there are: none"),
        (5, "no two runs differ in surrogate_warmup alone; the values there are: none"),
        (6, "no run has a budget below 1"),
        (7, "no two runs differ in keep_rate alone; the values there are: none"),
    ):
        assert f"* Table {number} is not covered: {reason}." in text
    assert "* Left out: grid/grpo_1, seed 1: failed (killed)." in text
    assert not (tmp_path / "table2.md").exists()


def test_models_have_sections_and_cells_of_other_settings_are_named(tmp_path):
    runs = [record(), duet(), record(model="small", cell="small"), duet(cell="beta", settings={"beta": 0.001})]
    write_tables(store(tmp_path / "runs", *runs), tmp_path)
    assert set(table(tmp_path, "table1")) == {
        ("small", "Baseline"),
        ("small", "+GRPO"),
        ("tiny", "Baseline"),
        ("tiny", "+GRPO"),
        ("tiny", "+DUET (paper) (50% budget)"),
        ("tiny", "+DUET (paper) (50% budget, beta=0.001)"),
    }


def test_two_tasks_of_a_model_are_two_sections(tmp_path):
    code = record(cell="code", settings={"dataset_name": "mbpp"}, accuracies=(0.0, 0.1, 0.9))
    write_tables(store(tmp_path / "runs", record(settings={"dataset_name": "math"}), code), tmp_path)
    lines = table(tmp_path, "table1")
    assert figure(lines["tiny, mbpp", "+GRPO"], "math500")[0] == 0.9
    assert figure(lines["tiny, math", "+GRPO"], "math500")[0] == 0.3


def test_a_cell_of_two_grids_counts_once(tmp_path):
    """The lines of two tables can mean the same run: its second copy is no second seed."""
    again = record(grid="other", cell="same", accuracies=(0.1, 0.2, 0.9))
    text = write_tables(store(tmp_path / "runs", record(), again), tmp_path)
    assert table(tmp_path, "table1")["tiny", "+GRPO"]["seeds"] == "1"
    assert figure(table(tmp_path, "table1")["tiny", "+GRPO"], "math500")[0] == 0.3
    assert "* other/same, seed 0 repeats grid/grpo_1, seed 0 and is not counted." in text


def test_where_a_run_was_made_does_not_tell_arms_apart(tmp_path):
    """Another number of processes, another micro-batch: the same arm, whose seeds are averaged."""
    batches = (
        {"generation_batch_size": 64, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 8},
        {"generation_batch_size": 64, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    )
    runs = [record(seed=s, settings=b | {"output_dir": f"{s}"}) for s, b in enumerate(batches)]
    write_tables(store(tmp_path / "runs", *runs), tmp_path)
    assert table(tmp_path, "table1")["tiny", "+GRPO"]["seeds"] == "2"
    # but half the prompts of a step are another arm
    other = record(seed=1, cell="fewer", settings={"generation_batch_size": 32})
    write_tables(store(tmp_path / "runs", *runs, other), tmp_path)
    assert ("tiny", "+GRPO (num_prompts=4)") in table(tmp_path, "table1")


def test_a_suite_that_a_run_lacks_is_a_dash_and_a_note(tmp_path):
    more = [{"step": step, "held_out/gsm8k/mean@4": 0.6} for step in (0, 2)]
    first = record()
    runs = [replace(first, log=first.log + more), record(seed=1), duet()]
    text = write_tables(store(tmp_path / "runs", *runs), tmp_path)
    lines = table(tmp_path, "table1")
    assert lines["tiny", "+DUET (paper) (50% budget)"]["gsm8k"] == ""
    assert lines["tiny", "+GRPO"]["gsm8k_seeds"] == "1"
    assert "Not measured by every run of +GRPO (tiny): GSM8K." in text
    assert text.index("MATH-500 | GSM8K") > 0


def test_another_reference_and_fewer_formats(tmp_path):
    runs = store(tmp_path / "runs", record("dapo", seconds=12.0), record(seconds=8.0))
    assert main(["tables", str(runs), "--formats", "csv", "--reference", "dapo", "--output_dir", str(tmp_path)]) == 0
    assert figure(table(tmp_path, "table1")["tiny", "+GRPO"], "speed_up")[0] == pytest.approx(1.5)
    assert not list(tmp_path.glob("*.md")) + list(tmp_path.glob("*.tex"))


def test_the_command_writes_every_format_and_prints_what_it_wrote(tmp_path, capsys):
    runs = store(tmp_path / "runs", *THREE_SEEDS, duet(cell="e", settings={"keep_probability": 0.2}))
    assert main(["tables", str(runs)]) == 0
    out = capsys.readouterr().out
    folder = runs / "tables"
    assert out.rstrip().endswith(f"written to {folder}")
    for path in folder.glob("*.md"):
        assert path.read_text() in out
    names = {path.stem for path in folder.iterdir()}
    assert {"table1", "table1_differences", "table3", "table4", "table4_others", "table6"} <= names
    for name in names:
        check_latex((folder / f"{name}.tex").read_text().replace(rf"\label{{tab:{name}}}", ""))
    assert main(["tables", str(runs)]) == 0  # its own output is no run


def test_markdown_and_csv_show_the_same_figures(tmp_path):
    write_tables(store(tmp_path / "runs", *THREE_SEEDS), tmp_path)
    rows = [line.split(" | ") for line in (tmp_path / "table1.md").read_text().splitlines() if line.startswith("| ")]
    shown = {cells[0].strip("| "): cells[2] for cells in rows}
    for (_, row), line in table(tmp_path, "table1").items():
        mean, low, _ = figure(line, "math500")
        assert shown[row].replace("**", "").replace("<u>", "").replace("</u>", "") == (
            f"{100 * mean:.1f} ± {100 * (mean - low):.1f}"
        )


def test_runs_that_cannot_be_reported_on_are_refused(tmp_path, capsys):
    with pytest.raises(UnreadableRuns, match=r"no run has the reference method 'grpo'. Choose from \['paper'\]"):
        write_tables(store(tmp_path / "a", duet()), tmp_path)
    bare = [{"step": 1, "step_time": 1.0}]
    with pytest.raises(UnreadableRuns, match="no run measured a suite"):
        write_tables(store(tmp_path / "b", record(log=bare)), tmp_path)
    eight = record(seed=1, log=[{"step": 2, "held_out/math500/mean@8": 0.5}])
    with pytest.raises(UnreadableRuns, match=r"mean@4 \(grid/grpo_1, seed 0\), mean@8 \(grid/grpo_1, seed 1\)"):
        write_tables(store(tmp_path / "c", record(), eight), tmp_path)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "run.json").write_text(json.dumps({"version": 7}))
    assert main(["tables", str(tmp_path / "d")]) == 1
    assert "has layout 7" in capsys.readouterr().err
    assert not (tmp_path / "d" / "tables").exists()
    with pytest.raises(SystemExit) as stopped:
        main(["tables", str(tmp_path / "a"), "--formats", "md,html"])
    assert stopped.value.code == 2
