# SPDX-License-Identifier: Apache-2.0
"""A step without a model: the population's laws, the vectorised gate against the real one, and what is continued."""

from dataclasses import replace

import numpy as np
import pytest

from duet_trl.gate.automaton import compile_automaton
from duet_trl.gate.markers import get_marker
from duet_trl.gate.replay import NEVER, GateSpec, Outcome, replay
from duet_trl.methods.grpo import GRPO, GRPOOptions
from duet_trl.methods.method import Method, Setting
from duet_trl.methods.spec_rl import SpecRL, SpecRLOptions
from duet_trl.rollouts import Job, Prompt, Prompts
from duet_trl.simulation.acting import Actor, through
from duet_trl.simulation.population import Drawn, Population

POPULATION = Population(num_prompts=500, max_length=1024, horizon=100, answer_tokens=300.0, late=0.1, silent=0.1)
UNCUT = replace(POPULATION, max_length=16384)
AUTOMATON = compile_automaton(get_marker("math"), [b"x", b"\\boxed{4}", None])


def many(population: Population, step: int, prompt: int = 7, count: int = 20_000) -> Drawn:
    return population.draw(np.full(count, prompt), step, np.random.default_rng(step))


@pytest.mark.parametrize("step", [1, 100])
def test_rollouts_follow_their_pass_rate_and_their_law_of_length(step):
    found = many(UNCUT, step)
    answered = found.completed_at < NEVER
    usual = answered & ~found.late
    share = POPULATION.pass_rate(np.array([7]), step)[0]
    assert found.right[usual].mean() == pytest.approx(share, abs=4 * (share * (1 - share) / usual.sum()) ** 0.5)
    median = 300.0 * 1.5 ** POPULATION.progress(step) * np.exp(0.15 * POPULATION.difficulty[7])
    assert np.median(found.completed_at[usual]) == pytest.approx(median, rel=0.02)
    assert (~answered).mean() == pytest.approx(0.1, abs=0.02) and found.late.mean() == pytest.approx(0.1, abs=0.01)
    assert (found.natural[~answered] == 16384).all() and (found.natural >= found.completed_at)[answered].all()
    assert not found.right[~answered].any()


def test_the_policy_improves_and_its_rollouts_grow():
    prompts = np.arange(500)
    early, late = (POPULATION.pass_rate(prompts, step).mean() for step in (1, 100))
    assert 0.3 < early < late < 0.9
    assert many(POPULATION, 100).natural.mean() > 1.2 * many(POPULATION, 1).natural.mean()


@pytest.mark.parametrize("options", [{}, {"trim": False}, {"abort": False}, {"poll_interval": 1, "window": 50}])
def test_the_vectorised_gate_is_the_real_one(options):
    drawn = POPULATION.draw(np.arange(500), 1, np.random.default_rng(0))
    spec = GateSpec(**{"poll_threshold": 150, "abort_threshold": 400, "grace_window": 30} | options)
    keep = np.random.default_rng(1).random(500) < 0.3
    found = through(spec, keep, drawn, np.zeros(500, dtype=np.int64))
    ids = [[0] * length for length in found.length]
    for row, at in enumerate(drawn.completed_at):
        if at <= found.length[row]:
            ids[row][at - 1] = 1
    stopped = found.trimmed | (found.outcome == Outcome.ABORTED)
    real = replay(spec, AUTOMATON, ids, stopped, keep)
    for name, values in vars(real).items():
        np.testing.assert_array_equal(vars(found)[name], values, err_msg=name)
    assert stopped.any()


def prompts(step: int = 1) -> Prompts:
    return Prompts([Prompt(str(number), {"prompt": str(number)}) for number in range(4)], step)


class Continues(Method):
    """Cuts rollouts at 100 tokens, and continues those that had not ended."""

    def jobs(self, prompts, done):
        if done is None:
            return [Job(q, max_tokens=100) for q in range(4) for _ in range(8)]
        if done.round.max() > 0:
            return []
        rows = np.flatnonzero(~done.terminated)
        return [
            Job(int(done.prompt[row]), tuple(done.tokens([row])[0][0]), continues=int(row)) for row in rows.tolist()
        ]

    def judge(self, done):
        return GRPO(Setting(4, 8, 1024, 100), GRPOOptions()).judge(done)

    def observe(self, done, judgement, sum_logps):
        self.done = done


def test_a_continued_rollout_does_what_it_began():
    acted = Actor(POPULATION).act(method := Continues(), prompts())
    done = method.done
    rows = [row for row, job in enumerate(done.jobs) if job.continues is not None]
    assert len(rows) > 20
    for row in rows:
        first = done.jobs[row].continues
        assert acted.drawn.natural[row] == acted.drawn.natural[first] == done.replay.length[row] > 100
        assert np.isnan(done.rewards[first]) and done.rewards[row] == acted.drawn.right[row]
    assert (done.replay.length[done.round == 0] <= 100).all() and done.new_tokens[rows[0]] == done.replay.length[
        rows[0]
    ] - 100


def test_drafts_are_taken_up_at_the_next_visit():
    setting = Setting(4, 8, 1024, 100)
    method, actor = SpecRL(setting, SpecRLOptions()), Actor(POPULATION)
    first, second = (actor.act(method, prompts(step)).done for step in (1, 2))
    kept = np.array([len(job.prefix) for job in second.jobs])
    assert not any(job.prefix for job in first.jobs) and 0.3 < kept.sum() / second.replay.length.sum() < 1.0
    for row in np.flatnonzero([job.whole for job in second.jobs]):
        assert second.replay.length[row] == kept[row] == first.replay.length[row]
        assert second.rewards[row] == first.rewards[row]
    assert (second.replay.length <= 1024).all() and method.metrics()["remembered_tokens"] == second.replay.length.sum()


def test_a_step_follows_from_its_seed():
    def lengths(seed: int) -> list[int]:
        method = GRPO(Setting(4, 8, 1024, 100), GRPOOptions())
        return Actor(POPULATION, seed).act(method, prompts()).done.replay.length.tolist()

    assert lengths(3) == lengths(3) != lengths(4)
