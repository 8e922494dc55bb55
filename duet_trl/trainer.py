# SPDX-License-Identifier: Apache-2.0
"""`DUETGRPOTrainer`: the seams between the loop of a method and TRL's `GRPOTrainer`.

A generation step runs rounds -> judge -> train rows -> TRL's loss -> observe. `duet_trl.loop` runs the rounds and the
judgement; here is what it asks of TRL. TRL's own `_generate_and_score_completions` is then called on the surviving
rollouts with `_generate` and `_calculate_rewards` replaying what is already known, so that log-probabilities,
importance sampling, reference model and logging stay TRL's. The weights ride on the advantages, in which every loss
type is positively homogeneous.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import TrainOutput
from trl.trainer.utils import split_tensor_dict

from .config import DUETGRPOConfig
from .engines.engine import Engine, Policy
from .exchange import Exchange
from .gate.automaton import TokenAutomaton
from .loop import Loop
from .methods import build_method
from .methods.duet_settings import settle_router_loss
from .methods.method import Method, TokenBatch
from .rollouts import Prompt, Prompts
from .seams import loss_divisor, metrics, train_rows
from .seams.answer_region import Thoughts
from .seams.arguments import check_arguments, own_config
from .seams.audit import AuditLog, audit_columns
from .seams.backend import choose_backend
from .seams.checkpoint import leave_checkpoint
from .seams.data_checks import check_row, prompt_keys
from .seams.embeddings import embedder
from .seams.ending import add_ending_reward
from .seams.gate_setup import load_tokenizer, prepare_gate, thought_delimiters
from .seams.generating import Generating
from .seams.hub import PAPER, Publishing
from .seams.interrupt import StopAfterStep
from .seams.resuming import run_identity
from .seams.several_updates import SeveralUpdates
from .seams.source import PromptSource
from .seams.update_size import UpdateSize
from .seams.watch import RunWatch
from .seams.whole_checkpoint import resume_point
from .step_record import StepRecord
from .update.advantages import GroupAdvantages, group_advantages


class DUETGRPOTrainer(Publishing, Generating, UpdateSize):
    """[`~trl.GRPOTrainer`] under a token budget.

    Takes the arguments of `GRPOTrainer`; `args` is a [`DUETGRPOConfig`], and the rest of a script stays as it is.

    Args:
        method (Method | None): A method of your own, with `args.method="own"` (docs/extending.md).
        engine (Callable[[Policy], Engine] | None): Builds an engine of your own, which then generates the rollouts.

    Raises:
        TypeError: If `args` or the data set is of another class.
        ValueError: For anything that gate or weights cannot be right with (images, an EOS outside the vocabulary, no
            free sentinel, ...), before a model is loaded. Tools, environments and `rollout_func` need
            `method="grpo"`, which is then `GRPOTrainer` without DUET's metrics.
    """

    _tag_names = ["trl", "grpo", "duet"]
    _name = "DUET"
    _paper = PAPER
    _last_loaded_step = -1  # TRL's, which has it with vLLM only
    _current: StepRecord | None = None
    _captured_logps: torch.Tensor | None = None
    _loss_inputs: dict[str, Any] | None = None

    def __init__(
        self,
        model: str | torch.nn.Module,
        reward_funcs: Any = None,
        args: DUETGRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        *,
        method: Method | None = None,
        engine: Callable[[Policy], Engine] | None = None,
        **kwargs: Any,
    ) -> None:
        args = own_config(args, model)
        data = train_dataset, eval_dataset
        needs, self._own_rules = check_arguments(args, method, engine, reward_funcs, data, kwargs)
        processing_class = load_tokenizer(model, processing_class, args)
        setup = prepare_gate(model, processing_class, args) if needs.gated else None
        embed = embedder(needs.embeddings, self)
        self.thoughts = Thoughts(processing_class, thought_delimiters(processing_class, args))
        backend = choose_backend(args, engine)
        with backend.construction(self):
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
        automaton = None if setup is None else setup.automaton
        self.method = build_method(args) if method is None else method
        self.method.embed = embed or self.method.embed
        self.exchange = Exchange(self.accelerator)
        self.engine = backend.attach(self, self._turn, setup, self.exchange)
        self.loop = self._build_loop(automaton)
        self._identity = run_identity(self, self.method, automaton)
        self._source = PromptSource(train_dataset, args.prompt_id_column, args.seed)
        self.audit = AuditLog(args.output_dir, args.audit_columns or []) if args.audit_log else None
        self._interrupt = StopAfterStep(self.accelerator)
        self.add_callback(self._interrupt)
        self.several = None if args.updates == "once" else SeveralUpdates(self)
        if self.several is not None:
            self.add_callback(self.several)
        self.watch = RunWatch(args.marker, args.max_completion_length)
        self._reporters = metrics.Reporters()

    def _build_loop(self, automaton: TokenAutomaton | None) -> Loop:
        return Loop(
            self.method,
            self,
            self.exchange,
            automaton=automaton,
            max_rollouts=self.args.max_rollouts,
            max_tokens=self.args.max_completion_length,
            vocab_size=self.model.config.get_text_config().vocab_size,
            end_ids={*self.eos_token_ids},
            interleaved=not self.method.plain,
        )

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """[`~trl.GRPOTrainer.train`]; an interrupt ends it after the current step, with a checkpoint.

        Args:
            resume_from_checkpoint (str | bool | None): A checkpoint, or True for the newest whole one of `output_dir`.

        Raises:
            KeyboardInterrupt: After SIGINT, once the checkpoint is written.
            SystemExit: After SIGTERM, likewise, with status 143.
            ValueError: If the checkpoint was not written to its end.
        """
        found = self.exchange.fail_together(lambda: resume_point(resume_from_checkpoint, self.args.output_dir))
        with self._interrupt:
            output = super().train(self.exchange.first(found), *args, **kwargs)
            stopped_in_time = bool(self._interrupt.agreed)
            # Of all processes: none may end, and have its launcher end the others, before the checkpoint is whole.
            if self._interrupt.agree():
                if not stopped_in_time:  # it came after the last step
                    self._save_checkpoint(self.model, trial=None)
                self.accelerator.wait_for_everyone()
                if self.accelerator.is_main_process:
                    leave_checkpoint(self._checkpoint_folder(None), self.state.global_step, self.state.max_steps)
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
        step = self._current = StepRecord(self._prompts_of_step(inputs))
        logged = {name: len(values) for name, values in self._metrics["train"].items()}
        with self.checkpoint_if_failing:
            self.loop.run(step)
            if step.nonfinite.all() and self.args.method != "grpo":
                self.stop_with_checkpoint(
                    f"no rollout of generation step {step.prompts.step} has a finite reward: every reward function "
                    "returned None, NaN or infinity for all of them. Check the reward functions and their data-set "
                    "columns"
                )
            self.loop.judge(step)
        metrics.merge_rounds(self._metrics["train"], logged)
        self.state.num_input_tokens_seen -= sum(len(job.prefix) for job in step.jobs)  # were counted when generated
        self._metrics["train"]["num_tokens"] = [self.state.num_input_tokens_seen]
        self.watch.judged(step)
        rows = self._train_rows(step)
        self.report(metrics.step_metrics(step, self.num_generations, self.max_completion_length))
        if self.several is not None:
            self.several.begin(step)
        return rows

    def _prompts_of_step(self, inputs: list[dict[str, Any]]) -> Prompts:
        first = self.accelerator.process_index * len(inputs)
        local = [x for row, x in enumerate(inputs, start=first) if row % self.num_generations == 0]
        examples = self.exchange.objects(local)
        step = self.loop.num_steps + 1
        for number, example in enumerate(examples):
            check_row(example, f"Prompt {number} of generation step {step}", self.args.prompt_id_column)
        keys = prompt_keys(examples, self.args.prompt_id_column)
        batch = [Prompt(key, example) for key, example in zip(keys, examples, strict=True)]
        return Prompts(batch, step, self.epochs_done, self._source.of_step(step))

    # ---- Seams: rows ----------------------------------------------------------------------------------------------

    def _train_rows(self, step: StepRecord) -> dict[str, Any]:
        started = time.perf_counter()
        # Where some rollouts get no forward pass, the others move up.
        plain = self.method.plain and bool(step.judgement.in_gradient.all())
        self._keeps_order = train_rows.keeps_order(plain, self.args, self.aux_loss_enabled)
        loss_divisor.count_tokens(
            step, self.mask_truncated_completions, self.args.exclude_zero_variance_groups, self.method.teaches_ending
        )
        train_rows.place(step, self.args, self.accelerator.num_processes, self._keeps_order)
        process = self.accelerator.process_index
        inputs, self._replay = train_rows.replay_batch(
            step, self.exchange, process, self.eos_token_ids[0], self.mask_truncated_completions
        )
        step.seconds["overhead"] += time.perf_counter() - started
        try:
            with self._ungrouped(), self.old_logps_of(self._replay):
                output = super()._generate_and_score_completions(inputs)
        finally:
            self._replay = None
        train_rows.weigh(step, output, process)
        if self.aux_loss_enabled:
            train_rows.hide_padding(output, self.args.steps_per_generation)
        step.train_rows = output
        metrics.correct_trl_metrics(step, self._metrics["train"], self.reward_func_names, self._grouped(step))
        metrics.log_all_rollouts(step, self._logs, self.reward_func_names, self.exchange, self.log_completions)
        if "old_per_token_logps" in output:  # TRL has just computed what Eq. 3 needs
            step.capture(output, output["old_per_token_logps"])
            self._finish(step)
        return output

    def _grouped(self, step: StepRecord) -> GroupAdvantages:
        """What GRPOTrainer would make of all rollouts, for its metrics."""
        rewards = step.done.rewards_per_func
        return group_advantages(
            rewards,
            self.reward_weights.to(rewards.device),
            torch.from_numpy(step.done.prompt).to(rewards.device),
            scale_rewards=self.scale_rewards,
            multi_objective_aggregation=self.multi_objective_aggregation,
        )

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
            self._buffered_inputs = [train_rows.trim_columns(chunk, self.pad_to_multiple_of) for chunk in chunks]
            self._current.train_rows = {}
            inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]
        return inputs

    # ---- Seams: loss --------------------------------------------------------------------------------------------

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple:
        output = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._captured_logps = output[0].detach()
        if self._loss_inputs is not None:  # TRL reads the advantages next
            self._multiply_tokens(self._loss_inputs, self._captured_logps, output[1].detach())
        return output

    def _multiply_tokens(self, inputs: dict[str, Any], logps: torch.Tensor, entropies: torch.Tensor) -> None:
        """Multiply the advantage of each token by the method's factor and the scale of the divisor, in place."""
        train_rows.teach_endings(inputs, logps)
        advantages = inputs["advantages"]
        batch = TokenBatch(logps, entropies, inputs["completion_mask"], advantages, inputs["duet_row"])
        factor = self.method.token_factor(batch)
        if factor is not None:
            advantages = advantages.unsqueeze(1) * factor.to(advantages)
        inputs["advantages"] = advantages * self._loss_scale

    def _compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        if self._is_stock:
            return super()._compute_loss(model, inputs)
        step, spg = self._current, self.args.steps_per_generation
        self._loss_scale = loss_divisor.scale(step, inputs, self.args, self.accelerator.num_processes)
        self._loss_inputs = dict(inputs)
        with loss_divisor.scaled_terms(self, inputs, self._loss_scale):
            loss = super()._compute_loss(model, self._loss_inputs)
        self._loss_inputs = None
        if not self._keeps_order and train_rows.is_empty(step, self._step % spg, spg):
            metrics.forget_token_means(self._metrics["train"])
        position = self._step % (spg * self.num_iterations)
        if position == 0:
            self.report(self.engine_gap(inputs, self._captured_logps))
        if "old_per_token_logps" not in inputs and position < spg:
            step.capture(inputs, self._captured_logps)
            if position == spg - 1:
                self._finish(step)
        self._captured_logps = None
        return loss

    def _finish(self, step: StepRecord) -> None:
        """Let the method learn from the step, and report what it says of it."""
        try:
            train_rows.collect_logps(step, self.exchange)
        except train_rows.Nonfinite as error:
            self.stop_with_checkpoint(str(error))
        started = time.perf_counter()
        self.watch.values(step.nonfinite)
        self.loop.observe(step)
        self.check_first_state(self.method)
        self.report({"nonfinite_rollouts": float(step.nonfinite.sum())})
        self.report(self.method.metrics(), f"{type(self.method).__name__}.metrics()")
        if self.audit is not None and self.accelerator.is_main_process:
            self.audit.write(step.prompts.step, audit_columns(step), list(step.prompts), step.done.prompt)
        step.seconds["overhead"] += time.perf_counter() - started

    def training_step(self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """TRL's training step; reports where the seconds of a generation step went once it is used up."""
        if self._own_rules:
            return super().training_step(model, inputs, num_items_in_batch)
        before, started = self._current, time.perf_counter()
        booked = 0.0 if before is None else sum(before.seconds.values())
        per_batch = self.args.steps_per_generation * self.num_iterations
        if self.several is not None and self.several.closed and self._step % per_batch:
            loss, self._step = torch.zeros((), device=self.accelerator.device), self._step + 1
        else:
            loss = super().training_step(model, inputs, num_items_in_batch)
        step = self._current
        booked = sum(step.seconds.values()) - (booked if step is before else 0.0)
        step.seconds["update"] += time.perf_counter() - started - booked
        if self._step % per_batch == 0:
            self.report(metrics.time_metrics(step.seconds))
        return loss

    def report(self, values: Mapping[str, float], by: str = "the trainer") -> None:
        """Log values as metrics of DUET."""
        self._reporters.report(self._metrics["train"], values, by)
