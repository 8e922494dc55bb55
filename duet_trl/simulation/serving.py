# SPDX-License-Identifier: Apache-2.0
"""How long a step takes: continuous batching on every engine, the wait for the slowest, then the update.

An engine runs iterations. One that has b rollouts running, with c tokens of prompt and rollout between them, takes

    fixed + max(weights, per_rollout b) + per_context c      and per_prompt for each prompt token that enters

seconds, and gives each of them one token. A waiting rollout enters as soon as another leaves, in order of arrival.
When none waits, the batch drains: this tail is what the longest rollouts cost, whatever the number of GPUs.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class EngineCost:
    """Seconds of one engine; see the module.

    Attributes:
        fixed (float): Per iteration.
        per_rollout (float): Per running rollout and iteration.
        per_context (float): Per token of context and iteration.
        per_prompt (float): Per prompt token.
        weights (float): Per iteration, the time to read the weights; what rollouts compute hides behind it.
        most_running (int): Rollouts that run at once.
    """

    fixed: float
    per_rollout: float
    per_context: float
    per_prompt: float
    weights: float = 0.0
    most_running: int = 256

    def iterations(self, count: int, running: int, context: float) -> float:
        """Seconds of so many iterations with the same rollouts, whose context was `context` tokens at the first."""
        each = self.fixed + max(self.weights, self.per_rollout * running)
        return count * each + self.per_context * (count * context + running * count * (count - 1) / 2.0)


@dataclass(frozen=True)
class Served:
    """Seconds of an engine, and those of them in which none waits and at most half of the most that ran still runs."""

    seconds: float
    tail_seconds: float


def serve(cost: EngineCost, tokens: Sequence[int] | np.ndarray, prompt_tokens: float) -> Served:
    """Run an engine until all rollouts are done; rollouts of no new tokens cost nothing.

    Args:
        cost (EngineCost): The engine.
        tokens (Sequence[int]): New tokens of each rollout, in the order of arrival, length N.
        prompt_tokens (float): Mean tokens before them.

    Example:
        >>> serve(EngineCost(1.0, 0.0, 0.0, 0.0, most_running=2), [3, 1, 4], 0.0)
        Served(seconds=5.0, tail_seconds=2.0)
    """
    waiting = [int(count) for count in tokens if count > 0][::-1]
    running: list[tuple[int, int]] = []  # iterations at which each ends and began
    now, seconds, tail, context, full = 0, 0.0, 0.0, 0.0, min(len(waiting), cost.most_running)
    while waiting or running:
        while waiting and len(running) < cost.most_running:
            heapq.heappush(running, (now + waiting.pop(), now))
            seconds += cost.per_prompt * prompt_tokens
            context += prompt_tokens
        count = running[0][0] - now
        spent = cost.iterations(count, len(running), context)
        seconds, now, context = seconds + spent, now + count, context + count * len(running)
        if not waiting and 2 * len(running) <= full:
            tail += spent
        while running and running[0][0] == now:
            _, began = heapq.heappop(running)
            context -= prompt_tokens + now - began
    return Served(seconds, tail)


@dataclass(frozen=True)
class Machine:
    """Figures of one GPU and of the model on it.

    Attributes:
        parameters (float): Of the model.
        cache_bytes (float): Of the KV cache, per token.
        flops (float): Peak, bf16, per second.
        bandwidth (float): Of memory, bytes per second.
        memory_bytes (float): Of the GPU.
        training_efficiency (float): Share of `flops` in training and scoring.
        decoding_efficiency (float): Share of `bandwidth` and of `flops` in decoding.
        iteration_seconds (float): Of an engine's iteration beside all this: scheduling, launches, sampling.
        gpus_per_engine (int): Tensor-parallel GPUs of an engine.
        most_running (int): Rollouts that an engine runs at once, at most.
        fixed_seconds (float): Of a step: weights to the engines, verification, logging.
    """

    parameters: float = 8e9
    cache_bytes: float = 131072.0
    flops: float = 989e12
    bandwidth: float = 3.35e12
    memory_bytes: float = 80e9
    training_efficiency: float = 0.4
    decoding_efficiency: float = 0.6
    iteration_seconds: float = 0.004
    gpus_per_engine: int = 1
    most_running: int = 256
    fixed_seconds: float = 10.0

    def engine(self, context_tokens: float) -> EngineCost:
        """An engine, for rollouts of so many tokens of context at their end on average.

        Raises:
            ValueError: If the weights leave no room for one rollout.
        """
        gpus, weights = self.gpus_per_engine, 2.0 * self.parameters
        room = 0.9 * self.memory_bytes * gpus - weights
        fits = int(room / (self.cache_bytes * max(context_tokens, 1.0)))
        if fits < 1:
            raise ValueError(
                f"{weights / 1e9:.0f} GB of weights leave no room for a rollout of {context_tokens:.0f} tokens on "
                f"{gpus} GPUs of {self.memory_bytes / 1e9:.0f} GB. Raise gpus_per_engine."
            )
        bandwidth, flops = (self.decoding_efficiency * gpus * peak for peak in (self.bandwidth, self.flops))
        compute = 2.0 * self.parameters / flops
        return EngineCost(
            fixed=self.iteration_seconds,
            per_rollout=compute,
            per_context=self.cache_bytes / bandwidth,
            per_prompt=compute,
            weights=weights / bandwidth,
            most_running=min(self.most_running, fits),
        )

    def forward_seconds(self, tokens: float, gpus: int) -> float:
        """A forward pass over so many tokens, shared by all GPUs."""
        return 2.0 * self.parameters * tokens / (self.training_efficiency * self.flops * gpus)


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a step: generation, of which the tail of the slowest engine, questions, the update, and the rest."""

    generation: float
    tail: float
    asking: float
    update: float
    fixed: float

    @property
    def total(self) -> float:
        """All phases, one after another."""
        return self.generation + self.asking + self.update + self.fixed


def step_seconds(
    machine: Machine,
    gpus: int,
    rounds: Sequence[np.ndarray],
    prompt_tokens: float,
    trained: tuple[int, int],
    asked_tokens: int,
) -> StepSeconds:
    """Seconds of a step whose phases follow each other on all GPUs (colocated engines).

    Rollouts go to the engines in turn. A round ends with its slowest engine. The update is three forward passes
    over prompts and rollouts that are trained, shared evenly; a question is one.

    Args:
        machine (Machine): One GPU and the model.
        gpus (int): How many, a multiple of `gpus_per_engine`.
        rounds (Sequence[np.ndarray]): New tokens of each rollout of a round, shape (N_r,).
        prompt_tokens (float): Mean tokens of a prompt.
        trained (tuple[int, int]): Rollouts that are trained, and their tokens.
        asked_tokens (int): Tokens of questions to the model.
    """
    if gpus < 1 or gpus % machine.gpus_per_engine:
        raise ValueError(f"{gpus} GPUs are no multiple of gpus_per_engine={machine.gpus_per_engine}. Change one.")
    engines, generation, tail = gpus // machine.gpus_per_engine, 0.0, 0.0
    for tokens in rounds:
        cost = machine.engine(prompt_tokens + float(tokens.mean()))
        slowest = max(
            (serve(cost, tokens[first::engines], prompt_tokens) for first in range(min(engines, len(tokens)))),
            key=lambda served: served.seconds,
        )
        generation, tail = generation + slowest.seconds, tail + slowest.tail_seconds
    rollouts, tokens_trained = trained
    update = 3.0 * machine.forward_seconds(tokens_trained + rollouts * prompt_tokens, gpus)
    return StepSeconds(generation, tail, machine.forward_seconds(asked_tokens, gpus), update, machine.fixed_seconds)
