# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duet_trl.gate.automaton import compile_automaton
from duet_trl.gate.replay import GateMismatch, GateSpec, Outcome, propensity, replay, split_sentinel
from duet_trl.gate.streaming import StreamingGate
from tests.gate.oracle import (
    EOS,
    THOUGHT,
    A,
    B,
    C,
    algorithm_1,
    continued,
    next_entropies,
    specs,
    toy_automaton,
    toy_ends,
    toy_marker,
)

AUTOMATON = toy_automaton()


@st.composite
def natural_rollouts(draw: st.DrawFn) -> list[int]:
    """C is likelier than A and B, so that markers come late; some rollouts end by EOS, some at the length cap."""
    ids = draw(st.lists(st.sampled_from([A, B, C, C]), max_size=40))
    return ids + draw(st.sampled_from([[EOS], [C]]))


def spec(**changes) -> GateSpec:
    """K1 = 4, K2 = 8, G = 3, polls at multiples of 2 and at 11."""
    values = {"poll_threshold": 4, "abort_threshold": 8, "grace_window": 3, "poll_interval": 2, **changes}
    return GateSpec(**values)


def with_marker_at(position: int, length: int) -> list[int]:
    """Rollout of C's whose only marker completes at `position` tokens."""
    ids = [C] * length
    ids[position - 2 : position] = [A, B]
    return ids


def stream(
    gate_spec: GateSpec, naturals, keep, entropy, seed: int = 0, automaton=AUTOMATON, in_thought=None, begun=None
) -> list[tuple[list[int], bool]]:
    """A little engine: random subsets of rows decode, rows are preempted, moved and swapped between slots.

    begun: how many tokens of each rollout exist already; None: none.
    """
    random = np.random.default_rng(seed)
    slots = len(naturals) + 2
    gate = StreamingGate(slots, [automaton])
    in_thought = [False] * len(naturals) if in_thought is None else in_thought
    home = dict(enumerate(random.permutation(slots)[: len(naturals)].tolist()))  # rollout -> slot
    generated = [ids[:count] for ids, count in zip(naturals, begun or [0] * len(naturals), strict=True)]
    stopped = [False] * len(naturals)
    for rollout, slot in home.items():
        gate.admit(slot, gate_spec, keep[rollout], prefix=generated[rollout], in_thought=in_thought[rollout])
    running = list(home)
    while running:
        for _ in range(2):
            first, second = random.integers(slots, size=2).tolist()
            gate.swap(first, second)
            exchange = {first: second, second: first}
            home = {rollout: exchange.get(slot, slot) for rollout, slot in home.items()}
        for rollout in running:
            if random.random() < 0.1:  # preempted: resumes elsewhere from its tokens
                free = next(slot for slot in range(slots) if slot not in home.values())
                home[rollout] = free
                prefix = generated[rollout]
                gate.admit(free, gate_spec, keep[rollout], prefix=prefix, in_thought=in_thought[rollout])
        batch = [rollout for rollout in random.permutation(running).tolist() if random.random() < 0.7]
        if not batch:
            continue
        rows = np.array([home[rollout] for rollout in batch])
        next_entropy = np.array([entropy[rollout][len(generated[rollout])] for rollout in batch])
        armed = gate.armed(rows)
        stops = gate.stops(rows, ~armed | (next_entropy < gate_spec.entropy_threshold))  # only armed rows may look
        for rollout, stop in zip(batch, stops, strict=True):
            if stop:
                stopped[rollout] = True
            else:
                generated[rollout].append(naturals[rollout][len(generated[rollout])])
        ended = {rollout for rollout in batch if stopped[rollout] or len(generated[rollout]) == len(naturals[rollout])}
        alive = [rollout for rollout in batch if rollout not in ended]
        if alive:
            gate.step(np.array([home[r] for r in alive]), np.array([generated[r][-1] for r in alive]))
        running = [rollout for rollout in running if rollout not in ended]
    return list(zip(generated, stopped, strict=True))


@settings(max_examples=600)
@given(
    specs(0.5),
    st.lists(st.tuples(natural_rollouts(), st.booleans(), st.booleans()), min_size=1, max_size=6),
    st.sampled_from([None, THOUGHT]),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_streaming_and_replay_are_algorithm_1_under_any_chunking_preemption_and_order(
    gate_spec, rollouts, thought, continues, seed
):
    """With and without thoughts, from the first token on and behind a prefix."""
    naturals, keep, opened = map(list, zip(*rollouts, strict=True))
    automaton, in_thought = toy_automaton(thought), [inside and thought is not None for inside in opened]
    random = np.random.default_rng(seed)
    entropy = [next_entropies(len(ids), random) for ids in naturals]
    begun = [int(random.integers(len(ids))) if continues else 0 for ids in naturals]
    ends = [toy_ends(ids, thought, inside) for ids, inside in zip(naturals, in_thought, strict=True)]
    expected = [continued(gate_spec, *row) for row in zip(naturals, keep, entropy, ends, begun, strict=True)]

    streamed = stream(gate_spec, naturals, keep, entropy, seed, automaton, in_thought, begun)
    assert streamed == [(rollout.ids, rollout.stopped) for rollout in expected]

    ids, stopped = [ids for ids, _ in streamed], np.array([stopped for _, stopped in streamed])
    replayed = replay(gate_spec, automaton, ids, stopped, keep, np.array(in_thought), np.array(begun))
    assert replayed.outcome.tolist() == [rollout.outcome for rollout in expected]
    assert replayed.marker_at.tolist() == [rollout.marker_at for rollout in expected]
    assert replayed.length.tolist() == [len(rollout.ids) for rollout in expected]
    assert replayed.trimmed.tolist() == [r.stopped and r.outcome == Outcome.ANSWERED for r in expected]
    # The answer time is the tau of what was generated, had it run on with nothing but polls.
    free, on = replace(gate_spec, trim=False, abort=False), [C] * 40
    shown = [toy_ends(row, thought, inside) for row, inside in zip(ids, in_thought, strict=True)]
    polled = [algorithm_1(free, row + on, True, [], own).marker_at for row, own in zip(ids, shown, strict=True)]
    assert replayed.answered_at.tolist() == polled


def test_a_rollout_that_begins_in_a_thought_needs_an_automaton_that_knows_it():
    with pytest.raises(ValueError, match="without its delimiters"):
        StreamingGate(1, [AUTOMATON]).admit(0, spec(), keep=False, in_thought=True)
    with pytest.raises(ValueError, match="without its delimiters"):
        replay(spec(), AUTOMATON, [[C]], np.array([False]), [False], np.array([True]))


@settings(max_examples=200)
@given(specs(0.5), natural_rollouts(), st.booleans(), st.integers(0, 2**32), st.sampled_from([-1, 1]))
def test_replay_rejects_a_stop_at_any_other_time(gate_spec, natural, keep, seed, error):
    entropy = next_entropies(len(natural), np.random.default_rng(seed))
    rollout = algorithm_1(gate_spec, natural, keep, entropy, toy_ends(natural))
    # With a low-entropy stop a whole interval is possible, so only a fixed stop time can be proven wrong.
    fixed = gate_spec.entropy_threshold == 0 or rollout.outcome == Outcome.ABORTED
    if not (rollout.stopped and fixed) or len(rollout.ids) + error > len(natural) or len(rollout.ids) + error < 1:
        return
    with pytest.raises(GateMismatch):
        replay(gate_spec, AUTOMATON, [natural[: len(rollout.ids) + error]], [True], [keep])


def test_inactive_gate_changes_nothing_and_needs_no_automaton():
    inactive = spec(trim=False, abort=False)
    outcome = replay(inactive, None, [[C] * 40, [A, B]], [False, False], [False, True]).outcome
    assert outcome.tolist() == [Outcome.NATURAL] * 2


def test_engine_without_the_gate_is_an_error_that_names_rollout_and_remedy():
    with pytest.raises(GateMismatch, match=r"rollout 1 ended by itself at 30 tokens.*stops it at 11 .*DUETLogits"):
        replay(spec(), AUTOMATON, [[C, EOS], [C] * 30], [False, False], [False, False])
    with pytest.raises(GateMismatch, match="was stopped at 30 tokens, but this gate does not stop it at all"):
        replay(spec(), AUTOMATON, [[C] * 30], [True], [True])
    with pytest.raises(GateMismatch, match="was stopped at 6 tokens, but this gate stops it at 7"):
        replay(spec(), AUTOMATON, [with_marker_at(2, 6)], [True], [False])
    with pytest.raises(GateMismatch, match="between 4 and 7"):
        replay(spec(entropy_threshold=0.5), AUTOMATON, [with_marker_at(2, 30)], [False], [True])


def test_a_prefix_beyond_its_stop_is_stopped_at_once_and_nowhere_else():
    begun = np.array([20])  # K2 + G = 11 lies within it
    assert replay(spec(), AUTOMATON, [[C] * 20], [True], [False], prefix_length=begun).outcome == [Outcome.ABORTED]
    for length, stopped in ((21, True), (21, False), (19, True)):
        with pytest.raises(GateMismatch):
            replay(spec(), AUTOMATON, [[C] * length], [stopped], [False], prefix_length=begun)
    with pytest.raises(GateMismatch, match="stops it at 11"):
        replay(spec(), AUTOMATON, [[C] * 20], [True], [False])


def test_split_sentinel_cuts_at_the_first_sentinel():
    ids, stopped = split_sentinel([[1, 2, 9, 0, 9], (4, 5), [9]], sentinel=9)
    assert ids == [[1, 2], [4, 5], []]
    assert stopped.tolist() == [True, False, True]


def test_propensity_is_epsilon_exactly_for_rollouts_that_met_the_coin():
    assert propensity(np.array(list(Outcome)), 0.25).tolist() == [1.0, 1.0, 0.25, 0.25]


def test_gate_of_two_markers_reads_each_row_with_its_own():
    other = compile_automaton(toy_marker("cc"), [b"a", b"b", b"c", None])
    gate = StreamingGate(2, [AUTOMATON])
    index = gate.add_automaton(other)
    gate.admit(0, spec(), False, 0)
    gate.admit(1, spec(), False, index)
    stops = [gate.step(np.array([0, 1]), np.array([C, C])) for _ in range(11)]
    assert [s.tolist() for s in stops[6:]] == [[False, True]] * 4 + [[True, True]]  # seen at 4, stop 7; abort at 11


def test_automata_over_different_vocabularies_are_refused():
    with pytest.raises(ValueError, match="one vocabulary"):
        StreamingGate(1, [AUTOMATON, compile_automaton(toy_marker(), [b"a", b"b"])])
