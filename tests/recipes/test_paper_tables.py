# SPDX-License-Identifier: Apache-2.0
"""The paper's tables from records of runs that are small enough to do by hand."""

import csv
import json
import re
from dataclasses import replace

import pytest

from tests.recipes.stored_runs import HARDWARE, SWITCHES, log_of, record, store  # isort: split

from paper.paper_tables import write_tables
from paper.runs import read
from paper_report import main
from run_file import UnreadableRuns

WARM = {"method_kwargs": {"surrogate_warmup": 1}}
HALF = ("tiny", "+DUET (paper) (50% budget)")


def duet(budget=0.5, seed=0, method="paper", settings=None, **changes):
    own = SWITCHES | {"budget_fraction": budget} | WARM | (settings or {})
    return record(method, budget, seed, settings=own, **changes)


def written(folder, *records, checkpoint="final", reference="grpo"):
    """Store records and write their tables beside them; the text."""
    return write_tables(read(store(folder / "runs", *records), checkpoint, reference), folder)


def table(folder, name):
    """Lines of the CSV of a table by section and row."""
    with (folder / f"{name}.csv").open() as file:
        return {(line["section"], line["row"]): line for line in csv.DictReader(file)}


def figure(line, key):
    """Mean, lower and upper end, None where there are none."""
    return tuple(float(text) if (text := line.get(key + end)) else None for end in ("", "_low", "_high"))


THREE_SEEDS = [
    # finals: GRPO 0.30, 0.34, 0.32; DUET 0.36, 0.37, 0.41
    *(record(seed=s, accuracies=(0.10 + 0.01 * s, 0.5, 0.30 + d)) for s, d in enumerate((0.0, 0.04, 0.02))),
    *(
        duet(seed=s, accuracies=(0.10 + 0.01 * s, 0.2, a), seconds=t, tokens=n)
        for s, (a, t, n) in enumerate(((0.36, 4.0, 40.0), (0.37, 5.0, 50.0), (0.41, 2.0, 45.0)))
    ),
]


def test_means_intervals_speed_ups_and_tokens_of_three_seeds(tmp_path):
    text = written(tmp_path, *THREE_SEEDS)
    lines = table(tmp_path, "table1")
    grpo, half = lines["tiny", "+GRPO"], lines[HALF]
    # mean 0.32, sd 0.02, standard error 0.02 / sqrt(3); t of two degrees of freedom: 4.303
    assert figure(grpo, "math500") == pytest.approx((0.32, 0.32 - 4.303 * 0.02 / 3**0.5, 0.32 + 4.303 * 0.02 / 3**0.5))
    # 0.36, 0.37, 0.41: mean 0.38, sd sqrt((4 + 1 + 9) / 2) / 100 = 0.0264575
    reach = 4.303 * 0.0264575 / 3**0.5
    assert figure(half, "math500") == pytest.approx((0.38, 0.38 - reach, 0.38 + reach), rel=1e-5)
    # 16 s of GRPO over 8, 10 and 4 s: 2, 1.6 and 4; mean 2.5333, sd sqrt((0.5333^2 + 0.9333^2 + 1.4667^2) / 2)
    reach = 4.303 * 1.2858201 / 3**0.5
    assert figure(half, "speed_up") == pytest.approx((2.533333, 2.533333 - reach, 2.533333 + reach), rel=1e-5)
    # two steps of 40, 50 and 45 tokens against 200
    assert float(half["tokens"]) == 90.0
    assert figure(half, "share_of_tokens")[0] == pytest.approx(0.45)
    assert (grpo["budget"], half["budget"], grpo["seeds"], half["seeds"]) == ("1.0", "0.5", "3", "3")
    # step 0 of both runs of a seed: 0.10, 0.11, 0.12; t-interval of three values 0.01 apart
    reach = 4.303 * 0.01 / 3**0.5
    assert figure(lines["tiny", "Baseline"], "math500") == pytest.approx((0.11, 0.11 - reach, 0.11 + reach))
    # 4.303 x 0.02 / sqrt(3) = 0.0497; 0.0657; 3.194; 200 tokens; the interval of 40%, 50%, 45% is 4.303 x 5 / sqrt(3)
    assert "| +GRPO | 100% | 32.0 ± 5.0 | 1.00× | 200 ± 0 | 100% | 3 |" in text
    assert "| +DUET (paper) (50% budget) | 50% | 38.0 ± 6.6 | 2.53× ± 3.19 | 90 ± 25 | 45% ± 12 | 3 |" in text
    assert "| Baseline | – | 11.0 ± 2.5 | – | – | – | 3 |" in text
    # 0.06, 0.03 and 0.09 by seed: mean 0.06, sd 0.03. Unpaired the interval would be another one.
    (line,) = table(tmp_path, "table1_differences").values()
    reach = 4.303 * 0.03 / 3**0.5
    assert figure(line, "math500") == pytest.approx((0.06, 0.06 - reach, 0.06 + reach))
    assert line["seeds"] == "3" and f"| +6.0 ± {100 * reach:.1f} | 3 |" in text


def test_the_best_checkpoint_is_chosen_only_where_it_is_asked_for_and_never_is_step_0(tmp_path):
    text = written(tmp_path, *THREE_SEEDS, record("dapo", accuracies=(0.9, 0.4, 0.3)), checkpoint="best")
    assert figure(table(tmp_path, "table1")["tiny", "+GRPO"], "math500") == pytest.approx((0.5, 0.5, 0.5))
    assert figure(table(tmp_path, "table1")["tiny", "+DAPO"], "math500") == (0.4, None, None)
    assert "best checkpoint of each suite, which selects on the test set" in text
    assert "at the last step" in written(tmp_path, *THREE_SEEDS)


@pytest.mark.parametrize(
    "changes",
    [
        {"hardware": HARDWARE | {"gpu": "A100"}},
        {"engine": "transformers"},
        {"max_steps": 3},
        {"seed": 5},
        {"log": [{"step": 2, "held_out/math500/mean@4": 0.5}]},
    ],
)
def test_a_speed_up_across_machines_engines_lengths_or_seeds_is_missing_and_no_zero(tmp_path, changes):
    text = written(tmp_path, record(), duet(**changes))
    (line,) = [line for (_, row), line in table(tmp_path, "table1").items() if "DUET" in row]
    assert line["speed_up"] == "" and line["speed_up_seeds"] == "0"
    row = next(line for line in text.splitlines() if line.startswith("| +DUET"))
    assert row.split(" | ")[3] == "–"


def test_a_cell_of_fewer_seeds_than_its_row_says_so(tmp_path):
    """The seeds that can be paired, and the runs that measured a suite."""
    first = record()
    more = [{"step": step, "held_out/gsm8k/mean@4": 0.6} for step in (0, 2)]
    other = duet(seed=1, seconds=1.0, hardware={"gpu": "A100"})
    text = written(tmp_path, replace(first, log=first.log + more), record(seed=1), duet(seconds=4.0), other)
    lines = table(tmp_path, "table1")
    assert figure(lines[HALF], "speed_up") == (2.0, None, None)
    assert lines[HALF]["gsm8k"] == "" and lines["tiny", "+GRPO"]["gsm8k_seeds"] == "1"
    assert "| 30.0 ± 0.0 | 60.0 (n=1) |" in text and "2.00× (n=1)" in text and "| – |" in text
    assert text.index("MATH-500 | GSM8K") > 0


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
    written(tmp_path, *runs, record())
    lines = table(tmp_path, "table2")
    section, quarter = "tiny, DUET (paper), 50% budget", "tiny, DUET (paper), 25% budget"
    rows = ["Baseline", "+GRPO", "+ allocation only", "+ gate only", "+ both"]
    assert [row for title, row in lines if title == section] == rows
    assert figure(lines[section, "+ allocation only"], "math500")[0] == 0.4
    assert figure(lines[section, "+ gate only"], "speed_up")[0] == pytest.approx(2.0)
    assert figure(lines[quarter, "+ both"], "speed_up")[0] == pytest.approx(3.0)
    # ablations are no rows of Table 1
    assert {row for _, row in table(tmp_path, "table1")} == {"Baseline", "+GRPO", HALF[1]}


def test_tables_3_and_5_are_sweeps_of_one_setting(tmp_path):
    eps = [duet(cell=f"e{p}", settings={"keep_probability": p}, seconds=8 * p * 10) for p in (0.01, 0.05, 0.2)]
    late = {"keep_probability": 0.01, "method_kwargs": {"surrogate_warmup": 2}}
    written(tmp_path, record(), *eps, duet(cell="k2", settings=late, seconds=120.0))
    third, fifth = table(tmp_path, "table3"), table(tmp_path, "table5")
    assert [row for _, row in third] == ["0.01", "0.05 (default)", "0.2"]
    # 16 s of full-budget GRPO over 1.6, 8 and 32 s
    assert [figure(line, "speed_up")[0] for line in third.values()] == pytest.approx([10.0, 2.0, 0.5])
    section = "tiny, DUET (paper), 50% budget, keep_probability=0.01"
    assert list(fifth) == [(section, row) for row in ("1 (default)", "2")]
    # 2 x 0.8 s and 2 x 120 s
    assert [figure(line, "minutes")[0] for line in fifth.values()] == pytest.approx([1.6 / 60, 4.0])
    # of the sweep Table 1 takes the paper's value
    assert figure(table(tmp_path, "table1")[HALF], "speed_up")[0] == pytest.approx(2.0)


def test_table_6_compares_at_the_same_budget(tmp_path):
    runs = [record(seconds=8.0), record("grpo", 0.25, num_generations=2, seconds=3.0, tokens=25.0)]
    runs += [duet(0.25, seconds=1.5, tokens=20.0), record("vip", 0.25, num_generations=2, seconds=4.0)]
    written(tmp_path, *runs)
    lines, section = table(tmp_path, "table6"), "tiny, 25% budget"
    assert list(lines) == [(section, row) for row in ("Baseline", "+GRPO", "+VIP", "+DUET (paper)")]
    assert figure(lines[section, "+DUET (paper)"], "speed_up")[0] == pytest.approx(2.0)
    assert figure(lines[section, "+VIP"], "speed_up")[0] == pytest.approx(0.75)
    assert figure(lines[section, "+DUET (paper)"], "share_of_tokens")[0] == pytest.approx(0.8)


def test_table_7_is_the_keep_rate_of_arrol_with_what_it_pruned(tmp_path):
    """Pruned at 0.5: 38 of 50 in each step; at 0.25: 14 of 20 in one and 54 of 60 in the other."""
    runs = [record()]
    for keep, counts in ((0.5, ((50.0, 38.0), (50.0, 38.0))), (0.25, ((20.0, 14.0), (60.0, 54.0)))):
        log = log_of(8.0, 100.0, (0.1, 0.2, keep), **{"completions/mean_length": 630.0})
        for entry, (scored, pruned) in zip((log[1], log[3]), counts, strict=True):
            entry |= {"duet/scored_rollouts": scored, "duet/pruned_rollouts": pruned}
        runs.append(record("arrol", cell=f"k{keep}", settings={"method_kwargs": {"keep_rate": keep}}, log=log))
    written(tmp_path, *runs)
    lines = table(tmp_path, "table7")
    assert [row for _, row in lines] == ["0.25", "0.5 (default)"]
    assert [figure(line, "pruned")[0] for line in lines.values()] == pytest.approx([68 / 80, 0.76])
    assert {figure(line, "length")[0] for line in lines.values()} == {630.0}


def test_what_no_run_covers_is_said(tmp_path):
    text = written(tmp_path, record(), record(seed=1, status="running"))
    for number, reason in (
        (2, "no run of paper or duet has one of allocate, trim and abort off"),
        (3, "no two runs differ in keep_probability alone; the values there are: none"),
        (5, "no two runs differ in surrogate_warmup alone; the values there are: none"),
        (6, "no run has a budget below 1"),
        (7, "no two runs differ in keep_rate alone; the values there are: none"),
    ):
        assert f"* Table {number} is not covered: {reason}." in text
    assert "* grid/grpo_1, seed 1 is left out: it is not done." in text
    assert not (tmp_path / "table2.md").exists()
    bare = written(tmp_path / "bare", record(log=[{"step": 2, "step_time": 1.0}]))
    assert "No accuracy was measured: set eval_suites." in bare and "| +GRPO | 100% | 1.00× | – | – | 1 |" in bare


def test_models_tasks_and_other_settings_have_sections_and_rows_of_their_own(tmp_path):
    runs = [record(), duet(), duet(cell="beta", settings={"beta": 0.001})]
    runs += [record(model="small", cell=t, settings={"dataset_name": t}) for t in ("math", "mbpp")]
    written(tmp_path, *runs)
    rows = [("small, math", "+GRPO"), ("small, mbpp", "+GRPO"), ("tiny", "+GRPO")]
    rows += [("tiny", f"{HALF[1]} [{cell}]") for cell in ("beta", "paper_0.5")]
    assert {key for key in table(tmp_path, "table1") if key[1] != "Baseline"} == set(rows)


@pytest.mark.parametrize(
    ("log", "settings", "seconds", "tokens"),
    [
        (log_of(8.0, 100.0, (0.1, 0.2, 0.3), every=10), {}, 160.0, 2000.0),
        # A measurement at step 7 makes the trainer log there: 7 x 1 s, then 3 x 5 s.
        ([{"step": 7, "step_time": 1.0}, {"step": 10, "step_time": 5.0}], {}, 22.0, None),
        # Two optimizer steps per generation step, logged every three steps: (100 + 200) / 2 for two generation steps,
        # those of steps 1 and 3, then 400 for that of step 5.
        (
            [{"step": s, "step_time": 1.0, "duet/generated_tokens": t} for s, t in ((3, 150.0), (6, 400.0))],
            {"gradient_accumulation_steps": 4, "steps_per_generation": 8},
            6.0,
            700.0,
        ),
    ],
)
def test_an_entry_of_the_log_counts_for_all_steps_since_the_one_before(tmp_path, log, settings, seconds, tokens):
    runs = read(store(tmp_path, record(log=log, settings=settings))).runs
    assert runs.seconds.tolist() == [seconds]
    assert runs.tokens.tolist() == [tokens] if tokens else runs.tokens.isna().all()


def test_the_later_of_two_measurements_of_a_step_holds(tmp_path):
    again = record()
    again.log.append({"step": 2, "held_out/math500/mean@4": 0.7})
    assert read(store(tmp_path, again)).runs["accuracy/math500"].tolist() == [0.7]


def test_the_command_writes_every_format_and_prints_what_it_wrote(tmp_path, capsys):
    runs = store(tmp_path / "runs", *THREE_SEEDS, duet(cell="e", settings={"keep_probability": 0.2}))
    assert main([str(runs), "--only", "tables"]) == 0
    out = capsys.readouterr().out
    folder = runs / "tables"
    assert out.rstrip().endswith(f"written to {folder}") and all(p.read_text() in out for p in folder.glob("*.md"))
    names = {"table1", "table1_differences", "table3", "table6"}
    assert {path.name for path in folder.iterdir()} == {n + end for n in names for end in (".md", ".csv")}
    assert main([str(runs), "--only", "tables"]) == 0  # its own output is no run


def test_runs_that_cannot_be_reported_on_are_refused_with_their_folder_and_a_remedy(tmp_path):
    with pytest.raises(
        UnreadableRuns, match=r"no run of '.*a' has the reference method 'grpo'. Choose from \['paper'\]"
    ):
        read(store(tmp_path / "a", duet()))
    eight = record(seed=1, log=[{"step": 2, "held_out/math500/mean@8": 0.5}])
    found = r"'.*b' were measured differently: mean@4 \(grid/grpo_1, seed 0\), mean@8 \(grid/grpo_1, seed 1\)"
    with pytest.raises(UnreadableRuns, match=found + ". Report on them apart"):
        read(store(tmp_path / "b", record(), eight))
    with pytest.raises(
        UnreadableRuns, match="'.*c' is done: grid/grpo_1, seed 0 is left out: it is not done. Run exp"
    ):
        read(store(tmp_path / "c", record(status="running")))
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "run.json").write_text(json.dumps({"version": 7}))
    with pytest.raises(SystemExit, match=re.escape(str(tmp_path / "d" / "run.json")) + " has layout 7"):
        main([str(tmp_path / "d")])
    assert not (tmp_path / "d" / "tables").exists()
