# SPDX-License-Identifier: Apache-2.0
"""What an engine returned, against what was asked for and against the policy in training.

An engine that ends rollouts elsewhere, or that samples from other weights, trains a policy on what it never wrote, and
no figure of the run looks wrong. Nothing here costs a forward pass.
"""

import logging
from collections.abc import Sequence
from typing import Any

import torch

from ..config import DUETGRPOConfig
from ..engines.engine import Completion, Request
from ..rollouts import policy_mask

logger = logging.getLogger(__name__)

MAX_GAP = 1.0
"""Nats a token. bfloat16, another kernel and a step of delay stay below 0.1; other weights or another unit do not."""
_STALE_GAP = 0.2
_STALE_GROWTH = 4.0
"""Of the gap since the first step, from `_STALE_GAP` on: the policy moves away from what the engine samples."""


class EngineChecks:
    """Checks of one engine over a run.

    Args:
        name (str): Of the engine, for errors.
        args (DUETGRPOConfig): Of the run.
        end_ids (set[int]): Tokens that end a rollout by themselves.
        vocab_size (int): Of the model.
    """

    def __init__(self, name: str, args: DUETGRPOConfig, end_ids: set[int], vocab_size: int) -> None:
        self.name, self.end_ids, self.vocab_size = name, end_ids, vocab_size
        kwargs = args.generation_kwargs or {}
        self._runs_on = bool(kwargs.get("ignore_eos"))
        truncated = args.top_p < 1 or args.top_k > 0 or (args.min_p or 0) > 0 or args.repetition_penalty != 1
        self._same_distribution = not truncated and not kwargs
        self._first_gap: float | None = None
        self._warned = False

    def completions(self, done: Any, requests: Sequence[Request]) -> list[Completion]:
        """The completions, if they are those that were asked for.

        Raises:
            ValueError: Naming the engine, the rollout and the remedy.
        """
        if not isinstance(done, list) or not all(isinstance(one, Completion) for one in done):
            raise ValueError(
                f"{self.name}.generate returned {type(done).__name__}. It must return a list of Completion."
            )
        numbers = [rollout.number for rollout in done]
        if numbers != list(range(len(requests))):
            raise ValueError(
                f"{self.name} was asked for rollouts 0..{len(requests) - 1} and returned {numbers[:20]} "
                f"({len(numbers)}). Engine.generate must return one Completion for each Request, with its number and "
                "in their order."
            )
        for rollout, request in zip(done, requests, strict=True):
            self._check(rollout, request)
        return done

    def _check(self, rollout: Completion, request: Request) -> None:
        ids, number = rollout.token_ids, rollout.number
        if len(ids) > request.new_tokens:
            raise ValueError(
                f"{self.name} returned {len(ids)} tokens for rollout {number}, which may have {request.new_tokens}. "
                "It must keep to the max_tokens of a Request."
            )
        if rollout.logprobs is not None and len(rollout.logprobs) != len(ids):
            raise ValueError(
                f"{self.name} returned {len(rollout.logprobs)} log-probs for the {len(ids)} tokens of rollout "
                f"{number}. It must return one for each token, or None."
            )
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            wrong = next(token for token in ids if not 0 <= token < self.vocab_size)
            raise ValueError(
                f"{self.name} returned token {wrong} in rollout {number}; the model has tokens 0 to "
                f"{self.vocab_size - 1}. Serve the model that is trained, with its tokenizer."
            )
        if not self._runs_on and not self.end_ids.isdisjoint(ids[:-1]):
            at = next(place for place, token in enumerate(ids) if token in self.end_ids)
            raise ValueError(
                f"{self.name} returned {len(ids) - at - 1} tokens behind the end token {ids[at]} of rollout {number}. "
                "It must end a rollout at each of the policy's end tokens (Policy.eos_ids)."
            )
        ended, full = not self.end_ids.isdisjoint(ids[-1:]), len(ids) == request.new_tokens
        fits = {"eos": ended, "length": full, "gate": request.gate is not None, "other": True}
        if not fits.get(rollout.finish) or (ended and rollout.finish != "eos" and not self._runs_on):
            raise ValueError(
                f"{self.name} says that {rollout.finish!r} ended rollout {number}, which has {len(ids)} tokens of at "
                f'most {request.new_tokens}, the last {ids[-1:]}. "eos" is an end token ({sorted(self.end_ids)}), '
                "which servers in OpenAI's style drop: add it to token_ids, or the policy never learns to end. "
                '"length" is max_tokens, "gate" the gate of the Request, "other" anything else.'
            )

    def gap(self, logps: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor | None:
        """How far the engine's log-probs are from the policy's: sum of their distances, nats, and tokens; (2,).

        Args:
            logps (torch.Tensor): Log-prob of each token under the policy, before it has moved, (B, T).
            inputs (dict[str, torch.Tensor]): The micro-batch.

        Returns:
            torch.Tensor | None: None where the engine gives no log-probs.
        """
        if "sampling_per_token_logps" not in inputs:
            return None
        sampled = inputs["sampling_per_token_logps"]
        mask = policy_mask(inputs).bool() & ~sampled.isnan()
        distance = (logps - sampled).abs().clamp(max=1e3)
        return torch.stack([distance[mask].double().sum(), mask.sum().double()])

    def follow_gap(self, total: float, tokens: float) -> dict[str, float]:
        """Judge the gap of a generation step; the metric of it.

        Raises:
            ValueError: If the engine cannot be sampling from the policy.
        """
        if not tokens:
            return {}
        gap = total / tokens
        if self._same_distribution and gap > MAX_GAP:
            raise ValueError(
                f"the log-probs that {self.name} returned are {gap:.3g} nats a token away from those of the policy; "
                f"rounding makes that 0.1, and {MAX_GAP:g} is the limit. It samples from other weights or at another "
                "temperature, or returns something else than natural logarithms: bring the weights over in "
                "sync_weights, sample at Policy.sampling, or return logprobs=None."
            )
        self._first_gap = gap if self._first_gap is None else self._first_gap
        if not self._warned and gap > max(_STALE_GAP, _STALE_GROWTH * self._first_gap):
            self._warned = True
            logger.warning(
                "The log-probs of %s are %.2g nats a token away from those of the policy, and were %.2g in the first "
                "step: new weights may not reach it. See duet/engine_gap, and its sync_weights.",
                self.name,
                gap,
                self._first_gap,
            )
        return {"engine_gap": gap}
