# SPDX-License-Identifier: Apache-2.0
"""The gate in a closed loop: the simulation is that of the real gate, and late answers are safe where they pay."""

import numpy as np
import pytest

from benchmarks.late_answers import CAP, EACH, GRACE, PROMPTS, Drawn, Mixture, compare, exact_cut, price_at, through
from duet_trl.gate.automaton import compile_automaton
from duet_trl.gate.coins import keep_coins
from duet_trl.gate.markers import get_marker
from duet_trl.gate.replay import GateSpec, Outcome, replay

AUTOMATON = compile_automaton(get_marker("math"), [b"x", b"\\boxed{4}", None])


def test_the_vectorised_gate_is_the_real_one():
    drawn = Mixture(0.3, 0.5, 0.03, "steady").draw(0.0, PROMPTS * EACH, np.random.default_rng(0))
    spec = GateSpec(300, 900, GRACE, trim=False)
    size = len(drawn.natural)
    keep = keep_coins(0, 1, ["a prompt"] * size, np.arange(size), 0.05)
    found = through(spec, keep, drawn)
    ids = [[0] * length for length in found.length]
    for row, at in enumerate(drawn.completed_at):
        if at <= found.length[row]:
            ids[row][at - 1] = 1
    real = replay(spec, AUTOMATON, ids, found.outcome == Outcome.ABORTED, keep)
    assert set(real.outcome.tolist()) == {*Outcome}
    for name, values in real.__dict__.items():
        np.testing.assert_array_equal(getattr(found, name), values, err_msg=name)
    assert (real.answered_at[real.outcome == Outcome.KEPT] > spec.abort_at).any()


class _Two(Mixture):
    """Half answer rightly at 100, a tenth at 1,000, the remainder run to the limit."""

    def draw(self, time: float, size: int, rng: np.random.Generator) -> Drawn:
        kind = np.arange(size) % 10
        completed_at = np.select([kind < 5, kind == 5], [100, 1000], CAP * 10)
        return Drawn(completed_at, np.minimum(completed_at, CAP), kind <= 5, kind == 5)


def test_the_exact_cut_is_behind_the_last_answer_that_pays():
    # 0.1 more right answers for half of the rollouts times 900 tokens: 2.2e-4 a token. The price is that of rollouts
    # of E min(T, K) tokens: 0.5 * 100 + 0.5 * 1,000 = 550 at K = 1,000.
    assert price_at(550.0) < 0.1 / 450 < price_at(100.0)
    assert exact_cut(_Two(0.0, 0.0, 0.0, "steady"), 0.0, np.random.default_rng(0)) == 1000


@pytest.mark.parametrize("course", ["steady", "growing", "from the middle"])
@pytest.mark.parametrize(("share", "waits"), [(0.05, True), (0.0, False)])
def test_late_right_answers_are_kept_and_hopeless_rollouts_are_not(course, share, waits):
    found = compare(Mixture(share, 0.5, 0.03, course), 1)
    ours, paper = found["rules"]["duet"], found["rules"]["paper"]
    assert found["waits"] == waits
    if waits:
        assert ours["lost"] < 0.01 < 0.02 < paper["lost"]
    else:
        assert ours["saved"] > 0.9
