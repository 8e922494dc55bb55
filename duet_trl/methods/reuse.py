# SPDX-License-Identifier: Apache-2.0
r"""SPEC-RL (arXiv 2509.23232): a rollout begins with what still fits of the prompt's rollout at its last visit.

GRPO (`spec_rl`) or DUET (`duet_reuse`) plans the rollouts. The k-th of a prompt takes the k-th rollout of the prompt's
last visit as its draft: tokens x and log p_old under the policy that sampled them. A forward pass before generation
gives log p_new, and tokens are kept up to the first that fails

    log U_t <= log p_new(x_t) - log p_old(x_t) + lenience,      U_t uniform, keyed by (seed, step, prompt, rollout)

From there on the policy samples as usual. A draft that passes to its end token, or to the length limit, is taken whole
and costs no generated token. (To draw its end token once more would favour long rollouts: an end needs luck twice.)
One that a gate stopped is continued, and the gate of this step decides again, with its own coin.

**This does not sample from p_new**, once the policies differ; the paper does not say so. Behind the same tokens, at
lenience 0 and with alpha = sum of min(p_old, p_new), the next token has the law

    min(p_old, p_new) + (1 - alpha) p_new,     at most alpha (1 - alpha) in total variation away from p_new

Speculative decoding draws a rejected token from (p_new - p_old)+ instead and is exact, but needs all of p_old, whose
weights are gone. No rule K that knows p_old at the draft's token x alone is exact, except to draw afresh: for three
tokens or more, sum_x p_old(x) K(y | x, p_old(x)) = p_new(y) for every p_old forces K = p_new(y). In the enumeration of
tests/methods/test_reuse_exact.py an unchanged policy is left exactly as it is; otherwise rollouts are 0.3 to 0.6 times
as far from p_new as the drafts were, and at lenience 0.5 mostly as far as they were. Not to draw the rejected token
again would be 14 to 23% closer, but no engine here forbids a token at one position. docs/fidelity.md#spec_rl has more.

A draft whose tokens keep passing would be trained at every visit, and the policy would hear of nothing new. Behind
`max_reuses` visits a rollout therefore begins afresh (`duet_reuse`: at every other one). 0, the authors': without end.

Rollouts of one visit are independent of each other, but not of the last visit's. A memory of rewards counts what was
reused twice: DUET's posterior is surer than it should be, and its history baseline holds part of a rollout's own
reward, which shrinks the advantage as the mean of a group does.

Every process and every checkpoint holds what may be reused of each prompt's last visit, 8 bytes a token.
DUET's budget counts all tokens of a rollout, so what is reused is saved on top.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from ..allocate.state import check_state
from ..field_types import Options, at_least, option
from ..gate.coins import occurrence
from ..rollouts import Job, Judgement, Prompts, Query, Rollouts
from .drafts import Draft, accepted, pack, uniforms, unpack, usable
from .duet_settings import DuetOptions
from .method import Method, TokenBatch


@dataclass(frozen=True)
class ReuseOptions(Options):
    """What is reused; the defaults of `spec_rl` are those of the authors' training script."""

    lenience: float = option(
        "Added to the log ratio of the test. 0: the test of speculative decoding; large: whole rollouts are reused.",
        0.5,
        duet=0.0,
        unit="nats, >= 0",
        rule=(lambda x: 0 <= x < float("inf"), "at least 0 and finite, got {}"),
    )
    max_reuses: int = option(
        "Visits in a row at which a rollout may begin with what it was before; at the next one it begins afresh. 0: "
        "without end.",
        0,
        duet=1,
        unit="visits",
        rule=at_least(0),
    )


@dataclass(frozen=True)
class DuetReuseOptions(ReuseOptions, DuetOptions):
    """Those of `duet`, and what is reused."""


class _Planned(NamedTuple):
    job: Job
    number: int  # among those of its prompt
    draft: Draft | None
    length: int  # of the draft, as far as it may be used


class Reuse(Method):
    """Another method whose rollouts begin with drafts; see the module.

    Args:
        inner (Method): Plans, judges and learns; it asks no queries.
        options (ReuseOptions): What is reused.
        name (str): Of the method, for `identity`.
    """

    def __init__(self, inner: Method, options: ReuseOptions, name: str) -> None:
        self.inner = inner
        self.setting = inner.setting
        self.gated, self.teaches_ending = inner.gated, inner.teaches_ending
        self.lenience = options.lenience
        self.max_reuses = options.max_reuses
        self.identity = {**inner.identity, "method": name}
        self._drafts: dict[str, list[Draft]] = {}
        self._remembered = 0  # tokens of all drafts
        self._planned: list[_Planned] = []
        # Rows that may be the next drafts, once fetched: tokens, log-probs, how often they were reused.
        self._kept: dict[int, tuple[list[int], list[float] | None, int]] | None = None

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> Sequence[Job | Query]:
        """Questions about the drafts, the planned rollouts behind what is kept, at last questions about new drafts."""
        if done is None:
            self._kept, self._planned = None, self._plan(prompts)
            questions = [Query(p.job.prompt, p.draft.first(p.length)) for p in self._planned if p.draft]
            return questions or [p.job for p in self._planned]
        if not len(done):
            return self._with_prefixes(prompts, done.answers)
        if self._kept is not None:
            return []
        if more := self.inner.jobs(prompts, done):
            return more
        reuses = self._reusable(done)
        fetched = zip(reuses.items(), done.tokens(list(reuses)), strict=True)
        self._kept = {row: (ids, logps, count) for (row, count), (ids, logps) in fetched}
        # The engine gave no log-probs; the weights have not moved since.
        return [Query(int(done.prompt[row]), tuple(self._kept[row][0])) for row in self._unknown]

    def judge(self, done: Rollouts) -> Judgement:
        """That of the inner method."""
        return self.inner.judge(done)

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Keep rollouts as drafts of the next visit."""
        self.inner.observe(done, judgement, sum_logps)
        unknown = self._unknown
        answers = dict(zip(unknown, done.answers[len(done.answers) - len(unknown) :], strict=True))
        visited = {done.prompts[q].key for q in np.unique(done.prompt)}
        self._remembered -= _tokens(self._drafts.pop(key, []) for key in visited)
        for row, (ids, logps, count) in self._kept.items():
            known = np.asarray(answers.get(row, logps), dtype=np.float32)
            draft = Draft(
                np.asarray(ids, np.int32),
                known,
                bool(done.terminated[row]),
                int(done.replay.answered_at[row]),
                count,
            )
            self._drafts.setdefault(done.prompts[done.prompt[row]].key, []).append(draft)
            self._remembered += len(ids)
        offered = sum(p.length for p in self._planned)
        self._metrics = {
            "draft_tokens": float(offered),
            "accept_rate": sum(len(job.prefix) for job in done.jobs if job.continues is None) / max(offered, 1),
            "whole_rollouts": float(sum(job.whole for job in done.jobs)),
            "remembered_tokens": float(self._remembered),
        }

    def state_dict(self) -> dict[str, Any]:
        """The inner method's state, and the drafts."""
        return {"inner": self.inner.state_dict(), "drafts": pack(self._drafts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`. Raises ValueError if it is not one."""
        check_state(f"method {self.identity['method']}", state, {"inner": None, "drafts": None})
        self.inner.load_state_dict(state["inner"])
        self._drafts = unpack(state["drafts"])
        self._remembered = _tokens(self._drafts.values())

    def metrics(self) -> dict[str, float]:
        """Those of the inner method, and what became of the drafts."""
        return self.inner.metrics() | self._metrics

    def token_factor(self, batch: TokenBatch) -> torch.Tensor | None:
        """That of the inner method."""
        return self.inner.token_factor(batch)

    def _reusable(self, done: Rollouts) -> dict[int, int]:
        """Rollouts with which those of the next visit may begin, and how often their first token was reused."""
        reuses: list[int] = []
        for row, job in enumerate(done.jobs):
            if job.continues is not None:
                reuses.append(reuses[job.continues])
            else:
                reuses.append(self._planned[row].draft.reuses + 1 if job.prefix else 0)
        rows = np.flatnonzero(~done.superseded & (done.replay.length > 0)).tolist()
        return {row: reuses[row] for row in rows if not self.max_reuses or reuses[row] < self.max_reuses}

    @property
    def _unknown(self) -> list[int]:
        """Drafts of the next visit whose engine gave no log-probs."""
        return [row for row, (_, logps, _) in self._kept.items() if logps is None]

    def _plan(self, prompts: Prompts) -> list[_Planned]:
        """The jobs of the inner method's first round with their drafts."""
        planned, jobs = [], self.inner.jobs(prompts, None)
        keys = [prompts[job.prompt].key for job in jobs]
        for job, key, number in zip(jobs, keys, occurrence(keys).tolist(), strict=True):
            drafts = self._drafts.get(key, [])
            draft = drafts[number] if number < len(drafts) else None
            planned.append(_Planned(job, number, draft, usable(draft, job, self._limit(job)) if draft else 0))
        return planned

    def _with_prefixes(self, prompts: Prompts, answers: Sequence[np.ndarray]) -> list[Job]:
        """The planned jobs, each with what is kept of its draft."""
        asked = [(prompts[p.job.prompt].key, p.number, p.length) for p in self._planned if p.draft]
        coins = iter(uniforms(self.setting.seed, prompts.step, *zip(*asked, strict=True)))
        answer, jobs = iter(answers), []
        for job, _, draft, length in self._planned:
            if draft:
                logps = next(answer)
                kept = accepted(draft.logps[:length], logps, next(coins), self.lenience)
                whole = kept == self._limit(job) or (draft.ended and kept == len(draft.ids))
                known = tuple(logps[:kept].tolist())
                job = replace(job, prefix=draft.first(kept), prefix_logprobs=known, whole=whole)
            jobs.append(job)
        return jobs

    def _limit(self, job: Job) -> int:
        return self.setting.max_completion_length if job.max_tokens is None else job.max_tokens


def _tokens(drafts: Iterable[Sequence[Draft]]) -> int:
    return sum(len(draft.ids) for of_prompt in drafts for draft in of_prompt)
