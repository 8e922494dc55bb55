# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1, phase 2, written once more as a loop over the tokens of one rollout: the oracle of the gate tests."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from hypothesis import strategies as st

from duet_trl.gate.automaton import TokenAutomaton, compile_automaton
from duet_trl.gate.dfa import Grammar, build_dfa, outside_thoughts, tail_that_may_open
from duet_trl.gate.markers import Marker
from duet_trl.gate.replay import GateSpec, Outcome
from duet_trl.gate.thoughts import Delimiters

A, B, C, EOS = 0, 1, 2, 3
"""Token ids of the toy vocabulary; the marker is A followed by B."""


THOUGHT = Delimiters("aa", "cb")
"""Thoughts of the toy vocabulary, spelled by two tokens each."""


@cache
def toy_marker(text: str = "ab", delimiters: Delimiters | None = None) -> Marker:
    """Completes at the end of each occurrence of a text."""

    def step(state: bytes, byte: int) -> tuple[bytes, bool]:
        seen = tail_that_may_open(state + bytes([byte]), text.encode())
        return (b"", True) if seen == text.encode() else (seen, False)

    grammar = Grammar(b"", step, text.encode())
    if delimiters is not None:
        grammar = outside_thoughts(grammar, *(part.encode() for part in delimiters.parts))
    return Marker("toy", build_dfa(grammar), delimiters)


@cache
def toy_automaton(delimiters: Delimiters | None = None) -> TokenAutomaton:
    return compile_automaton(toy_marker("ab", delimiters), [b"a", b"b", b"c", None])


@st.composite
def specs(draw: st.DrawFn, entropy_threshold: float) -> GateSpec:
    """Any gate of a few tokens; half of them end a grace window by this entropy."""
    poll_threshold = draw(st.integers(1, 12))
    return GateSpec(
        poll_threshold=poll_threshold,
        abort_threshold=poll_threshold + draw(st.integers(0, 12)),
        grace_window=draw(st.integers(0, 6)),
        poll_interval=draw(st.integers(1, 5)),
        trim=draw(st.booleans()),
        abort=draw(st.booleans()),
        entropy_threshold=draw(st.sampled_from([0.0, entropy_threshold])),
        window=draw(st.sampled_from([None, 1, 2, 5])),
    )


@dataclass(frozen=True)
class Rollout:
    """What a gate makes of a natural rollout."""

    ids: list[int]
    stopped: bool
    outcome: Outcome
    marker_at: int


def algorithm_1(
    spec: GateSpec, natural: Sequence[int], keep: bool, entropy: Sequence[float], ends: Collection[int]
) -> Rollout:
    """Generate a rollout that would be `natural` without a gate.

    natural: token ids up to and including the EOS, or up to the length cap.
    entropy: entropy[t] belongs to the distribution of token t + 1; inf where an EOS is likeliest.
    ends: lengths of the prefixes whose last token completes a marker.
    """
    generated: list[int] = []
    marker_at, coin_thrown = None, False
    while len(generated) < len(natural):
        t = len(generated)
        at_gate = spec.abort and t == spec.abort_threshold + spec.grace_window
        polling = (t >= spec.poll_threshold and t % spec.poll_interval == 0) or at_gate
        if polling and marker_at is None and not coin_thrown and _has_marker(t, ends, spec.window):
            marker_at = t
        if at_gate and marker_at is None:
            coin_thrown = True
            if not keep:
                return Rollout(generated, True, Outcome.ABORTED, -1)
        if marker_at is not None and spec.trim:
            if t == marker_at + spec.grace_window or entropy[t] < spec.entropy_threshold:
                return Rollout(generated, True, Outcome.ANSWERED, marker_at)
        generated.append(natural[t])
    if marker_at is not None:
        return Rollout(generated, False, Outcome.ANSWERED, marker_at)
    return Rollout(generated, False, Outcome.KEPT if coin_thrown else Outcome.NATURAL, -1)


def continued(
    spec: GateSpec, natural: Sequence[int], keep: bool, entropy: Sequence[float], ends: Collection[int], begun: int
) -> Rollout:
    """`algorithm_1` for a rollout whose first `begun` tokens exist already: it is first asked behind them."""
    within = algorithm_1(spec, natural, keep, [np.inf] * begun + list(entropy[begun:]), ends)
    overdue = within.stopped and len(within.ids) < begun
    return replace(within, ids=list(natural[:begun])) if overdue else within


def _has_marker(t: int, ends: Collection[int], window: int | None) -> bool:
    """Whether a marker ends within the last `window` of t tokens."""
    oldest = 0 if window is None else t - window
    return any(oldest < end <= t for end in ends)


def toy_ends(
    ids: Sequence[int],
    delimiters: Delimiters | None = None,
    in_thought: bool = False,
    marker: tuple[int, int] = (A, B),
) -> list[int]:
    """Lengths of the prefixes that end in the toy marker (or another of two tokens) outside of thoughts."""
    ends, begin = [], 0
    for end in range(1, len(ids) + 1):
        last = list(ids[begin:end])[-2:]
        if in_thought:
            if last == [C, B]:
                in_thought, begin = False, end
        elif delimiters is not None and last == [A, A]:
            in_thought, begin = True, end
        elif last == list(marker):
            ends.append(end)
    return ends


def next_entropies(length: int, generator: np.random.Generator) -> np.ndarray:
    """Entropies for t = 0..length, some below 0.5, some inf."""
    return generator.choice([0.1, 0.9, np.inf], p=[0.2, 0.6, 0.2], size=length + 1)
