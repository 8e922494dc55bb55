# SPDX-License-Identifier: Apache-2.0
"""`DUETGRPOTrainer`: the seams between DUET and TRL's `GRPOTrainer`.

A generation step runs plan -> roll out -> score -> judge -> train rows -> TRL's loss -> finish. TRL's own
`_generate_and_score_completions` is called on the surviving rollouts with `_generate` and `_calculate_rewards`
replaying what is already known, so that log-probabilities, importance sampling, reference model and logging stay
TRL's. The weights ride on the advantages, in which every admitted loss type is positively homogeneous.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput
from trl import GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from .config import DUETGRPOConfig
from .engines.errors import ServerError
from .methods import build_controller
from .methods.duet_settings import settle_router_loss
from .seams import logs, metrics
from .seams import train_rows as rows
from .seams.arguments import ends_by_own_rules, own_config
from .seams.audit import AuditLog
from .seams.checkpoint import leave_checkpoint, read_state, write_state
from .seams.data_checks import check_data, check_text, prompt_keys
from .seams.ending import add_ending_reward, forget_unscored_endings
from .seams.engine import Engine, load_tokenizer, prepare_gate
from .seams.exchange import Exchange, Placement
from .seams.finish import finish
from .seams.hub import PAPER, Publishing
from .seams.interrupt import StopAfterStep
from .seams.outcomes import RunWatch, share_outcomes
from .seams.progress import show_few_figures
from .seams.start import StartNotice
from .seams.step import ReplayBatch, Step
from .seams.step_advantages import step_advantages
from .update.filters import nonfinite_rewards, unscored


class DUETGRPOTrainer(Publishing, GRPOTrainer):
    """[`~trl.GRPOTrainer`] under a token budget.

    Takes the arguments of `GRPOTrainer`; `args` is a [`DUETGRPOConfig`], and the rest of a script stays as it is.

    Raises:
        TypeError: If `args` or the data set is of another class.
        ValueError: For anything that gate or weights cannot be right with (images, an EOS outside the vocabulary, no
            free sentinel, ...), before a model is loaded. Tools, environments and `rollout_func` need
            `method="grpo"`, which is then `GRPOTrainer` without DUET's metrics.
    """

    _tag_names = ["trl", "grpo", "duet"]
    _name = "DUET"
    _paper = PAPER

    def __init__(
        self,
        model: str | torch.nn.Module,
        reward_funcs: Any = None,
        args: DUETGRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        **kwargs: Any,
    ) -> None:
        args = own_config(args, model)
        self._own_rules = ends_by_own_rules(kwargs, args)
        check_data(train_dataset, args, needs_prompt=not kwargs.get("environment_factory"))
        processing_class = load_tokenizer(model, processing_class, args)
        setup = prepare_gate(model, processing_class, args)
        self.engine = Engine(args, setup, processing_class)
        self._replay: ReplayBatch | None = None
        self._current: Step | None = None
        self._rolling_out = False
        self._captured_logps: torch.Tensor | None = None
        with self.engine.construction(self):
            super().__init__(
                model=model,
                reward_funcs=reward_funcs,
                args=args,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                processing_class=processing_class,
                **kwargs,
            )
        if self.aux_loss_enabled:
            settle_router_loss(args, self.router_aux_loss_coef)
        if args.ending_reward_weight:
            add_ending_reward(self, args.ending_reward_weight)
        self._keeps_order = rows.keeps_order(args, self.aux_loss_enabled)
        self.exchange = Exchange(self.accelerator)
        self.engine.attach(self)
        self.controller = build_controller(args, None if setup is None else setup.automaton)
        self.watch = RunWatch(args.marker)
        self.audit = AuditLog(args.output_dir, args.audit_columns or []) if args.audit_log else None
        self._interrupt = StopAfterStep(self.accelerator)
        self.add_callback(self._interrupt)
        self.add_callback(StartNotice(self))
        show_few_figures(self)

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """[`~trl.GRPOTrainer.train`]; an interrupt ends it after the current step, with a checkpoint.

        Raises:
            KeyboardInterrupt: After SIGINT, once the checkpoint is written.
            SystemExit: After SIGTERM, likewise, with status 143.
        """
        with self._interrupt:
            output = super().train(*args, **kwargs)
            stopped_in_time = bool(self._interrupt.agreed)
            # Of all processes: none may end, and have its launcher end the others, before the checkpoint is whole.
            if self._interrupt.agree():
                leave_checkpoint(self, self._checkpoint_folder(None), saved=stopped_in_time)
            return output

    # ---- Seams: generation --------------------------------------------------------------------------------------

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        wanted = [self.args.prompt_id_column, *(self.args.audit_columns or [])]
        self._signature_columns += [c for c in wanted if c is not None and c not in self._signature_columns]

    @property
    def _is_stock(self) -> bool:
        """GRPOTrainer works alone: in evaluation, and where rollouts end by rules of their own."""
        return self._own_rules or not self.model.training

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if self._is_stock:
            return super()._generate_and_score_completions(inputs)
        step = self._plan(inputs)
        self._roll_out(step)
        self._score(step)
        self._judge(step)
        return self._train_rows(step)

    def _generate(self, prompts: list) -> tuple:
        return super()._generate(prompts) if self._replay is None else self._replay.generated

    def _calculate_rewards(
        self, inputs: list[dict], prompts: list, completions: list, completion_ids_list: list[list[int]]
    ) -> torch.Tensor:
        if self._replay is not None:
            return self._replay.rewards_per_func
        inputs = self.engine.thoughts.shown_to_rewards(self, inputs, prompts, completions, completion_ids_list)
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self.args.ending_reward_weight:
            forget_unscored_endings(rewards)
        return rewards

    def _generate_single_turn(
        self, prompt_ids: list, images: Any, multimodal_fields: dict, num_generations: int, **kwargs: Any
    ) -> tuple:
        if not self._rolling_out:
            return super()._generate_single_turn(prompt_ids, images, multimodal_fields, num_generations, **kwargs)
        step = self._current
        generated = step.generated_rows if self.vllm_tensor_parallel_size == 1 else step.padded_rows
        count = len(generated)
        with self.engine.gated(self, step.plan.gate, generated, prompt_ids[:count]):
            ids, logprobs = super()._generate_single_turn(
                prompt_ids[:count], images, multimodal_fields, num_generations, **kwargs
            )
        ids, logprobs, stopped = self.engine.split(step.plan.gate, ids, logprobs)
        step.gate_stopped = stopped[: len(step.rows)]
        padding = len(prompt_ids) - count
        return ids + ids[-1:] * padding, None if logprobs is None else logprobs + logprobs[-1:] * padding

    @contextmanager
    def _ungrouped(self) -> Iterator[None]:
        """TRL slices and reshapes by `num_generations`; at 1 it leaves rows alone."""
        num_generations, self.num_generations = self.num_generations, 1
        try:
            yield
        finally:
            self.num_generations = num_generations

    # ---- Phase 1: allocate --------------------------------------------------------------------------------------

    def _plan(self, inputs: list[dict[str, Any]]) -> Step:
        started = time.perf_counter()
        first = self.accelerator.process_index * len(inputs)
        local = [x for row, x in enumerate(inputs, start=first) if row % self.num_generations == 0]
        examples = self.exchange.objects(local)
        check_text(example["prompt"] for example in examples)
        keys = prompt_keys(examples, self.args.prompt_id_column)
        # A step of the last epoch may end at 0.99999 of it.
        epoch = int((self.state.epoch or 0.0) + 1e-6)
        plan = self.exchange.first(self.controller.plan(keys, epoch))
        placement = Placement(
            num_rollouts=len(plan.group),
            num_processes=self.accelerator.num_processes,
            interleaved=self.args.duet_active,
        )
        self._current = Step(examples, plan, placement, placement.rows(self.accelerator.process_index))
        self._current.seconds["plan"] = time.perf_counter() - started
        return self._current

    # ---- Phase 2: generate --------------------------------------------------------------------------------------

    def _roll_out(self, step: Step) -> None:
        started = time.perf_counter()
        prompts = [step.examples[q]["prompt"] for q in step.plan.group[step.padded_rows]]
        self._rolling_out = True
        try:
            with self._ungrouped():
                generated = super()._generate(prompts)
        except ServerError as error:
            self._stop_with_checkpoint(str(error))
        finally:
            self._rolling_out = False
        if len(generated) != 8:
            raise RuntimeError(
                f"GRPOTrainer._generate returned {len(generated)} values instead of 8: this TRL version is not "
                "supported. Install the range named in setup.cfg."
            )
        step.prompt_ids, step.completion_ids, _, step.completions, step.logprobs = generated[:5]
        step.in_thought = self.engine.thoughts.open_after(step.prompt_ids)
        step.seconds["generate"] = time.perf_counter() - started
        started = time.perf_counter()
        share_outcomes(step, self.controller, self.exchange, {*self.eos_token_ids, self._tokenizer.pad_token_id})
        step.seconds["overhead"] += time.perf_counter() - started

    # ---- Phase 3: update ----------------------------------------------------------------------------------------

    def _score(self, step: Step) -> None:
        started = time.perf_counter()
        inputs = [step.examples[q] for q in step.plan.group[step.padded_rows]]
        prompts = [x["prompt"] for x in inputs]
        rewards = self._calculate_rewards(inputs, prompts, step.completions, step.completion_ids)
        rewards = step.placement.from_processes(rewards)  # (N, F)
        infinite = nonfinite_rewards(rewards)
        rewards[infinite] = torch.nan
        step.rewards_per_func = rewards
        step.nonfinite = unscored(rewards).cpu().numpy()
        step.extra_logs = logs.share_extra_logs(step, self._pending_extra_logs, self.exchange)
        step.seconds["score"] = time.perf_counter() - started
        if step.nonfinite.all():
            self._stop_with_checkpoint(
                f"no rollout of generation step {step.plan.step} has a finite reward: every reward function returned "
                "None, NaN or infinity for all of them. Check the reward functions and their data-set columns"
            )

    def _judge(self, step: Step) -> None:
        started = time.perf_counter()
        step.advantages = step_advantages(step, self.controller, self.args, self.reward_weights)
        raw = step.raw_advantages
        step.judgement = self.controller.weigh(step.plan, step.replay.outcome, raw)
        self.controller.observe_rollouts(step.plan, step.replay, step.judgement, step.summed_rewards, ~step.nonfinite)
        self.watch.outcomes(step.replay.outcome)
        ended = step.truncated & (step.replay.length < self.max_completion_length)
        self._report(metrics.step_metrics(step.plan, step.replay, step.judgement, raw, self.num_generations, ended))
        step.seconds["overhead"] += time.perf_counter() - started

    def _train_rows(self, step: Step) -> dict[str, Any]:
        started = time.perf_counter()
        rows.place(step, self.args, self.accelerator.num_processes, self._keeps_order)
        rows.count_tokens(step, self.mask_truncated_completions)
        process = self.accelerator.process_index
        inputs, self._replay = rows.replay_batch(
            step, self.exchange, process, self.eos_token_ids[0], self.mask_truncated_completions
        )
        step.seconds["overhead"] += time.perf_counter() - started
        try:
            with self._ungrouped():
                output = super()._generate_and_score_completions(inputs)
        finally:
            self._replay = None
        rows.weigh(step, output, process)
        if self.aux_loss_enabled:
            rows.hide_padding(output, self.args.steps_per_generation)
        step.train_rows = output
        logs.correct_trl_metrics(step, self._metrics["train"], self.reward_func_names, self.reward_weights)
        logs.log_all_rollouts(step, self._logs, self.reward_func_names, self.exchange, self.log_completions)
        if "old_per_token_logps" in output:  # TRL has just computed what Eq. 3 needs
            step.capture(output, output["old_per_token_logps"])
            finish(self, step)
        return output

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        if self._is_stock:
            return super()._prepare_inputs(generation_batch)
        before = self._current
        inputs = super()._prepare_inputs(generation_batch)
        if self._current is not before:
            chunks = self._buffered_inputs
            if not self._keeps_order:
                # TRL shuffles rows over micro-batches; the packing put neighbours in length together.
                chunks = split_tensor_dict(self._current.train_rows, self.args.steps_per_generation)
            self._buffered_inputs = [rows.trim_columns(chunk, self.pad_to_multiple_of) for chunk in chunks]
            self._current.train_rows = {}
            inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]
        return inputs

    # ---- Seams: loss --------------------------------------------------------------------------------------------

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple:
        output = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._captured_logps = output[0].detach()
        return output

    def _compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        if self._is_stock:
            return super()._compute_loss(model, inputs)
        step, spg = self._current, self.args.steps_per_generation
        rows.check_divisor(step, inputs)
        coefficient = self.router_aux_loss_coef
        if self.aux_loss_enabled and rows.only_padding(inputs):
            self.router_aux_loss_coef = 0.0
        loss = super()._compute_loss(model, inputs)
        self.router_aux_loss_coef = coefficient
        if not self._keeps_order and rows.is_empty(step, self._step % spg, spg):
            logs.forget_token_means(self._metrics["train"])
        position = self._step % (spg * self.num_iterations)
        if "old_per_token_logps" not in inputs and position < spg:
            step.capture(inputs, self._captured_logps)
            if position == spg - 1:
                finish(self, step)
        self._captured_logps = None
        return loss

    def training_step(self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """TRL's training step; reports where the seconds of a generation step went once it is used up."""
        if self._own_rules:
            return super().training_step(model, inputs, num_items_in_batch)
        before, started = self._current, time.perf_counter()
        booked = 0.0 if before is None else sum(before.seconds.values())
        loss = super().training_step(model, inputs, num_items_in_batch)
        step = self._current
        booked = sum(step.seconds.values()) - (booked if step is before else 0.0)
        step.seconds["update"] += time.perf_counter() - started - booked
        if self._step % (self.args.steps_per_generation * self.num_iterations) == 0:
            self._report(metrics.time_metrics(step.seconds))
        return loss

    def _report(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._metrics["train"][f"duet/{name}"].append(value)

    # ---- Seams: state -------------------------------------------------------------------------------------------

    def _checkpoint_folder(self, trial: Any) -> Path:
        return Path(self._get_output_dir(trial=trial), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        # Before the parent, which pushes the folder to the Hub.
        if self.args.should_save:
            write_state(self._checkpoint_folder(trial), self.controller)
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            read_state(Path(checkpoint), self.controller)

    def _stop_with_checkpoint(self, reason: str) -> None:
        self._save_checkpoint(self.model, trial=None)
        raise RuntimeError(f"Training stopped: {reason}. The state before it is in {self._checkpoint_folder(None)}.")

    # ---- Sampling outside of training ---------------------------------------------------------------------------

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
        """Completions of the current policy from the training engine, without the gate; for evaluation.

        Args:
            prompts (list): Prompts in the data set's form (text or messages), length P, the same on every process.
            num_samples (int): Completions per prompt.
            temperature, top_p (float | None): Temperature 0 is greedy; None: as in training.
            max_tokens (int | None): Tokens at most; None: `max_completion_length`.

        Returns:
            list[list[list[int]]]: Token ids, P x num_samples completions, the same on every process.
        """
        # vLLM schedules by itself; generate holds the cache of a whole call in memory.
        size = None if self.use_vllm else self._train_batch_size * self.args.steps_per_generation
        with self.engine.sampling(self, temperature, top_p, max_tokens):
            return self.exchange.spread(prompts, num_samples, self._sample_local, size)

    def _sample_local(self, prompts: list) -> list[list[int]]:
        return super()._generate_single_turn(self._tokenize_prompts(prompts)[0], None, {}, 1)[0]
