# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from duet_trl.engines.host_gate import FORCED, HostGates, next_token_entropy
from duet_trl.gate.replay import GateSpec
from duet_trl.gate.streaming import GateRequest
from tests.gate.oracle import EOS, THOUGHT, A, B, C, toy_automaton

SENTINEL, NUM_TOKENS, NUM_SLOTS = 5, 6, 7
FLAT = torch.zeros(NUM_TOKENS)
CERTAIN = torch.tensor([0.0, 0.0, 9.0, 0.0, 0.0, 0.0])
ABOUT_TO_END = torch.tensor([0.0, 0.0, 0.0, 9.0, 0.0, 0.0])


def admit(gates: HostGates, slot: int, asked: GateRequest, output: list[int], prompt: list[int] | tuple = ()) -> None:
    gates.admit(slot, asked, toy_automaton(asked.delimiters), output, prompt)


def request(random: np.random.Generator) -> GateRequest:
    k1 = int(random.integers(1, 12))
    spec = GateSpec(
        poll_threshold=k1,
        abort_threshold=k1 + int(random.integers(0, 12)),
        grace_window=int(random.integers(0, 6)),
        poll_interval=int(random.integers(1, 9)),
        trim=random.random() < 0.8,
        abort=random.random() < 0.8,
        entropy_threshold=float(random.choice([0.0, 0.5])),
        window=int(random.integers(2, 9)) if random.random() < 0.5 else None,
    )
    delimiters = THOUGHT if random.random() < 0.5 else None
    in_thought = delimiters is not None and bool(random.random() < 0.5)
    keep = bool(random.random() < 0.5)
    return GateRequest(spec, keep, "toy", SENTINEL, frozenset({EOS}), delimiters=delimiters, in_thought=in_thought)


class Runner:
    """What vLLM's V1 runner does to a processor: dense slots, a list of tokens per rollout, which come and go."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.gates = HostGates(NUM_SLOTS)
        self.rows: list[tuple[GateRequest | None, list[int], list[int]]] = []  # by slot: gate, output, prompt
        self.preempted: list[tuple[GateRequest | None, list[int], list[int]]] = []

    def remove(self, slot: int) -> tuple[GateRequest | None, list[int], list[int]]:
        """The last slot fills the gap, as V1 condenses its batch."""
        removed, last = self.rows[slot], len(self.rows) - 1
        self.gates.drop(slot)
        self.rows[slot] = self.rows[last]
        if slot != last:
            self.gates.swap(last, slot)
        self.gates.drop(last)
        self.rows.pop()
        return removed

    def add(self, asked: GateRequest | None, output: list[int], prompt: list[int]) -> None:
        slot = len(self.rows)
        self.rows.append((asked, output, prompt))
        if asked is None:
            self.gates.drop(slot)
        else:
            admit(self.gates, slot, asked, output, prompt)

    def change_batch(self) -> None:
        if self.rows and self.random.random() < 0.2:
            self.remove(int(self.random.integers(len(self.rows))))
        if self.rows and self.random.random() < 0.2:
            asked, output, prompt = self.remove(int(self.random.integers(len(self.rows))))
            self.preempted.append((asked, list(output), prompt))
        if self.preempted and len(self.rows) < NUM_SLOTS and self.random.random() < 0.5:
            self.add(*self.preempted.pop())
        elif len(self.rows) < NUM_SLOTS and self.random.random() < 0.5:
            prompt = self.random.choice([A, B, C], size=30).tolist()
            begun = int(self.random.integers(30)) if self.random.random() < 0.5 else 0
            asked = replace(request(self.random), prefix_length=begun)
            self.add(None if self.random.random() < 0.2 else asked, [], prompt)
        if len(self.rows) > 1 and self.random.random() < 0.2:
            first, second = self.random.choice(len(self.rows), 2, replace=False).tolist()
            self.gates.swap(first, second)
            self.rows[first], self.rows[second] = self.rows[second], self.rows[first]

    def decode(self, logits: torch.Tensor) -> None:
        """One token for most rollouts; the others are in the middle of their prompt."""
        for slot, (_, output, _) in enumerate(self.rows):
            if logits[slot, SENTINEL] != FORCED and (output or self.random.random() < 0.6):
                output.append(int(self.random.choice([A, B, C])))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_decisions_are_those_of_a_gate_that_reads_every_token_at_once(seed):
    runner = Runner(seed)
    for _ in range(60):
        runner.change_batch()
        kinds = runner.random.integers(3, size=len(runner.rows))
        logits = torch.stack([FLAT, CERTAIN, ABOUT_TO_END])[kinds].reshape(-1, NUM_TOKENS)
        expected, oracle = logits.clone(), HostGates(NUM_SLOTS)
        for slot, (asked, output, prompt) in enumerate(runner.rows):
            if asked is not None:
                admit(oracle, slot, asked, list(output), prompt)
        oracle.apply(expected)
        runner.gates.apply(logits)
        assert torch.equal(logits, expected)
        runner.decode(logits)


def at_sentinel(gates: HostGates) -> list[float]:
    logits = torch.zeros(2, NUM_TOKENS)
    gates.apply(logits)
    return logits[:, SENTINEL].tolist()


def plain(keep: bool = False, eos_ids: frozenset[int] = frozenset({EOS}), **changes) -> GateRequest:
    spec = GateSpec(**{"poll_threshold": 4, "abort_threshold": 4, "grace_window": 0, **changes})
    return GateRequest(spec, keep, "toy", SENTINEL, eos_ids)


def test_refused_request_is_stopped_at_once_and_an_empty_batch_is_left_alone():
    gates = HostGates(2)
    assert at_sentinel(gates) == [0.0, 0.0]
    admit(gates, 0, plain(), [])
    gates.refuse(1, SENTINEL)
    assert at_sentinel(gates) == [-torch.inf, FORCED]
    gates.drop(1)
    assert at_sentinel(gates) == [-torch.inf, 0.0]


def test_placeholder_of_a_resumed_rollout_is_filled_in_before_it_is_read():
    gates, output = HostGates(2), [C, C, C, -1]
    admit(gates, 0, plain(), output)
    output[-1] = C
    assert at_sentinel(gates) == [FORCED, 0.0]


def test_placeholder_that_stays_is_an_error_before_anything_is_decided():
    gates, output = HostGates(2), []
    admit(gates, 0, plain(), output)
    with pytest.raises(RuntimeError, match=r"placeholder tokens.*async_scheduling=False"):
        for _ in range(4):
            assert at_sentinel(gates) == [-torch.inf, 0.0]
            output.append(-1)


@pytest.mark.parametrize("new", [[C, C], [C] * 5], ids=["one by one", "several at once"])
def test_a_rollout_that_continues_a_prefix_is_counted_and_read_again_from_its_first_token(new):
    gates, output = HostGates(2), []
    prompt = [A, B, C, C]  # a rollout of two tokens so far: the marker is none of its own
    admit(gates, 0, replace(plain(poll_threshold=4), prefix_length=2), output, prompt)
    assert at_sentinel(gates) == [-torch.inf, 0.0]
    if len(new) == 2:
        output.append(C)
        assert at_sentinel(gates) == [-torch.inf, 0.0]
    output[:] = new
    assert at_sentinel(gates) == [FORCED, 0.0]  # at 4 tokens, K2 + G, or beyond


@pytest.mark.parametrize("tokens", [[C], [C] * 9])
def test_rollout_that_lost_tokens_or_gained_several_is_read_from_its_beginning(tokens):
    gates, output = HostGates(2), [C, C]
    admit(gates, 0, plain(), output)
    output[:] = tokens
    seen = [at_sentinel(gates)[0] for _ in range(4)]
    assert seen[-1] == (FORCED if len(tokens) >= 4 else -torch.inf)


def test_entropy_is_in_nats():
    logits = torch.stack([torch.zeros(4), torch.tensor([0.0, -torch.inf, 0.0, -torch.inf])])
    torch.testing.assert_close(next_token_entropy(logits), torch.tensor([4.0, 2.0]).log())


def test_forced_row_samples_the_sentinel_with_probability_one_and_the_others_never():
    gates = HostGates(3)
    admit(gates, 0, plain(), [C] * 4)  # at K2 + G without a marker
    admit(gates, 2, plain(keep=True), [C] * 4)
    logits = torch.randn(3, NUM_TOKENS)
    logits[:, SENTINEL] = 50.0
    before = logits.clone()
    gates.apply(logits)
    log_probabilities = logits.log_softmax(-1)
    assert log_probabilities[0, SENTINEL] == 0.0 and (log_probabilities[0, :SENTINEL].exp() == 0.0).all()
    assert logits[2, SENTINEL] == -torch.inf and torch.equal(logits[2, :SENTINEL], before[2, :SENTINEL])
    assert torch.equal(logits[1], before[1])  # ungated
    for temperature in (0.01, 1.0, 100.0):  # and a penalty
        assert (logits / 1.9 / temperature).log_softmax(-1)[0, SENTINEL] == 0.0


EARLY = {"poll_threshold": 2, "grace_window": 2, "poll_interval": 1, "entropy_threshold": 0.1}


@pytest.mark.parametrize(
    ("output", "logits", "stop"),
    [
        ([A, B], CERTAIN, True),
        ([A, B], FLAT, False),
        ([A, B], ABOUT_TO_END, False),
        ([A, B, C, C], ABOUT_TO_END, True),  # the end of grace
    ],
)
def test_grace_ends_early_on_low_entropy_unless_the_policy_is_about_to_end_by_itself(output, logits, stop):
    gates, logits = HostGates(1), logits.clone()[None]
    admit(gates, 0, plain(**EARLY), output)
    gates.apply(logits)
    assert (logits[0, SENTINEL] == FORCED) == stop


def test_swapped_requests_keep_their_own_eos_ids():
    gates, logits = HostGates(2), ABOUT_TO_END.repeat(2, 1)
    admit(gates, 0, plain(**EARLY), [A, B])
    admit(gates, 1, plain(eos_ids=frozenset({B}), **EARLY), [A, B])
    gates.swap(0, 1)
    gates.apply(logits)
    assert logits[:, SENTINEL].tolist() == [FORCED, -torch.inf]  # slot 1: about to end by itself
