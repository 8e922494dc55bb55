# SPDX-License-Identifier: Apache-2.0
"""One generation step of any method: rounds of jobs until the method asks for no more, then one judgement.

    while jobs := method.jobs(prompts, done):
        done = done + score(replay(engine.generate(jobs)))
    judgement = method.judge(done)
    ... rows -> GRPOTrainer's loss -> method.observe(done, judgement, sum_logps)

The loop numbers rollouts over all rounds and processes, distributes them, replays the gate on the results, and
rejects what a method or an engine must not do. The host, which is the trainer, generates, scores and answers.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from .exchange import Exchange, Placement
from .gate.automaton import TokenAutomaton
from .gate.replay import GateSpec, Replay, replay
from .methods.method import Method
from .rollouts import NO_GATE, Job, Judgement, LocalRollout, Query, Rollouts, StepRecord
from .update.advantages import weighted_sum

MAX_ROUNDS = 64
"""A method that still asks after this many rounds never ends."""


class Host(Protocol):
    """What the loop needs from a trainer. Every process makes every call, with equally many rows."""

    reward_weights: torch.Tensor

    def generate(self, step: StepRecord, jobs: Sequence[Job], padding: int) -> list[LocalRollout]:
        """Generate the rollouts of some jobs, and repeat the last of them `padding` times."""

    def score(self, step: StepRecord, jobs: Sequence[Job], rollouts: Sequence[LocalRollout]) -> torch.Tensor:
        """Rewards of the rows of all processes, process by process, shape (W * R, F)."""

    def share_logs(self, rows: np.ndarray) -> dict[str, list]:
        """Columns that the reward functions have just logged, for all rollouts of the round in global order."""

    def begin(self, step: StepRecord, jobs: Sequence[Job], padding: int) -> None:
        """Start what `generate` will be asked for with these arguments, and return at once."""

    def answer(self, step: StepRecord, queries: Sequence[Query]) -> list[np.ndarray]:
        """Answers of the model in training, equal on every process."""


@dataclass(eq=False)
class Loop:
    """Runs the generation steps of one method."""

    method: Method
    host: Host
    exchange: Exchange
    automaton: TokenAutomaton | None  # compiled marker; None: no job of the method carries a gate
    max_rollouts: int  # of a step over all rounds and processes
    max_tokens: int  # length limit of a rollout
    vocab_size: int  # that prefixes are checked against
    end_ids: set[int]  # tokens that end a rollout; none may be in a prefix
    interleaved: bool  # deal rollouts to the processes one by one instead of in blocks
    num_steps: int = 0  # generation steps that the method has observed

    @property
    def _name(self) -> str:
        return type(self.method).__name__

    def run(self, step: StepRecord) -> None:
        """All rounds of a step, and its judgement."""
        answers: list[np.ndarray] = []
        for _ in range(MAX_ROUNDS):
            jobs, queries = self._next_round(step)
            if not jobs and not queries:
                break
            if queries:
                answers += self._ask(step, queries)
                before = self._none_yet(step) if step.done is None else step.done
                step.done = replace(before, answers=tuple(answers))
            if jobs:
                self._roll_out(step, jobs, tuple(answers))
        else:
            raise RuntimeError(
                f"{self._name} still asks for rollouts after {MAX_ROUNDS} rounds of a step. Its `jobs` must return an "
                "empty list once it has what it needs."
            )
        if not step.jobs:
            raise RuntimeError(
                f"{self._name} asked for no rollout in generation step {step.prompts.step}. Its `jobs` must ask for "
                "at least one; prompts.more has other prompts."
            )
        step.nonfinite = ~step.done.scored & ~step.done.superseded

    def begin(self, step: StepRecord) -> bool:
        """Decide the first round of a step, and start generating it; False: the method asks the policy first."""
        step.planned = jobs, queries = self._next_round(step)
        if jobs and not queries:
            placement = Placement(len(jobs), self.exchange.num_processes, self.interleaved)
            self.host.begin(step, *self._own(placement, jobs))
        return not queries

    def judge(self, step: StepRecord) -> None:
        """Fill in the judgement."""
        started = time.perf_counter()
        step.judgement = _checked(self.method.judge(step.done), step.done, self._name)
        if not self.method.plain:
            step.judgement = _without_lost(step.judgement, step.nonfinite)
        step.seconds["overhead"] += time.perf_counter() - started

    def observe(self, step: StepRecord) -> None:
        """Let the method learn from a step whose rollouts have been through the policy; `step.sum_logps` is set."""
        self.method.observe(step.done, step.judgement, step.sum_logps)
        self.num_steps = step.prompts.step

    def state_dict(self) -> dict[str, Any]:
        """State of the method and the number of steps: JSON values and numpy arrays."""
        return {"step": self.num_steps, "method": self.method.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`."""
        self.method.load_state_dict(state["method"])
        self.num_steps = int(state["step"])

    # ---- One round ----------------------------------------------------------------------------------------------

    def _next_round(self, step: StepRecord) -> tuple[list[Job], list[Query]]:
        if step.planned is not None:
            planned, step.planned = step.planned, None
            return planned
        started = time.perf_counter()
        # The decision of process 0 counts, so that rounding cannot make the processes differ.
        asked = self.method.jobs(step.prompts, step.done)
        if not isinstance(asked, Iterable):
            raise TypeError(f"{self._name}.jobs returned {asked!r}. It must return a list, empty to end the step.")
        wanted = self.exchange.first(list(asked))
        jobs = [job for job in wanted if isinstance(job, Job)]
        queries = [query for query in wanted if isinstance(query, Query)]
        self._check(step, wanted, jobs)
        step.seconds["plan"] += time.perf_counter() - started
        return jobs, queries

    def _check(self, step: StepRecord, wanted: list, jobs: list[Job]) -> None:
        num_prompts, num_rollouts = len(step.prompts), len(step.jobs) + len(jobs)
        for one in wanted:
            if not isinstance(one, Job | Query):
                raise ValueError(f"{self._name}.jobs returned {one!r}. It must return a list of Job and Query.")
            if not 0 <= one.prompt < num_prompts:
                raise ValueError(
                    f"{self._name} asks for prompt {one.prompt} of {num_prompts}. Use an index into the prompts of "
                    "the step, or one that prompts.more returned."
                )
        if num_rollouts > self.max_rollouts:
            raise ValueError(
                f"{self._name} asks for {num_rollouts} rollouts in one step, max_rollouts is {self.max_rollouts}. "
                "Raise max_rollouts, or lower num_generations or the number of prompts."
            )
        for job in jobs:
            self._check_job(job)
        self._check_continued(step, [job for job in jobs if job.continues is not None])

    def _check_job(self, job: Job) -> None:
        limit, length = self.max_tokens if job.max_tokens is None else job.max_tokens, len(job.prefix)
        if not length < limit <= self.max_tokens and not (job.whole and length == limit):
            raise ValueError(
                f"{self._name} asks for a rollout of {limit} tokens with a prefix of {length}. max_tokens must be "
                f"above the length of the prefix and at most max_completion_length ({self.max_tokens})."
            )
        ended = job.whole and length > 0 and job.prefix[-1] in self.end_ids
        if job.whole and not ended and length < limit:
            raise ValueError(
                f"{self._name} gives a whole rollout of {length} tokens, of at most {limit}, that has not ended. "
                "Leave out `whole` to have it continued."
            )
        for token in job.prefix[: length - ended]:
            if not 0 <= token < self.vocab_size or token in self.end_ids:
                raise ValueError(
                    f"{self._name} asks to continue a prefix that holds {token!r}, which no unfinished rollout does. "
                    f"Use token ids in [0, {self.vocab_size}) without an end of sequence."
                )
        if job.prefix_logprobs is not None and len(job.prefix_logprobs) != len(job.prefix):
            raise ValueError(
                f"{self._name} gives {len(job.prefix_logprobs)} log-probs for a prefix of {len(job.prefix)} tokens. "
                "Give one for each token."
            )
        if job.gate is not None and job.gate.active and self.automaton is None:
            raise ValueError(
                f"{self._name} asks for a gated rollout, but its attribute `gated` is False. Set it to True."
            )

    def _check_continued(self, step: StepRecord, jobs: list[Job]) -> None:
        taken = {job.continues for job in step.jobs} - {None}
        for job in jobs:
            row = job.continues
            if not 0 <= row < len(step.jobs) or row in taken or step.jobs[row].prompt != job.prompt:
                raise ValueError(
                    f"{self._name} continues rollout {row} of {len(step.jobs)} with a job for prompt {job.prompt}. "
                    "Name a rollout of an earlier round and the same prompt, and each one once."
                )
            if len(job.prefix) != step.done.replay.length[row]:
                raise ValueError(
                    f"{self._name} continues rollout {row} of {step.done.replay.length[row]} tokens with a prefix of "
                    f"{len(job.prefix)}. Give all of its tokens; Rollouts.tokens has them."
                )
            taken.add(row)

    def _none_yet(self, step: StepRecord) -> Rollouts:
        """No rollouts, for answers to questions that come before the first rollout."""
        nothing = np.zeros(0, dtype=np.int64)
        return Rollouts(
            prompts=step.prompts,
            jobs=(),
            prompt=nothing,
            round=nothing,
            replay=Replay(nothing, nothing, nothing.astype(bool), nothing, nothing, nothing),
            terminated=nothing.astype(bool),
            rewards_per_func=torch.zeros(0, len(self.host.reward_weights)),
            rewards=nothing.astype(np.float64),
            reward_weights=self.host.reward_weights,
        )

    def _ask(self, step: StepRecord, queries: list[Query]) -> list[np.ndarray]:
        for query in queries:
            if not query.ids or not (query.hidden_at is None or 0 <= query.hidden_at < len(query.ids)):
                raise ValueError(f"{query!r} asks about no token of its ids. Give ids, and hidden_at within them.")
            if not 0 <= min(query.ids) <= max(query.ids) < self.vocab_size:
                raise ValueError(
                    f"{query!r} asks about ids outside the vocabulary. Use ids in [0, {self.vocab_size})."
                )
        started = time.perf_counter()
        answers = self.host.answer(step, queries)
        step.asked_tokens += sum(len(query.ids) for query in queries)
        step.seconds["score"] += time.perf_counter() - started
        return answers

    def _roll_out(self, step: StepRecord, jobs: list[Job], answers: tuple[np.ndarray, ...]) -> None:
        """Generate, replay and score one round, and add it to `step.done`."""
        placement = Placement(len(jobs), self.exchange.num_processes, self.interleaved)
        rows = placement.rows(self.exchange.process_index)
        own, padding = self._own(placement, jobs)

        started = time.perf_counter()
        rollouts = self.host.generate(step, own, padding)
        step.seconds["generate"] += time.perf_counter() - started
        started = time.perf_counter()
        found, terminated = self._outcomes(placement, own[: len(rows)], rollouts)
        first = len(step.jobs)
        step.local |= {first + row: rollout for row, rollout in zip(rows.tolist(), rollouts, strict=False)}
        step.spare = rollouts[0]
        step.seconds["overhead"] += time.perf_counter() - started

        started = time.perf_counter()
        rewards = placement.from_processes(self.host.score(step, own + own[-1:] * padding, rollouts))  # (N, F)
        rewards[torch.isinf(rewards).any(dim=1)] = torch.nan
        _extend(step.extra_logs, first, len(jobs), self.host.share_logs(rows))
        step.seconds["score"] += time.perf_counter() - started
        self._add(step, jobs, found, terminated, rewards, answers)

    def _own(self, placement: Placement, jobs: list[Job]) -> tuple[list[Job], int]:
        """Jobs of this process, and how often the last one is repeated so that each process has as many rows."""
        rows = placement.rows(self.exchange.process_index)
        # A process without a rollout generates one that nobody reads: the collectives need it.
        own = [jobs[row] for row in (rows if len(rows) else np.zeros(1, dtype=np.int64))]
        return own, placement.rows_per_process - len(own)

    def _outcomes(
        self, placement: Placement, jobs: list[Job], rollouts: Sequence[LocalRollout]
    ) -> tuple[Replay, np.ndarray]:
        """Replay the gate on the local rollouts, and gather what every process must know about all of them."""
        local = self.exchange.fail_together(lambda: self._replay(jobs, rollouts))
        ended = np.array([rollout.terminated for rollout in rollouts[: len(jobs)]], dtype=bool)
        table = self.exchange.numbers(placement, np.stack([*vars(local).values(), ended], axis=1).astype(np.int64))
        *columns, terminated = table.T
        found = {
            name: column.astype(one.dtype) for (name, one), column in zip(vars(local).items(), columns, strict=True)
        }
        return Replay(**found), terminated.astype(bool)

    def _replay(self, jobs: list[Job], rollouts: Sequence[LocalRollout]) -> Replay:
        """Outcome of each local rollout of a round; those that share a gate are decided together."""
        gates: dict[GateSpec | None, list[int]] = {} if jobs else {None: []}
        for row, job in enumerate(jobs):
            gates.setdefault(job.gate, []).append(row)
        parts = [
            replay(
                spec or NO_GATE,
                None if spec is None else self.automaton,
                [rollouts[row].completion_ids for row in rows],
                np.array([rollouts[row].gate_stopped for row in rows], dtype=bool),
                np.array([jobs[row].keep for row in rows], dtype=bool),
                np.array([rollouts[row].in_thought for row in rows], dtype=bool),
                np.array([len(jobs[row].prefix) for row in rows], dtype=np.int64),
            )
            for spec, rows in gates.items()
        ]
        order = np.argsort([row for rows in gates.values() for row in rows])
        return Replay(*(np.concatenate([vars(part)[name] for part in parts])[order] for name in vars(parts[0])))

    def _add(
        self,
        step: StepRecord,
        jobs: list[Job],
        found: Replay,
        terminated: np.ndarray,
        rewards: torch.Tensor,
        answers: tuple[np.ndarray, ...],
    ) -> None:
        before = step.done if step.jobs else None
        step.jobs, step.rounds = step.jobs + jobs, step.rounds + 1
        prompt = np.fromiter((job.prompt for job in jobs), np.int64, len(jobs))
        round_ = np.full(len(jobs), step.rounds - 1)
        if before is not None:
            prompt, round_ = np.append(before.prompt, prompt), np.append(before.round, round_)
            terminated = np.append(before.terminated, terminated)
            rewards = torch.cat([before.rewards_per_func, rewards])
            rewards[[job.continues for job in jobs if job.continues is not None]] = torch.nan
            found = Replay(*(np.append(vars(before.replay)[name], vars(found)[name]) for name in vars(found)))
        step.done = Rollouts(
            prompts=step.prompts,
            jobs=tuple(step.jobs),
            prompt=prompt,
            round=round_,
            replay=found,
            terminated=terminated,
            rewards_per_func=rewards,
            reward_weights=self.host.reward_weights,
            rewards=weighted_sum(rewards, self.host.reward_weights).double().cpu().numpy(),
            answers=answers,
            tokens=lambda rows: self._fetch(step, rows),
        )

    def _fetch(self, step: StepRecord, rows: Sequence[int]) -> list[tuple[list[int], list[float] | None]]:
        found = self.exchange.rollouts(step.local, [rows] * self.exchange.num_processes)
        return [(found[row].completion_ids, found[row].logprobs) for row in rows]


def _extend(columns: dict[str, list], before: int, added: int, new: dict[str, list]) -> None:
    """Add the columns of a round to those of earlier rounds; a column that a round lacks is None."""
    for name in {*columns, *new}:
        columns[name] = columns.get(name, [None] * before) + new.get(name, [None] * added)


def _without_lost(judgement: Judgement, lost: np.ndarray) -> Judgement:
    """A rollout that nobody could score is not a failure: it leaves gradient and divisor, and none replaces it."""
    return replace(judgement, in_gradient=judgement.in_gradient & ~lost, in_divisor=judgement.in_divisor & ~lost)


def _checked(judgement: Judgement, done: Rollouts, name: str) -> Judgement:
    """The judgement, if it fits the rollouts."""
    if not isinstance(judgement, Judgement):
        raise TypeError(
            f"{name}.judge returned {judgement!r}. It must return a Judgement, such as Judgement.of(advantages)."
        )
    for column, values in vars(judgement).items():
        if np.shape(values) != (len(done),):
            raise ValueError(
                f"{name}.judge returned {column} of shape {np.shape(values)} for {len(done)} rollouts. Give one entry "
                "for each rollout."
            )
    for column in ("advantages", "weight"):
        values = vars(judgement)[column]
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            raise ValueError(f"{name}.judge returned {column} {values[row]} for rollout {row}. It must be finite.")
    for column in ("in_gradient", "in_divisor"):
        if np.asarray(vars(judgement)[column]).dtype != bool:
            raise TypeError(
                f"{name}.judge returned {column} {vars(judgement)[column]!r}. It must hold True and False."
            )
    if (judgement.in_divisor & done.superseded).any():
        row = int(np.flatnonzero(judgement.in_divisor & done.superseded)[0])
        raise ValueError(
            f"{name}.judge counts rollout {row}, which another one continues. Leave it out of in_gradient and "
            "in_divisor: the longer one contains its tokens."
        )
    if (judgement.in_gradient & ~judgement.in_divisor).any():
        row = int(np.flatnonzero(judgement.in_gradient & ~judgement.in_divisor)[0])
        raise ValueError(
            f"{name}.judge puts rollout {row} into the gradient but not into the divisor. Tokens that have a gradient "
            "count in N_t (Eq. 6): set in_divisor there."
        )
    return judgement
