# SPDX-License-Identifier: Apache-2.0
"""An engine in one file: it samples from a table of next-token probabilities and runs the gate itself."""

from collections.abc import Sequence

import numpy as np

from duet_trl.engines.engine import Completion, Policy, Request, Sampling
from duet_trl.gate.streaming import StreamingGate


class TableEngine:
    """Samples each token from the row of the token before it.

    Args:
        policy (Policy): Of the trainer.
        table (np.ndarray): Next-token probabilities, shape (V, V); row: the token before.
        seed (int): Of the samples.
    """

    def __init__(self, policy: Policy, table: np.ndarray, seed: int = 0) -> None:
        self.policy = policy
        self.table = table
        self.syncs = 0
        self._random = np.random.default_rng(seed)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [self._rollout(request) for request in requests]

    def sync_weights(self) -> None:
        for _name, _weight in self.policy.weights():
            pass  # a table has no place for them
        self.syncs += 1

    def sample(self, prompts: Sequence[list[int]], sampling: Sampling) -> list[list[int]]:
        return [self._rollout(Request(ids, max_tokens=sampling.max_tokens)).token_ids for ids in prompts]

    def _rollout(self, request: Request) -> Completion:
        last, ids, slot = request.input_ids[-1], [], np.array([0])
        spec = request.gate
        if spec is not None:
            gate = StreamingGate(1, [self.policy.gate.automaton])
            gate.admit(0, spec, request.keep, prefix=request.prefix, in_thought=request.in_thought)
        while len(ids) < request.new_tokens:
            row = self.table[last]
            if spec is not None:
                ends = row.argmax() in self.policy.eos_ids
                certain = -(row[row > 0] * np.log(row[row > 0])).sum() < spec.entropy_threshold and not ends
                if gate.stops(slot, np.array([certain]))[0]:
                    return Completion(ids, "gate", number=request.number)
            last = int(self._random.choice(len(row), p=row))
            ids.append(last)
            if last in self.policy.eos_ids:
                return Completion(ids, "eos", number=request.number)
            if spec is not None:
                gate.step(slot, np.array([last]))
        return Completion(ids, "length", number=request.number)
