# SPDX-License-Identifier: Apache-2.0
"""The search for a learning rate, by hand: the middle first, then towards the better side."""

from dataclasses import replace

import pytest

from benchmarks.arena.entrants import REFERENCE
from benchmarks.arena.records import REPORT, STOPPED, Run
from benchmarks.arena.tasks import TASKS
from benchmarks.arena.tuning import accuracy, at_the_edge, choose, wanted
from tests.benchmarks.arena_runs import measured, serving, tuning_run

TASK = "two_ways"
RATES = TASKS[TASK].rates


@pytest.mark.parametrize(
    ("figures", "places", "best", "edge"),
    [
        ([0.1, 0.2, 0.6, 0.5, 0.4, 0.3], [1, 2, 3], 2, False),
        ([0.1, 0.2, 0.5, 0.6, 0.4, 0.9], [1, 2, 3, 4], 3, False),  # what lies beyond is not looked for
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [1, 2, 3, 4, 5], 5, True),
        ([0.6, 0.5, 0.4, 0.3, 0.2, 0.1], [1, 2, 0], 0, True),
        ([0.4, 0.5, 0.5, 0.5, 0.5, 0.5], [1, 2, 0], 1, False),  # of equal ones the lower
    ],
)
def test_the_best_rate_has_both_neighbours_tried(figures, places, best, edge) -> None:
    runs: list[Run] = []
    while rates := wanted(runs, TASK, "duet_stop"):
        assert choose(runs, TASK, "duet_stop") is None
        runs += [tuning_run(rate, figures[RATES.index(rate)], "duet_stop", TASK) for rate in rates]
    assert [RATES.index(one.learning_rate) for one in runs] == places
    assert choose(runs, TASK, "duet_stop") == choose(runs[::-1], TASK, "duet_stop") == RATES[best]
    assert at_the_edge(runs, TASK, "duet_stop") is edge


def test_a_control_takes_a_multiple_of_the_rate_of_the_reference() -> None:
    assert choose([], TASK, "grpo_8_stop_2x") is None and wanted([], TASK, "grpo_8_stop_2x") == []
    tried = zip(RATES[1:], (0.1, 0.2, 0.3, 0.5, 0.4), strict=True)
    runs = [tuning_run(rate, one, REFERENCE, TASK) for rate, one in tried]
    assert choose(runs, TASK, "grpo_8_stop_2x") == 2 * RATES[4] == RATES[5]
    assert not at_the_edge(runs, TASK, "grpo_8_stop_2x")


def test_accuracy_is_the_share_of_right_samples_at_the_end() -> None:
    points = [measured(1, 1, 1, **{STOPPED: serving(0.3, 1)}), measured(2, 1, 1, **{STOPPED: serving(0.5, 4)})]
    assert accuracy(replace(tuning_run(RATES[0], 0.0), measurements=points)) == pytest.approx(0.5)


def test_nothing_else_is_looked_at() -> None:
    best = tuning_run(RATES[1], 0.9, "duet_stop", TASK)
    odd = ({"seed": 0}, {"stage": REPORT}, {"task": "products"}, {"entrant": "duet"}, {"learning_rate": 1e-9})
    runs = [tuning_run(RATES[place], one, "duet_stop", TASK) for place, one in ((2, 0.6), (3, 0.5))]
    runs += [replace(best, **change) for change in odd]
    assert wanted(runs, TASK, "duet_stop") == [RATES[1]]
    assert choose([*runs, tuning_run(RATES[1], 0.1, "duet_stop", TASK)], TASK, "duet_stop") == RATES[2]
