# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch

from duet_trl.gate.parameters import GateRequest
from duet_trl.gate.replay import GateSpec
from duet_trl.gate.streaming import SlotGates, next_token_entropy
from tests.gate.oracle import EOS, A, B, C, toy_automaton

SENTINEL, NUM_TOKENS = 5, 6


def toy(*_: object):
    return toy_automaton()


def request(keep: bool = False, **changes) -> GateRequest:
    values = {"poll_threshold": 2, "abort_threshold": 4, "grace_window": 2, "poll_interval": 1, **changes}
    return GateRequest(GateSpec(**values), keep, "toy", SENTINEL, frozenset({EOS}))


def logits_with(entropy: str, likeliest: int) -> torch.Tensor:
    """Logits of one row: nearly certain ("low") or nearly uniform ("high")."""
    logits = torch.zeros(NUM_TOKENS)
    logits[likeliest] = 20.0 if entropy == "low" else 0.1
    return logits


def test_entropy_is_in_nats():
    logits = torch.stack([torch.zeros(4), torch.tensor([0.0, -torch.inf, 0.0, -torch.inf])])
    torch.testing.assert_close(next_token_entropy(logits), torch.tensor([4.0, 2.0]).log())


def test_forced_row_samples_the_sentinel_with_probability_one_and_the_others_never():
    gates = SlotGates(3, toy)
    gates.admit(0, request(), prefix=[C] * 6)  # at K2 + G without a marker
    gates.admit(2, request(keep=True), prefix=[C] * 6)
    logits = torch.randn(3, NUM_TOKENS)
    logits[:, SENTINEL] = 50.0
    before = logits.clone()
    stops = gates.edit(logits, gates.slots)
    assert gates.slots.tolist() == [0, 2] and stops.tolist() == [True, False]
    log_probabilities = logits.log_softmax(-1)
    assert log_probabilities[0, SENTINEL] == 0.0 and (log_probabilities[0, :SENTINEL].exp() == 0.0).all()
    assert logits[2, SENTINEL] == -torch.inf and torch.equal(logits[2, :SENTINEL], before[2, :SENTINEL])
    assert torch.equal(logits[1], before[1])  # ungated


@pytest.mark.parametrize(("entropy", "likeliest", "stop"), [("low", C, True), ("high", C, False), ("low", EOS, False)])
def test_grace_ends_early_on_low_entropy_unless_the_policy_is_about_to_end_by_itself(entropy, likeliest, stop):
    gates = SlotGates(1, toy)
    gates.admit(0, request(entropy_threshold=0.1), prefix=[A, B])
    logits = logits_with(entropy, likeliest)[None]
    assert gates.edit(logits, np.array([0])).tolist() == [stop]


def test_end_of_grace_stops_even_where_an_eos_is_likeliest():
    gates = SlotGates(1, toy)
    gates.admit(0, request(entropy_threshold=0.1), prefix=[A, B, C, C])
    assert gates.edit(logits_with("low", EOS)[None], np.array([0])).tolist() == [True]


@pytest.mark.parametrize("temperature", [0.01, 1.0, 100.0])
def test_forced_stop_survives_temperature_and_penalties(temperature):
    gates = SlotGates(1, toy)
    gates.refuse(0, SENTINEL)
    logits = torch.full((1, NUM_TOKENS), 80.0)
    gates.edit(logits, gates.slots)
    assert (logits / 1.9 / temperature).log_softmax(-1)[0, SENTINEL] == 0.0


def test_swapped_requests_keep_their_own_eos_ids():
    gates = SlotGates(2, toy)
    other = GateRequest(request(entropy_threshold=0.1).spec, False, "toy", SENTINEL, frozenset({B}))
    gates.admit(0, request(entropy_threshold=0.1), prefix=[A, B])
    gates.admit(1, other, prefix=[A, B])
    gates.swap(0, 1)
    logits = torch.stack([logits_with("low", EOS)] * 2)
    assert gates.edit(logits, gates.slots).tolist() == [True, False]  # slot 1: about to end by itself
