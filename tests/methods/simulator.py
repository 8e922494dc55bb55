# SPDX-License-Identifier: Apache-2.0
"""A step of a method without a model: its jobs are answered from tables, round by round, as the loop would.

Rewards come from a function (key, number of the rollout among those of its prompt) -> reward; so do lengths. A job
that continues a rollout gets the number of that rollout. Answers come from a function (key, query) -> array.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch

from duet_trl.gate.replay import Outcome, Replay
from duet_trl.methods.method import Method, Setting
from duet_trl.rollouts import Job, Judgement, NoMorePrompts, Prompt, Prompts, Query, Rollouts

MOST_ROUNDS = 50


def setting(num_prompts=4, num_generations=4, max_rollouts=10_000, budget_fraction=0.5, **others) -> Setting:
    return Setting(num_prompts, num_generations, 100, max_rollouts, budget_fraction, **others)


def make_prompts(keys: Iterable[str], pool: Sequence[str] = (), step: int = 1, epoch: int = 0) -> Prompts:
    """Prompts of a step; `more` takes those of the pool in order."""

    def source(count: int, taken: set[str]) -> list[Prompt]:
        free = [key for key in pool if key not in taken]
        if count > len(free):
            raise NoMorePrompts(f"{count} more prompts were asked for and {len(free)} are left.")
        return [Prompt(key, {"prompt": key}) for key in free[:count]]

    return Prompts([Prompt(key, {"prompt": key}) for key in keys], step, epoch, source)


def rollouts(
    prompts: Prompts,
    rounds: Sequence[Sequence[Job]],
    rewards: Sequence[float] | np.ndarray,
    lengths: Sequence[int] | None = None,
    answers: Sequence[np.ndarray] = (),
) -> Rollouts:
    """The record of a step from its jobs, rewards, shape (N,) or (N, F), and lengths (default: 10 tokens each).

    Every token of a rollout is its number, with a log-prob of -1. One that reaches its `max_tokens` has not ended.
    """
    jobs = tuple(job for round_ in rounds for job in round_)
    per_func = np.array(rewards, dtype=np.float64).reshape(len(jobs), -1) if jobs else np.zeros((0, 1))
    per_func[[job.continues for job in jobs if job.continues is not None]] = np.nan
    abstained = np.isnan(per_func).all(axis=1)
    length = np.full(len(jobs), 10) if lengths is None else np.asarray(lengths)
    nowhere, no = np.full(len(jobs), -1), np.zeros(len(jobs), dtype=bool)
    return Rollouts(
        prompts=prompts,
        jobs=jobs,
        prompt=np.fromiter((job.prompt for job in jobs), np.int64, len(jobs)),
        round=np.repeat(np.arange(len(rounds)), [len(round_) for round_ in rounds]),
        replay=Replay(
            np.full(len(jobs), int(Outcome.NATURAL)), nowhere, no, length.astype(np.int64), nowhere, nowhere
        ),
        terminated=np.array(
            [job.max_tokens is None or own < job.max_tokens for job, own in zip(jobs, length, strict=True)], dtype=bool
        ),
        rewards_per_func=torch.from_numpy(per_func),
        rewards=np.where(abstained, np.nan, np.nansum(per_func, axis=1)),
        answers=tuple(answers),
        tokens=lambda rows: [([int(row)] * int(length[row]), [-1.0] * int(length[row])) for row in rows],
    )


def run_step(
    method: Method,
    prompts: Prompts,
    reward: Callable[[str, int], float | Sequence[float]],
    length: Callable[[str, int], int] = lambda key, number: 10,
    answer: Callable[[str, Query], np.ndarray] = lambda key, query: np.full(len(query.ids), -1.0),
) -> tuple[Rollouts, Judgement]:
    """Rounds until the method asks for no more, then one judgement, which the method learns from."""
    rounds: list[list[Job]] = []
    found, lengths, numbers, answers, seen, done = [], [], [], [], Counter(), None
    for _ in range(MOST_ROUNDS):
        if not (wanted := list(method.jobs(prompts, done))):
            break
        answers += [answer(prompts[one.prompt].key, one) for one in wanted if isinstance(one, Query)]
        if jobs := [one for one in wanted if isinstance(one, Job)]:
            rounds.append(jobs)
        for job in jobs:
            key = prompts[job.prompt].key
            number = seen[key] if job.continues is None else numbers[job.continues]
            seen[key] += job.continues is None
            numbers.append(number)
            found.append(reward(key, number))
            natural = len(job.prefix) if job.whole else max(length(key, number), len(job.prefix) + 1)
            lengths.append(natural if job.max_tokens is None else min(natural, job.max_tokens))
        done = rollouts(prompts, rounds, found, lengths, answers)
        assert len(done) <= method.setting.max_rollouts, "more rollouts than max_rollouts"
    else:
        raise AssertionError("rounds without end")
    judgement = method.judge(done)
    assert_sound(done, judgement)
    method.observe(done, judgement, np.where(judgement.in_gradient, -1.0, np.nan))
    return done, judgement


def assert_sound(done: Rollouts, judgement: Judgement) -> None:
    """What the loop relies on, for every judgement of every method."""
    for values in (judgement.advantages, judgement.weight, judgement.propensity):
        assert values.shape == (len(done),) and np.isfinite(values).all()
    assert judgement.weight.min() >= 0 and judgement.propensity.min() > 0
    assert judgement.in_gradient.dtype == judgement.in_divisor.dtype == bool
    assert (judgement.in_divisor | ~judgement.in_gradient).all()
    assert not (judgement.in_divisor & done.superseded).any()


def counts(done: Rollouts) -> list[int]:
    """Rollouts of each prompt."""
    return np.bincount(done.prompt, minlength=len(done.prompts)).tolist()


def table(**rewards: Sequence[float]) -> Callable[[str, int], float]:
    """Rewards of each prompt, over and over; prompts that are not named alternate between 0 and 1."""
    return lambda key, number: (values := rewards.get(key, (0.0, 1.0)))[number % len(values)]


SAME = (1.0,)
"""Rewards of a prompt whose groups are degenerate."""


def plan(jobs: Sequence[Job]) -> list[int]:
    """Prompts of some jobs."""
    return [job.prompt for job in jobs]
