# SPDX-License-Identifier: Apache-2.0
"""ARRoL's two phases: who is asked about, who goes on, what the survivors' baseline holds."""

from collections.abc import Callable

import numpy as np

from duet_trl.methods.arrol import Arrol, ArrolOptions
from duet_trl.rollouts import Job, Query

from .simulator import make_prompts, rollouts, run_step, setting

DIM = 16


def arrol(num_prompts=4, num_generations=4, seed=0, scale_rewards="none", **options) -> Arrol:
    """Scored after 10 of 100 tokens, from the first step on."""
    run = setting(num_prompts, num_generations, seed=seed, scale_rewards=scale_rewards)
    return Arrol(run, ArrolOptions(**{"detect_at": 10, "head_warmup_steps": 0, **options}))


def ends(key: str, number: int) -> float:
    """Every other rollout of a prompt succeeds."""
    return float(number % 2)


def runs(short: int = 1) -> Callable[[str, int], int]:
    """Lengths: the first `short` rollouts of a prompt end before they are scored."""
    return lambda key, number: 6 if number < short else 30


def hidden(key: str, query: Query) -> np.ndarray:
    """A hidden state that says nothing."""
    assert query.hidden_at == len(query.ids) - 1
    return np.linspace(-1, 1, DIM, dtype=np.float32)


def test_the_warm_up_generates_whole_rollouts_and_asks_about_their_tenth_token() -> None:
    method, asked = arrol(num_prompts=2, head_warmup_steps=1), []

    def answer(key: str, query: Query) -> np.ndarray:
        asked.append((key, query))
        return hidden(key, query)

    done, judgement = run_step(method, make_prompts("ab"), ends, runs(), answer)
    assert done.jobs == tuple(Job(prompt) for prompt in (0, 0, 0, 0, 1, 1, 1, 1))
    # Every token of a rollout is its number in the simulator. The first of each prompt ended before.
    assert asked == [("ab"[row // 4], Query(row // 4, (row,) * 10, 9)) for row in (1, 2, 3, 5, 6, 7)]
    assert judgement.in_gradient.all() and judgement.in_divisor.all()
    np.testing.assert_allclose(judgement.advantages, [-0.5, 0.5] * 4)
    assert len(method.head.rewards) == 6 and method.head.state_dict()["updates"] == 1
    assert method.metrics()["pruned_rollouts"] == 0 and method.metrics()["scored_rollouts"] == 6


def test_survivors_continue_where_they_are_and_the_pruned_leave_everything() -> None:
    method = arrol(num_prompts=8, num_generations=8, keep_rate=0.5)
    prompts = make_prompts("abcdefgh")
    done, judgement = run_step(method, prompts, ends, runs(short=2), hidden)
    first = done.round == 0
    assert [job.max_tokens for job in done.jobs[:64]] == [10] * 64
    continued = [job.continues for job in done.jobs[64:]]
    assert continued == sorted(continued) and 8 < len(continued) < 40
    for job in done.jobs[64:]:
        row = job.continues
        assert job == Job(row // 8, (row,) * 10, (-1.0,) * 10, continues=row)
    pruned = first & ~done.terminated & ~done.superseded
    kept = judgement.in_gradient
    assert (kept == ~(pruned | done.superseded)).all() and (judgement.in_divisor == kept).all()
    for prompt in range(8):
        rows = kept & (done.prompt == prompt)
        expected = done.rewards[rows] - done.rewards[rows].mean()
        np.testing.assert_allclose(judgement.advantages[rows], expected, atol=1e-12)
    assert not judgement.advantages[~kept].any()
    assert method.metrics()["scored_rollouts"] == 48 and method.metrics()["pruned_rollouts"] == pruned.sum()
    # The label of a beginning is the end of its continuation.
    assert method.head.rewards.tolist() == [ends("", row % 8) for row in continued]


def test_truncated_beginnings_count_neither_as_rewards_nor_for_the_runs_extremes() -> None:
    """A beginning has reward 9 here, an end 0 or 1."""

    class Watched(Arrol):
        def observe(self, done, judgement, sum_logps):
            assert not (done.rewards[judgement.in_gradient] == 9).any()
            super().observe(done, judgement, sum_logps)

    method = Watched(setting(4, 8, scale_rewards="none"), ArrolOptions(detect_at=10, head_warmup_steps=0))
    prompts = make_prompts("abcd")
    beginnings = rollouts(prompts, [method.jobs(prompts, None)], [9.0] * 32, [10] * 32)
    queries = method.jobs(prompts, beginnings)
    answers = [hidden("", query) for query in queries]
    jobs = method.jobs(prompts, rollouts(prompts, [beginnings.jobs], [9.0] * 32, [10] * 32, answers))
    rewards = [9.0] * 32 + [float(number % 2) for number in range(len(jobs))]
    done = rollouts(prompts, [beginnings.jobs, jobs], rewards, [10] * 32 + [30] * len(jobs), answers)
    assert method.jobs(prompts, done) == []
    judgement = method.judge(done)
    method.observe(done, judgement, np.zeros(len(done)))
    assert np.abs(judgement.advantages).max() < 1 and method.head.reward_range == [0.0, 1.0]


def test_labels_of_one_class_prune_at_the_rate_whatever_the_score() -> None:
    """With them rho is out of reach, and the steepest curve would keep the best quarter twice as often as the worst.

    Quarters of 128 rollouts: three standard deviations of their difference are below 0.19."""
    method = arrol(num_prompts=64, num_generations=8)
    method.head.see_rewards(np.array([0.0, 1.0]))
    random = np.random.default_rng(0)
    method.head.learn(random.normal(size=(200, DIM)).astype(np.float32), np.zeros(200), 1)
    features = random.normal(size=(512, DIM)).astype(np.float32)
    order = np.argsort(method.head.quality(method.head.score(features)))
    done, _ = run_step(
        method,
        make_prompts(f"p{i}" for i in range(64)),
        lambda key, number: 0.0,
        runs(short=0),
        lambda key, query: features[query.ids[0]],
    )
    goes_on = done.superseded[:512][order]
    assert abs(goes_on.mean() - 0.5) < 0.07
    assert abs(goes_on[-128:].mean() - goes_on[:128].mean()) < 0.19


def test_a_head_that_has_learned_keeps_successes_and_holds_the_rate() -> None:
    """One rollout in four succeeds, and its hidden state says so. After the warm-up kappa = 1/2 and rho = 1/2 mean
    that nearly all successes go on and a third of the others: 1/4 + 3/4 x 1/3 = 1/2."""
    method = arrol(num_prompts=32, num_generations=8, head_warmup_steps=12)

    def answer(key: str, query: Query) -> np.ndarray:
        noise = np.random.default_rng(query.ids[0]).normal(size=DIM).astype(np.float32)
        noise[0] = 3.0 if query.ids[0] % 4 == 0 else -3.0
        return noise

    keys, kept = [f"p{i}" for i in range(32)], []
    for step in range(1, 21):
        prompts = make_prompts(keys, step=step)
        done, _ = run_step(method, prompts, lambda key, number: float(number % 4 == 0), runs(short=0), answer)
        if step > 12:
            goes_on, success = done.superseded[:256], np.arange(256) % 4 == 0
            kept.append((goes_on[success].mean(), goes_on[~success].mean()))
    of_successes, of_others = np.mean(kept, axis=0)
    assert of_successes > 0.9 and abs(of_others - 1 / 3) < 0.06
    assert abs(of_successes / 4 + of_others * 3 / 4 - 0.5) < 0.04
    assert method.metrics()["head_accuracy"] > 0.95


def test_a_lone_survivor_has_no_advantage() -> None:
    for scale in ("none", "group", "batch"):
        method = arrol(num_prompts=1, num_generations=4, scale_rewards=scale)
        prompts = make_prompts("a")
        jobs = method.jobs(prompts, None)
        answers = [np.zeros(DIM)] * 4
        rest = [Job(0, (1,) * 10, (-1.0,) * 10, continues=1)]
        ended = rollouts(prompts, [jobs, rest], [0, 1, 1, 1, 1], [10] * 4 + [30], answers)
        judgement = method.judge(ended)
        assert judgement.in_gradient.tolist() == [False] * 4 + [True]
        assert not judgement.advantages.any()
        method.observe(ended, judgement, np.zeros(5))
        assert method.metrics()["lone_survivors"] == 1.0


def test_detect_at_is_a_sixth_of_the_limit_as_in_the_paper() -> None:
    assert Arrol(setting(), ArrolOptions()).detect_at == 17  # of 100


def test_coins_follow_seed_and_step() -> None:
    def survivors(seed: int, step: int) -> list[int]:
        done, _ = run_step(arrol(seed=seed), make_prompts("abcd", step=step), ends, runs(), hidden)
        return [job.continues for job in done.jobs if job.continues is not None]

    assert survivors(1, 1) == survivors(1, 1)
    assert len({tuple(survivors(seed, step)) for seed in (1, 2) for step in (1, 2)}) == 4
