# SPDX-License-Identifier: Apache-2.0
"""What a reward function may return, and an error that names the function for everything else."""

import numpy as np
import pytest
import torch

from duet_trl.seams.scoring import numbers_of
from tests.runs import count_fours, duet_trainer, logged, trained


@pytest.mark.parametrize(
    "rewards",
    [
        [1, None, 0.5],
        (True, False, 1.0),
        np.array([1.0, 0.0, np.nan], dtype=np.float32),
        [np.float32(1.0), np.bool_(True), np.int64(3)],
        torch.tensor([1.0, 0.0, 2.0]),
        [torch.tensor(1.0), 0.0, None],
        (value for value in (1.0, 0.0, 2.0)),
    ],
    ids=lambda rewards: type(rewards).__name__,
)
def test_numbers_of_any_kind_and_none_are_rewards(rewards):
    assert len(numbers_of(rewards, "graded", 3)) == 3


@pytest.mark.parametrize(
    ("rewards", "error", "message"),
    [
        (
            {0: 1.0, 1: 0.0, 2: 1.0},
            TypeError,
            r"returned \{0: 1.0, 1: 0.0, 2: 1.0\} of type dict. It must return a list",
        ),
        ({1.0, 0.0, 2.0}, TypeError, "returned .* of type set"),
        ("abc", TypeError, "returned 'abc' of type str. It must return a list with one number for each of the 3"),
        (None, TypeError, "returned None of type NoneType"),
        (0.5, TypeError, "returned 0.5 of type float"),
        (torch.tensor(0.5), TypeError, "returned .* of type Tensor"),
        (np.ones((1, 3)), TypeError, "returned .* of type ndarray"),
        (
            ["1.0", "0.0", "1.0"],
            TypeError,
            "returned '1.0' of type str for completion 0. A reward is a number, or None",
        ),
        ([1.0, [0.0], 1.0], TypeError, r"returned \[0.0\] of type list for completion 1"),
        ([1.0], ValueError, "returned 1 rewards, but 3 were expected. It must return one for each completion"),
    ],
)
def test_anything_else_names_the_function(rewards, error, message):
    with pytest.raises(error, match=f"The reward function 'graded' {message}"):
        numbers_of(rewards, "graded", 3)


def by_name(completions, **columns):
    return {"correct": 1.0, "short": 0.5} | {str(row): 0.0 for row in range(len(completions) - 2)}


async def by_name_later(completions, **columns):
    return by_name(completions)


@pytest.mark.parametrize("reward", [by_name, by_name_later])
def test_a_run_does_not_train_on_the_keys_of_a_mapping(tiny_path, tmp_path, reward):
    trainer = duet_trainer(tiny_path, tmp_path, rewards=[count_fours, reward])
    with pytest.raises(TypeError, match=f"The reward function '{reward.__name__}' returned .* of type dict"):
        trainer.train()


def test_functions_are_those_of_the_script_between_two_batches(tiny_path, tmp_path):
    trainer = trained(tiny_path, tmp_path, max_steps=1)
    assert trainer.reward_funcs[0] is count_fours and len(logged(trainer, "reward")) == 1
