# SPDX-License-Identifier: Apache-2.0
"""What finished cells are made to say: the arithmetic of the miniature benchmark's tables and targets."""

import json
import math

import numpy as np
import pytest

from benchmarks.miniature.comparison import (
    accuracy,
    at_cost,
    between_budgets,
    compare,
    curve,
    interval,
    resolvable,
    spent,
)
from benchmarks.miniature.report import DIAGNOSTICS, targets, write_report


def record(arm: str, seed: int, right: list[int], tokens: float, seconds: float, samples: int = 4) -> dict:
    """A cell of two steps that starts with nothing right and ends with these numbers of right samples."""
    points = [
        {"step": step, "train_seconds": seconds * step / 2, "processor_seconds": seconds * step, "right_first": values}
        for step, values in ((0, [0] * len(right)), (2, right))
    ]
    for point in points:
        point["right_last"] = point["right_first"]
        point["mean_length"] = 90.0
    return {
        "arm": arm,
        "seed": seed,
        "reward": "first",
        "size": {"samples": samples, "held_out": len(right)},
        "evaluations": points,
        "curves": {
            "generated_tokens": [tokens / 2] * 2,
            "trained_tokens": [tokens / 4] * 2,
            **{name: [0.01, 0.03] for name in DIAGNOSTICS},
        },
        "finished": 0.0,
    }


def cells(arm: str, right: list[int], tokens: float, seconds: float, count: int = 3) -> dict[int, dict]:
    """Cells of an arm that all come out alike."""
    return {seed: record(arm, seed, right, tokens, seconds) for seed in range(count)}


def test_accuracy_is_the_share_of_right_samples_of_each_problem():
    assert accuracy(record("duet_50", 0, [4, 1, 0], 10, 1)).tolist() == [1.0, 0.25, 0.0]


def test_an_interval_holds_the_seeds_as_well_as_the_problems():
    rng = np.random.default_rng(0)
    seeds, problems = rng.normal(0, 0.1, (40, 1)), rng.normal(0, 0.3, (1, 400))
    low, high = interval(seeds + problems)
    # Two independent means: sd^2 = sd_seeds^2 / 40 + sd_problems^2 / 400, and 1.96 of it either side.
    expected = 2 * 1.96 * math.sqrt(seeds.var() / 40 + problems.var() / 400)
    assert high - low == pytest.approx(expected, rel=0.08)
    assert low < (seeds + problems).mean() < high


def test_what_a_number_of_seeds_can_resolve():
    assert resolvable(np.array([0.0, 0.02, 0.04, 0.06])) == pytest.approx(2.8 * 0.0258199 / 2, rel=1e-5)
    assert resolvable(np.array([0.1])) is None


def test_a_target_is_met_only_if_the_seeds_agree():
    grpo = cells("grpo_100", [2] * 50, 1000, 30)
    duet = {seed: record("duet_50", seed, [right] * 50, 400, 12) for seed, right in enumerate((2, 2, 4))}
    # at equal tokens 0.5, 0.5, 1 against 0.2: +0.467 in the mean, but t: 0.467 - 4.303 * 0.2887 / sqrt(3) = -0.250
    assert targets({"grpo_100": grpo, "duet_50": duet}) == [
        "duet_50: lower end of the difference -0.551, wanted at least -0.01",
        "duet_50 - grpo_100 at equal tokens: lower end -0.250, wanted above 0",
    ]


def test_a_curve_pairs_accuracy_with_what_was_spent_by_then():
    run = record("grpo_100", 0, [4, 0], 1000, 8)
    assert curve(run).tolist() == [[0.0, 0.0], [1.0, 0.0]]
    assert spent(run, "generated_tokens").tolist() == [0.0, 1000.0]
    assert spent(run, "trained_tokens").tolist() == [0.0, 500.0]
    assert spent(run, "processor_seconds").tolist() == [0.0, 16.0]


def test_accuracy_at_equal_cost_is_interpolated_and_never_credited_beyond_the_end():
    run = record("grpo_100", 0, [4, 0], 1000, 8)
    assert [at_cost(run, tokens).tolist() for tokens in (0, 250, 1000, 5000)] == [[0, 0], [0.25, 0], [1, 0], [1, 0]]
    assert at_cost(run, 4.0, "processor_seconds").tolist() == [0.25, 0.0]


def test_arms_are_compared_seed_by_seed_at_equal_steps_and_at_the_cost_of_the_cheaper():
    duet = {seed: record("duet_50", seed, [2, 2], 400, 10) for seed in (0, 1, 7)}
    grpo = {seed: record("grpo_100", seed, [3, 2 + seed], 1000, 30) for seed in (0, 1)}
    found = compare(duet, grpo)
    assert found["seeds"] == 2
    # grpo: (3 + 2) / 8 and (3 + 3) / 8; duet: 4 / 8
    assert found["steps"]["difference"] == pytest.approx((0.5 - 0.625 + 0.5 - 0.75) / 2)
    assert found["steps"]["resolvable"] == pytest.approx(2.8 * np.std([-0.125, -0.25], ddof=1) / math.sqrt(2))
    # at 400 of its 1,000 tokens GRPO has come 40% of the way, at 20 of its 60 processor seconds a third
    assert found["generated_tokens"]["difference"] == pytest.approx((0.5 - 0.25 + 0.5 - 0.3) / 2)
    assert found["processor_seconds"]["difference"] == pytest.approx((0.5 - 0.625 / 3 + 0.5 - 0.75 / 3) / 2)
    assert (found["speed"], found["processor_speed"], found["share"]) == pytest.approx((3.0, 3.0, 0.4))


def test_at_equal_cost_the_interval_holds_the_problems_too():
    rng = np.random.default_rng(0)
    right = rng.integers(0, 5, (2, 60)).tolist()
    duet, grpo = ({seed: record(arm, seed, r, 400, 10) for seed in (0, 1)} for arm, r in zip("ab", right, strict=True))
    found = compare(duet, grpo)["generated_tokens"]
    differences = (np.array(right[0]) - np.array(right[1])) / 4
    assert found["resolvable"] == 0.0  # all seeds came out alike
    expected = 2 * 1.96 * differences.std() / math.sqrt(60)
    assert found["high"] - found["low"] == pytest.approx(expected, rel=0.1)


def test_between_budgets_differences_are_linear_in_the_seconds():
    points = [(1.0, 0.02), (4.0, -0.04), (2.0, 0.0)]  # seconds 1, 1/4, 1/2 of the other arm's
    found = between_budgets(points, speed=8 / 3, difference=-0.03)
    assert found == {"difference": pytest.approx(-0.02), "speed": pytest.approx(1 / 0.3125)}
    assert between_budgets(points, speed=5.0, difference=0.03) == {"difference": None, "speed": None}
    falling = between_budgets([(1.0, -0.01), (2.0, 0.01)], speed=4 / 3, difference=0.0)
    assert falling == {"difference": pytest.approx(0.0), "speed": None}


def test_targets_that_are_missed_are_named():
    grpo = cells("grpo_100", [2] * 50, 1000, 30)
    assert targets({"grpo_100": grpo, "duet_50": cells("duet_50", [2] * 50, 400, 12)}) == []
    assert targets({"grpo_100": grpo, "duet_50": cells("duet_50", [1] * 50, 800, 20)}) == [
        "duet_50: lower end of the difference -0.250, wanted at least -0.01",
        "duet_50: 1.50x as fast, wanted 2.5x",
        "duet_50: 80% of the tokens, wanted at most 40%",
        "duet_50 - grpo_100 at equal tokens: lower end -0.150, wanted above 0",
    ]


def test_the_lead_over_grpo_is_to_grow_as_the_budget_shrinks():
    grpo = {f"grpo_{b}": cells(f"grpo_{b}", [2] * 50, 10 * b, 30) for b in (100, 50, 25)}
    ahead = {100: 2, 50: 3, 25: 4}
    duet = {f"duet_{b}": cells(f"duet_{b}", [right] * 50, 4 * b, 8) for b, right in ahead.items()}
    assert targets(grpo | duet) == []
    duet["duet_25"] = duet["duet_50"]
    assert targets(grpo | duet) == [
        "lead over GRPO at equal budget: +0.000 at 100%, +0.250 at 50%, +0.250 at 25%, wanted growing as the budget "
        "shrinks"
    ]


def test_arms_are_compared_with_grpo_of_their_reward_and_duet_with_the_trim_at_its_budget(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    names = ("grpo_100", "grpo_50", "grpo_25", "trim_50", "duet_50", "grpo_100_last", "duet_50_last")
    records = [
        r for name in names for r in cells(name, [1 + (name == "grpo_100_last"), 2], 1000, 30, count=2).values()
    ]
    for r in records:
        r["reward"] = "last" if r["arm"].endswith("_last") else "first"
    write_report(records, "_test")
    found = json.loads((tmp_path / "outputs/bench/miniature_test.json").read_text())["comparisons"]
    assert {(c["first"], c["second"]) for c in found} == {
        ("grpo_50", "grpo_100"),
        ("grpo_25", "grpo_100"),
        ("trim_50", "grpo_100"),
        ("trim_50", "grpo_50"),
        ("duet_50", "grpo_100"),
        ("duet_50", "grpo_50"),
        ("duet_50", "grpo_25"),
        ("duet_50", "trim_50"),
        ("duet_50_last", "grpo_100_last"),
    }
    assert found[-1]["steps"]["difference"] == pytest.approx(-0.125)


def test_the_report_has_every_arm_its_comparisons_and_a_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    records = [*cells("grpo_100", [2, 2], 1000, 30).values(), *cells("duet_50", [2, 2], 400, 12).values()]
    assert write_report(records, "_test", markdown=True) == []
    found = json.loads((tmp_path / "outputs/bench/miniature_test.json").read_text())
    assert found["arms"]["grpo_100"]["accuracy"] == 0.5
    assert found["arms"]["grpo_100"]["diagnostics"]["abort_rate"] == pytest.approx(0.02)
    assert [run["generated_tokens"] for run in found["arms"]["duet_50"]["runs"]] == [400, 400, 400]
    assert found["arms"]["grpo_100"]["curve"]["accuracy"] == [0.0, 0.5]
    assert [(c["first"], c["second"]) for c in found["comparisons"]] == [("duet_50", "grpo_100")]
    assert (tmp_path / "outputs/bench/miniature_test.png").stat().st_size > 1000
    printed = capsys.readouterr().out
    assert "| duet_50 | 3 | 0.500 [" in printed
    assert "2.50x" in printed
