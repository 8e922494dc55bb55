# SPDX-License-Identifier: Apache-2.0
"""Reuse of the last visit's rollouts: what of a draft may be used, and two epochs of training, resumed and whole."""

from dataclasses import replace

import numpy as np
import pytest

from duet_trl.gate.replay import GateSpec
from duet_trl.methods.drafts import Draft, accepted, pack, uniforms, unpack, usable
from duet_trl.methods.grpo import GRPO, GRPOOptions
from duet_trl.methods.reuse import Reuse, ReuseOptions
from duet_trl.rollouts import Job, Query
from tests.runs import duet_trainer, logged, prompts
from tests.states import plain

from .simulator import make_prompts, rollouts, run_step, setting, table

GATE = GateSpec(poll_threshold=10, abort_threshold=30, grace_window=4, poll_interval=4)
"""Polls at 12, 16, ..., 32; aborts at 34."""


def draft(length: int, answered_at: int = -1, ended: bool = True) -> Draft:
    return Draft(np.arange(length, dtype=np.int32), np.full(length, -1.0, np.float32), ended, answered_at)


@pytest.mark.parametrize(
    ("length", "answered_at", "gate", "keep", "expected"),
    [
        (20, -1, None, False, 20),
        (90, -1, None, False, 50),  # longer than the limit of the run: cut there
        (45, -1, GATE, True, 45),  # the coin keeps it
        (45, -1, GATE, False, 34),  # aborted at K2 + G
        (45, 36, GATE, False, 34),  # its answer comes behind the gate
        (45, 36, GATE, True, 45),  # kept, so never trimmed
        (45, 20, GATE, False, 24),  # the end of its grace window
        (22, 20, GATE, False, 22),
        (45, 8, GATE, False, 16),  # answered under an earlier K1: seen at the first poll of this gate
        (45, 20, GateSpec(10, 30, 4, 4, trim=False), False, 45),
        (45, -1, GateSpec(10, 30, 4, 4, abort=False), False, 45),
    ],
)
def test_a_draft_is_used_up_to_the_limit_and_to_where_its_gate_stops_it(length, answered_at, gate, keep, expected):
    assert usable(draft(length, answered_at), Job(0, gate=gate, keep=keep), limit=50) == expected


def test_the_first_token_that_fails_ends_what_is_kept():
    old, new = np.array([-1.0, -1.0, -2.0, -0.5]), np.array([-0.5, -1.5, -2.7, -0.5])
    coins = np.exp([-1e-9, -0.6, -0.6, -1.0])  # log ratios 0.5, -0.5, -0.7, 0
    assert accepted(old, new, coins, 0.0) == 2
    assert accepted(old, new, coins, 0.2) == 4
    assert accepted(np.full(4, np.nan), new, coins, 10.0) == 0  # an unknown log-prob is none that fits
    assert accepted(old, new, np.ones(4), 0.0) == 1


def test_coins_follow_from_what_names_the_rollout():
    names = [(7, 3, "p", 0), (8, 3, "p", 0), (7, 4, "p", 0), (7, 3, "q", 0), (7, 3, "p", 1)]
    drawn = [uniforms(seed, step, [key], [number], [1000])[0] for seed, step, key, number in names]
    several = uniforms(7, 3, ["q", "p", "p"], [0, 1, 0], [1000, 0, 10])
    assert [len(one) for one in several] == [1000, 0, 10]
    np.testing.assert_array_equal(several[0], drawn[3])
    np.testing.assert_array_equal(several[2], drawn[0][:10])
    assert abs(np.mean(drawn) - 0.5) < 0.02 and abs(np.std(drawn) - 12**-0.5) < 0.02  # of 5,000 draws
    correlation = np.abs(np.corrcoef(drawn) - np.eye(len(names)))
    assert correlation.max() < 0.15  # independent: standard deviation 0.03
    assert all(0 < one.min() and one.max() <= 1 for one in drawn)


def test_drafts_survive_being_packed_also_where_there_are_none():
    drafts = {"a": [draft(3), draft(1, 5, False)], "b": [replace(draft(7), reuses=2)]}
    for given in (drafts, {}):
        found = unpack(pack(given))
        assert found.keys() == given.keys()
        for key, of_prompt in given.items():
            assert [plain(vars(one)) for one in found[key]] == [plain(vars(one)) for one in of_prompt]


def spec_rl(max_reuses: int = 0, **others) -> Reuse:
    return Reuse(GRPO(setting(2, 4, **others), GRPOOptions()), ReuseOptions(max_reuses=max_reuses), "spec_rl")


def test_a_visit_asks_about_the_drafts_of_the_last_one_and_no_more():
    method = spec_rl()
    first, _ = run_step(method, make_prompts("ab"), table())
    assert all(not job.prefix for job in first.jobs)
    asked = method.jobs(make_prompts("bc", step=2), None)
    assert [query.prompt for query in asked] == [0] * 4  # c is new
    # The k-th rollout of a prompt takes the k-th of the last visit; the simulator's tokens are rollout numbers.
    assert [query.ids for query in asked] == [(row,) * 10 for row in range(4, 8)]
    none_yet = rollouts(make_prompts("bc"), [], [], answers=[np.full(10, -1.0 if k else -99.0) for k in range(4)])
    jobs = method.jobs(make_prompts("bc", step=2), none_yet)
    assert [len(job.prefix) for job in jobs] == [0, 10, 10, 10, 0, 0, 0, 0]
    assert [job.whole for job in jobs] == [False, True, True, True, False, False, False, False]


def test_a_prompt_that_stands_twice_in_a_batch_uses_no_draft_twice():
    method = spec_rl()
    run_step(method, make_prompts("ab"), table())
    asked = method.jobs(make_prompts("aa", step=2), None)
    assert [query.ids[0] for query in asked] == [0, 1, 2, 3]


@pytest.mark.parametrize(("max_reuses", "begins"), [(0, [0, 8, 8, 8, 8]), (1, [0, 8, 0, 8, 0]), (2, [0, 8, 8, 0, 8])])
def test_a_rollout_begins_afresh_after_so_many_visits(max_reuses, begins):
    method = spec_rl(max_reuses)
    for step, expected in enumerate(begins, start=1):
        done, _ = run_step(method, make_prompts("ab", step=step), table())
        assert sum(bool(job.prefix) for job in done.jobs) == expected
        saved = method.state_dict()
        method = spec_rl(max_reuses)
        method.load_state_dict(saved)  # the count is in the state


def test_a_rollout_that_may_not_be_reused_is_not_scored_for_it():
    """Of a visit whose first two rollouts were kept and whose others failed at once, only the others are new."""
    method = spec_rl(max_reuses=1)
    first = make_prompts("a")
    done = rollouts(first, [method.jobs(first, None)], np.zeros(4))
    assert method.jobs(first, done) == []  # the engine gave log-probs
    method.observe(done, method.judge(done), np.zeros(4))
    second = make_prompts("a", step=2)
    assert len(method.jobs(second, None)) == 4
    answers = [np.full(10, logp) for logp in (-1.0, -1.0, -99.0, -99.0)]
    jobs = method.jobs(second, rollouts(second, [], [], answers=answers))
    assert [len(job.prefix) for job in jobs] == [10, 10, 0, 0]
    done = replace(
        rollouts(second, [jobs], np.zeros(4), answers=answers), fetch=lambda rows: [([5], None) for _ in rows]
    )
    assert method.jobs(second, done) == [Query(0, (5,))] * 2
    scored = replace(done, answers=(*done.answers, np.array([-0.5]), np.array([-0.25])))
    method.observe(scored, method.judge(scored), np.zeros(4))
    np.testing.assert_allclose(method.state_dict()["drafts"]["logps"], [-0.5, -0.25])


def test_an_engine_without_log_probs_has_the_model_score_its_rollouts_once():
    method, prompts_ = spec_rl(), make_prompts("ab")
    done = rollouts(prompts_, [method.jobs(prompts_, None)], np.zeros(8))
    blind = replace(done, fetch=lambda rows: [([5, 6], None) for _ in rows])
    asked = method.jobs(prompts_, blind)
    assert asked == [Query(row // 4, (5, 6)) for row in range(8)]
    answered = replace(blind, answers=tuple(np.array([-0.1 * row, -2.0]) for row in range(8)))
    assert method.jobs(prompts_, answered) == []
    method.observe(answered, method.judge(answered), np.zeros(8))
    np.testing.assert_allclose(method.state_dict()["drafts"]["logps"][::2], -0.1 * np.arange(8), atol=1e-6)


def test_drafts_longer_than_the_limit_are_cut_to_it_and_are_then_whole():
    # The trainer refuses to resume with another limit; a method whose jobs have limits of their own meets this.
    method, prompts_ = spec_rl(), make_prompts("ab")
    run_step(method, prompts_, table(), length=lambda key, number: 5 + number)
    state = method.state_dict()
    short = Reuse(GRPO(replace(setting(2, 4), max_completion_length=6), GRPOOptions()), ReuseOptions(), "spec_rl")
    short.load_state_dict(state)
    asked = short.jobs(prompts_, None)
    assert [len(query.ids) for query in asked] == [5, 6, 6, 6] * 2
    jobs = short.jobs(prompts_, rollouts(prompts_, [], [], answers=[np.full(len(q.ids), -1.0) for q in asked]))
    assert [len(job.prefix) for job in jobs] == [5, 6, 6, 6] * 2 and all(job.whole for job in jobs)


# ---- Training ---------------------------------------------------------------------------------------------------

SHORT = {"max_completion_length": 48, "data": prompts(8)}
"""8 prompts: every step is an epoch."""


def test_an_unchanged_policy_generates_nothing_twice(tiny_path, tmp_path):
    trainer = duet_trainer(tiny_path, tmp_path, method="spec_rl", learning_rate=0.0, max_steps=2, **SHORT)
    trainer.train()
    first, second = logged(trainer, "duet/generated_tokens")
    assert first > 0 and second == 0
    assert logged(trainer, "duet/reused_tokens") == [0.0, first]
    assert logged(trainer, "duet/whole_rollouts") == [0.0, 32.0]
    assert logged(trainer, "duet/accept_rate") == [0.0, 1.0]
    assert logged(trainer, "duet/trained_tokens") == [first, first]
    for name in ("reward", "completions/mean_length", "completions/clipped_ratio"):
        before, after = logged(trainer, name)
        assert after == pytest.approx(before, rel=1e-6), name


GATED = {
    "budget_fraction": 0.9,
    "grace_window": 8,
    "method_kwargs": {"lenience": 0.0, "answer_memory": 5},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "fields"), [("spec_rl", {"method_kwargs": {"lenience": 0.0}}), ("duet_reuse", GATED)]
)
def test_two_epochs_reuse_rollouts_and_resume_alike(tiny_path, tmp_path, method, fields):
    # In its own order: TRL's sampler shuffles a resumed second epoch as if it were the first.
    fixed = {"data": prompts(16), "shuffle_dataset": False}
    options = {"method": method, "max_steps": 4, "learning_rate": 1e-2, **fields, **SHORT, **fixed}
    whole = duet_trainer(tiny_path, tmp_path, save_strategy="steps", save_steps=3, **options)
    whole.train()
    reused = logged(whole, "duet/reused_tokens")
    assert reused[:2] == [0, 0] and min(reused[2:]) > 0
    assert all(0 < rate < 1 for rate in logged(whole, "duet/accept_rate")[2:])
    assert min(logged(whole, "duet/generated_tokens")) > 0

    resumed = duet_trainer(tiny_path, tmp_path, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    for name in ("reused_tokens", "generated_tokens", "accept_rate", "whole_rollouts", "remembered_tokens"):
        assert logged(resumed, f"duet/{name}")[-1] == logged(whole, f"duet/{name}")[-1], name
    assert plain(resumed.loop.state_dict()) == plain(whole.loop.state_dict())
