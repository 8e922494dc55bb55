# SPDX-License-Identifier: Apache-2.0
"""Seconds of different hours on one scale: the yardstick, the scaling, and what has no seconds that compare."""

from dataclasses import replace

import pytest
import torch

from benchmarks.arena.contest import contests
from benchmarks.arena.measuring import Yardstick
from benchmarks.arena.pace import CURVE, NOMINAL, is_timed, paced
from benchmarks.arena.quantities import of_entrant
from benchmarks.arena.records import Run
from tests.benchmarks.arena_records import run, start


def rising(step: int) -> float:
    return 0.2 + step / 200


def untimed(found: Run) -> Run:
    return replace(found, curves={})


def test_each_stretch_is_scaled_by_its_own_yardstick():
    slow_then_fast = [1.5 * NOMINAL] * 5 + [2.5 * NOMINAL] * 5 + [0.5 * NOMINAL] * 70
    found = paced(replace(run("duet", rising, steps=(10, 80)), curves={CURVE: slow_then_fast}))
    # 3 processor seconds a step: 30 at half of the speed, then 210 at twice the speed
    assert [point.processor_seconds for point in found.measurements] == pytest.approx([15, 15 + 420])
    assert [point.seconds for point in found.measurements] == [20, 160]


def test_without_the_yardstick_tokens_compare_and_seconds_do_not():
    runs = [start("sums", 0.2), run("grpo_8", rising), run("grpo_4", rising), untimed(run("duet", rising))]
    assert not is_timed(runs[-1])
    contest = contests(runs)["sums"]
    figures = {name: of_entrant(contest, name) for name in contest.rivals}
    for name, value in figures["duet"].items():
        assert not ("processor" in name and value.text.strip("-")), name
    assert figures["duet"]["generated_tokens_share"].text == "100%"
    assert figures["grpo_4"]["processor_seconds_share"].text == "100%"
    assert contest.lead("grpo_4", "duet", "processor_seconds", 0.5) is None
    assert contest.lead("grpo_4", "duet", "generated_tokens", 0.5).value == 0


def test_the_yardstick_takes_time_and_draws_no_random_numbers():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    yardstick = Yardstick()
    assert yardstick() > 0
    assert torch.equal(torch.get_rng_state(), before)
