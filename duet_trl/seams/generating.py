# SPDX-License-Identifier: Apache-2.0
"""What the loop asks of TRL: to generate, score and answer rollouts of a round (`duet_trl.loop.Host`)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from trl.extras.profiling import profiling_context

from ..engines.engine import Completion, Engine, Request, Sampling, ServerError
from ..engines.turn import TurnEngine
from ..exchange import Exchange, Placement
from ..rollouts import Job, Query
from ..step_record import Generated, StepRecord
from . import metrics
from .answer_region import Thoughts
from .compared_answers import answer_verifier, classes_of_step
from .ending import pay_endings
from .engine_checks import EngineChecks
from .resuming import Resuming
from .reward_checks import Deferred, checked
from .train_rows import ReplayBatch, side_by_side


class Generating(Resuming):
    """The part of `DUETGRPOTrainer` that generates and scores."""

    engine: Engine
    thoughts: Thoughts
    exchange: Exchange
    _replay: ReplayBatch | None = None
    _jobs: Sequence[Job] | None = None  # of the round that is being generated
    _generated: Generated | None = None  # the round that is being scored
    _last_loaded_step: int
    _stopped: np.ndarray  # of the round that was generated last, like the next
    _in_thought: np.ndarray

    # ---- Seams ------------------------------------------------------------------------------------------------------

    def _generate(self, prompts: list) -> tuple:
        return super()._generate(prompts) if self._replay is None else self._replay.generated

    def _calculate_rewards(
        self, inputs: list[dict], prompts: list, completions: list, completion_ids_list: list[list[int]]
    ) -> torch.Tensor:
        if self._replay is not None:
            return self._replay.rewards_per_func
        thoughts, opened = self.thoughts, np.zeros(len(inputs), dtype=bool)
        if self._generated is not None:
            opened = self._generated.in_thought
        elif thoughts.delimiters is not None:  # of an evaluation, or of a run by rules of its own
            opened = thoughts.open_after(self._tokenize_prompts(prompts)[0])
        inputs = thoughts.shown_to_rewards(inputs, opened, completions, completion_ids_list)
        with self._checked_rewards():
            rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self.args.ending_reward_weight:
            pay_endings(rewards, self.reward_weights)
        return rewards

    @contextmanager
    def _checked_rewards(self) -> Iterator[None]:
        """While active, what reward functions return is checked; an error of one process is raised on all of them."""
        functions, names = self.reward_funcs, self.reward_func_names
        deferred = Deferred() if self.exchange.num_processes > 1 else None
        self.reward_funcs = [checked(one, name, deferred) for one, name in zip(functions, names, strict=True)]
        try:
            yield
        finally:
            self.reward_funcs = functions
        if deferred is not None:
            self.exchange.fail_together(deferred.release)

    def _generate_single_turn(
        self, prompt_ids: list, images: Any, multimodal_fields: dict, num_generations: int, **kwargs: Any
    ) -> tuple:
        if self._jobs is None:
            return super()._generate_single_turn(prompt_ids, images, multimodal_fields, num_generations, **kwargs)
        count = len(self._jobs) if self.vllm_tensor_parallel_size == 1 else len(prompt_ids)
        jobs = [*self._jobs, *self._jobs[-1:] * (count - len(self._jobs))]
        self._in_thought = self.thoughts.open_after(prompt_ids)
        requests = [
            self._request(number, job, ids, inside)
            for number, (job, ids, inside) in enumerate(zip(jobs, prompt_ids, self._in_thought.tolist(), strict=False))
        ]
        self._sync_engine()
        done = self._completions(jobs, requests)
        self._stopped = np.array([rollout.gate_stopped for rollout in done])
        padding = len(prompt_ids) - count
        ids = [[*job.prefix, *rollout.token_ids] for job, rollout in zip(jobs, done, strict=True)]
        logprobs = None if done[0].logprobs is None else [*map(_logprobs, jobs, done)]
        return ids + ids[-1:] * padding, None if logprobs is None else logprobs + logprobs[-1:] * padding

    def _completions(self, jobs: Sequence[Job], requests: list[Request]) -> list[Completion]:
        """What is generated for each request: nothing where the job is a whole rollout."""
        # Every process sends as many requests, and at least one: it tells whether the engine gives log-probs. Where
        # there are fewer, whole rollouts stand in, with a token that nobody reads.
        rows = sorted(range(len(jobs)), key=lambda row: jobs[row].whole)
        sent = max(1, self.exchange.largest(sum(not job.whole for job in jobs)))
        asked = [replace(requests[row], number=number) for number, row in enumerate(rows[:sent])]
        found = self.exchange.fail_together(lambda: self.engine_checks.completions(self.engine.generate(asked), asked))
        nothing = Completion([], None if found[0].logprobs is None else [])
        done = dict(zip(rows, found, strict=False))
        return [nothing if job.whole else done[row] for row, job in enumerate(jobs)]

    def _request(self, number: int, job: Job, prompt_ids: list[int], in_thought: bool) -> Request:
        if job.whole:  # every process sends as many requests, so this one has a token drawn that `_ended` drops
            return Request(prompt_ids, max_tokens=1, in_thought=in_thought, number=number)
        limit = self.max_completion_length if job.max_tokens is None else job.max_tokens
        gate = job.gate if job.gate is not None and job.gate.active else None
        return Request(prompt_ids, job.prefix, limit, gate, job.keep, in_thought, number)

    def _turn(self, prompt_ids: list[list[int]]) -> tuple:
        return super()._generate_single_turn(prompt_ids, None, {}, 1)

    def _sync_engine(self) -> None:
        if self.state.global_step != self._last_loaded_step:
            with profiling_context(self, "sync_weights"):
                self.engine.sync_weights()
            self._last_loaded_step = self.state.global_step

    @contextmanager
    def _ungrouped(self) -> Iterator[None]:
        """TRL slices and reshapes by `num_generations`; at 1 it leaves rows alone."""
        num_generations, self.num_generations = self.num_generations, 1
        try:
            yield
        finally:
            self.num_generations = num_generations

    @cached_property
    def engine_checks(self) -> EngineChecks:
        """What is checked of the engine of this run."""
        own = not isinstance(self.engine, TurnEngine)
        of_model = {*self.eos_token_ids}, self.model.config.get_text_config().vocab_size
        return EngineChecks(type(self.engine).__name__, own, self.args, *of_model)

    def engine_gap(self, inputs: dict[str, Any], logps: torch.Tensor) -> dict[str, float]:
        """Compare the log-probs of the engine with those of the policy that has just seen its tokens; the metric."""
        sums = self.engine_checks.gap(logps, inputs)
        return {} if sums is None else self.engine_checks.follow_gap(*self.accelerator.reduce(sums, "sum").tolist())

    # ---- The loop's host --------------------------------------------------------------------------------------------

    def generate(self, step: StepRecord, jobs: Sequence[Job], padding: int) -> Generated:
        """Generate the rollouts of some jobs, and repeat the last of them; see [`~duet_trl.loop.Host`]."""
        prompts = [step.prompts[job.prompt].example["prompt"] for job in [*jobs, *jobs[-1:] * padding]]
        self._jobs = jobs
        try:
            with self._ungrouped():
                generated = super()._generate(prompts)
        except ServerError as error:
            self.stop_with_checkpoint(str(error))
        finally:
            self._jobs = None
        if len(generated) != 8:
            raise RuntimeError(
                f"GRPOTrainer._generate returned {len(generated)} values instead of 8: this TRL version is not "
                "supported. Install the range named in setup.cfg."
            )
        prompt_ids, completion_ids, _, completions, logprobs = generated[:5]
        ends, stopped = {*self.eos_token_ids, self._tokenizer.pad_token_id}, self._stopped[: len(jobs)]
        ended = np.array([bool(ids) and ids[-1] in ends for ids in completion_ids[: len(jobs)]], dtype=bool)
        return Generated(
            prompt_ids, completion_ids, completions, logprobs, stopped, self._in_thought, ended & ~stopped
        )

    def score(self, step: StepRecord, jobs: Sequence[Job], generated: Generated) -> torch.Tensor:
        """Rewards of one round; see [`~duet_trl.loop.Host`]."""
        inputs = [dict(step.prompts[job.prompt].example) for job in jobs]
        self._generated = generated
        try:
            return self._calculate_rewards(
                inputs, [x["prompt"] for x in inputs], generated.completions, generated.completion_ids
            )
        finally:
            self._generated = None

    def share_logs(self, rows: np.ndarray) -> dict[str, list]:
        """Columns that the reward functions logged; see [`~duet_trl.loop.Host`]."""
        return metrics.share_extra_logs(rows, self._pending_extra_logs, self.exchange)

    def answer_classes(self, step: StepRecord) -> np.ndarray:
        """Class of each rollout's answer; see [`~duet_trl.loop.Host`]."""
        return classes_of_step(step, answer_verifier(self.reward_funcs), self.thoughts, self.exchange)

    @torch.no_grad()
    def answer(self, step: StepRecord, queries: Sequence[Query]) -> list[np.ndarray]:
        """Answers of the model in training, a micro-batch at a time; see [`~duet_trl.loop.Host`]."""
        placement = Placement(len(queries), self.exchange.num_processes, interleaved=True)
        own = placement.rows(self.exchange.process_index)
        # As many forward passes on each process: sharded models gather their weights in them.
        padded = np.resize(own if len(own) else np.zeros(1, dtype=np.int64), placement.rows_per_process)
        found: list[np.ndarray] = []
        for first in range(0, len(padded), self._train_batch_size):
            chunk = [queries[row] for row in padded[first : first + self._train_batch_size]]
            prompts = self._tokenize_prompts([step.prompts[query.prompt].example["prompt"] for query in chunk])[0]
            found += self._answer_batch(prompts, chunk)
        return self.exchange.in_order(own, found)

    def _answer_batch(self, prompts: list[list[int]], queries: list[Query]) -> list[np.ndarray]:
        asked = [query.ids for query in queries]
        ids, mask, width = side_by_side(prompts, asked, self._tokenizer.pad_token_id, self.accelerator.device)
        hidden = logps = None
        if any(query.hidden_at is not None for query in queries):
            output = self.model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
            hidden = output.hidden_states[-1][:, -width:]
        if any(query.hidden_at is None for query in queries):
            wanted = any(query.entropies for query in queries)
            logps, entropies, *_ = super()._get_per_token_logps_and_entropies(
                self.model, ids, mask, width, compute_entropy=wanted
            )

        def answer(row: int, query: Query) -> torch.Tensor:
            if query.hidden_at is not None:
                return hidden[row, query.hidden_at]
            length = len(query.ids)
            return (
                torch.stack([logps[row, :length], entropies[row, :length]]) if query.entropies else logps[row, :length]
            )

        return [answer(row, query).float().cpu().numpy() for row, query in enumerate(queries)]

    # ---- Sampling outside of training -------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(
        self,
        prompts: list,
        num_samples: int = 1,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
    ) -> list[list[list[int]]]:
        """Completions of the policy as `save_model` would save it, from the training engine without the gate.

        Args:
            prompts (list): Prompts in the data set's form (text or messages), length P, the same on every process.
            num_samples (int): Completions per prompt.
            temperature, top_p (float | None): Temperature 0 is greedy; None: as in training.
            max_tokens (int | None): Maximum number of tokens; None: `max_completion_length`.

        Returns:
            list[list[list[int]]]: Token ids, P x num_samples completions, the same on every process.
        """
        # vLLM schedules by itself; generate holds the cache of a whole call in memory.
        size = None if self.use_vllm else self._train_batch_size * self.args.steps_per_generation
        sampling = Sampling(
            self.temperature if temperature is None else temperature,
            self.top_p if top_p is None else top_p,
            self.max_completion_length if max_tokens is None else max_tokens,
        )

        def sample(prompts: list) -> list[list[int]]:
            return self.engine.sample(self._tokenize_prompts(prompts)[0], sampling)

        self._sync_engine()
        return self.exchange.spread(prompts, num_samples, sample, size)


def _logprobs(job: Job, rollout: Completion) -> list[float]:
    """Sampling log-probs of a rollout: those of its prefix, and those of what was generated."""
    if job.prefix and job.prefix_logprobs is None:
        raise ValueError(
            f"a job continues a prefix of {len(job.prefix)} tokens without prefix_logprobs, but the engine returns "
            "log-probs, and the importance correction needs one for every token. Give them: Rollouts.tokens has those "
            "of this step's rollouts, and a Query asks for those of others."
        )
    return [*(job.prefix_logprobs or ()), *rollout.logprobs]
