# SPDX-License-Identifier: Apache-2.0
"""The head learns what can be learned, remembers the latest rollouts, and resumes bit for bit."""

import numpy as np
import pytest

from duet_trl.methods.arrol import QualityHead

from .test_every_method import stored


def pairs(seed: int, count: int, dim: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Hidden states whose first entry says whether the rollout succeeds; rewards 0 and 2."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(count, dim)).astype(np.float32)
    rewards = 2.0 * (random.random(count) < 0.5)
    features[:, 0] = np.where(rewards > 1, 2.0, -2.0)
    return features, rewards


def taught(head: QualityHead, steps: range) -> list[float]:
    shares = []
    for step in steps:
        features, rewards = pairs(step, 64)
        head.see_rewards(rewards)
        shares.append(head.learn(features, rewards, step))
    return shares


def test_the_default_rate_learns_within_the_warm_up_what_one_direction_says() -> None:
    """With 64 scored rollouts a step, and a fresh score for each."""
    head = QualityHead(seed=0)
    shares = taught(head, range(1, 21))
    assert np.mean(shares[-5:]) > 0.95 and shares[0] < 0.8
    features, rewards = pairs(99, 400)
    quality = head.quality(head.score(features))
    assert ((quality > 0.5) == (rewards > 1)).mean() > 0.95


def test_a_pruned_rollout_counts_among_the_scores_only() -> None:
    head = QualityHead(seed=0)
    features, rewards = pairs(0, 10)
    rewards[3:] = np.nan
    head.see_rewards(rewards[:3])
    head.learn(features, rewards, 1)
    assert (len(head.all_scores), len(head.scores), len(head.rewards), len(head.features)) == (10, 3, 3, 3)
    assert head.learn(features, np.full(10, np.nan), 2) is None
    assert (len(head.all_scores), len(head.scores)) == (20, 3)


def test_nothing_is_learned_while_all_rewards_are_the_same() -> None:
    head = QualityHead(seed=0)
    features = pairs(0, 64)[0]
    fresh = head.score(features)
    head.see_rewards(np.ones(64))
    head.learn(features, np.ones(64), 1)
    assert (head.score(features) == fresh).all() and not head.positive.any()
    assert head.state_dict()["updates"] == 0


def test_a_restored_head_trains_on_bit_for_bit() -> None:
    through, restored = QualityHead(seed=3), QualityHead(seed=3)
    restored.load_state_dict(stored(through.state_dict()))  # before the first hidden state
    for step in range(1, 6):
        assert taught(through, range(step, step + 1)) == taught(restored, range(step, step + 1))
        state = stored(through.state_dict())
        again = restored.state_dict()
        assert all(np.array_equal(state[name], again[name]) for name in state)
        restored = QualityHead(seed=3)
        restored.load_state_dict(state)
    assert through.state_dict()["updates"] == sum(range(1, 6))  # 64 rollouts more a step, 64 to an update


def test_hidden_states_of_another_width_are_refused() -> None:
    head = QualityHead(seed=0)
    head.score(pairs(0, 3)[0])
    with pytest.raises(ValueError, match="hidden states have 8 entries, and the head was trained on 16"):
        head.score(pairs(0, 3, dim=8)[0])
