# SPDX-License-Identifier: Apache-2.0
"""The quality head of ARRoL: it learns from the ends of rollouts which hidden states succeed."""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ..allocate.state import check_state
from .grouping import positive_rewards
from .survival import calibrated

WIDTH = 128
HISTORY = 2048
"""Latest rollouts that the head trains on and its bins hold."""
BATCH_SIZE = 64
"""Rollouts of an update: 32 updates for a full history."""


class QualityHead:
    """A perceptron, hidden state (D,) -> WIDTH -> logit of success, with the rollouts that it learned from.

    It runs on the CPU in float32 and trains by AdamW on binary cross-entropy. A hidden state is divided by the root of
    its mean square, so that one learning rate suits every model. A success is a reward above the middle of the run's
    extremes. D is that of the first hidden states.

    Args:
        learning_rate (float): Of AdamW.
        seed (int): Of the first weights and of the order of training.
    """

    def __init__(self, learning_rate: float, seed: int) -> None:
        self.learning_rate, self.seed = learning_rate, seed
        self.features = np.zeros((0, 0), dtype=np.float32)  # (H, D)
        self.scores, self.rewards = np.zeros(0), np.zeros(0)  # raw scores when they were made, and how it ended, (H,)
        self.all_scores = np.zeros(0)  # with those of pruned rollouts, (A,)
        self.reward_range: list[float] | None = None
        self._parameters: list[torch.Tensor] = []

    @property
    def positive(self) -> np.ndarray:
        """Which rollouts of the history succeeded, shape (H,), bool."""
        return positive_rewards(self.rewards, self.reward_range)

    def quality(self, scores: np.ndarray) -> np.ndarray:
        """Success posteriors of raw scores, shape (K,)."""
        return calibrated(scores, self.scores, self.positive)

    def score(self, features: np.ndarray) -> np.ndarray:
        """Raw scores of hidden states (K, D), shape (K,), in (0, 1)."""
        if not self._parameters:
            self._begin(features.shape[1])
        if features.shape[1] != self._parameters[0].shape[1]:
            raise ValueError(
                f"hidden states have {features.shape[1]} entries, and the head was trained on "
                f"{self._parameters[0].shape[1]}. Resume with the model of the checkpoint."
            )
        with torch.no_grad():
            return torch.sigmoid(self._logits(torch.from_numpy(features).float())).double().numpy()

    def see_rewards(self, rewards: np.ndarray) -> None:
        """Widen the run's extremes."""
        known = [*(self.reward_range or ()), *rewards]
        self.reward_range = [float(min(known)), float(max(known))] if known else None

    def learn(self, features: np.ndarray, rewards: np.ndarray, step: int) -> float | None:
        """Add the scored rollouts of a step, and train for an epoch once the run has seen two rewards.

        Args:
            features (np.ndarray): Hidden states, shape (K, D), K >= 1.
            rewards (np.ndarray): Final rewards, shape (K,), which `see_rewards` has seen; nan: pruned, or without one.
            step (int): Generation step, for the order of training.

        Returns:
            float | None: Share of those with a reward whose success was foreseen; None where there is none.
        """
        scores, known = self.score(features), ~np.isnan(rewards)
        foreseen = self.quality(scores)[known] > 0.5
        before = self.features if len(self.features) else features[:0].astype(np.float32)
        self.all_scores = np.concatenate([self.all_scores, scores])[-HISTORY:]
        self.features = np.concatenate([before, features[known].astype(np.float32)])[-HISTORY:]
        self.scores = np.concatenate([self.scores, scores[known]])[-HISTORY:]
        self.rewards = np.concatenate([self.rewards, rewards[known]])[-HISTORY:]
        if not len(foreseen):
            return None
        if self.reward_range[0] < self.reward_range[1]:
            self._train(np.random.default_rng([self.seed, step]))
        return float((foreseen == positive_rewards(rewards[known], self.reward_range)).mean())

    def state_dict(self) -> dict[str, Any]:
        """The history; weights and both moments of AdamW, shape (P,) each, and its number of updates."""
        states = [self._optimizer.state.get(one, {}) for one in self._parameters]
        zeros = [torch.zeros_like(one) for one in self._parameters]
        first, second = (
            [state.get(name, zero) for state, zero in zip(states, zeros, strict=True)]
            for name in ("exp_avg", "exp_avg_sq")
        )
        return {
            "features": self.features,
            "scores": self.scores,
            "all_scores": self.all_scores,
            "rewards": self.rewards,
            "reward_range": self.reward_range,
            "weights": _flat(self._parameters),
            "first_moment": _flat(first),
            "second_moment": _flat(second),
            "updates": int(states[0].get("step", 0)) if states else 0,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`."""
        check_state("quality head", state, self.state_dict())
        self.features = np.array(state["features"], dtype=np.float32)
        self.scores, self.rewards = np.array(state["scores"]), np.array(state["rewards"])
        self.all_scores = np.array(state["all_scores"])
        self.reward_range = None if state["reward_range"] is None else [float(x) for x in state["reward_range"]]
        if not len(state["weights"]):
            return
        self._begin(self.features.shape[1])
        sizes = [one.numel() for one in self._parameters]
        parts = (torch.tensor(state[name]).split(sizes) for name in ("weights", "first_moment", "second_moment"))
        for parameter, weight, first, second in zip(self._parameters, *parts, strict=True):
            with torch.no_grad():
                parameter.copy_(weight.view_as(parameter))
            if state["updates"]:
                self._optimizer.state[parameter] = {
                    "step": torch.tensor(float(state["updates"])),
                    "exp_avg": first.view_as(parameter).clone(),
                    "exp_avg_sq": second.view_as(parameter).clone(),
                }

    def _begin(self, dim: int) -> None:
        """Fresh weights, uniform within one over the root of what goes in."""
        generator = torch.Generator().manual_seed(self.seed)
        shapes = {(WIDTH, dim): dim, (WIDTH,): dim, (1, WIDTH): WIDTH, (1,): WIDTH}
        self._parameters = [
            ((2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(fan_in)).requires_grad_()
            for shape, fan_in in shapes.items()
        ]
        self._optimizer = torch.optim.AdamW(self._parameters, lr=self.learning_rate)

    def _train(self, random: np.random.Generator) -> None:
        inputs, labels = torch.from_numpy(self.features), torch.from_numpy(self.positive.astype(np.float32))
        for chunk in torch.from_numpy(random.permutation(len(inputs))).split(BATCH_SIZE):
            self._optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(self._logits(inputs[chunk]), labels[chunk]).backward()
            self._optimizer.step()

    def _logits(self, features: torch.Tensor) -> torch.Tensor:
        first, first_bias, second, second_bias = self._parameters
        scaled = features * torch.rsqrt(features.square().mean(dim=1, keepdim=True) + 1e-6)
        return F.linear(torch.relu(F.linear(scaled, first, first_bias)), second, second_bias).squeeze(1)


def _flat(tensors: list[torch.Tensor]) -> np.ndarray:
    return torch.cat([torch.zeros(0), *(one.detach().reshape(-1) for one in tensors)]).numpy()
