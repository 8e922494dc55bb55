# SPDX-License-Identifier: Apache-2.0
"""Filters return what to keep; non-finite values are found where they are."""

import numpy as np
import torch

from duet_trl.update.filters import drop_aborted, drop_zero_advantage, nonfinite_logps, nonfinite_rewards, unscored

ADVANTAGES = np.array([0.0, 1.0, -1.0, 0.0], dtype=np.float32)
ABORTED = np.array([False, False, True, True])


def test_drop_aborted_keeps_the_rest_whatever_its_advantage():
    assert drop_aborted(ADVANTAGES, ABORTED).tolist() == [True, True, False, False]


def test_drop_zero_advantage_also_drops_what_was_aborted():
    assert drop_zero_advantage(ADVANTAGES, ABORTED).tolist() == [False, True, False, False]


def test_a_cutoff_drops_smaller_advantages_of_either_sign_and_never_keeps_a_zero():
    advantages = np.array([0.5, -0.5, 0.4999, -0.4999, 0.0, -0.0, 2.0, -2.0])
    aborted = np.zeros(8, dtype=bool)
    aborted[7] = True
    assert drop_zero_advantage(advantages, aborted, cutoff=0.5).tolist() == [True, True] + [False] * 4 + [True, False]
    assert drop_zero_advantage(advantages, aborted, cutoff=0.0).tolist() == [True] * 4 + [False, False, True, False]


def test_infinite_reward_is_nonfinite_and_an_abstention_is_not():
    rewards = torch.tensor([[1.0, torch.nan], [torch.inf, 0.0], [torch.nan, -torch.inf], [torch.nan, torch.nan]])
    assert nonfinite_rewards(rewards).tolist() == [False, True, True, False]
    assert unscored(rewards).tolist() == [False, False, False, True]


def test_log_probability_of_an_impossible_token_is_nonfinite():
    assert nonfinite_logps(np.array([-3.0, -np.inf, np.nan])).tolist() == [False, True, True]
