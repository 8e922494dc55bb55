# SPDX-License-Identifier: Apache-2.0
"""`DUETGRPOTrainer`: the one class that overrides TRL's `GRPOTrainer`.

A generation step runs rounds -> judge -> train rows -> TRL's loss -> observe. TRL's `_generate_and_score_completions`
is called on the surviving rollouts, with `_generate` and `_calculate_rewards` returning what is already known, so
that log-probabilities, importance sampling, reference model and logging stay TRL's. The weights multiply the
advantages, in which every loss type is positively homogeneous.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Sampler
from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import TrainOutput
from trl import GRPOTrainer

from .config import DUETGRPOConfig
from .engines.engine import Engine, Policy, Sampling
from .exchange import Exchange
from .loop import Loop
from .methods import build_method
from .methods.duet import settle_router_loss
from .methods.method import Method
from .rollouts import Prompts, StepRecord
from .seams import metrics, train_rows
from .seams.arguments import check_arguments, own_config
from .seams.backend import choose_backend
from .seams.checkpoint import resume_point
from .seams.data_checks import PromptSource, check_sampler
from .seams.embeddings import embedder
from .seams.gate_setup import load_tokenizer, prepare_gate, thought_delimiters
from .seams.generating import Generation
from .seams.hub import PAPER, extend_card, pushing
from .seams.old_logps import old_logps
from .seams.overlap import Overlap
from .seams.prompt_sharing import prompt_sharing
from .seams.resuming import Checkpoints, StopAfterStep, restore_to_numbered_cpu
from .seams.scoring import Thoughts, add_ending_reward


class DUETGRPOTrainer(GRPOTrainer):
    """[`~trl.GRPOTrainer`] under a token budget.

    Takes the arguments of `GRPOTrainer`; `args` is a [`DUETGRPOConfig`], and the rest of a script does not change.

    Args:
        method (Method | None): Your own method, with `args.method="own"` (docs/extending.md).
        engine (Callable[[Policy], Engine] | None): Builds your own engine, which then generates the rollouts.

    Raises:
        TypeError: If `args` or the data set is of another class.
        ValueError: For anything that would make gate or weights wrong (images, an EOS outside the vocabulary, no
            free sentinel, ...), before a model is loaded. Tools, environments and `rollout_func` need
            `method="grpo"`, which is then `GRPOTrainer` without DUET's metrics.
    """

    _tag_names = ["trl", "grpo", "duet"]
    _name = "DUET"
    _paper = PAPER
    _last_loaded_step = -1  # TRL's, which has it with vLLM only
    _current: StepRecord | None = None  # the generation step in training
    _sampler: Any = None  # of the training data; a stream has none
    card_configuration: str | None = None  # YAML for the model card; None: that of `args`

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
        needs, self._own_rules = check_arguments(
            args, method, engine, reward_funcs, (train_dataset, eval_dataset), kwargs
        )
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
        self.checkpoints = Checkpoints(self, self.method, automaton)
        self.generation = Generation(self, backend, setup, self.exchange, self.thoughts, self.checkpoints)
        self.engine = self.generation.engine
        vocab_size, end_ids = self.model.config.get_text_config().vocab_size, {*self.eos_token_ids}
        limits, dealt = (args.max_rollouts, args.max_completion_length), not self.method.plain
        self.loop = Loop(
            self.method, self.generation, self.exchange, automaton, *limits, vocab_size, end_ids, interleaved=dealt
        )
        self._source = PromptSource(train_dataset, args.prompt_id_column, args.seed)
        self._interrupt = StopAfterStep(self.accelerator)
        self.add_callback(self._interrupt)
        self.overlap = Overlap(self) if args.overlap else None
        self.old_logps = old_logps(self)
        self.sharing = None if self._own_rules else prompt_sharing(self)
        self.watch = metrics.RunWatch(args.marker, args.max_completion_length)
        self._reporters = metrics.Reporters()

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """[`~trl.GRPOTrainer.train`]; an interrupt ends it after the current step, with a checkpoint.

        Args:
            resume_from_checkpoint (str | bool | None): A checkpoint, or True: the newest complete one of `output_dir`.

        Raises:
            KeyboardInterrupt: After SIGINT, once the checkpoint is written.
            SystemExit: After SIGTERM, in the same way, with status 143.
            ValueError: If the checkpoint is incomplete.
        """
        found = self.exchange.fail_together(lambda: resume_point(resume_from_checkpoint, self.args.output_dir))
        with self._interrupt:
            output = super().train(self.exchange.first(found), *args, **kwargs)
            self.checkpoints.leave(self._interrupt)
            return output

    # ---- One step, in the order in which it happens -----------------------------------------------------------------

    @property
    def _is_stock(self) -> bool:
        """GRPOTrainer works alone: in evaluation, and where rollouts end by their own rules."""
        return self._own_rules or not self.model.training

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
            self.report(metrics.time_metrics(step.seconds))
        return loss

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        if self._is_stock:
            return super()._prepare_inputs(generation_batch)
        before = self._current
        inputs = super()._prepare_inputs(generation_batch)
        if self._current is not before:
            chunks = train_rows.micro_batches(self._current, self._buffered_inputs, self.pad_to_multiple_of)
            self._buffered_inputs, inputs = chunks, chunks[self._step % self.args.steps_per_generation]
        return inputs

    def _calculate_rewards(
        self, inputs: list[dict], prompts: list, completions: list, completion_ids_list: list[list[int]]
    ) -> torch.Tensor:
        return self.generation.rewards(inputs, prompts, completions, completion_ids_list)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if self._is_stock:
            return super()._generate_and_score_completions(inputs)
        prompts = self.prompts_of_step(inputs)
        step = self._current = StepRecord(prompts) if self.overlap is None else self.overlap.step(prompts)
        logged = {name: len(values) for name, values in self._metrics["train"].items()}
        tokens = self.state.num_input_tokens_seen
        with self.checkpoints.if_failing():
            self.loop.run(step)
            self.checkpoints.stop_if_unscored(step)
            self.loop.judge(step)
        metrics.merge_rounds(self._metrics["train"], logged)
        self.state.num_input_tokens_seen = tokens = tokens + metrics.tokens_seen(step, self.exchange)
        self._metrics["train"]["num_tokens"] = [tokens]
        self.watch.judged(step)
        rows = self._train_rows(step)
        self.report(metrics.step_metrics(step, self.num_generations, self.max_completion_length))
        if self.overlap is not None:
            self.overlap.begin(step)
        return rows

    def get_batch_samples(self, epoch_iterator: Iterator, *args: Any) -> tuple:
        """TRL's batches of an optimizer step, from an iterator that shows those of the next generation step."""
        batches = epoch_iterator if self.overlap is None else self.overlap.ahead(epoch_iterator)
        return super().get_batch_samples(batches, *args)

    def prompts_of_step(self, inputs: list[dict[str, Any]]) -> Prompts:
        """Prompts of all processes, from the rows that TRL has for this one: the next step that is not observed."""
        first = self.accelerator.process_index * len(inputs)
        local = [x for row, x in enumerate(inputs, start=first) if row % self.num_generations == 0]
        examples = self.exchange.objects(local)
        return self._source.prompts(examples, self.loop.num_steps + 1, self.checkpoints.epochs_done)

    def _train_rows(self, step: StepRecord) -> dict[str, Any]:
        """TRL's batch of this process, from the rollouts as if TRL had generated and scored them."""
        started = time.perf_counter()
        # Where some rollouts get no forward pass, the others move up.
        plain = self.method.plain and bool(step.judgement.in_gradient.all())
        step.keeps_order = train_rows.keeps_order(plain, self.args, self.aux_loss_enabled)
        mask_truncated, process = self.mask_truncated_completions, self.accelerator.process_index
        train_rows.count_tokens(step, self.args, self.method.teaches_ending)
        train_rows.place(step, self.args, self.accelerator.num_processes, self.sharing is not None)
        inputs, generated, rewards = train_rows.replay_batch(
            step, self.exchange, process, self.eos_token_ids[0], mask_truncated
        )
        known = {"num_generations": 1, "_generate": lambda _: generated, "_calculate_rewards": lambda *_: rewards}
        step.seconds["overhead"] += time.perf_counter() - started
        with train_rows.standing_in(self, **known, **self.old_logps.stand_ins(generated[4])):
            output = super()._generate_and_score_completions(inputs)
        self.old_logps.put_off(output)
        train_rows.weigh(step, output, process)
        if self.aux_loss_enabled:
            train_rows.hide_padding(output, self.args.steps_per_generation)
        step.train_rows = output
        metrics.correct_trl_metrics(step, self)
        metrics.log_all_rollouts(step, self._logs, self.reward_func_names, self.exchange, self.log_completions)
        if "old_per_token_logps" in output:  # TRL has just computed the input of Eq. 3
            step.capture(output, output["old_per_token_logps"])
            self._finish(step)
        return output

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple:
        score = super()._get_per_token_logps_and_entropies
        return score(*args, **kwargs) if self.sharing is None else self.sharing.score(score, *args, **kwargs)

    def _compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        if self._is_stock:
            return super()._compute_loss(model, inputs)
        step, spg = self._current, self.args.steps_per_generation
        scale = train_rows.scale(step, inputs, self.args, self.accelerator.num_processes)
        weighted = {**inputs, "advantages": inputs["advantages"] * scale}
        score, seen = self._get_per_token_logps_and_entropies, list[torch.Tensor]()

        def scored(*args: Any, **kwargs: Any) -> tuple:
            output = score(*args, **kwargs)
            seen.append(output[0].detach())
            self.old_logps.weigh(weighted, seen[0])  # TRL reads weights and ratios next
            train_rows.teach_endings(weighted, seen[0])
            return output

        with (
            train_rows.scaled_terms(self, inputs, scale),
            train_rows.standing_in(self, _get_per_token_logps_and_entropies=scored),
        ):
            loss = super()._compute_loss(model, weighted)
        if not step.keeps_order and train_rows.is_empty(step, self._step % spg, spg):
            metrics.forget_token_means(self._metrics["train"])
        position = self._step % (spg * self.num_iterations)
        if position == 0:
            self.report(self.generation.gap(inputs, seen[0]))
        if "old_per_token_logps" not in inputs and position < spg:
            step.capture(inputs, seen[0])
            if position == spg - 1:
                self.old_logps.log()
                self._finish(step)
        return loss

    def _finish(self, step: StepRecord) -> None:
        """Let the method learn from the step, and report its metrics."""
        try:
            train_rows.collect_logps(step, self.exchange)
        except train_rows.Nonfinite as error:
            self.checkpoints.stop(str(error))
        started = time.perf_counter()
        self.watch.values(step.nonfinite)
        self.loop.observe(step)
        self.checkpoints.check_first(self.method)
        self.report({"nonfinite_rollouts": float(step.nonfinite.sum())})
        self.report(self.method.metrics(), f"{type(self.method).__name__}.metrics()")
        if self.args.audit_log and self.accelerator.is_main_process:
            metrics.write_audit(step, self.args.output_dir, self.args.audit_columns or [])
        step.seconds["overhead"] += time.perf_counter() - started

    def report(self, values: Mapping[str, float], by: str = "the trainer") -> None:
        """Log values as metrics of DUET."""
        self._reporters.report(self._metrics["train"], values, by)

    # ---- Checkpoints ------------------------------------------------------------------------------------------------

    def save_method_state(self, folder: Path) -> None:
        """Write the method's state into a folder, as in every checkpoint."""
        self.checkpoints.write(folder)

    def _get_train_sampler(self, dataset: Any = None) -> Sampler:
        self._sampler = super()._get_train_sampler(dataset)
        check_sampler(self._sampler)
        return self._sampler

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        with self.checkpoints.saving(trial):
            super()._save_checkpoint(model, trial)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        # The file that is written next marks the checkpoint as complete: with the parts of every process.
        self.accelerator.wait_for_everyone()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None and self.args.device.type == "cpu":
            restore_to_numbered_cpu()
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.checkpoints.restore(Path(checkpoint), self._sampler)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # transformers checks only after a step: a run resumed from its last checkpoint would train one more.
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(*args, **kwargs)

    # ---- Sampling outside of training, and publishing ---------------------------------------------------------------

    def unwrapped_model(self) -> torch.nn.Module:
        """The policy for `model.generate` in the step, without the wrappers of distributed training."""
        return self.accelerator.unwrap_model(self.model_wrapped)

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
            temperature, top_p, max_tokens (float | int | None): Temperature 0 is greedy; None: as in training.

        Returns:
            list[list[list[int]]]: Token ids, P x num_samples completions, the same on every process.
        """
        sampling = Sampling(
            self.temperature if temperature is None else temperature,
            self.top_p if top_p is None else top_p,
            self.max_completion_length if max_tokens is None else max_tokens,
        )
        return self.generation.sample(prompts, num_samples, sampling)

    def create_model_card(self, model_name: str | None = None, *args: Any, **kwargs: Any) -> None:
        """TRL's model card and a section on this run: settings, history, configuration, versions."""
        name = model_name or Path(self.args.hub_model_id or Path(self.args.output_dir).absolute()).name
        super().create_model_card(name, *args, **kwargs)
        if self.is_world_process_zero():
            extend_card(self)

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """[`~transformers.Trainer.push_to_hub`], once model, tokenizer and state are saved in `output_dir`."""
        with pushing(self):
            return super().push_to_hub(*args, **kwargs)
