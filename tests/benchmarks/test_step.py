# SPDX-License-Identifier: Apache-2.0
"""The step benchmark: its replay is faithful, its clock adds up, its verdict."""

import argparse
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from trl import GRPOTrainer

from benchmarks.common import finish
from benchmarks.step import (
    OFF,
    ON,
    PROCESSOR,
    STOCK,
    build,
    checks,
    controller_seconds,
    logged,
    measure,
    ratios,
)
from benchmarks.step_replay import (
    Clock,
    Pausing,
    Recording,
    Rollout,
    Sampling,
    StepRecord,
    cut,
    record,
    replayed,
)
from duet_trl.gate.streaming import GateSetup
from tests.engines.tiny_gate import CAP, MARKER, SPECS, TinyGate, assert_algorithm_1
from tests.runs import abort_early, count_fours, prompts, settings

STEPS = 4
# The entropies of the tiny policy lie around 3.4 nats: at this threshold some rollouts stop within their grace window.
ENTROPY = 3.36
GATE = {"budget_fraction": 0.5, "grace_window": 8, "method_kwargs": {"entropy_threshold": ENTROPY}}


@pytest.fixture(scope="module")
def recording(tiny_path: Path) -> Recording:
    """As many rollouts of each prompt as one may get."""
    return record(tiny_path, prompts(16)["prompt"], Sampling(8, 96, ENTROPY, seed=3), stride=3)


@pytest.fixture(scope="module")
def run(tiny_path: Path, recording: Recording, tmp_path_factory):
    """All three trainers, measured; two steps an epoch."""
    fields = settings(tmp_path_factory.mktemp("run"), max_steps=STEPS + 1, num_rollouts_max=8)
    fields |= {"optim": "sgd", "learning_rate": 0.02}
    trainers = {name: build(name, tiny_path, count_fours, prompts(16), fields, GATE) for name in (STOCK, OFF, ON)}
    abort_early(trainers[ON])
    return trainers, measure(trainers, recording, STEPS, warm_up=0)


@pytest.mark.slow
def test_stock_and_ours_with_the_parts_off_take_the_same_steps(run, recording):
    trainers, records = run
    for name in ("loss", "grad_norm", "reward", "num_tokens"):
        stock, off = (logged(trainers[arm], name)[:STEPS] for arm in (STOCK, OFF))
        np.testing.assert_allclose(off, stock, rtol=1e-5, atol=1e-6, err_msg=name)
    assert np.ptp(logged(trainers[STOCK], "grad_norm")) > 1e-3  # other rows every step
    for stock, off in zip(records[STOCK], records[OFF], strict=True):
        # 8 prompts x 4 rollouts, all kept, all trained
        assert stock.kept_tokens == stock.trained_tokens == off.kept_tokens == off.trained_tokens > 32
        assert stock.trained_tokens < off.computed_tokens <= stock.computed_tokens
    assert sum(r.computed_tokens for r in records[OFF]) < sum(r.computed_tokens for r in records[STOCK])


@pytest.mark.slow
def test_the_gated_trainer_trains_on_what_its_gate_leaves(run):
    trainers, records = run
    for outcome in ("abort_rate", "keep_rate", "trim_rate", "share_ended_before_gate"):
        assert logged(trainers[ON], f"duet/{outcome}").max() > 0, outcome
    trained = logged(trainers[ON], "duet/trained_tokens")[:STEPS]
    np.testing.assert_array_equal(trained, [r.trained_tokens for r in records[ON]])
    generated, aborted = (logged(trainers[ON], f"duet/{kind}_tokens")[:STEPS] for kind in ("generated", "aborted"))
    assert aborted.sum() > 0  # trained as failures: kept like the others
    kept = np.array([r.kept_tokens for r in records[ON]])
    # What the gate let through behind an answer does not count; not every step has some.
    assert ((trained <= kept) & (kept <= generated)).all() and kept.sum() < generated.sum()


def burn(seconds: float) -> None:
    """Use the processor for some time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@pytest.mark.parametrize("arm", [STOCK, ON])
def test_work_is_booked_where_it_is_done_and_the_replay_nowhere(tiny_path, tmp_path, recording, arm):
    class Slow(Recording):
        def take(self, prompt_ids, step):
            burn(0.3)
            return super().take(prompt_ids, step)

    def slow_reward(completions, **kwargs):
        burn(0.2)
        return count_fours(completions)

    trainer = build(arm, tiny_path, slow_reward, prompts(16), settings(tmp_path, num_rollouts_max=8), GATE)
    clock = Clock()
    with replayed(Slow(recording.rollouts, stride=3), clock), Pausing(trainer) as pausing:
        begin = time.process_time()
        step = clock.measure(pausing.advance)
        whole = time.process_time() - begin
    assert step.phases["score"][PROCESSOR] >= 0.2
    assert step.seconds[PROCESSOR] - step.phases["score"][PROCESSOR] > step.phases["forward"][PROCESSOR] > 0
    assert whole - step.seconds[PROCESSOR] >= 0.3


def test_the_seconds_of_the_controller_follow_from_its_share():
    # 4 s of 100 and 8 s of 20, of which the metrics name the others.
    parts = [(0.04, 50.0, 1.0, 45.0), (0.4, 1.0, 1.0, 10.0)]
    names = ("overhead_share", "seconds_generate", "seconds_score", "seconds_update")
    history = [{f"duet/{name}": value for name, value in zip(names, step, strict=True)} for step in parts]
    trainer = SimpleNamespace(state=SimpleNamespace(log_history=history))
    assert controller_seconds(trainer) == pytest.approx([4.0, 8.0])


def test_trl_is_itself_again_and_no_training_is_left_when_a_reward_fails(tiny_path, tmp_path, recording):
    def fails(completions, **kwargs):
        raise OverflowError("no reward today")

    before = GRPOTrainer._generate_single_turn, GRPOTrainer._compute_loss
    trainer = build(STOCK, tiny_path, fails, prompts(16), settings(tmp_path))
    clock = Clock()
    with pytest.raises(RuntimeError, match="within a step") as caught, replayed(recording, clock):
        with Pausing(trainer) as pausing:
            clock.measure(pausing.advance)
    assert isinstance(caught.value.__cause__, OverflowError)
    assert pausing._training.done()
    assert (GRPOTrainer._generate_single_turn, GRPOTrainer._compute_loss) == before


@pytest.mark.parametrize(
    ("off", "kept", "difference", "share", "missed"),
    [
        (1.005, 0.7, 1e-7, 0.004, 0),
        (1.011, 0.7, 1e-7, 0.004, 1),
        (1.005, 1.0, 1e-7, 0.004, 1),
        (1.005, 0.7, float("nan"), 0.004, 1),
        (1.005, 0.7, 1e-7, None, 1),  # without an engine the share of the bare step, 0.02, is judged
    ],
)
def test_check_ends_with_1_where_a_target_is_missed(tmp_path, monkeypatch, off, kept, difference, share, missed):
    monkeypatch.chdir(tmp_path)  # the figures are written there
    controller = {"without_engine": {"median": 0.02}} | ({"with_engine": {"median": share}} if share else {})
    ratios_found = {"off": {"median": off}, "on_per_kept_token": {"median": kept}}
    met = checks({"ratios": ratios_found, "difference": difference, "controller": controller})
    assert list(met.values()).count(False) == missed
    for check in (True, False):
        assert finish("step", {}, met, argparse.Namespace(check=check, seed=0)) == (missed and check)


def test_a_replay_cuts_rollouts_where_algorithm_1_does(tiny_path):
    gate = TinyGate(tiny_path)
    texts = [f"Say {i} " for i in range(40)]
    recorded = record(tiny_path, texts, Sampling(3, CAP, SPECS[1].entropy_threshold, seed=1), stride=0)
    natural = [(list(ids), rollout) for ids, found in recorded.rollouts.items() for rollout in found]
    setup = GateSetup(MARKER, gate.automaton, gate.sentinel, tuple(gate.eos_ids))
    keep = np.random.default_rng(0).random(len(natural)) < 0.4
    spec_of_row = [SPECS[row % len(SPECS)] for row in range(len(natural))]
    ids = [[] for _ in natural]
    for spec in SPECS:
        rows = np.array([row for row, chosen in enumerate(spec_of_row) if chosen is spec])
        for row, cut_ids in zip(rows, cut(spec, keep[rows], setup, [natural[r][1] for r in rows]), strict=True):
            ids[row] = cut_ids
    assert_algorithm_1(gate, [prompt for prompt, _ in natural], ids, spec_of_row, keep)
    for row, (_, rollout) in zip(ids, natural, strict=True):
        kept = row[:-1] if row[-1] == gate.sentinel else row
        assert kept == rollout.ids[: len(kept)]
        assert len(kept) == len(rollout.ids) or row[-1] == gate.sentinel


def test_equal_steps_bring_equal_rollouts_and_none_twice():
    def rollout(token):
        return Rollout([token], np.zeros(1, dtype=bool))

    recording = Recording({(1,): [rollout(i) for i in range(4)], (2,): [rollout(i) for i in range(10, 14)]}, stride=3)
    rows = [[1], [1], [2], [1]]
    assert [r.ids[0] for r in recording.take(rows, step=0)] == [0, 1, 10, 2]
    # 3 further on in each list of 4
    assert [r.ids[0] for r in recording.take(rows, step=1)] == [3, 0, 13, 1]
    with pytest.raises(ValueError, match="more than the 4 rollouts"):
        recording.take([[1]] * 5, step=0)


def test_ratios_are_taken_within_a_round():
    def step(seconds, tokens):
        return StepRecord(seconds=(2 * seconds, seconds), kept_tokens=tokens, trained_tokens=tokens // 2)

    # The machine is twice as slow in the second round and nobody gains by it.
    records = {STOCK: [step(4.0, 100), step(8.0, 100)], OFF: [step(3.0, 100), step(6.0, 100)]}
    records[ON] = [step(1.0, 50), step(2.0, 50)]
    found = ratios(records)
    assert found["off"] == {"p10": 0.75, "median": 0.75, "p90": 0.75}
    assert found["on"]["median"] == 0.25
    assert found["on_per_kept_token"]["median"] == pytest.approx(0.5)  # a quarter of the time, half of the tokens
    assert found["on_per_trained_token_wall"]["median"] == pytest.approx(0.5)
