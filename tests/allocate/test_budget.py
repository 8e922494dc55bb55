# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest

from duet_trl.allocate.budget import Budget


def test_rollouts_prices_the_nominal_count_at_current_lengths():
    budget = Budget("rollouts", fraction=0.25, num_generations=8)
    assert budget.tokens(np.array([100.0, 300.0])) == 2 * 400.0
    assert budget.total_rollouts(16) == 32
    assert not budget.measuring and budget.counts_rollouts


def test_tokens_is_absolute():
    budget = Budget("tokens", budget_tokens=5000)
    assert budget.tokens(np.array([1.0])) == budget.tokens(np.array([9e9, 1.0])) == 5000.0
    assert not budget.counts_rollouts


def test_reference_is_measured_in_the_first_epoch_and_frozen_for_the_rest():
    budget = Budget("reference", fraction=0.5, num_generations=8)
    for epoch in (0, 0):
        budget.advance(epoch)
        assert budget.measuring
        assert budget.tokens(np.array([10.0, 30.0])) == 4 * 40.0  # as `rollouts` until frozen
    budget.observe_reference(np.array([100, 300]))
    budget.observe_reference(np.array([200]))
    budget.advance(1)
    assert not budget.measuring and not budget.counts_rollouts
    # b * M * num_generations * mean = 0.5 * 3 * 8 * 200, whatever the lengths have become.
    assert budget.tokens(np.array([1.0, 2.0, 3.0])) == 2400.0
    budget.advance(2)
    assert budget.tokens(np.ones(3)) == 2400.0


def test_a_second_epoch_without_a_reference_is_an_error():
    with pytest.raises(ValueError, match="no rollout from the first epoch"):
        Budget("reference").advance(1)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_restored_budget_goes_on_where_it_was(frozen):
    original, restored = Budget("reference"), Budget("reference")
    original.observe_reference(np.array([7, 9, 11]))
    if frozen:
        original.advance(1)
    restored.load_state_dict(json.loads(json.dumps(original.state_dict())))
    for budget in (original, restored):
        assert budget.measuring is not frozen
        if not frozen:
            budget.observe_reference(np.array([100]))
        budget.advance(1)
    assert restored.tokens(np.ones(2)) == original.tokens(np.ones(2))


def test_a_state_of_another_reading_or_with_other_keys_is_an_error():
    state = Budget("reference").state_dict()
    with pytest.raises(ValueError, match="reading 'reference', this run uses 'rollouts'"):
        Budget("rollouts").load_state_dict(state)
    with pytest.raises(ValueError, match="budget state"):
        Budget("reference").load_state_dict({"reading": "reference"})


@pytest.mark.parametrize(
    ("fraction", "generations", "prompts", "total"), [(0.1, 10, 3, 3), (0.29, 100, 1, 29), (1 / 3, 9, 5, 15)]
)
def test_whole_totals_survive_rounding(fraction, generations, prompts, total):
    assert Budget(fraction=fraction, num_generations=generations).total_rollouts(prompts) == total
