# SPDX-License-Identifier: Apache-2.0
"""The abort gate in a closed loop, nothing trained: late answers stay where they earn their tokens.

Limit 3,072, 512 rollouts a step. Most answer after N(400, 120) tokens, right every second time, a share after
N(1800, 250), and 3% never do; times grow, or late answers begin only within the run. The second half of a run counts.
"""

import numpy as np
import pytest

from duet_trl.allocate.statistics import price_of_more
from duet_trl.gate.replay import NEVER, GateSpec, Outcome, Replay, keep_coins, occurrence
from duet_trl.gate.thresholds import LengthThresholds, PricedThresholds

CAP, PROMPTS, EACH, GRACE, STEPS = 3072, 64, 8, 150, 300
SIZE = PROMPTS * EACH


def right_lost_and_cut(unit, share: float, course: str) -> tuple[float, float]:
    """Share of the right answers that were aborted, and the median of K2 + G."""
    rng, lost, right_ones, cuts = np.random.default_rng(1), 0, 0, []
    keys, mean = np.repeat([str(prompt) for prompt in range(PROMPTS)], EACH), 400.0
    for step in range(1, STEPS + 1):
        time = step / STEPS
        late = rng.random(SIZE) < (0.0 if course == "from the middle" and time < 0.25 else share)
        times = np.where(late, rng.normal(1800, 250, SIZE), rng.normal(400, 120, SIZE))
        times += 1000.0 * time if course == "growing" else 0.0
        silent = rng.random(SIZE) < 0.03
        completed_at = np.where(silent, NEVER, np.clip(times, 8, CAP - 40).astype(np.int64))
        right = ~silent & (rng.random(SIZE) < 0.5)
        natural = np.minimum(completed_at + rng.integers(1, 40, SIZE), CAP)
        spec = GateSpec(unit.poll_threshold, unit.abort_threshold, GRACE, trim=False)
        seen_at, last = spec.seen_at(completed_at), natural - 1
        undecided = (seen_at > last) & (last >= spec.abort_at)
        aborted = undecided & ~keep_coins(1, step, keys, occurrence(keys), unit.keep_probability)
        length = np.where(aborted, np.minimum(natural, spec.abort_at), natural)
        outcome = np.select([seen_at <= last, aborted, undecided], [Outcome.ANSWERED, Outcome.ABORTED, Outcome.KEPT])
        shown = np.where(completed_at <= length, -(-completed_at // 8) * 8, -1)
        marker_at = np.where(seen_at <= last, seen_at, -1)
        found = Replay(outcome.astype(np.int64), marker_at, np.zeros(SIZE, bool), length, shown, shown)
        price = price_of_more(np.full(PROMPTS, 0.2), np.full(PROMPTS, float(EACH)), np.full(PROMPTS, mean))
        unit.observe(found, (right & ~aborted).astype(float), step, price)
        mean += (length.mean() - mean) / 10.0
        if step > STEPS // 2:
            lost, right_ones = lost + (right & aborted).sum(), right_ones + right.sum()
            cuts.append(spec.abort_at)
    return lost / right_ones, float(np.median(cuts))


@pytest.mark.parametrize("course", ["steady", "growing", "from the middle"])
def test_late_right_answers_stay_and_the_quantile_of_the_paper_aborts_them(course):
    assert right_lost_and_cut(PricedThresholds(CAP, GRACE), 0.05, course)[0] < 0.01
    assert right_lost_and_cut(LengthThresholds(CAP), 0.05, course)[0] > 0.02


def test_without_late_answers_the_gate_closes_behind_the_early_ones():
    lost, cut = right_lost_and_cut(PricedThresholds(CAP, GRACE), 0.0, "steady")
    assert lost < 0.02 and 600 < cut < 1000
