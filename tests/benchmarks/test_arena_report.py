# SPDX-License-Identifier: Apache-2.0
"""The arena's tables, values and checks, and that documents quote what the records say."""

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.arena import report
from benchmarks.arena.entrants import ENTRANTS, REFERENCE
from benchmarks.arena.profiles import PROFILES
from benchmarks.arena.quotes import rewritten
from benchmarks.arena.records import COMMITTED, CONFIRM, STOPPED, Measurement, Run, read
from benchmarks.arena.report import off_plan, tables, values
from benchmarks.arena.schedule import hash_of
from tests.benchmarks.arena_runs import TASK, line, run, start, tuning_run


def records() -> list[Run]:
    """Two seeds of the reference and duet_stop, one of grpo_2; one of each that confirms; a start alone."""
    runs = [start(), start("two_ways"), tuning_run(3e-5, 0.5), tuning_run(6e-5, 0.4), tuning_run(1.5e-5, 0.45)]
    costs = {"tokens": 500.0, "seconds": 1.0, "batches": (12, 24, 36, 48, 96)}
    for seed in (0, 1):
        runs += [run(seed=seed, greedy=0.6), run("duet_stop", line(0.54), seed, greedy=0.61 + 0.01 * seed, **costs)]
    runs.append(run("grpo_2", line(0.5)))
    return [*runs, *(replace(run(name, seed=200), stage=CONFIRM) for name in (REFERENCE, "duet_stop"))]


def rows(table: str) -> dict[str, dict[str, str]]:
    """Rows of a table by their first cell, cells by their headers."""
    found = tables(records())[f"{table} {TASK}" if table != "start" else table]
    return {row[0]: dict(zip(found.headers, row, strict=True)) for row in found.rows}


def test_tables_have_everyone_who_ran() -> None:
    named = ["tuning", "tokens", "seconds", "kinds", "by kind", "stopped", "free", "batch", "rollouts", "targets"]
    own = [f"{name} {TASK}" for name in (*named, *(f"confirmed {one}" for one in ("tokens", "seconds", "stopped")))]
    assert list(tables(records())) == ["start", *own]
    assert list(rows("start")) == [TASK, "two_ways"]
    for name in ("tokens", "seconds", "batch"):
        assert list(rows(name)) == [REFERENCE, "grpo_2", "duet_stop"]
    assert list(rows("stopped")) == list(rows("free")) == ["start", REFERENCE, "grpo_2", "duet_stop"]
    assert list(rows("confirmed tokens")) == list(rows("confirmed seconds")) == [REFERENCE, "duet_stop"]
    assert rows("seconds")["grpo_2"]["to its end"] == "never"
    assert list(tables([start()])) == ["start"] and tables([]) == values([]) == {}


def test_rollouts_at_both_ends_of_a_run_are_averaged_over_seeds() -> None:
    curves = {
        "frac_reward_zero_std": [0.5] * 10 + [0.6] * 5 + [0.9] * 10,
        "completions/mean_length": [30.0] * 10 + [None] * 5 + [10.0] * 10,
        "duet/trim_rate": [1.0] + [0.0] * 24,  # 1 of 10, 1 of 25
    }
    longer = {"frac_reward_zero_std": [0.3] * 20 + [0.7] * 10, "duet/trim_rate": [0.0] * 30}
    runs = [replace(run("duet", seed=seed), curves=own) for seed, own in enumerate((curves, longer))]
    found = tables([start(), run(), *runs])[f"rollouts {TASK}"]
    assert dict(zip(found.headers, found.rows[-1], strict=True)) == {
        "": "duet",
        "agree, first 10": "40%",
        "agree, last 10": "80%",
        "tokens, first 10": "30.0",
        "tokens, last 10": "10.0",
        "trimmed, first 10": "5%",
        "trimmed": "2.0%",
        "aborted": "-",
    }


def test_two_entrants_are_compared_on_the_seeds_that_both_have() -> None:
    runs = [run("duet", line(0.7), seed, seconds=1.0) for seed in (0, 1)]  # twice as fast
    runs.append(run("grpo_8", line(0.62), 0, (12, 24)))
    found = tables([start(), run(), run(seed=1), *runs])[f"pairs {TASK}"]
    (row,) = found.rows
    assert row[:2] == ["duet - grpo_8", "1"]
    costs = [f"{share} of the {word}" for word in ("tokens", "seconds") for share in ("25%", "50%", "100%")]
    assert found.headers == ["", "seeds", *costs]
    assert row[2:] == ["+0.020", "+0.040", "not measured", "+0.095", "+0.190", "not measured"]


def test_kinds_come_in_turn_and_are_compared_alone() -> None:
    def all_words(point: Measurement) -> Measurement:
        one = point.servings[STOPPED]
        right = [one.samples * (place % 5 == 3) for place in range(1000)]  # and nothing else
        return replace(point, servings=point.servings | {STOPPED: replace(one, right=right)})

    swap = run("duet")
    swap = replace(swap, measurements=list(map(all_words, swap.measurements)))
    runs = [start(), run(), swap]  # the reference has half of each kind right
    found = tables(runs)[f"kinds {TASK}"]
    assert found.headers == ["", "all", "needle", "filter", "sort", "words", "sum", "all but words"]
    assert found.rows == [[f"duet - {REFERENCE}", "-0.300", "-0.500", "-0.500", "-0.500", "+0.500", *["-0.500"] * 2]]
    quoted = values(runs)
    assert [quoted[f"value {TASK} duet {kind} by seed"] for kind in ("sort", "words")] == ["0%", "100%"]


def test_values_by_hand() -> None:
    cheap = [run("duet_stop", line(0.5), seed, tokens=500.0, seconds=1.0 + seed) for seed in (0, 1)]
    fewer = [run("grpo_4", line(0.47), seed, tokens=500.0) for seed in (0, 1)]
    found = values([start(), run(), run(seed=1), *cheap, *fewer])
    assert found[f"value {TASK} duet_stop spent seconds"] == "50%, 100%"
    assert found[f"value {TASK} duet_stop tokens 50%"] == "+0.000 [+0.000, +0.000]"
    assert found[f"value {TASK} duet_stop tokens 50% over grpo_4"] == "+0.030 [+0.030, +0.030]"
    assert found[f"value {TASK} grpo_4 tokens 50% over duet_stop"] == "-0.030 [-0.030, -0.030]"
    assert found[f"value {TASK} duet_stop free accuracy"] == "0.500"
    assert found[f"value {TASK} duet_stop free accuracy lead"] == "-0.100 [-0.100, -0.100]"
    assert found[f"value {TASK} duet_stop free ended by seed"] == "90%, 90%"


# Half of 48,000 tokens and of 96 seconds are 48 batches of duet_stop: 0.54 against 0.5 of the reference's 24. It is at
# 0.59 after 0.19 / 0.28 of all. Greedy decoding: 0.61 and 0.62 - 0.6, t(1) = 12.706, sd 0.0071.
@pytest.mark.parametrize(
    ("table", "row", "column", "text"),
    [
        ("tokens", "duet_stop", "50%", "+0.040 [+0.040, +0.040]"),
        ("seconds", "duet_stop", "50%", "+0.040 [+0.040, +0.040]"),
        ("tokens", "duet_stop", "to its end", "68%, 68%"),
        ("tokens", "duet_stop", "seeds", "2"),
        ("seconds", "grpo_2", "100%", "-0.100"),
        ("tuning", REFERENCE, "chosen", "3e-05"),
        ("stopped", "duet_stop", f"greedy minus {REFERENCE}'s", "+0.015 [-0.049, +0.079]"),
        ("free", "start", "mean", "0.200"),
        ("free", "duet_stop", f"greedy minus {REFERENCE}'s", "+0.015 [-0.049, +0.079]"),
        ("batch", REFERENCE, "generate", "0.90"),
        ("batch", REFERENCE, "rest", "0.40"),
        ("start", TASK, "tokens", "20.0"),
    ],
)
def test_tables_by_hand(table: str, row: str, column: str, text: str) -> None:
    assert rows(table)[row][column] == text


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Reported runs by a plan that was committed before they began, and the tuning that chose its rates."""
    path, runs, plan = tmp_path / "plan.json", [], {}
    for name in (REFERENCE, "duet_stop"):
        plan[name] = {"rate": 3e-5, "hash": hash_of(TASK, name, 3e-5, PROFILES["full"])}
        runs += [tuning_run(rate, value, name) for rate, value in ((1.5e-5, 0.4), (3e-5, 0.5), (6e-5, 0.4))]
        runs.append(run(name, plan=plan[name]["hash"], began="2026-01-02T00:00:00+00:00"))
    path.write_text(json.dumps({TASK: plan}))
    monkeypatch.setattr(report, "PLAN", path)
    date = "2026-01-01T22:30:00-01:00"  # 23:30 UTC
    environment = os.environ | {"GIT_COMMITTER_DATE": date, "GIT_AUTHOR_DATE": date}
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "plan"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True, env=environment)
    return runs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"learning_rate": 1e-4}, "does not follow plan.json"),
        ({"plan": "0123456789abcdef"}, "does not follow plan.json"),
        ({"entrant": "grpo_2"}, "does not follow plan.json"),
        ({"task": "two_ways", "stage": CONFIRM}, "does not follow plan.json"),
        ({"began": "2026-01-01T23:00:00+00:00"}, r"before its plan was committed \(2026-01-01T23:30:00\+00:00\)"),
    ],
    ids=str,
)
def test_a_run_off_the_plan_is_named(planned: list[Run], tmp_path: Path, change: dict, message: str | None) -> None:
    *others, last = planned
    odd = replace(last, **change)
    found = off_plan([*others, odd], tmp_path)
    assert len(found) == (message is not None)
    for one in found:
        assert one.startswith(f"records: {odd.task} {odd.entrant} seed 0 ") and re.search(message, one)


def test_settings_that_changed_since_and_rates_at_an_edge_are_named(planned, tmp_path: Path, monkeypatch) -> None:
    lowest = [one for one in planned if one.learning_rate != 1.5e-5] + [
        tuning_run(1.5e-5, 0.6, name) for name in (REFERENCE, "duet_stop")
    ]
    found = off_plan(lowest, tmp_path)
    assert len(found) == 2 and all(one.endswith("the chosen rate is at an edge of its grid") for one in found)
    monkeypatch.setitem(ENTRANTS, "duet_stop", replace(ENTRANTS["duet_stop"], budget=0.25))
    (found,) = off_plan(planned, tmp_path)
    assert f"{TASK} duet_stop seed 0 ran with other settings than" in found


DOCUMENT = f"""<!-- a comment of others --> <!-- end -->

It is at **<!-- arena: value {TASK} duet_stop stopped accuracy -->?<!-- end -->**.

<!-- arena: tuning {TASK} -->
<!-- end -->

The end.
"""


def test_documents_are_written_and_then_agree(tmp_path: Path) -> None:
    def problems(write: bool) -> list[str]:
        return [one for one in report.report(records(), tmp_path, write=write) if one.startswith("docs")]

    path = tmp_path / "docs" / "page.md"
    path.parent.mkdir()
    path.write_text(DOCUMENT)
    assert problems(write=False) != [] and path.read_text() == DOCUMENT
    assert problems(write=True) == []
    text = path.read_text()
    assert "**<!-- arena: value mixed_135m duet_stop stopped accuracy -->0.680<!-- end -->**." in text
    assert "| grpo_8_stop | 0.450 (1.00) | 0.500 (1.00) | 0.400 (1.00) | 3e-05 |\n\n<!-- end -->\n\nThe end.\n" in text
    assert (tmp_path / "docs" / "assets" / f"{TASK}.svg").stat().st_size > 10_000
    path.write_text(text.replace("-->0.680<", "-->0.681<").replace("| 0.450 (", "| 0.550 ("))
    value, row = problems(write=False)
    assert value == f"docs/page.md:3: value {TASK} duet_stop stopped accuracy: quoted '0.681', computed '0.680'"
    assert row.startswith(f"docs/page.md:9: tuning {TASK}: quoted '| grpo_8_stop | 0.550 (")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a <!-- arena: value a c -->1<!-- end -->", r"page:1: no figure has the name .* There are value a b\."),
        ("1. <!-- arena: value a b --><!-- end -->", "page:1: value a b must be inside of a line"),
        ("a <!-- arena: main a --><!-- end -->", "page:1: main a must be on a separate line"),
        ("\n<!-- arena: main a -->\n", "page:2: main a is not ended"),
        ("a <!-- arena: value a b -->\n<!-- note -->\n<!-- end -->", "page:1: value a b is not ended"),
    ],
)
def test_a_block_that_cannot_be_written_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rewritten(text, {"value a b": "0.590", "main a": "| a |\n| --- |"}, "page")


def test_the_documents_quote_the_committed_records() -> None:
    if not (runs := read(COMMITTED)):
        pytest.skip("there are no records yet")
    assert report.report(runs, Path(__file__).parents[2], write=False) == []
