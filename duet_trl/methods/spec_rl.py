# SPDX-License-Identifier: Apache-2.0
r"""SPEC-RL (arXiv 2509.23232): a rollout begins with the part of the prompt's previous rollout that still fits.

It is GRPO except for how rollouts begin. The k-th of a prompt takes the k-th rollout of the prompt's last visit as its
draft: tokens x and log p_old under the policy that sampled them. A forward pass before generation gives log p_new, and
tokens are kept up to the first that fails

    log U_t <= log p_new(x_t) - log p_old(x_t) + lenience,      U_t uniform

From there on the policy samples as usual. A draft that passes to its end token, or to the length limit, is taken whole
and costs no generated token. **This does not sample from p_new** once the policies differ; docs/fidelity.md#spec_rl
shows how far away it is and why no such rule is exact. Every process and every checkpoint holds each prompt's last
visit, 8 bytes a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ..field_types import Options, config_field
from ..gate.replay import occurrence
from ..rollouts import Job, Judgement, Prompts, Query, Rollouts
from ..state import check_state
from .grouping import uniform_jobs
from .grpo import FromGRPO
from .method import Setting

_COIN = 0x5BEC  # keeps the draws of U apart from others under the seed


@dataclass(frozen=True)
class SpecRLOptions(Options):
    """Options; the default is that of the authors' training script."""

    lenience: float = config_field(
        "Added to the log ratio of the test. 0: the test of speculative decoding; large: whole rollouts are reused.",
        0.5,
        rule=(lambda x: 0 <= x < float("inf"), "at least 0 and finite, got {}"),
    )


class Draft(NamedTuple):
    """A rollout of a prompt's last visit: ids (T,) int32, their log-probs (T,) float32, nats; whether it has ended."""

    ids: np.ndarray
    logps: np.ndarray
    ended: bool


class SpecRL(FromGRPO):
    """GRPO whose rollouts begin with drafts; see the module."""

    identity = {"method": "spec_rl"}
    options: SpecRLOptions

    def __init__(self, setting: Setting, options: SpecRLOptions) -> None:
        super().__init__(setting, options)
        self.drafts: dict[str, list[Draft]] = {}
        self._used: list[Draft | None] = []  # that of each job of the step
        self._fetched: list[tuple[list[int], list[float] | None]] | None = None

    def jobs(self, prompts: Prompts, done: Rollouts | None) -> Sequence[Job | Query]:
        """Questions about the drafts, the rollouts after what is kept, finally questions about new drafts."""
        jobs = uniform_jobs(range(len(prompts)), self.setting.num_generations)
        if done is None:
            self._fetched = None
            self._used = self._drafts_of([prompts[job.prompt].key for job in jobs])
            drafts = zip(jobs, self._used, strict=True)
            return [Query(job.prompt, tuple(draft.ids.tolist())) for job, draft in drafts if draft] or jobs
        if not len(done):
            return self._behind_drafts(prompts.step, jobs, done.answers)
        if self._fetched is not None:
            return []
        self._fetched = done.tokens(range(len(done)))
        # Where the engine gave no log-probs; the weights have not moved since.
        rows = zip(done.prompt, self._fetched, strict=True)
        return [Query(int(q), tuple(ids)) for q, (ids, logps) in rows if ids and logps is None]

    def observe(self, done: Rollouts, judgement: Judgement, sum_logps: np.ndarray) -> None:
        """Keep the rollouts as drafts of the next visit."""
        offered = sum(len(draft.ids) for draft in self._used if draft)
        answers = iter(done.answers[sum(draft is not None for draft in self._used) :])
        for q in np.unique(done.prompt):
            self.drafts[done.prompts[q].key] = []
        for q, ended, (ids, logps) in zip(done.prompt, done.terminated, self._fetched, strict=True):
            if ids:
                known = np.asarray(next(answers) if logps is None else logps, np.float32)
                self.drafts[done.prompts[q].key].append(Draft(np.asarray(ids, np.int32), known, bool(ended)))
        self._metrics = {
            "draft_tokens": float(offered),
            "accept_rate": sum(len(job.prefix) for job in done.jobs) / max(offered, 1),
            "whole_rollouts": float(sum(job.whole for job in done.jobs)),
            "remembered_tokens": float(sum(len(draft.ids) for draft in chain(*self.drafts.values()))),
        }

    def state_dict(self) -> dict[str, Any]:
        """The drafts: how many each prompt has, and all of them end to end."""
        flat = list(chain(*self.drafts.values()))
        return {
            "rollouts": {key: len(of_prompt) for key, of_prompt in self.drafts.items()},
            "ids": np.concatenate([np.zeros(0, np.int32), *(draft.ids for draft in flat)]),
            "logps": np.concatenate([np.zeros(0, np.float32), *(draft.logps for draft in flat)]),
            "lengths": np.array([len(draft.ids) for draft in flat], np.int64),
            "ended": np.array([draft.ended for draft in flat], bool),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`. Raises ValueError if it is not one."""
        check_state("spec_rl", state, self.state_dict())
        ids, logps = (np.split(state[name], np.cumsum(state["lengths"])) for name in ("ids", "logps"))
        rows = zip(ids, logps, state["ended"], strict=False)  # an empty part follows the last end
        # Copies: a view would hold all tokens until the last prompt is visited again.
        flat = (Draft(one.copy(), logp.copy(), bool(ended)) for one, logp, ended in rows)
        self.drafts = {key: [next(flat) for _ in range(count)] for key, count in state["rollouts"].items()}

    def _drafts_of(self, keys: Sequence[str]) -> list[Draft | None]:
        rows, limit = zip(keys, occurrence(keys).tolist(), strict=True), self.setting.max_completion_length
        found = [(self.drafts.get(key, [])[number : number + 1] or [None])[0] for key, number in rows]
        return [x and Draft(x.ids[:limit], x.logps[:limit], x.ended and len(x.ids) <= limit) for x in found]

    def _behind_drafts(self, step: int, jobs: Sequence[Job], answers: Sequence[np.ndarray]) -> list[Job]:
        random, answer, found = np.random.default_rng([self.setting.seed, step, _COIN]), iter(answers), []
        for job, draft in zip(jobs, self._used, strict=True):
            if draft:
                logps = next(answer)
                kept = accepted(draft.logps, logps, 1.0 - random.random(len(logps)), self.options.lenience)
                whole = kept == self.setting.max_completion_length or (draft.ended and kept == len(draft.ids))
                job = Job(job.prompt, tuple(draft.ids[:kept].tolist()), tuple(logps[:kept].tolist()), whole=whole)
            found.append(job)
        return found


def accepted(old: np.ndarray, new: np.ndarray, uniforms: np.ndarray, lenience: float) -> int:
    """Tokens before the first that fails log U <= log p_new - log p_old + lenience; shape (T,) each, U in (0, 1]."""
    fails = ~(np.log(uniforms) <= new.astype(np.float64) - old + lenience)  # a nan fails
    return int(fails.argmax()) if fails.any() else len(fails)
