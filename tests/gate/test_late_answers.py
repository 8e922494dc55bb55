# SPDX-License-Identifier: Apache-2.0
"""K2 in a closed loop with the gate: a minority that answers late, and whether its right answers survive.

Cap 3,072, 512 rollouts a step. Most answer after N(400, 120) tokens, some after N(1800, 250), 3% never. Thresholds,
coins, poll times and propensities are the library's; the decisions are those of `replay`, vectorised, which the last
test compares with the real one on real tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from duet_trl.gate.automaton import compile_automaton
from duet_trl.gate.marker_gate import MarkerGate
from duet_trl.gate.markers import get_marker
from duet_trl.gate.replay import NEVER, GateSpec, Outcome, Replay, replay
from duet_trl.gate.thresholds import LengthThresholds

CAP, ROLLOUTS, GRACE, STEPS, STEADY = 3072, 512, 150, 150, 50
EARLY, LATE, UNANSWERED = 0, 1, 2
AUTOMATON = compile_automaton(get_marker("math"), [b"x", b"\\boxed{4}", None])


def gate(seed: int) -> MarkerGate:
    """The gate of `duet`; without the entropy rule, which only ends a grace window earlier."""
    thresholds = LengthThresholds(CAP, answer_quantile=0.95, answer_slack=1.25)
    options = {"entropy_threshold": 0.0, "window": None, "keep_probability": 0.05}
    return MarkerGate(thresholds, trim=True, abort=True, grace_window=GRACE, poll_interval=8, seed=seed, **options)


def through(spec: GateSpec, keep: np.ndarray, completed_at: np.ndarray, natural: np.ndarray) -> Replay:
    """`replay` of rollouts of known natural length (N,) with one marker each, or NEVER one, (N,)."""
    tau, last = spec.seen_at(completed_at), natural - 1
    answered, undecided = tau <= last, (tau > last) & (last >= spec.abort_at)
    outcome = np.select([answered, undecided & keep, undecided], [Outcome.ANSWERED, Outcome.KEPT, Outcome.ABORTED])
    length = np.where(answered, np.minimum(natural, tau + spec.grace_window), natural)
    length = np.where(outcome == Outcome.ABORTED, spec.abort_at, length)
    shown = np.where(completed_at <= length, replace(spec, abort=False).seen_at(completed_at), NEVER)
    return Replay(
        outcome=outcome,
        marker_at=np.where(answered, tau, -1),
        trimmed=answered & (length < natural),
        length=length,
        answered_at=np.where(shown < NEVER, shown, -1),
    )


def rollouts(share: float, shift: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Kind, completion of the marker and natural length of the rollouts of a step, shape (N,) each."""
    kind = rng.choice(3, ROLLOUTS, p=[0.97 - share, share, 0.03])
    drawn = np.where(kind == EARLY, rng.normal(400, 120, ROLLOUTS), rng.normal(1800, 250, ROLLOUTS)) + shift
    completed_at = np.where(kind == UNANSWERED, NEVER, np.clip(drawn, 8, CAP - 20).astype(np.int64))
    return kind, completed_at, np.minimum(completed_at + rng.integers(1, 40, ROLLOUTS), CAP)


@dataclass(frozen=True)
class Course:
    """Of the steps in steady state: late right answers lost, median K2, tokens saved, as shares of all."""

    lost: float
    abort_threshold: float
    saved: float


def course(
    share: float,
    *,
    growth: float = 0.0,
    late_is_right: float = 1.0,
    early_is_right: float = 1.0,
    begin: int = 0,
    price: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda right, length: right,
    seed: int = 0,
) -> Course:
    """Train nothing, only run the gate for STEPS steps.

    Args:
        share (float): Of rollouts that answer late, from step `begin` on.
        growth (float): Tokens by which all answers move back over the run.
        late_is_right, early_is_right (float): Probabilities.
        begin (int): First step with late answers.
        price (Callable): Reward from (right (N,), length (N,)).
        seed (int): Of rollouts and coins.
    """
    rng, unit = np.random.default_rng(seed), gate(seed)
    keys, group = [str(q) for q in range(ROLLOUTS // 8)], np.repeat(np.arange(ROLLOUTS // 8), 8)
    lost, late, tokens, natural_tokens, thresholds = 0, 0, 0, 0, []
    for step in range(1, STEPS + 1):
        kind, completed_at, natural = rollouts(share if step > begin else 0.0, growth * step / STEPS, rng)
        spec = unit.spec()
        found = through(spec, unit.coins(step, [keys[q] for q in group]), completed_at, natural)
        chance = np.choose(kind, [early_is_right, late_is_right, 0.0])
        right = rng.random(ROLLOUTS) < chance
        left = found.outcome != Outcome.ABORTED
        rewards = price((right & left).astype(float), found.length)
        propensity = unit.propensity(found.outcome)
        unit.observe(found.length[left], propensity[left], found.answered_at[left], rewards[left], step)
        if step > STEADY + begin:
            wanted = right & (kind == LATE)
            lost, late = lost + (wanted & ~left).sum(), late + wanted.sum()
            tokens, natural_tokens = tokens + found.length.sum(), natural_tokens + natural.sum()
            thresholds.append(spec.abort_threshold)
    return Course(lost / max(late, 1), float(np.median(thresholds)), 1.0 - tokens / natural_tokens)


SHARES = [0.01, 0.03, 0.05, 0.07, 0.1, 0.2, 0.3]


@pytest.mark.parametrize("growth", [0.0, 800.0], ids=["steady", "growing"])
@pytest.mark.parametrize("share", SHARES)
def test_of_a_minority_that_answers_late_and_right_at_most_one_in_twenty_is_lost(share, growth):
    for seed in (0, 1):
        assert course(share, growth=growth, seed=seed).lost <= 0.05


@pytest.mark.parametrize("share", [0.01, 0.03, 0.1])
def test_late_answers_that_begin_in_the_middle_of_a_run_raise_k2_again(share):
    # Until step 60 there are none, and K2 has come down to 1.25 times the 0.995-quantile of N(400, 120), about 890.
    assert course(0.0).abort_threshold == pytest.approx(890, rel=0.05)
    assert course(share, begin=60).lost <= 0.05


PRICES = {
    "length costs": lambda right, length: right - 0.5 * length / CAP,
    "-1 and 1": lambda right, length: 2 * right - 1,
    "never above 0": lambda right, length: 40 * right - 100,
    "format bonus": lambda right, length: right + 0.1 * (length < CAP),
}


@pytest.mark.parametrize("price", PRICES)
def test_late_answers_are_safe_whatever_the_unit_of_the_reward(price):
    assert course(0.03, early_is_right=0.7, late_is_right=0.7, price=PRICES[price]).lost <= 0.05


@pytest.mark.parametrize("price", PRICES)
def test_late_answers_that_are_never_right_do_not_hold_k2_up(price):
    found = course(0.03, early_is_right=0.7, late_is_right=0.0, price=PRICES[price])
    assert found.abort_threshold < 1000
    assert found.saved > 0.1  # of the tokens; trim takes nothing, rollouts end within 40 tokens of their answer


def test_the_vectorised_gate_is_the_real_one():
    rng, unit = np.random.default_rng(0), gate(0)
    unit.thresholds.load_state_dict(unit.thresholds.state_dict() | {"poll_threshold": 300, "abort_threshold": 900})
    _, completed_at, natural = rollouts(0.3, 0.0, rng)
    spec, keep = unit.spec(), unit.coins(1, ["a prompt"] * ROLLOUTS)
    found = through(spec, keep, completed_at, natural)
    ids = [[0] * length for length in found.length]
    for row, at in enumerate(completed_at):
        if at <= found.length[row]:
            ids[row][at - 1] = 1
    real = replay(spec, AUTOMATON, ids, found.trimmed | (found.outcome == Outcome.ABORTED), keep)
    assert set(real.outcome.tolist()) == {*Outcome}
    for name, values in real.__dict__.items():
        np.testing.assert_array_equal(getattr(found, name), values, err_msg=name)
    assert (real.answered_at[real.outcome == Outcome.KEPT] > spec.abort_at).any()
