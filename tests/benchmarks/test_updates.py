# SPDX-License-Identifier: Apache-2.0
"""The comparison of the parts of several updates: its table, and the two parts that only it has."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks.updates import ARMS, KEPT, AveragedWeights, MedianClipping, is_below, table
from duet_trl.update.trust_region import CUTS

STATE = SimpleNamespace(global_step=0)


def figures(*accuracies: float) -> dict:
    return {"accuracy": [0.1, *accuracies], "tokens": 1000}


def test_differences_are_paired_by_seed_and_have_an_interval_over_seeds():
    found = {
        "several": {0: figures(0.4, 0.6), 1: figures(0.5, 0.7)},
        "once": {0: figures(0.3, 0.5), 1: figures(0.3, 0.5)},
    }
    several, once = table(found)
    assert several == [ARMS["several"][0], "0.550", "0.650", "", "1,000"]
    # -0.1 and -0.2: mean -0.15, standard error 0.05, and a quantile of 12.706 with one degree of freedom.
    assert once == [ARMS["once"][0], "0.400", "0.500", "-0.150 [-0.785, +0.485]", "1,000"]


def test_a_seed_that_only_one_arm_has_is_no_pair():
    found = {"several": {0: figures(0.4, 0.6)}, "once": {0: figures(0.3, 0.4), 1: figures(0.9, 0.9)}}
    assert table(found)[1][3] == "-0.150"


def test_the_target_compares_the_seeds_that_both_have():
    several = {0: figures(0.4, 0.6), 1: figures(0.5, 0.7)}
    assert is_below({0: figures(0.4, 0.5), 2: figures(0.9, 0.9)}, several)
    assert not is_below({0: figures(0.5, 0.6)}, several)
    assert not is_below({2: figures(0.1, 0.1)}, several)  # nothing to compare


def test_a_gradient_is_clipped_to_the_median_norm_of_those_before_it():
    clipping, args = MedianClipping(), SimpleNamespace(max_grad_norm=1.0)
    for norm in (3.0, 0.0, 1.0, 10.0):  # a step without a gradient says nothing
        clipping.on_log(args, STATE, None, {"grad_norm": norm})
    assert args.max_grad_norm == 3.0
    clipping.on_log(args, STATE, None, {"reward": 1.0})
    assert args.max_grad_norm == 3.0


def test_the_average_takes_in_batches_and_is_measured_in_the_place_of_the_weights():
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    trainer = SimpleNamespace(model=model, args=SimpleNamespace(updates="several"))
    average = AveragedWeights(trainer)
    for step in range(1, 2 * CUTS["several"].updates + 1):
        model.weight.data.fill_(float(step))
        average.on_step_end(None, SimpleNamespace(global_step=step), None)
    # After batches that ended at 4 and 8.
    seen = []
    average.measured(lambda step, seconds: seen.append(model.weight.item()), 8, 1.0)
    assert seen == [pytest.approx((1 - KEPT) * (KEPT * 4 + 8))]
    assert model.weight.item() == 8.0
