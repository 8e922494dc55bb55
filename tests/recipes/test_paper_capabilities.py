# SPDX-License-Identifier: Apache-2.0
"""Table 4, titles of methods, and what tells arms apart, held against the methods themselves."""

import numpy as np
import pandas as pd
import pytest

from duet_trl import DUETGRPOConfig
from duet_trl.methods import METHOD_FIELDS, METHODS, build_method
from tests.methods.simulator import counts, make_prompts, run_step
from tests.recipes.stored_runs import PAPER  # isort: split

from paper import runs
from paper.runs import FAMILY, PARTS, STANDARD

NAMED = METHODS.keys() - {"own"}
RULES_OF_COUNTS = ("grpo", "dapo", "greso", "pilot", "paper", "duet")
"""Methods that the simulator can run from their defaults."""
MARKS = pd.read_csv(PAPER / "capabilities.csv", index_col="capability")


def mark(method, capability):
    return MARKS.loc[capability, method]


def test_every_method_has_a_title_and_a_column():
    assert runs.METHODS.keys() == set(MARKS) == NAMED
    assert MARKS.isin(["+", "o", "-"]).all(axis=None)


@pytest.mark.parametrize("method", sorted(NAMED))
def test_marks_follow_from_the_fields_that_a_method_reads(method):
    """A budget in tokens is explicit; one in rollouts, or ARRoL's keep rate, is part of one."""
    reads = METHODS[method].reads
    budget = mark(method, "Explicit compute-budget constraint")
    if "budget_tokens" in reads:
        assert budget == "+"
    if "budget_fraction" in reads:
        assert budget in "+o"
    elif method != "arrol":
        assert budget == "-"
    if {"trim", "abort"} <= reads:
        assert mark(method, "Adaptive within-rollout length") == "+"
        assert method in FAMILY
    assert mark(method, "Multi-axis joint coordination") == ("+" if "allocate" in reads else "-")


@pytest.mark.parametrize("method", RULES_OF_COUNTS)
def test_counts_vary_where_the_table_says_so(method, tmp_path):
    """Three epochs over prompts that are short and hopeless to long and solved, with counts as uneven as the method
    has them: does one that is visited get more rollouts than another?"""
    config = DUETGRPOConfig(
        output_dir=str(tmp_path),
        method=method,
        per_device_train_batch_size=64,
        num_generations=8,
        max_completion_length=100,
        use_cpu=True,
        report_to="none",
        allocate=True if "allocate" in METHODS[method].reads else None,
    )
    rule = build_method(config)
    draws = np.random.default_rng(0)
    chance = {f"p{number}": number / 7 for number in range(8)}
    varied = False
    for step in range(1, 4):
        done, _ = run_step(
            rule,
            make_prompts(list(chance), list(chance), step, step - 1),
            lambda key, number: float(draws.random() < chance[key]),
            lambda key, number: 5 + 10 * int(key[1:]),
        )
        varied |= len({count for count in counts(done) if count}) > 1
    assert varied == (mark(method, "Variable rollout count per prompt") == "+")


def test_settings_that_tables_sweep_are_those_of_methods_with_the_values_of_the_paper():
    assert set(PARTS) <= METHOD_FIELDS
    options = {name for entry in METHODS.values() for name in entry.options.__dataclass_fields__}
    assert {"keep_probability", "surrogate_warmup"} <= METHOD_FIELDS | options
    for name in STANDARD.keys() & options:
        declared = [e.options.__dataclass_fields__.get(name) for e in METHODS.values()]
        assert {one.default for one in declared if one is not None} == {STANDARD[name]}
