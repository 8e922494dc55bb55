# SPDX-License-Identifier: Apache-2.0
"""One step of a real method without a model: its jobs are answered by a population, round by round, as the loop would.

The gate's decisions are those of `gate.replay`, vectorised. What a rollout will do is written into its first tokens,
so that a method which continues a rollout, or begins one with a draft of an earlier visit, gets what was begun.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..gate.replay import NEVER, GateSpec, Outcome, Replay
from ..methods.method import Method
from ..rollouts import NO_GATE, Job, Judgement, Prompts, Query, Rollouts, by_gate
from .population import Drawn, Population

NATS_PER_TOKEN = 0.4
"""Of the log-probs that the engine reports."""
POLICY_DRIFT = 0.12
"""Scale of the Laplace-distributed change of a token's log-prob from one visit of a prompt to the next, nats."""
WRONG_ANSWERS = 3
"""Different wrong answers to a prompt."""
_NO_ANSWER = 2**30
_FACTS = 3


@dataclass
class Acted:
    """A step, once it is judged.

    Attributes:
        done (Rollouts): Its rollouts.
        judgement (Judgement): The method's.
        drawn (Drawn): What the gate saw of them, shape (N,) each.
        asked_tokens (int): Of the questions to the model.
    """

    done: Rollouts
    judgement: Judgement
    drawn: Drawn
    asked_tokens: int


@dataclass
class Actor:
    """Answers a method's jobs and questions.

    Attributes:
        population (Population): Keys of prompts are its numbers.
        seed (int): Of rollouts.
    """

    population: Population
    seed: int = 0

    def act(self, method: Method, prompts: Prompts) -> Acted:
        """All rounds of a step, its judgement, and what the method learns of it."""
        random = np.random.default_rng([self.seed, prompts.step])
        jobs, answers, rounds, asked = [], [], [], 0
        done, drawn = None, self.population.draw(np.zeros(0, dtype=np.int64), prompts.step, random)
        while wanted := list(method.jobs(prompts, done)):
            questions = [one for one in wanted if isinstance(one, Query)]
            answers += [_answer(question, random) for question in questions]
            asked += sum(len(question.ids) for question in questions)
            if added := [one for one in wanted if isinstance(one, Job)]:
                new = self._begun(prompts, added, drawn, random)
                drawn = Drawn(*(np.concatenate(pair) for pair in zip(_columns(drawn), _columns(new), strict=True)))
                jobs, rounds = jobs + added, rounds + [len(added)]
            done = self._rollouts(prompts, jobs, rounds, drawn, answers, random)
        judgement = method.judge(done)
        noise = 1.0 + 0.2 * random.standard_normal(len(done))
        sum_logps = np.where(judgement.in_gradient, -NATS_PER_TOKEN * done.replay.length * noise, np.nan)
        method.observe(done, judgement, sum_logps)
        return Acted(done, judgement, drawn, asked)

    def _begun(self, prompts: Prompts, jobs: Sequence[Job], before: Drawn, random: np.random.Generator) -> Drawn:
        """What each job's rollout would do without a gate."""
        numbers = np.array([int(prompts[job.prompt].key) for job in jobs])
        new = self.population.draw(numbers, prompts.step, random)
        for row, job in enumerate(jobs):
            if not job.prefix:
                continue
            if job.continues is not None:
                facts = tuple(column[job.continues] for column in _columns(before))
            else:
                facts = _after_draft(job, tuple(column[row] for column in _columns(new)), self.population.max_length)
            for column, fact in zip(_columns(new), facts, strict=True):
                column[row] = fact
        return new

    def _rollouts(
        self,
        prompts: Prompts,
        jobs: list[Job],
        rounds: list[int],
        drawn: Drawn,
        answers: list[np.ndarray],
        random: np.random.Generator,
    ) -> Rollouts:
        limit = self.population.max_length
        cap = np.array([limit if job.max_tokens is None else job.max_tokens for job in jobs], dtype=np.int64)
        found = _gated(jobs, drawn, cap)
        shown = drawn.completed_at <= found.length
        rewards = (drawn.right & shown).astype(np.float64)
        rewards[[job.continues for job in jobs if job.continues is not None]] = np.nan
        wrong = 1 + np.arange(len(jobs)) % WRONG_ANSWERS
        return Rollouts(
            prompts=prompts,
            jobs=tuple(jobs),
            prompt=np.fromiter((job.prompt for job in jobs), np.int64, len(jobs)),
            round=np.repeat(np.arange(len(rounds)), rounds),
            replay=found,
            terminated=(found.length == drawn.natural) & (drawn.natural < limit) & (drawn.natural <= cap),
            rewards_per_func=torch.from_numpy(rewards[:, None]),
            rewards=rewards,
            answers=tuple(answers),
            fetch=lambda rows: [_tokens(drawn, found.length, int(row)) for row in rows],
            classify=lambda: np.where(shown, np.where(drawn.right, 0, wrong), -1),
        )


def through(spec: GateSpec, keep: np.ndarray, drawn: Drawn, prefix: np.ndarray) -> Replay:
    """`gate.replay.replay` of rollouts with one answer each; prefix lengths and coins have shape (N,)."""
    tau, last = spec.seen_at(drawn.completed_at), drawn.natural - 1
    answered, undecided = tau <= last, (tau > last) & (last >= spec.abort_at)
    outcome = np.select([answered, undecided & keep, undecided], [Outcome.ANSWERED, Outcome.KEPT, Outcome.ABORTED])
    stop = np.select([answered & spec.trim, undecided & ~keep], [tau + spec.grace_window, spec.abort_at], NEVER)
    length = np.minimum(drawn.natural, np.maximum(stop, prefix))
    shown = np.where(drawn.completed_at <= length, replace(spec, abort=False).seen_at(drawn.completed_at), NEVER)
    return Replay(
        outcome=outcome.astype(np.int64),
        marker_at=np.where(answered, tau, -1),
        trimmed=answered & (length < drawn.natural),
        length=length,
        answered_at=np.where(shown < NEVER, shown, -1),
        completed_at=np.where(drawn.completed_at <= length, drawn.completed_at, -1),
    )


def _gated(jobs: Sequence[Job], drawn: Drawn, cap: np.ndarray) -> Replay:
    """What the gates of some jobs do."""
    drawn = replace(drawn, natural=np.minimum(drawn.natural, cap))
    keep = np.array([job.keep for job in jobs], dtype=bool)
    prefix = np.array([len(job.prefix) for job in jobs], dtype=np.int64)

    def decide(spec: GateSpec | None, rows: list[int]) -> Replay:
        return through(spec or NO_GATE, keep[rows], drawn.take(np.array(rows, dtype=np.int64)), prefix[rows])

    return by_gate(jobs, decide)


def _columns(drawn: Drawn) -> tuple[np.ndarray, ...]:
    return tuple(vars(drawn).values())


def _after_draft(job: Job, new: tuple, limit: int) -> tuple[int, int, bool, bool]:
    """What a rollout does that begins with a draft: its answer is the draft's if it came in what is kept of it."""
    completed_at, natural, right = _read(job.prefix)
    kept = len(job.prefix)
    if job.whole:
        return completed_at, kept, right, False
    new_completed_at, new_natural, new_right, late = new
    if completed_at > kept:
        completed_at, right = max(int(new_completed_at), kept + 1), bool(new_right)
        natural = max(int(new_natural), completed_at + 1 if completed_at < limit else kept + 1)
    else:
        late, natural = False, kept + max(int(new_natural) - int(new_completed_at), 1)
    return completed_at, min(natural, limit), right, bool(late)


def _tokens(drawn: Drawn, length: np.ndarray, row: int) -> tuple[list[int], list[float]]:
    """Tokens of a rollout, the first of which say what it will do, and their log-probs."""
    completed_at = min(int(drawn.completed_at[row]), _NO_ANSWER)
    facts = [completed_at, int(drawn.natural[row]), int(drawn.right[row])]
    count = int(length[row])
    return (facts + [0] * (count - _FACTS))[:count], [-NATS_PER_TOKEN] * count


def _read(ids: Sequence[int]) -> tuple[int, int, bool]:
    """What `_tokens` wrote; a prefix that is too short to say counts as without an answer."""
    if len(ids) < _FACTS:
        return NEVER, len(ids), False
    return NEVER if ids[0] == _NO_ANSWER else ids[0], ids[1], bool(ids[2])


def _answer(question: Query, random: np.random.Generator) -> np.ndarray:
    """Hidden states that know a little of success, log-probs that have drifted, and entropies."""
    size = len(question.ids)
    if question.hidden_at is not None:
        return random.standard_normal(8) + 1.5 * _read(question.ids)[2]
    logps = -NATS_PER_TOKEN + random.laplace(0.0, POLICY_DRIFT, size)
    return np.stack([logps, random.exponential(NATS_PER_TOKEN, size)]) if question.entropies else logps
