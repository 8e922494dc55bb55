# SPDX-License-Identifier: Apache-2.0
"""SPEC-RL: what is kept of a draft, what is asked about, and two epochs of training, resumed and whole."""

from dataclasses import replace

import numpy as np
import pytest

from duet_trl.methods.spec_rl import SpecRL, SpecRLOptions, accepted
from duet_trl.rollouts import Query
from tests.runs import duet_trainer, logged, prompts
from tests.states import plain

from .simulator import make_prompts, rollouts, run_step, setting, table


def test_the_first_token_that_fails_ends_what_is_kept():
    old, new = np.array([-1.0, -1.0, -2.0, -0.5]), np.array([-0.5, -1.5, -2.7, -0.5])
    coins = np.exp([-1e-9, -0.6, -0.6, -1.0])  # log ratios 0.5, -0.5, -0.7, 0
    assert accepted(old, new, coins, 0.0) == 2
    assert accepted(old, new, coins, 0.2) == 4
    assert accepted(np.full(4, np.nan), new, coins, 10.0) == 0  # an unknown log-prob is none that fits
    assert accepted(old, new, np.ones(4), 0.0) == 1


def spec_rl(max_completion_length: int = 100, seed: int = 0) -> SpecRL:
    run = replace(setting(2, 4, seed=seed), max_completion_length=max_completion_length)
    return SpecRL(run, SpecRLOptions(lenience=0.0))


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


def test_an_engine_without_log_probs_has_the_model_score_its_rollouts_once():
    method, prompts_ = spec_rl(), make_prompts("ab")
    done = rollouts(prompts_, [method.jobs(prompts_, None)], np.zeros(8))
    blind = replace(done, tokens=lambda rows: [([5, 6], None) for _ in rows])
    asked = method.jobs(prompts_, blind)
    assert asked == [Query(row // 4, (5, 6)) for row in range(8)]
    answered = replace(blind, answers=tuple(np.array([-0.1 * row, -2.0]) for row in range(8)))
    assert method.jobs(prompts_, answered) == []
    method.observe(answered, method.judge(answered), np.zeros(8))
    np.testing.assert_allclose(method.state_dict()["logps"][::2], -0.1 * np.arange(8), atol=1e-6)


def test_drafts_longer_than_the_limit_are_cut_to_it_and_are_then_whole():
    method, prompts_ = spec_rl(), make_prompts("ab")
    run_step(method, prompts_, table(), length=lambda key, number: 5 + number)
    short = spec_rl(max_completion_length=6)
    short.load_state_dict(method.state_dict())
    asked = short.jobs(prompts_, None)
    assert [len(query.ids) for query in asked] == [5, 6, 6, 6] * 2
    jobs = short.jobs(prompts_, rollouts(prompts_, [], [], answers=[np.full(len(q.ids), -1.0) for q in asked]))
    assert [len(job.prefix) for job in jobs] == [5, 6, 6, 6] * 2 and all(job.whole for job in jobs)


def test_a_draft_that_neither_ended_nor_has_the_limit_is_continued():
    """As where a server cut it for want of context."""
    method, visit = spec_rl(), make_prompts("ab")
    run_step(method, visit, table())
    method.load_state_dict(method.state_dict() | {"ended": np.zeros(8, dtype=bool)})
    answers = [np.full(10, -1.0) for _ in method.jobs(visit, None)]
    jobs = method.jobs(visit, rollouts(visit, [], [], answers=answers))
    assert [len(job.prefix) for job in jobs] == [10] * 8 and not any(job.whole for job in jobs)


# ---- Training ---------------------------------------------------------------------------------------------------

SHORT = {"max_completion_length": 48, "data": prompts(8)}
"""8 prompts: every step is an epoch."""


@pytest.mark.slow
def test_two_epochs_reuse_rollouts_and_resume_alike(tiny_path, tmp_path):
    # In its own order: TRL's sampler shuffles a resumed second epoch as if it were the first.
    fixed = {"data": prompts(16), "shuffle_dataset": False}
    options = {"method": "spec_rl", "max_steps": 4, "learning_rate": 1e-2, **SHORT, **fixed}
    options["method_kwargs"] = {"lenience": 0.0}
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


def test_coins_follow_seed_and_step():
    """Drafts half as likely as they were: each token is kept with probability 1/2."""

    def kept(seed: int, step: int) -> list[int]:
        method, visit = spec_rl(seed=seed), make_prompts("ab", step=step)
        run_step(method, visit, table())
        answers = [np.full(10, -1.0 - np.log(2.0)) for _ in method.jobs(visit, None)]
        return [len(job.prefix) for job in method.jobs(visit, rollouts(visit, [], [], answers=answers))]

    assert kept(1, 1) == kept(1, 1) and 0 < sum(kept(1, 1)) < 80
    assert len({tuple(kept(seed, step)) for seed in (1, 2) for step in (1, 2)}) == 4
