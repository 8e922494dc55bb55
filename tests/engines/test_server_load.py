# SPDX-License-Identifier: Apache-2.0
"""Thousands of ragged rollouts at once from a real server, each a request of its own: none is mixed up or lost."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from duet_trl.engines.server_answers import Choice
from duet_trl.gate.replay import GateSpec, Outcome, replay, split_sentinel
from tests.engines.tiny_gate import TinyGate, random_prompts
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

NUM_ROWS = 4096
PROMPTS = random_prompts(NUM_ROWS, seed=1, longest=24)
# No two rows share gate and limit.
LIMITS = [24 + row // 256 for row in range(NUM_ROWS)]  # tokens
SPECS = [GateSpec(4 + row % 16, 4 + row % 16 + row // 16 % 16, 4, poll_interval=1) for row in range(256)]
TOLERANCE = 2e-3  # nats


@contextmanager
def open_files(limit: int) -> Iterator[None]:
    """While active, this process may open so many files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def complete(server: ServerProcess, gate: TinyGate, num_rows: int) -> list[Choice]:
    gates = [gate.request(SPECS[row % 256], False) for row in range(num_rows)]
    return server.client.complete(PROMPTS[:num_rows], {"temperature": 1.0}, gates, gate.eos_ids, LIMITS[:num_rows])


def surprise(gate: TinyGate, prompts: list[list[int]], rollouts: list[Choice]) -> np.ndarray:
    """Largest difference of a rollout's log-probs from those of the model after its prompt; shape (N,), nats."""
    largest = []
    for ids, row in zip(prompts, rollouts, strict=True):
        length = len(row.token_ids) - (row.token_ids[-1] == gate.sentinel)
        with torch.no_grad():
            logits = gate.model(torch.tensor([[*ids, *row.token_ids[:length]]])).logits[0, len(ids) - 1 :]
        logits[..., gate.sentinel] = -torch.inf  # the gate forbids its own token
        expected = logits.log_softmax(-1)[range(length), row.token_ids[:length]]
        largest.append((torch.tensor(row.logprobs[:length]) - expected).abs().max().item())
    return np.array(largest)


def assert_own(gate: TinyGate, rollouts: list[Choice]) -> None:
    """Every rollout is that of its own prompt, of its own limit and of its own gate, and there is one of each."""
    count = len(rollouts)
    assert len({(*row.token_ids, *row.logprobs) for row in rollouts}) == count
    assert (surprise(gate, PROMPTS[:count:16], rollouts[::16]) < TOLERANCE).all()
    # which tells them apart: it is none of the rollouts of another prompt
    assert (surprise(gate, PROMPTS[:100], rollouts[1:101]) > TOLERANCE).mean() > 0.98
    ids, stopped = split_sentinel([row.token_ids for row in rollouts], gate.sentinel)
    assert all(len(row) <= limit for row, limit in zip(ids, LIMITS, strict=False))
    outcomes = set()
    for number, spec in enumerate(SPECS):  # raises where the engine did anything else
        rows = slice(number, count, len(SPECS))
        keep = np.zeros(len(ids[rows]), bool)
        outcomes |= {*replay(spec, gate.automaton, ids[rows], stopped[rows], keep).outcome.tolist()}
    assert outcomes == {Outcome.NATURAL, Outcome.ANSWERED, Outcome.ABORTED}


def test_4096_rollouts_at_once_are_each_their_own(server, tiny_gate):
    before = server.metric("vllm:request_success")
    with open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1]):
        rollouts = complete(server, tiny_gate, NUM_ROWS)
    assert len(rollouts) == NUM_ROWS
    assert_own(tiny_gate, rollouts)
    assert server.metric("vllm:request_success") == before + NUM_ROWS  # none twice


def test_more_requests_than_open_files_wait_for_each_other(server, tiny_gate):
    with open_files(256):
        rollouts = complete(server, tiny_gate, 600)
    assert_own(tiny_gate, rollouts)
