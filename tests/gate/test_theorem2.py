# SPDX-License-Identifier: Apache-2.0
"""Theorem 2 on a Markov policy small enough to enumerate: the gate leaves the expected gradient as it is.

A rollout contributes Z = R * sum_t grad log pi(y_t | y_<t), with an action-independent baseline of zero. Assumption
A3: once a marker has completed, R depends on the tokens up to it alone.
"""

from itertools import product

import numpy as np
import pytest

from duet_trl.gate.replay import GateSpec, Outcome, propensity, replay
from duet_trl.gate.streaming import StreamingGate
from duet_trl.update.advantages import surcharge_bound
from tests.gate.oracle import EOS, A, B, C, toy_automaton, toy_ends

AUTOMATON = toy_automaton()
NUM_TOKENS, CAP = 4, 7
# Next-token logits by previous token (the row of EOS is the start); EOS is rare, so the cap is met often.
LOGITS = np.array([[0.1, 0.9, 0.3, -1.2], [0.4, -0.2, 0.6, -0.7], [0.8, 0.2, 0.5, -1.0], [0.3, 0.0, 0.7, -1.5]])
POLICY = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
EPSILON = 0.3


def natural_rollouts() -> tuple[list[list[int]], np.ndarray]:
    """Every rollout of at most CAP tokens and its probability."""
    ids = [
        list(body) + ending
        for length in range(CAP + 1)
        for body in product((A, B, C), repeat=length)
        for ending in ([[EOS]] if length < CAP else [[]])
    ]
    probability = np.array([np.prod([POLICY[a, b] for a, b in zip([EOS, *row], row, strict=False)]) for row in ids])
    assert probability.sum() == pytest.approx(1.0, abs=1e-12)
    return ids, probability


NATURAL, PROBABILITY = natural_rollouts()


def score(ids: list[int]) -> np.ndarray:
    """Gradient of the log-probability of the tokens with respect to the logits, shape (NUM_TOKENS**2,)."""
    gradient = np.zeros((NUM_TOKENS, NUM_TOKENS))
    for previous, token in zip([EOS, *ids], ids, strict=False):
        gradient[previous] -= POLICY[previous]
        gradient[previous, token] += 1.0
    return gradient.ravel()


def reward(ids: list[int]) -> float:
    """Fixed by the first marker where there is one; otherwise something that the whole text decides."""
    ends = toy_ends(ids)
    return 1.0 + 0.5 * ends[0] if ends else 0.3 * ids.count(C) - 0.1 * len(ids)


def contribution(ids: list[int]) -> np.ndarray:
    return reward(ids) * score(ids)


def through_gate(spec: GateSpec, naturals, keep) -> tuple[list[list[int]], np.ndarray]:
    """Generate given natural rollouts under the streaming gate, all in step."""
    gate = StreamingGate(len(naturals), [AUTOMATON])
    for row, coin in enumerate(keep):
        gate.admit(row, spec, bool(coin))
    stopped_at = np.array([len(ids) for ids in naturals])
    stopped = np.zeros(len(naturals), dtype=bool)
    for t in range(max(stopped_at)):
        rows = np.flatnonzero(t < stopped_at)
        stops = gate.stops(rows)
        stopped[rows[stops]] = True
        stopped_at[rows[stops]] = t
        rows = rows[~stops]
        if len(rows):
            gate.step(rows, np.array([naturals[row][t] for row in rows]))
    return [ids[:end] for ids, end in zip(naturals, stopped_at, strict=True)], stopped


def estimates(spec: GateSpec, naturals, keep, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """h-hat = (1 - aborted) Z / p of each rollout, shape (N, D), and its outcome."""
    ids, stopped = through_gate(spec, naturals, keep)
    outcome = replay(spec, AUTOMATON, ids, stopped, keep).outcome
    z = np.array([contribution(row) for row in ids])
    kept = outcome != Outcome.ABORTED
    return np.where(kept[:, None], z / propensity(outcome, epsilon)[:, None], 0.0), outcome


def enumerated(spec: GateSpec) -> dict[str, np.ndarray | float]:
    """Exact moments of h-hat over all rollouts and both sides of the coin."""
    survivors, outcome = estimates(spec, NATURAL, np.ones(len(NATURAL), bool), EPSILON)
    others, _ = estimates(spec, NATURAL, np.zeros(len(NATURAL), bool), EPSILON)
    moments = {
        "mean": (PROBABILITY @ survivors, PROBABILITY @ others),
        "second": (PROBABILITY @ (survivors**2).sum(axis=1), PROBABILITY @ (others**2).sum(axis=1)),
    }
    mixed = {name: EPSILON * kept + (1 - EPSILON) * tossed for name, (kept, tossed) in moments.items()}
    return {**mixed, "marker_less": outcome == Outcome.KEPT}


Z_NATURAL = np.array([contribution(ids) for ids in NATURAL])
MEAN = PROBABILITY @ Z_NATURAL
SECOND_MOMENT = float(PROBABILITY @ (Z_NATURAL**2).sum(axis=1))


@pytest.mark.parametrize("trim", [False, True])
@pytest.mark.parametrize("abort", [False, True])
@pytest.mark.parametrize("window", [None, 2])
def test_expected_gradient_is_that_of_natural_rollouts_exactly(trim, abort, window):
    spec = GateSpec(2, 3, 1, poll_interval=2, trim=trim, abort=abort, window=window)
    assert np.abs(enumerated(spec)["mean"] - MEAN).max() < 1e-13
    assert np.abs(MEAN).max() > 0.1  # zero would be unbiased in any case


def test_second_moment_surcharge_is_eq_8_with_equality_when_nothing_is_trimmed_and_less_otherwise():
    trimmed, exact = (enumerated(GateSpec(2, 3, 1, poll_interval=2, trim=trim)) for trim in (True, False))
    marker_less = exact["marker_less"]
    share = float(PROBABILITY[marker_less].sum())
    within = float(PROBABILITY[marker_less] @ (Z_NATURAL[marker_less] ** 2).sum(axis=1)) / share
    bound = surcharge_bound(share, EPSILON, within)
    assert exact["second"] - SECOND_MOMENT == pytest.approx(bound, rel=1e-12)
    assert trimmed["second"] < exact["second"]
