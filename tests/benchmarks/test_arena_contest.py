# SPDX-License-Identifier: Apache-2.0
"""What the arena makes of the runs of a task, by hand, and whether its intervals hold what they should."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.arena.contest import MARGIN, Contest, at_horizon, contests, outcome, pass_at
from benchmarks.arena.curves import COSTS, Curve
from benchmarks.arena.estimates import Estimate, leave_one_out, mean_of, over_seeds
from benchmarks.arena.ranking import best_rivals, ranking
from duet_trl.report.intervals import t_interval
from tests.benchmarks.arena_records import measurement, run, start

TOKENS = "generated_tokens"
FINE = 2000
"""Problems that make accuracies exact to 0.00025."""


def line(end: float, slope_until: int = 80):
    """Accuracy from 0.4 at the start to this at step 80, and on at the same rate."""
    return lambda step: 0.4 + (end - 0.4) * step / slope_until


def contest(*runs) -> Contest:
    (found,) = contests([start("sums", 0.4, FINE), *runs]).values()
    return found


def test_an_estimate_over_seeds_has_the_t_interval():
    values = [0.5, 0.55, 0.52, 0.61]
    assert over_seeds(values).interval == pytest.approx(t_interval(values))
    assert over_seeds([0.5]) == Estimate(0.5)
    assert over_seeds([0.5]).interval is None is over_seeds([0.5]).resolvable


def test_leaving_one_out_of_a_mean_is_the_interval_over_seeds():
    values = {0: 0.5, 3: 0.55, 4: 0.52, 7: 0.61}
    found = leave_one_out(lambda out: np.mean([v for s, v in values.items() if s not in out]), values, 4)
    expected = over_seeds(list(values.values()))
    assert (found.value, found.error, found.degrees) == pytest.approx((expected.value, expected.error, 3))


def test_a_mean_of_independent_estimates_pools_their_errors():
    # Four equal errors: error / sqrt(4); Welch's degrees are then the sum, 4 * 4.
    found = mean_of([Estimate(value, 0.02, 4) for value in (0.1, 0.2, 0.3, 0.4)])
    assert (found.value, found.error, found.degrees) == pytest.approx((0.25, 0.01, 16))
    assert found.interval == pytest.approx((0.25 - 2.120 * 0.01, 0.25 + 2.120 * 0.01))
    # One error that dwarfs the other has nearly its own degrees alone.
    assert mean_of([Estimate(0, 1.0, 4), Estimate(0, 0.01, 14)]).degrees == pytest.approx(4, abs=0.01)
    assert mean_of([Estimate(0, 0.0, 4), Estimate(1, 0.0, 9)]).interval == (0.5, 0.5)


def test_target_and_cost_to_it_by_hand():
    grpo = [run("grpo_8", line(end), seed) for seed, end in enumerate((0.59, 0.61))]
    duet = [run("duet", line(0.6), seed, tokens_per_step=250, seconds_per_step=1.5) for seed in (0, 1)]
    found = contest(*grpo, *duet)
    assert found.target == pytest.approx(0.6 - MARGIN)
    # Both mean curves are at 0.59 at step 76.
    reached = found.reached("duet", TOKENS)
    assert math.exp(reached.cost.value) == pytest.approx(76 * 250)
    assert math.exp(reached.ratio.value) == pytest.approx(0.25)
    assert math.exp(found.reached("duet", "processor_seconds").ratio.value) == pytest.approx(0.75)
    assert math.exp(found.reached("grpo_8", "step").cost.value) == pytest.approx(76)
    assert found.reached("grpo_8", TOKENS).ratio == Estimate(0.0, 0.0, 1)


def test_a_seed_is_left_out_of_the_entrant_the_reference_and_the_target():
    # Without seed 0 the target is 0.60, at step 80 * 0.20 / 0.21 of the reference; without seed 1 it is 0.58.
    grpo = [run("grpo_8", line(end), seed, problems=FINE) for seed, end in enumerate((0.59, 0.61))]
    duet = [run("duet", line(end), seed, problems=FINE) for seed, end in enumerate((0.60, 0.64))]
    reached = contest(*grpo, *duet).reached("duet", "step")
    own = {None: 0.19 / 0.22, 0: 0.20 / 0.24, 1: 0.18 / 0.20}
    reference = {None: 0.19 / 0.20, 0: 0.20 / 0.21, 1: 0.18 / 0.19}
    costs = {seed: math.log(80 * own[seed]) for seed in own}
    ratios = {seed: math.log(own[seed] / reference[seed]) for seed in own}
    for found, logs in ((reached.cost, costs), (reached.ratio, ratios)):
        assert found.value == pytest.approx(logs[None])
        squares = (logs[0] - logs[None]) ** 2 + (logs[1] - logs[None]) ** 2
        assert found.error == pytest.approx(math.sqrt(squares / 2))


def test_what_is_not_reached_is_a_bound_and_seeds_are_counted_one_by_one():
    grpo = [run("grpo_8", line(0.6), seed) for seed in (0, 1)]
    pods = [run("pods", line(end), seed, tokens_per_step=500) for seed, end in ((0, 0.62), (1, 0.5))]
    reached = contest(*grpo, *pods).reached("pods", TOKENS)
    assert (reached.cost, reached.ratio, reached.seeds) == (None, None, 1)
    assert reached.spent == 40_000
    assert reached.bound == pytest.approx(40 / 76)


def test_a_task_on_which_the_reference_learns_nothing_has_no_cost_to_a_target():
    found = contest(run("grpo_8", line(0.4)), run("duet", line(0.6)))
    assert found.reached("duet", TOKENS) is None
    assert found.reached("grpo_8", TOKENS) is None


def test_accuracy_at_half_of_the_tokens_of_the_same_seed():
    grpo = [run("grpo_8", line(end), seed, tokens_per_step=per) for seed, end, per in ((0, 0.6, 1000), (1, 0.64, 800))]
    duet = [run("duet", line(0.6), seed, tokens_per_step=500) for seed in (0, 1, 5)]
    found = contest(*grpo, *duet).at_cost("duet", TOKENS, 0.5)
    # 40,000 and 32,000 tokens are 80 and 64 steps of 500: 0.6 and 0.56. Seed 5 has no pair.
    assert found.accuracy.value == pytest.approx((0.60 + 0.56) / 2)
    assert found.to_end.value == pytest.approx((0.0 - 0.08) / 2)
    assert found.equal.value == pytest.approx(((0.60 - 0.50) + (0.56 - 0.52)) / 2)
    assert found.equal.interval == pytest.approx(t_interval([0.10, 0.04]))


def test_there_is_no_accuracy_where_a_seed_did_not_spend_as_much():
    grpo = [run("grpo_8", line(0.6), seed) for seed in (0, 1)]
    duet = [run("duet", line(0.6), seed, tokens_per_step=per) for seed, per in ((0, 500), (1, 499))]
    found = contest(*grpo, *duet)
    assert found.at_cost("duet", TOKENS, 0.5) is None
    assert found.at_cost("duet", TOKENS, 0.49).accuracy.value > 0.59
    assert found.at_cost("grpo_8", TOKENS, 1.0).to_end == Estimate(0.0, 0.0, 1)


def test_a_lead_is_read_at_the_same_share_of_the_reference_for_both_and_by_seed():
    grpo = [run("grpo_8", line(0.6), seed, tokens_per_step=per) for seed, per in ((0, 1000), (1, 800), (2, 800))]
    duet = [run("duet", line(0.6), seed, tokens_per_step=500) for seed in (0, 1, 2)]
    pods = [run("pods", line(end), seed, tokens_per_step=400) for seed, end in ((0, 0.48), (1, 0.64), (7, 0.9))]
    found = contest(*grpo, *duet, *pods)
    # A quarter is 20,000 and 16,000 tokens: 40 and 32 steps of 500, 50 and 40 of 400.
    leads = [0.5 - (0.4 + 0.08 * 50 / 80), (0.4 + 0.2 * 32 / 80) - (0.4 + 0.24 * 40 / 80)]
    assert found.lead("duet", "pods", TOKENS, 0.25).value == pytest.approx(sum(leads) / 2)
    assert found.lead("duet", "pods", TOKENS, 0.25).interval == pytest.approx(t_interval(leads))
    assert found.lead("pods", "duet", TOKENS, 0.25).value == pytest.approx(-sum(leads) / 2)
    assert found.lead("duet", "pods", TOKENS, 0.5) is None  # pods spent 32,000 of 40,000 tokens
    assert contest(grpo[0], duet[0], pods[1]).lead("duet", "pods", TOKENS, 0.25) is None


def test_equal_steps_are_those_of_the_horizon_on_all_problems():
    long = run("grpo_4", line(0.6), steps=(10, 80, 96))
    found = contest(run("grpo_8", line(0.64)), long).at_steps("grpo_4")
    assert found["accuracy"].value == pytest.approx(0.6)
    assert found["difference"].value == pytest.approx(-0.04)
    assert found["greedy"].value == pytest.approx(0.6)
    assert found["generated_tokens"].value == 80_000
    assert "difference" not in contest(run("grpo_8", line(0.6))).at_steps("grpo_8")
    with pytest.raises(ValueError, match="sums grpo_4 seed 0 was not measured at step 90"):
        at_horizon(replace(long, horizon=90))


def test_outcome_by_hand():
    point = replace(
        measurement(80, 0.5, problems=4, samples=4), last=[4, 1, 0, 0], first=[4, 4, 0, 0], greedy=[1, 0, 0, 0]
    )
    found = outcome(point)
    assert (found["accuracy"], found["first"], found["pass"], found["greedy"]) == (5 / 16, 0.5, 0.5, 0.25)


def test_pass_at_k_is_the_share_of_draws_with_a_right_sample():
    right, samples = [0, 1, 3, 5], 5
    draws = [
        any(place < count for place in chosen)
        for count in right
        for chosen in itertools.combinations(range(samples), 3)
    ]
    assert pass_at(np.array(right), samples, 3) == pytest.approx(np.mean(draws))


def test_two_runs_of_a_seed_and_two_rates_of_an_entrant_are_errors():
    grpo = run("grpo_8", line(0.6))
    with pytest.raises(ValueError, match="sums grpo_8 seed 0: a run of the same seed"):
        contest(grpo, grpo)
    with pytest.raises(ValueError, match="another learning rate than 0.0006"):
        contest(grpo, run("grpo_8", line(0.6), seed=1, learning_rate=6e-4))


def test_a_task_without_its_reference_or_its_start_is_left_out():
    assert contests([start("sums", 0.4), run("duet", line(0.6))]) == {}
    assert contests([run("grpo_8", line(0.6))]) == {}


def test_ranking_is_by_the_mean_over_tasks_at_half_of_the_tokens():
    runs = [start(task, 0.4, FINE) for task in ("sums", "products")]
    ends = {"grpo_8": (0.6, 0.6), "duet": (0.62, 0.66), "pods": (0.70, 0.50), "vip": (0.7, None)}
    for name, by_task in ends.items():
        for task, end in zip(("sums", "products"), by_task, strict=True):
            if end is not None:
                per = 1000 if name == "grpo_8" else 500
                runs += [run(name, line(end), seed, task, tokens_per_step=per, problems=FINE) for seed in (0, 1)]
    ranks = ranking(contests(runs))
    assert [rank.entrant for rank in ranks] == ["duet", "pods", "grpo_8", "vip"]
    values = [rank.half.value for rank in ranks]
    assert values == pytest.approx([(0.02 + 0.06) / 2, (0.1 - 0.1) / 2, -0.1, 0.1])
    duet, pods = ranks[:2]
    # 0.59 after 76 steps of grpo_8; duet: 80 * 0.19 / 0.22 and 0.19 / 0.26 at half the tokens.
    shares = [0.5 * (0.19 / 0.22) / 0.95, 0.5 * (0.19 / 0.26) / 0.95]
    assert math.exp(duet.ratio.value) == pytest.approx(math.sqrt(math.prod(shares)))
    assert (duet.reached, duet.tasks) == (2, 2)
    # pods: reached on one, 40 of 76 thousand tokens spent on the other
    assert (pods.reached, pods.ratio) == (1, None)
    assert pods.bound == pytest.approx(math.sqrt(0.5 * (0.19 / 0.30) / 0.95 * 40 / 76))


def test_best_rivals_are_those_ahead_at_half_of_the_tokens():
    rivals = {"dapo": 0.5, "pods": 0.7, "vip": 0.6, "duet": 0.8}
    found = contest(
        run("grpo_8", line(0.6)), *(run(name, line(end), tokens_per_step=600) for name, end in rivals.items())
    )
    assert best_rivals(found, ("grpo_8", "duet"), 2) == ["pods", "vip"]


def test_intervals_of_the_share_of_tokens_hold_the_true_share():
    """Noise as in the arena: 200 problems x 2 samples on the way, x 4 at the end, five seeds."""
    rng = np.random.default_rng(0)
    steps = np.arange(0.0, 101.0, 10.0)

    def noisy(last: int, scale: float) -> Curve:
        own = steps[steps <= last]
        samples = np.where(own == 0, 3200, np.where(own == 80, 800, 400))
        true = 0.42 + 0.25 * (1 - np.exp(-own / scale))
        accuracy = true + rng.normal(size=len(own)) * np.sqrt(0.15 / samples)
        return Curve(accuracy, samples, dict.fromkeys(COSTS, own))

    held, found = 0, []
    true = math.log(25 / 35)  # the same shape, faster
    for _ in range(150):
        curves = {"grpo_8": {s: noisy(80, 35) for s in range(5)}, "duet": {s: noisy(100, 25) for s in range(5)}}
        ratio = Contest("sums", start("sums", 0.42), {}, 200, curves).reached("duet", "step").ratio
        low, high = ratio.interval
        held += low <= true <= high
        found.append(ratio.value)
    # 95% of 150 with a standard error of 1.8%
    assert 0.89 <= held / 150 <= 0.995
    assert np.median(found) == pytest.approx(true, abs=0.05)
