# SPDX-License-Identifier: Apache-2.0
"""The reward for ending, by hand and against what TRL and the gate say of the same completions."""

import pytest
import torch

from duet_trl.seams.scoring import EndingReward, pay_endings
from tests.runs import PARTS_OFF, count_fours, duet_trainer, logged, trained


def always_two(completions: list, **kwargs: object) -> list[float]:
    """The same for every rollout."""
    return [2.0] * len(completions)


def test_only_a_final_eos_is_an_ending() -> None:
    assert EndingReward([2])(completion_ids=[[2], [2, 5], [5, 2], []], completions=[""] * 4) == [1, 0, 1, 0]
    assert EndingReward([2, 7])(completion_ids=[[5, 7], [5, 2], [5, 6]]) == [1, 1, 0]


def test_an_ending_is_paid_as_much_as_the_answer_and_nothing_where_that_is_wrong_or_unscored() -> None:
    nan = torch.nan
    rewards = torch.tensor(
        [[1.0, nan, 1.0], [1.0, 3.0, 1.0], [1.0, 3.0, 0.0], [0.0, 0.0, 1.0], [-2.0, 1.0, 1.0], [nan, nan, 1.0]]
    )
    pay_endings(rewards, torch.tensor([1.0, 0.5, 0.1]))
    assert rewards[:, -1].nan_to_num(-1.0).tolist() == [1.0, 2.5, 0.0, 0.0, 0.0, -1.0]


@pytest.mark.parametrize("parts", [PARTS_OFF, {"trim": True, "abort": True}], ids=["no gate", "gate"])
def test_endings_are_what_neither_the_length_limit_nor_the_gate_stopped(tiny_path, tmp_path, parts) -> None:
    rewards = {"rewards": always_two, "ending_reward_weight": 0.1}
    trainer = trained(tiny_path, tmp_path, max_steps=4, **rewards, **parts)
    ended = logged(trainer, "rewards/ending_reward/mean")
    names = ("completions/clipped_ratio", "duet/trim_rate", "duet/abort_rate")
    stopped = [sum(shares) for shares in zip(*(logged(trainer, name) for name in names), strict=True)]
    assert ended == pytest.approx([2 * (1 - share) for share in stopped], abs=1e-6)
    assert 0 < min(ended) and max(ended) < 2
    assert logged(trainer, "reward") == pytest.approx([2 + 0.1 * one for one in ended], abs=1e-6)


def test_a_rollout_that_a_verifier_skips_stays_out_of_the_gradient(tiny_path, tmp_path) -> None:
    def skip_half(completions: list, **kwargs: object) -> list[float | None]:
        return [x if row % 2 else None for row, x in enumerate(count_fours(completions))]

    rewards = [skip_half]
    trainer = duet_trainer(tiny_path, tmp_path, rewards=rewards, ending_reward_weight=0.1, max_steps=1, **PARTS_OFF)
    assert rewards == [skip_half]  # the script's own list, which another trainer may get
    trainer.train()
    assert logged(trainer, "duet/nonfinite_rollouts") == [16.0]
