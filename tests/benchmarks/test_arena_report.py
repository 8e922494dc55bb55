# SPDX-License-Identifier: Apache-2.0
"""The arena's tables, figures and result file, and that documents quote what the records say."""

import json
from pathlib import Path

import pytest

from benchmarks.arena.estimates import Estimate
from benchmarks.arena.quantities import DIFFERENCE, SHARE, TOKENS, Quantity, rate_text
from benchmarks.arena.quotes import rewritten
from benchmarks.arena.records import COMMITTED, Run, read
from benchmarks.arena.report import check_documents, write_documents, write_report
from benchmarks.arena.report_tables import findings_of, tables
from tests.benchmarks.arena_records import run, start, tuning_run

VALUES = {"value sums target": "0.590", "leaderboard sums": "| a |\n| --- |\n| 1 |"}


def line(end: float):
    """Accuracy from 0.4 at the start to this at step 80, and on at the same rate."""
    return lambda step: 0.4 + (end - 0.4) * step / 80


def records(seeds: int = 2, duet: float = 0.6) -> list[Run]:
    """Two tasks; the second is not complete."""
    runs = [start("sums", 0.4, careful=0.1), start("products", 0.4)]
    for seed in range(seeds):
        shift = 0.02 * (seed - (seeds - 1) / 2)
        runs.append(run("grpo_8", line(0.6 + shift), seed, careful=0.2))
        runs.append(run("duet", line(duet - shift), seed, tokens_per_step=500, seconds_per_step=1.0, careful=0.3))
        runs.append(run("pods", line(0.5), seed, tokens_per_step=800, careful=0.2))
        runs.append(run("constant_grpo", line(0.38 + shift), seed, careful=0.1))
    runs += [tuning_run("grpo_8", rate, 32, value) for rate, value in ((1.5e-4, 0.4), (3e-4, 0.5), (6e-4, 0.45))]
    return [*runs, tuning_run("grpo_8", 3e-4, 80, 0.525), run("duet", line(0.6), task="products")]


def page(root: Path, text: str, name: str = "docs/performance.md") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def rows(runs: list[Run], table: str) -> dict[str, list[str]]:
    """Rows of a table by their first cell, its headers too."""
    found = tables(findings_of(runs))[table]
    return {row[0]: list(row[1:]) for row in [found.headers, *found.rows]}


def test_how_figures_are_written():
    assert Quantity(Estimate(0.0123, 0.00097, 1), DIFFERENCE).full_text == "+0.012 [+0.000, +0.025]"
    assert Quantity(Estimate(-0.5), DIFFERENCE).full_text == "-0.500 [-]"
    assert Quantity(Estimate(0.0), SHARE, log=True).text == "100%"
    assert Quantity(Estimate(13.0, 0.0, 4), TOKENS, log=True).full_text == "442k"
    assert Quantity(None, TOKENS, bound=560_400.0).full_text == "> 560k"
    assert Quantity(None).full_text == "-"
    assert [rate_text(rate) for rate in (1.5e-4, 3e-4, 1.2e-3)] == ["1.5e-4", "3e-4", "1.2e-3"]


def test_the_leaderboard_by_hand():
    found = rows(records(seeds=1), "leaderboard sums")
    # The target is 0.59, at step 76 of both; pods ends at 0.5 after 64,000 tokens and 240 seconds. Half of grpo_8's
    # tokens are 80 steps of duet and 50 of pods: 0.4625.
    assert list(found) == ["entrant", "duet", "grpo_8", "pods"]
    assert found["grpo_8"][:7] == ["1", "3e-4", "76k [-]", "100% [-]", "228 [-]", "100% [-]", "1 of 1"]
    assert found["duet"][:7] == ["1", "2e-3", "38k [-]", "50% [-]", "114 [-]", "50% [-]", "1 of 1"]
    assert found["duet"][7:] == ["0.600 [-]", "+0.000 [-]", "-"]
    assert found["pods"][2:7] == ["> 64k", "> 84%", "> 240", "> 105%", "0 of 1"]


def test_intervals_and_resolvable_differences_in_tables():
    found = rows(records(seeds=2), "leaderboard sums")
    # duet minus grpo_8's end: 0.61 - 0.59 and 0.59 - 0.61; sd 0.02 * sqrt(2), error 0.02, t(1) = 12.706
    assert found["duet"][8:] == ["+0.000 [-0.254, +0.254]", "0.056"]


def test_ranking_and_excerpt_are_over_every_task():
    runs = [*records(), run("grpo_8", line(0.6), task="products")]
    assert rows(runs, "ranking")["pods"][0] == "1"
    # 0.6 and 0.5 at half of the tokens, minus 0.6 at the end
    assert rows(runs, "excerpt")["duet"] == ["-0.050 [-]", "50%", "100%"]
    assert rows(runs, "excerpt")["grpo_8"] == ["-0.100 [-]", "100%", "100%"]


def test_parts_have_both_costs_of_every_task():
    runs = [*records(), run("grpo_8", line(0.6), task="products"), run("grpo_4", line(0.5))]
    found = rows(runs, "parts")
    assert found.pop("entrant") == ["what it is", "sums", "products"]
    # At 0.59 after 76 steps like grpo_8, at half of its costs by step; grpo_4 ends at 0.5 after all 80.
    assert found == {
        "duet": ["four rollouts of each prompt", "50% / 50%", "100% / 100%"],
        "grpo_4": ["GRPO, four rollouts", "> 105% / > 105%", "-"],
    }


def test_tuning_start_and_controls_by_hand():
    runs = records()
    assert rows(runs, "tuning sums") == {
        "entrant": ["1.5e-4, 32 batches", "3e-4, 32 batches", "6e-4, 32 batches", "3e-4, 80 batches", "chosen"],
        "grpo_8": ["0.400", "0.500", "0.450", "0.525", "3e-4"],
    }
    before = dict(zip(rows(runs, "start")["task"], rows(runs, "start")["sums"], strict=True))
    assert (before["mean@4"], before["pass@16"], before["entropy"], before["careful"]) == (
        "0.400", "1.000", "0.300", "10.0%",
    )  # fmt: skip
    (control,) = [row for row in tables(findings_of(runs))["controls"].rows if row[1] == "constant_grpo"]
    # 0.37 and 0.39 after 80 steps, 0.4 before: -0.02, error 0.01
    assert control[4] == "-0.020 [-0.147, +0.107]"
    assert all(
        row[0] != "constant_grpo"
        for name in ("leaderboard sums", "ranking")
        for row in tables(findings_of(runs))[name].rows
    )


def test_the_report_of_partial_records(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_report(findings_of(records()), markdown=False)
    text = capsys.readouterr().out
    assert "not reported: products, whose start or whose grpo_8 has no run yet" in text
    missing = next(row for row in text.splitlines() if row.startswith("no runs yet: sums: "))
    assert "grpo_4" in missing and "duet," not in missing and "coin_grpo" not in missing
    assert "leaderboard products" not in text
    found = json.loads((tmp_path / "outputs/bench/arena.json").read_text())
    assert found["environments"] == [{"hardware": {"cores": 2}, "versions": {"python": "3.11"}}]
    duet = found["tasks"]["sums"]["entrants"]["duet"]
    assert (duet["seeds"], duet["learning_rate"]) == ([0, 1], 2e-3)
    assert duet["generated_tokens_share"]["value"] == pytest.approx(0.5)
    assert duet["accuracy"]["value"] == pytest.approx(0.6)


DOCUMENT = """# A page
<!-- a comment of others --> <!-- end -->

duet reaches it with <!-- arena: value sums duet generated_tokens_share -->?<!-- end --> of the tokens, and is at
**<!-- arena: value sums duet accuracy_50 --><!-- end -->**.

<!-- arena: tuning sums -->
<!-- end -->

The end.
"""


def test_documents_are_written_and_then_agree(tmp_path: Path):
    path = page(tmp_path, DOCUMENT)
    readme = page(tmp_path, "Nothing is quoted.\n", "README.md")
    assert write_documents(findings_of(records()), tmp_path) == ["docs/performance.md"]
    text = path.read_text()
    assert "with <!-- arena: value sums duet generated_tokens_share -->50%<!-- end --> of the tokens" in text
    assert "**<!-- arena: value sums duet accuracy_50 -->0.600<!-- end -->**." in text
    table = text.partition("<!-- arena: tuning sums -->")[2].partition("<!-- end -->")[0]
    assert table.startswith("\n\n| entrant | 1.5e-4, 32 batches |") and table.endswith("| 3e-4 |\n\n")
    assert text.startswith("# A page\n<!-- a") and text.endswith("<!-- end -->\n\nThe end.\n")
    assert readme.read_text() == "Nothing is quoted.\n"
    assert check_documents(findings_of(records()), tmp_path) == []
    assert write_documents(findings_of(records()), tmp_path) == []


def test_a_document_that_differs_is_named_with_line_quoted_and_computed(tmp_path: Path):
    path = page(tmp_path, DOCUMENT)
    write_documents(findings_of(records()), tmp_path)
    path.write_text(path.read_text().replace("-->0.600<", "-->0.601<").replace("| 0.525 |", "| 0.535 |"))
    value, row = check_documents(findings_of(records()), tmp_path)
    assert value == "docs/performance.md:5: value sums duet accuracy_50: quoted '0.601', computed '0.600'"
    assert row.startswith("docs/performance.md:11: tuning sums: quoted '| grpo_8 |")
    assert "| 0.535 |" in row.partition("computed")[0] and "| 0.525 |" in row.partition("computed")[2]


def test_other_records_are_a_difference(tmp_path: Path):
    page(tmp_path, DOCUMENT)
    write_documents(findings_of(records()), tmp_path)
    found = check_documents(findings_of(records(duet=0.61)), tmp_path)
    assert [one.partition(": ")[0] for one in found] == ["docs/performance.md:4", "docs/performance.md:5"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a <!-- arena: value sums duett share -->1<!-- end -->",
            "docs/page.md:1: no figure has the name 'value sums",
        ),
        ("\n<!-- arena: leaderboard sums -->\n", "docs/page.md:2: leaderboard sums is not ended"),
        ("a <!-- arena: value sums target --> <!-- arena: b --><!-- end -->", "1: value sums target is not ended"),
        ("a <!-- arena: value sums target -->\n<!-- note -->\n<!-- end -->", "1: value sums target is not ended"),
        (
            "1. <!--arena: value sums target --><!-- end -->",
            "value sums target must stand inside of a line",
        ),
        ("a <!-- arena: leaderboard sums --><!-- end -->", "leaderboard sums must stand on a line of its own"),
    ],
)
def test_a_block_that_cannot_be_written_is_an_error(tmp_path: Path, text: str, message: str):
    path = page(tmp_path, text, "docs/page.md")
    with pytest.raises(ValueError, match=message):
        write_documents(findings_of(records()), tmp_path)
    assert path.read_text() == text
    (found,) = check_documents(findings_of(records()), tmp_path)
    assert message in found


def test_an_unknown_name_comes_with_names_that_begin_alike():
    with pytest.raises(ValueError, match=r"There are value sums target\."):
        rewritten("a <!-- arena: value sums tarket -->1<!-- end -->", VALUES, "page")


def test_a_rate_that_tuning_did_not_choose_is_named(tmp_path: Path):
    values = {(1.5e-4, 32): 0.3, (3e-4, 32): 0.4, (6e-4, 32): 0.5, (1.2e-3, 32): 0.2, (3e-4, 80): 0.4, (6e-4, 80): 0.5}
    runs = [start("sums", 0.4), run("grpo_8", line(0.6))]
    runs += [tuning_run("grpo_8", rate, horizon, value) for (rate, horizon), value in values.items()]
    assert check_documents(findings_of(runs), tmp_path) == ["records: sums grpo_8 ran at 3e-4, but tuning chose 6e-4"]
    runs = [one for one in records() if one.entrant != "duet"] + [run("duet", line(0.6), learning_rate=3e-4)]
    assert check_documents(findings_of(runs), tmp_path) == ["records: sums duet ran at 3e-4, but its rate is 2e-3"]


def test_the_documents_quote_the_committed_records() -> None:
    assert check_documents(findings_of(read(COMMITTED)), Path(__file__).parents[2]) == []
