# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from duet_trl.engines.device_gate import Column, DeviceGates
from duet_trl.engines.host_gate import FORCED, HostGates
from duet_trl.gate.automaton import TokenAutomaton, compile_automaton
from duet_trl.gate.replay import GateSpec
from duet_trl.gate.streaming import GateRequest
from duet_trl.gate.thoughts import Delimiters
from tests.gate.oracle import EOS, THOUGHT, A, B, C, continued, specs, toy_ends, toy_marker

SENTINEL, OTHER_EOS, NUM_TOKENS = 5, 6, 9
VOCABULARY = [b"a", b"b", b"c", *[None] * (NUM_TOKENS - 3)]
PAIRS = {"toy": (A, B), "other": (B, C)}
AUTOMATA = {"toy": "ab", "other": "bc"}
NUM_SLOTS, LONGEST = 4, 64
ENTROPY = 0.3
FIRES = {"certain", "sharp", "pair"}  # of the next-token distributions below, those that pass this threshold
PROBABILITIES = {
    "certain": {C: 1.0},
    "sharp": {C: 0.99, A: 0.01},
    "pair": {C: 0.93, A: 0.07},  # 0.25 nats
    "wide": {C: 0.935, **dict.fromkeys((A, B, EOS, 4, 6, 7), 0.065 / 6)},  # 0.36 nats
    "flat": {**dict.fromkeys(range(NUM_TOKENS), 0.11), C: 0.12},
    "eos": {EOS: 0.999, C: 0.001},
    "other eos": {OTHER_EOS: 0.999, C: 0.001},
}
LOGITS = {
    kind: torch.tensor([row.get(token, 0.0) for token in range(NUM_TOKENS)]).log()
    for kind, row in PROBABILITIES.items()
}


def automaton(name: str, delimiters: Delimiters | None = None) -> TokenAutomaton:
    return compile_automaton(toy_marker(AUTOMATA[name], delimiters), VOCABULARY)


def device_gates(num_slots: int = NUM_SLOTS) -> DeviceGates:
    return DeviceGates(num_slots, torch.device("cpu"))


def admit(gates: DeviceGates, slot: int, asked: GateRequest, prompt_len: int = 0) -> None:
    gates.admit(slot, asked, automaton(asked.marker, asked.delimiters), prompt_len)


def request(keep: bool = False, eos_ids: frozenset[int] = frozenset({EOS}), **changes) -> GateRequest:
    values = {"poll_threshold": 2, "abort_threshold": 4, "grace_window": 2, "poll_interval": 1, **changes}
    return GateRequest(GateSpec(**values), keep, "toy", SENTINEL, eos_ids)


@dataclass
class Rollout:
    """What would be generated without a gate, the kind of distribution before each of its tokens, and its gate.

    The first `begun` tokens are the end of the prompt that the engine sees.
    """

    natural: list[int]
    kinds: list[str]
    request: GateRequest | None
    prompt: list[int]
    begun: int = 0
    ids: list[int] = field(default_factory=list)
    stopped: bool = False

    def expected(self) -> tuple[list[int], bool]:
        """Policy tokens and forced stop, by Algorithm 1."""
        if self.request is None:
            return self.natural, False
        spec, first, second = self.request.spec, *PAIRS[self.request.marker]
        ends = toy_ends(self.natural, self.request.delimiters, self.request.in_thought, (first, second))
        certain = [spec.trims_early and kind in FIRES for kind in self.kinds]
        row = self.natural, self.request.keep, np.where(certain, 0.0, 1.0), ends, self.begun
        rollout = continued(replace(spec, entropy_threshold=0.5), *row)
        return rollout.ids, rollout.stopped


@st.composite
def requests(draw: st.DrawFn) -> GateRequest:
    eos_ids = draw(st.sampled_from([frozenset({EOS, OTHER_EOS}), frozenset({OTHER_EOS, EOS, 10**9})]))
    delimiters, in_thought = draw(st.sampled_from([(None, False), (THOUGHT, False), (THOUGHT, True)]))
    marker = draw(st.sampled_from(sorted(PAIRS)))
    asked = draw(specs(ENTROPY)), draw(st.booleans()), marker, SENTINEL, eos_ids
    return GateRequest(*asked, delimiters=delimiters, in_thought=in_thought)


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    natural = draw(st.lists(st.sampled_from([A, B, C, C]), max_size=40)) + draw(st.sampled_from([[EOS], [C]]))
    kinds = draw(
        st.lists(st.sampled_from([*PROBABILITIES, "flat", "flat"]), min_size=len(natural), max_size=len(natural))
    )
    prompt = draw(st.lists(st.sampled_from([A, B, C]), min_size=1, max_size=5))
    begun, asked = draw(st.integers(0, len(natural) - 1)), draw(st.none() | requests())
    asked = asked and replace(asked, prefix_length=begun)
    return Rollout(natural, kinds, asked, prompt, begun, natural[:begun])


class Engine:
    """Slots, token history and batches as vLLM's V2 runner keeps them; decodes rollouts whose tokens are given."""

    def __init__(self, gates: DeviceGates, seed: int) -> None:
        self.gates, self.random = gates, np.random.default_rng(seed)
        self.history = torch.full((NUM_SLOTS, LONGEST), -7, dtype=torch.int32)
        self.running: dict[int, Rollout] = {}
        self.computed: dict[int, int] = {}

    def run(self, waiting: list[Rollout]) -> None:
        while waiting or self.running:
            self.preempt(waiting)
            for slot in self.random.permutation(sorted(set(range(NUM_SLOTS)) - self.running.keys())).tolist():
                if waiting:
                    self.admit(slot, waiting.pop())
            self.gates.flush()
            batch = [
                slot for slot in self.random.permutation(sorted(self.running)).tolist() if self.random.random() < 0.8
            ]
            if batch:
                self.step(batch)

    def preempt(self, waiting: list[Rollout]) -> None:
        for slot in list(self.running):
            if self.random.random() < 0.05:
                waiting.insert(int(self.random.integers(len(waiting) + 1)), self.running.pop(slot))

    def admit(self, slot: int, rollout: Rollout) -> None:
        self.running[slot], self.computed[slot] = rollout, 0
        self.history[slot] = -7  # what an earlier occupant left must not be read
        tokens = rollout.prompt + rollout.ids
        self.history[slot, : len(tokens)] = torch.tensor(tokens)
        if rollout.request is None:
            self.gates.drop(slot)
        else:
            admit(self.gates, slot, rollout.request, len(rollout.prompt) + rollout.begun)

    def step(self, batch: list[int]) -> None:
        """Compute some or all of the tokens that each slot lacks, and sample where none is left."""
        tokens = {slot: self.running[slot].prompt + self.running[slot].ids for slot in batch}
        for slot in batch:
            lacking = len(tokens[slot]) - self.computed[slot]
            self.computed[slot] += lacking if self.random.random() < 0.5 else int(self.random.integers(1, lacking + 1))
        pos = torch.tensor([self.computed[slot] - 1 for slot in batch])
        input_ids = torch.tensor([tokens[slot][self.computed[slot] - 1] for slot in batch], dtype=torch.int32)
        history = self.history.clone()
        history[batch, pos] = -7  # the newest token must come from the input
        samples = [self.computed[slot] == len(tokens[slot]) for slot in batch]
        kinds = [self.running[slot].kinds[len(self.running[slot].ids)] for slot in batch]
        before = torch.stack([LOGITS[kind] for kind in kinds])
        after = before.clone()
        slots = np.array(batch, dtype=np.int32)
        self.gates.apply(after, torch.from_numpy(slots), slots, pos, input_ids, history)
        for row, slot in enumerate(batch):
            self.check_row(self.running[slot], before[row], after[row])
            if samples[row]:
                self.sample(slot, bool(after[row, SENTINEL] == FORCED))

    def check_row(self, rollout: Rollout, before: torch.Tensor, after: torch.Tensor) -> None:
        if rollout.request is not None:
            assert after[SENTINEL] in (FORCED, -torch.inf)
            after, before = after.clone(), before.clone()
            after[SENTINEL] = before[SENTINEL] = 0.0
        assert torch.equal(after, before)

    def sample(self, slot: int, stop: bool) -> None:
        rollout = self.running[slot]
        rollout.stopped = stop
        if not stop:
            rollout.ids.append(rollout.natural[len(rollout.ids)])
            self.history[slot, len(rollout.prompt) + len(rollout.ids) - 1] = rollout.ids[-1]
        if stop or len(rollout.ids) == len(rollout.natural):
            del self.running[slot]


@settings(max_examples=300, deadline=None)
@given(st.lists(rollouts(), min_size=1, max_size=8), st.integers(0, 2**32))
def test_stops_are_those_of_algorithm_1_under_reordering_reuse_preemption_and_chunked_prefill(batch, seed):
    Engine(device_gates(), seed).run(list(batch))
    assert [(rollout.ids, rollout.stopped) for rollout in batch] == [rollout.expected() for rollout in batch]


LARGEST = 2**31 - 1  # of a request parameter


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([A, B, C]), min_size=1, max_size=20),
    st.sampled_from([1, 7, LARGEST]),
    st.sampled_from([7, 9, LARGEST]),
    st.sampled_from([0, 3, LARGEST]),
    st.sampled_from([1, 4, LARGEST]),
    st.sampled_from([None, 2, LARGEST]),
    st.booleans(),
    st.sampled_from([0.0, 1e-30, 1e30]),
    st.sampled_from(["sharp", "flat", "eos"]),
)
def test_extreme_parameters_decide_as_on_the_host(ids, k1, k2, grace, interval, window, trim, threshold, kind):
    spec = GateSpec(k1, max(k1, k2), grace, interval, trim, True, threshold, window)
    asked = GateRequest(spec, False, "toy", SENTINEL, frozenset({EOS}))
    device, host = device_gates(1), HostGates(1)
    admit(device, 0, asked)
    device.flush()
    for length, token in enumerate(ids, start=1):
        host.admit(0, asked, automaton("toy"), ids[:length])
        expected, logits = LOGITS[kind][None].clone(), LOGITS[kind][None].clone()
        host.apply(expected)
        apply(device, logits, [0], [length], [token], torch.tensor([ids]))
        assert torch.equal(logits, expected), length


def apply(gates: DeviceGates, logits: torch.Tensor, slots: list[int], length: list[int], newest: list[int], history):
    """One step of prompts of no tokens, `length` generated in each slot."""
    on_host = np.array(slots)
    gates.apply(logits, torch.from_numpy(on_host), on_host, torch.tensor(length) - 1, torch.tensor(newest), history)


UNTOUCHED = -1e4  # a logit without weight


def decide(gates: DeviceGates, slots: list[int], ids: list[int], kind: str = "flat") -> list[float]:
    """What stands at the sentinel of each of these slots after `ids` in all of them."""
    gates.flush()
    logits = LOGITS[kind].repeat(len(slots), 1)
    logits[:, SENTINEL] = UNTOUCHED
    history = torch.tensor([ids] * NUM_SLOTS)
    apply(gates, logits, slots, [len(ids)] * len(slots), [ids[-1]] * len(slots), history)
    return logits[:, SENTINEL].tolist()


def test_refused_request_is_stopped_before_its_first_token_even_if_no_marker_is_there():
    gates = device_gates()
    gates.refuse(2, SENTINEL)
    admit(gates, 0, request())
    assert decide(gates, [2, 0], [C]) == [FORCED, -np.inf]
    alone = device_gates()
    alone.refuse(1, SENTINEL)
    assert decide(alone, [1], [C, C]) == [FORCED]
    admit(alone, 1, request())  # the slot is used again
    assert decide(alone, [1], [C, C]) == [-np.inf]


def test_dropped_and_never_gated_slots_are_untouched_beside_gated_ones():
    gates = device_gates()
    for slot in (0, 1):
        admit(gates, slot, request())
    gates.flush()
    gates.drop(0)
    at = decide(gates, [3, 1, 0], [C] * 6)
    assert at == [UNTOUCHED, FORCED, UNTOUCHED]


def test_flush_uploads_what_was_staged_once():
    gates = device_gates()
    admit(gates, 1, request(), prompt_len=3)
    assert not gates.rows.any()
    gates.flush()
    assert gates.rows[1, Column.GATED] == 1 and gates.rows[1, Column.PROMPT_LEN] == 3 and not gates.rows[0].any()
    gates.rows.zero_()
    gates.flush()
    assert not gates.rows.any()


def test_a_batch_without_a_gated_slot_is_not_looked_at():
    gates = device_gates()
    admit(gates, 0, request())
    gates.apply(None, None, np.array([1, 3]), None, None, None)
    with pytest.raises(AttributeError):  # with one it is: nothing that is None can be looked at
        gates.apply(None, None, np.array([0, 1]), None, None, None)


@pytest.mark.parametrize(
    ("kind", "eos_ids", "stop"), [("sharp", {EOS}, True), ("eos", {EOS}, False), ("eos", {7}, True)]
)
def test_grace_ends_early_unless_the_likeliest_token_ends_the_rollout_by_itself(kind, eos_ids, stop):
    gates = device_gates()
    admit(gates, 0, request(entropy_threshold=ENTROPY, grace_window=5, eos_ids=frozenset(eos_ids)))
    assert decide(gates, [0], [C, A, B], kind) == [FORCED if stop else -np.inf]


@pytest.mark.parametrize(("threshold", "kind"), [(1e-300, "certain"), (1e300, "flat")])
def test_rounding_to_float32_switches_no_threshold_off(threshold, kind):
    gates = device_gates()
    admit(gates, 0, request(grace_window=5, entropy_threshold=threshold))
    assert decide(gates, [0], [C, A, B], kind) == [FORCED]


def test_each_marker_has_one_place_in_the_tables():
    gates = device_gates()
    for slot, marker in enumerate(("toy", "other", "toy")):
        admit(gates, slot, replace(request(), marker=marker))
    assert len(gates.tables) == len(automaton("toy").table) + len(automaton("other").table)
    assert [gates.add_automaton(automaton(name)) for name in ("toy", "other")] == [0, len(automaton("toy").table)]
