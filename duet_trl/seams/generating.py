# SPDX-License-Identifier: Apache-2.0
"""The loop's requests to TRL: to generate, score and answer rollouts of a round (`duet_trl.loop.Host`).

What an engine returned is compared with the requests and with the policy in training. An engine that ends
rollouts elsewhere, or that samples from other weights, trains a policy on what it never wrote, and no metric of
the run shows it.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from trl import GRPOTrainer
from trl.extras.profiling import profiling_context

from ..config import DUETGRPOConfig
from ..engines.engine import Completion, Request, Sampling, ServerError
from ..exchange import Exchange
from ..gate.streaming import GateSetup
from ..rollouts import Job, LocalRollout, Query, StepRecord, policy_mask
from .backend import Backend
from .resuming import Checkpoints
from .scoring import Thoughts, checked, pay_endings, raise_first
from .train_rows import side_by_side, standing_in


class Generation:
    """Generates and scores for a trainer; the loop's host.

    Its `checkpoints` writes one when a server is lost; without a `setup` the run has no gate.
    """

    def __init__(
        self,
        trainer: GRPOTrainer,
        backend: Backend,
        setup: GateSetup | None,
        exchange: Exchange,
        thoughts: Thoughts,
        checkpoints: Checkpoints,
    ) -> None:
        self.trainer, self.exchange, self.thoughts, self.checkpoints = trainer, exchange, thoughts, checkpoints
        self.engine = backend.attach(trainer, self._turn, setup, exchange)
        of_model = {*trainer.eos_token_ids}, trainer.model.config.get_text_config().vocab_size
        self.checks = EngineChecks(type(self.engine).__name__, trainer.args, *of_model)

    @property
    def reward_weights(self) -> torch.Tensor:
        """Weight of each reward function, shape (F,)."""
        return self.trainer.reward_weights

    # ---- The loop's host --------------------------------------------------------------------------------------------

    def generate(self, step: StepRecord, jobs: Sequence[Job], padding: int) -> list[LocalRollout]:
        """Generate the rollouts of some jobs, and repeat the last of them; see [`~duet_trl.loop.Host`]."""
        trainer, done, opened = self.trainer, list[Completion](), list[bool]()

        def single_turn(prompt_ids: list, *_: Any, **__: Any) -> tuple:
            asked = self._filled_up(jobs, len(prompt_ids))
            count = len(asked)
            opened[:] = self.thoughts.open_after(prompt_ids).tolist()
            requests = self._requests(asked, prompt_ids, opened)
            if trainer.overlap is None or not self.engine.begun:
                self._sync_engine()
            done[:] = self._completions(asked, requests)
            ids = [[*job.prefix, *one.token_ids] for job, one in zip(asked, done, strict=True)]
            logprobs = None if done[0].logprobs is None else [*map(_logprobs, asked, done)]
            rest = len(prompt_ids) - count
            return ids + ids[-1:] * rest, None if logprobs is None else logprobs + logprobs[-1:] * rest

        prompts = _prompts(step, [*jobs, *jobs[-1:] * padding])
        try:
            with standing_in(trainer, _generate_single_turn=single_turn, num_generations=1):
                generated = GRPOTrainer._generate(trainer, prompts)
        except ServerError as error:
            self.checkpoints.stop(str(error))
        prompt_ids, completion_ids, _, completions, logprobs, *_ = generated

        def rollout(row: int) -> LocalRollout:
            ids, finish = list(completion_ids[row]), done[min(row, len(jobs) - 1)].finish
            known = None if logprobs is None else list(logprobs[row])
            ends = finish == "gate", opened[row], finish == "eos"
            return LocalRollout(list(prompt_ids[row]), ids, completions[row], known, *ends)

        return [rollout(row) for row in range(len(prompts))]

    def begin(self, step: StepRecord, jobs: Sequence[Job], padding: int) -> None:
        """Begin what `generate` will be asked for; see [`~duet_trl.loop.Host`]."""
        prompt_ids = self.trainer._tokenize_prompts(_prompts(step, [*jobs, *jobs[-1:] * padding]))[0]
        opened = self.thoughts.open_after(prompt_ids).tolist()
        self._sync_engine()
        asked = self._filled_up(jobs, len(prompt_ids))
        self.engine.begin(self._sent(asked, self._requests(asked, prompt_ids, opened))[1])

    def score(self, step: StepRecord, jobs: Sequence[Job], rollouts: Sequence[LocalRollout]) -> torch.Tensor:
        """Rewards of one round; see [`~duet_trl.loop.Host`]."""
        inputs = [dict(step.prompts[job.prompt].example) for job in jobs]
        texts, ids = [one.completion for one in rollouts], [one.completion_ids for one in rollouts]
        opened = np.array([one.in_thought for one in rollouts], dtype=bool)
        return self.rewards(inputs, [x["prompt"] for x in inputs], texts, ids, opened)

    def rewards(
        self,
        inputs: Sequence[dict],
        prompts: list,
        completions: list,
        completion_ids: list[list[int]],
        opened: np.ndarray | None = None,
    ) -> torch.Tensor:
        """Rewards of the rows of all processes, shape (W * R, F).

        `inputs` are R rows of the data set, `completions` text or messages. `opened` marks the prompts that open a
        thought, shape (R,), bool; None: read from them.
        """
        trainer = self.trainer
        if opened is None:
            thinks = self.thoughts.delimiters is not None
            opened = (
                self.thoughts.open_after(trainer._tokenize_prompts(prompts)[0]) if thinks else [False] * len(inputs)
            )
        inputs = self.thoughts.shown_to_rewards(inputs, np.asarray(opened), completions, completion_ids)
        with self._checked_rewards():
            rewards = GRPOTrainer._calculate_rewards(trainer, inputs, prompts, completions, completion_ids)
        if trainer.args.ending_reward_weight:
            pay_endings(rewards, trainer.reward_weights)
        return rewards

    @contextmanager
    def _checked_rewards(self) -> Iterator[None]:
        """While active, what reward functions return is checked; an error of one process is raised on all of them."""
        errors = list[Exception]() if self.exchange.num_processes > 1 else None
        pairs = zip(self.trainer.reward_funcs, self.trainer.reward_func_names, strict=True)
        with standing_in(self.trainer, reward_funcs=[checked(one, name, errors) for one, name in pairs]):
            yield
        if errors is not None:
            self.exchange.fail_together(partial(raise_first, errors))

    def share_logs(self, rows: np.ndarray) -> dict[str, list]:
        """Columns that the reward functions logged; see [`~duet_trl.loop.Host`]."""
        pending = self.trainer._pending_extra_logs
        local = {column: list(values) for column, values in pending.items()}
        pending.clear()
        columns = sorted(set(self.exchange.objects(list(local))))
        return {one: self.exchange.in_order(rows, local.get(one, [None] * len(rows))) for one in columns}

    @torch.no_grad()
    def answer(self, step: StepRecord, queries: Sequence[Query]) -> list[np.ndarray]:
        """Answers of the model in training, a micro-batch at a time; see [`~duet_trl.loop.Host`]."""

        def answer(rows: np.ndarray) -> list[np.ndarray]:
            asked = [queries[row] for row in rows]
            prompts = [step.prompts[query.prompt].example["prompt"] for query in asked]
            return self._answer_batch(self.trainer._tokenize_prompts(prompts)[0], asked)

        return self.exchange.spread(len(queries), self.trainer._train_batch_size, answer)

    def _answer_batch(self, prompts: list[list[int]], queries: list[Query]) -> list[np.ndarray]:
        asked = [query.ids for query in queries]
        ids, mask, width = side_by_side(
            prompts, asked, self.trainer._tokenizer.pad_token_id, self.trainer.accelerator.device
        )
        hidden = logps = None
        if any(query.hidden_at is not None for query in queries):
            output = self.trainer.model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
            hidden = output.hidden_states[-1][:, -width:]
        if any(query.hidden_at is None for query in queries):
            logps, *_ = self.trainer._get_per_token_logps_and_entropies(self.trainer.model, ids, mask, width)

        def answer(row: int, query: Query) -> torch.Tensor:
            return logps[row, : len(query.ids)] if query.hidden_at is None else hidden[row, query.hidden_at]

        return [answer(row, query).float().cpu().numpy() for row, query in enumerate(queries)]

    # ---- Engine -----------------------------------------------------------------------------------------------------

    def _completions(self, jobs: Sequence[Job], requests: list[Request]) -> list[Completion]:
        """The completion of each request: empty where the job is a whole rollout."""
        rows, asked = self._sent(jobs, requests)
        found = self.exchange.fail_together(lambda: self.checks.completions(self.engine.generate(asked), asked))
        done = dict(zip(rows, found, strict=False))

        def whole(job: Job) -> Completion:
            ended = not {*job.prefix[-1:]}.isdisjoint(self.checks.end_ids)
            return Completion([], "eos" if ended else "length", None if found[0].logprobs is None else [])

        return [whole(job) if job.whole else done[row] for row, job in enumerate(jobs)]

    def _sent(self, jobs: Sequence[Job], requests: list[Request]) -> tuple[list[int], list[Request]]:
        """Jobs in the order in which the engine is asked for them, and the requests that it gets."""
        # Every process sends the same number of requests, at least one: it tells whether the engine has log-probs.
        # Where there are fewer, whole rollouts fill in, with a token that nobody reads.
        rows = sorted(range(len(jobs)), key=lambda row: jobs[row].whole)
        sent = max(1, self.exchange.largest(sum(not job.whole for job in jobs)))
        return rows, [replace(requests[row], number=number) for number, row in enumerate(rows[:sent])]

    def _filled_up(self, jobs: Sequence[Job], rows: int) -> list[Job]:
        """The jobs that are asked for; processes that share an engine ask for the same number each."""
        return [*jobs, *jobs[-1:] * (0 if self.trainer.vllm_tensor_parallel_size == 1 else rows - len(jobs))]

    def _requests(self, jobs: Sequence[Job], prompt_ids: list[list[int]], opened: list[bool]) -> list[Request]:
        return [self._request(*one) for one in zip(jobs, prompt_ids, opened, strict=False)]

    def _request(self, job: Job, prompt_ids: list[int], in_thought: bool) -> Request:
        if job.whole:  # every process sends the same number, so this one may have a token drawn that nobody reads
            return Request(prompt_ids, max_tokens=1, in_thought=in_thought)
        limit = self.trainer.max_completion_length if job.max_tokens is None else job.max_tokens
        gate = job.gate if job.gate is not None and job.gate.active else None
        return Request(prompt_ids, job.prefix, limit, gate, job.keep, in_thought)

    def _turn(self, prompt_ids: list[list[int]]) -> tuple:
        return GRPOTrainer._generate_single_turn(self.trainer, prompt_ids, None, {}, 1)

    def _sync_engine(self) -> None:
        if self.trainer.state.global_step != self.trainer._last_loaded_step:
            with profiling_context(self.trainer, "sync_weights"):
                self.engine.sync_weights()
            self.trainer._last_loaded_step = self.trainer.state.global_step

    def gap(self, inputs: dict[str, Any], logps: torch.Tensor) -> dict[str, float]:
        """Compare the log-probs of the engine with those of the policy that has just seen its tokens; the metric."""
        sums = self.checks.gap(logps, inputs)
        return {} if sums is None else self.checks.follow_gap(*self.trainer.accelerator.reduce(sums, "sum").tolist())

    @torch.no_grad()
    def sample(self, prompts: list, num_samples: int, sampling: Sampling) -> list[list[list[int]]]:
        """Completions of the policy without the gate; see `DUETGRPOTrainer.sample`."""
        trainer = self.trainer
        # vLLM schedules by itself; generate holds the cache of a whole call in memory.
        size = None if trainer.use_vllm else trainer._train_batch_size * trainer.args.steps_per_generation

        def sample(rows: np.ndarray) -> list[list[int]]:
            texts = [prompts[row // num_samples] for row in rows]
            return self.engine.sample(trainer._tokenize_prompts(texts)[0], sampling)

        self._sync_engine()
        found = self.exchange.spread(len(prompts) * num_samples, size, sample)
        return [found[first : first + num_samples] for first in range(0, len(found), num_samples)]


def _prompts(step: StepRecord, jobs: Sequence[Job]) -> list:
    return [step.prompts[job.prompt].example["prompt"] for job in jobs]


def _logprobs(job: Job, rollout: Completion) -> list[float]:
    """Sampling log-probs of a rollout: those of its prefix, and those of what was generated."""
    if job.prefix and job.prefix_logprobs is None:
        raise ValueError(
            f"a job continues a prefix of {len(job.prefix)} tokens without prefix_logprobs, but the engine returns "
            "log-probs, and the importance correction needs one for every token. Give them: Rollouts.tokens has those "
            "of this step's rollouts, and a Query asks for those of others."
        )
    return [*(job.prefix_logprobs or ()), *rollout.logprobs]


logger = logging.getLogger(__name__)

MAX_GAP = 1.0
"""Nats a token. bfloat16, another kernel and a step of delay stay below 0.1; other weights or another unit do not."""
_STALE_GAP = 0.2
_STALE_GROWTH = 4.0
"""Growth of the gap since the first step, from `_STALE_GAP` on: the policy moves away from what the engine samples."""


class EngineChecks:
    """Checks of one engine, which errors name, over a run; `end_ids` are tokens that end a rollout by themselves."""

    def __init__(self, name: str, args: DUETGRPOConfig, end_ids: set[int], vocab_size: int) -> None:
        self.name, self.end_ids, self.vocab_size = name, end_ids, vocab_size
        kwargs = args.generation_kwargs or {}
        self._runs_on = bool(kwargs.get("ignore_eos"))
        truncated = args.top_p < 1 or args.top_k > 0 or (args.min_p or 0) > 0 or args.repetition_penalty != 1
        self._same_distribution = not truncated and not kwargs
        self._first_gap: float | None = None
        self._warned = False

    def completions(self, done: Any, requests: Sequence[Request]) -> list[Completion]:
        """The completions, if they are those that were asked for; else a ValueError names engine, rollout, remedy."""
        if not isinstance(done, list) or not all(isinstance(one, Completion) for one in done):
            raise ValueError(
                f"{self.name}.generate returned {type(done).__name__}. It must return a list of Completion."
            )
        numbers = [rollout.number for rollout in done]
        if numbers != list(range(len(requests))):
            raise ValueError(
                f"{self.name} was asked for rollouts 0..{len(requests) - 1} and returned {numbers[:20]} "
                f"({len(numbers)}). Engine.generate must return one Completion for each Request, with its number and "
                "in their order."
            )
        for rollout, request in zip(done, requests, strict=True):
            mistake = self._mistake(rollout, request)
            if mistake is not None:
                raise ValueError(f"{self.name} returned {mistake}")
        return done

    def _mistake(self, rollout: Completion, request: Request) -> str | None:
        ids, number = rollout.token_ids, rollout.number
        if len(ids) > request.new_tokens:
            return (
                f"{len(ids)} tokens for rollout {number}, which may have {request.new_tokens}. It must keep to the "
                "max_tokens of a Request."
            )
        if rollout.logprobs is not None and len(rollout.logprobs) != len(ids):
            return (
                f"{len(rollout.logprobs)} log-probs for the {len(ids)} tokens of rollout {number}. It must return one "
                "for each token, or None."
            )
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            wrong = next(token for token in ids if not 0 <= token < self.vocab_size)
            return (
                f"token {wrong} in rollout {number}; the model has tokens 0 to {self.vocab_size - 1}. Serve the model "
                "that is trained, with its tokenizer."
            )
        if not self._runs_on and not self.end_ids.isdisjoint(ids[:-1]):
            at = next(place for place, token in enumerate(ids) if token in self.end_ids)
            return (
                f"{len(ids) - at - 1} tokens after the end token {ids[at]} of rollout {number}. It must end a "
                "rollout at each of the policy's end tokens (Policy.eos_ids)."
            )
        ended, full = not self.end_ids.isdisjoint(ids[-1:]), len(ids) == request.new_tokens
        fits = {"eos": ended, "length": full, "gate": request.gate is not None, "other": True}
        if not fits.get(rollout.finish) or (ended and rollout.finish != "eos" and not self._runs_on):
            return (
                f"rollout {number} as ended by {rollout.finish!r}, with {len(ids)} tokens of at most "
                f'{request.new_tokens}, the last {ids[-1:]}. "eos" is an end token ({sorted(self.end_ids)}), which '
                "servers in OpenAI's style drop: add it to token_ids, or the policy never learns to end. "
                '"length" is max_tokens, "gate" the gate of the Request, "other" anything else.'
            )
        return None

    def gap(self, logps: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor | None:
        """How far the engine's log-probs are from the policy's: sum of their distances, nats, and tokens; shape (2,).

        `logps` are those of the tokens of a micro-batch under the policy before it has moved, shape (B, T). None where
        the engine gives no log-probs.
        """
        if "sampling_per_token_logps" not in inputs:
            return None
        sampled = inputs["sampling_per_token_logps"]
        mask = policy_mask(inputs).bool() & ~sampled.isnan()
        distance = (logps - sampled).abs().clamp(max=1e3)
        return torch.stack([distance[mask].double().sum(), mask.sum().double()])

    def follow_gap(self, total: float, tokens: float) -> dict[str, float]:
        """Metric of the gap of a generation step; ValueError if the engine cannot be sampling from the policy."""
        if not tokens:
            return {}
        gap = total / tokens
        if self._same_distribution and gap > MAX_GAP:
            raise ValueError(
                f"the log-probs that {self.name} returned are {gap:.3g} nats a token away from those of the policy; "
                f"rounding makes that 0.1, and {MAX_GAP:g} is the limit. It samples from other weights or at another "
                "temperature, or returns something else than natural logarithms. A server: serve the model that is "
                "trained, with --logprobs-mode processed_logprobs. Your own engine: bring the weights over in "
                "sync_weights, sample at Policy.sampling, or return logprobs=None."
            )
        self._first_gap = gap if self._first_gap is None else self._first_gap
        if not self._warned and gap > max(_STALE_GAP, _STALE_GROWTH * self._first_gap):
            self._warned = True
            logger.warning(
                "The log-probs of %s are %.2g nats a token away from those of the policy, and were %.2g in the first "
                "step: new weights may not reach it, or it computes in float32 what trains in bf16, where a small "
                "update is rounded away. See duet/engine_gap, its sync_weights and its dtype.",
                self.name,
                gap,
                self._first_gap,
            )
        return {"engine_gap": gap}
