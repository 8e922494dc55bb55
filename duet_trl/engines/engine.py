# SPDX-License-Identifier: Apache-2.0
"""What the loop asks of an inference engine. One class for each engine; one file adds another (docs/extending.md)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..gate.replay import GateSpec


@dataclass(frozen=True)
class Request:
    """One rollout to generate.

    Attributes:
        prompt_ids (list[int]): Tokens of the prompt.
        prefix (tuple[int, ...]): Tokens of the rollout that exist already.
        max_tokens (int): Length at which the rollout is cut, prefix included.
        gate (GateSpec | None): Gate it runs through; None: none.
        keep (bool): Its coin.
        in_thought (bool): Whether the rollout begins inside a thought.
    """

    prompt_ids: list[int]
    prefix: tuple[int, ...] = ()
    max_tokens: int = 0
    gate: GateSpec | None = None
    keep: bool = False
    in_thought: bool = False


@dataclass(frozen=True)
class Completion:
    """One rollout as the engine generated it.

    Attributes:
        token_ids (list[int]): Tokens after the prefix; a sampled EOS included, the forced stop removed.
        logprobs (list[float] | None): Log-prob of each under the sampling distribution, nats; None: not known.
        gate_stopped (bool): Whether the gate stopped it.
    """

    token_ids: list[int]
    logprobs: list[float] | None = None
    gate_stopped: bool = False


@dataclass(frozen=True)
class Sampling:
    """How an ungated completion is sampled, for evaluation.

    Attributes:
        temperature (float): 0 is greedy.
        top_p (float): In (0, 1].
        max_tokens (int): Tokens at most.
    """

    temperature: float
    top_p: float
    max_tokens: int


class Engine(Protocol):
    """An inference engine as one training process sees it.

    Every process calls it at the same time, with requests of its own, as many on each process.
    """

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Sample one rollout for each request from the policy in training.

        Args:
            requests (Sequence[Request]): Rollouts of this process, length R.

        Returns:
            list[Completion]: Length R, in the order of the requests.

        Raises:
            ServerError: On every process, if the engine cannot serve the run.
        """

    def sync_weights(self) -> None:
        """Bring the weights of the policy in training into the engine."""

    def sample(self, prompts: Sequence[list[int]], sampling: Sampling) -> list[list[int]]:
        """Ungated completions for evaluation; token ids of this process's prompts, length P."""

    def close(self) -> None:
        """Release what the engine holds."""
