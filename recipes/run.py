# SPDX-License-Identifier: Apache-2.0
"""Steps of all recipes once they have data and a reward: train, measure, save, push.

What can fail without a GPU (arguments, tokenizer, data, suites, the sandbox) is checked before the model is loaded.
Until training begins, an error of the input is one line; from then on an error is a traceback.
"""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from datasets import Dataset
from run_file import RunRecord, new_record, write_run
from script_arguments import ScriptArguments, parse, short_help
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PrinterCallback, ProgressCallback, TrainerCallback
from transformers.integrations import get_available_reporting_integrations
from trl import ModelConfig, get_peft_config, get_quantization_config

from duet_trl import DUETGRPOConfig, DUETGRPOTrainer
from duet_trl.engines.engine import ServerError
from duet_trl.evaluation.callbacks import SuiteEvaluation
from duet_trl.evaluation.measure import Settings, build_graders
from duet_trl.evaluation.prompts import MODEL_REMEDY
from duet_trl.evaluation.suites import load_suite
from duet_trl.mistakes import mistakes
from duet_trl.rewards import SandboxError
from duet_trl.seams.hub import configuration_yaml

if TYPE_CHECKING:
    from trl.trainer.grpo_trainer import RewardFunc

Begin = Callable[[], None]
"""Training that is ready to begin."""
Main = Callable[[ScriptArguments, DUETGRPOConfig, ModelConfig], Begin]


def start(main: Main, argv: Sequence[str] | None = None) -> None:
    """Run a recipe from its command line; None: this process's."""
    words = sys.argv[1:] if argv is None else [*argv]
    if {"-h", "--help"} & {*words}:
        print(short_help(main.__globals__))
        return
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    with mistakes(SandboxError, ServerError):
        begin = main(*parse(words))
    begin()


def load_tokenizer(config: DUETGRPOConfig, model: ModelConfig) -> PreTrainedTokenizerBase:
    """The policy's tokenizer, which also measures the prompts.

    Raises:
        ValueError: If no model is named, or its tokenizer cannot be loaded.
    """
    name = model.model_name_or_path
    if name is None:
        raise ValueError("no model is named. Give --model_name_or_path, a name on the Hub or a folder.")
    try:
        return AutoTokenizer.from_pretrained(
            name, revision=model.model_revision, trust_remote_code=config.trust_remote_code
        )
    except OSError as error:
        raise ValueError(f"the tokenizer of {name!r} cannot be loaded: {error} {MODEL_REMEDY}") from error


def prepare(
    arguments: ScriptArguments,
    config: DUETGRPOConfig,
    model: ModelConfig,
    tokenizer: PreTrainedTokenizerBase,
    dataset: Dataset,
    reward: "RewardFunc",
    callbacks: Sequence[TrainerCallback] = (),
) -> Begin:
    """Everything up to the first step. What it returns trains, measures meanwhile, saves, and pushes if asked to.

    Args:
        arguments (ScriptArguments): What is measured.
        config (DUETGRPOConfig): Configuration of the trainer.
        model (ModelConfig): The policy and how it is loaded.
        tokenizer (PreTrainedTokenizerBase): Its tokenizer.
        dataset (Dataset): Training data.
        reward (RewardFunc): The verifier.
        callbacks (Sequence[TrainerCallback]): What the recipe does and prints meanwhile; empty: as transformers does.

    Raises:
        ValueError: If a suite cannot be measured with this configuration, or the checkpoint does not exist.
        ImportError: If `report_to` names what is not installed.
    """
    resume = resume_from(config)
    if missing := {*config.report_to} - {*get_available_reporting_integrations(), "azure_ml", "flyte"}:
        raise ImportError(f"report_to names {sorted(missing)}, not installed. Install it, or give --report_to none.")
    suites = load_suites(arguments)
    graders = build_graders(suites, arguments.sandbox)
    record, written = new_record(arguments, config, model), recipe_yaml(arguments, config, model)
    # With push_to_hub the Trainer would ask for the repository before a step is made, and fail without a network.
    push, config.push_to_hub = config.push_to_hub, False
    config.model_init_kwargs = {
        "revision": model.model_revision,
        "trust_remote_code": config.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(config.model_init_kwargs or {}),
    }
    trainer = DUETGRPOTrainer(
        model=model.model_name_or_path,
        reward_funcs=reward,
        args=config,
        train_dataset=dataset,
        processing_class=tokenizer,
        quantization_config=get_quantization_config(model),
        peft_config=get_peft_config(model),
        callbacks=list(callbacks),
    )
    for printer in (PrinterCallback, ProgressCallback) if callbacks else ():
        trainer.remove_callback(printer)
    if suites:
        settings = Settings(
            arguments.eval_samples,
            arguments.eval_temperature,
            arguments.eval_top_p,
            max_tokens=config.max_completion_length,
            thought_delimiters=None if config.thought_delimiters is None else tuple(config.thought_delimiters),
        )
        every, folder = arguments.eval_every, config.output_dir
        measuring = SuiteEvaluation(trainer, suites, folder, every=every, settings=settings, graders=graders)
        trainer.add_callback(measuring)
    trainer.card_configuration, folder = written, Path(config.output_dir)
    if trainer.is_world_process_zero():
        write_run(folder, record)
        (folder / "recipe.yaml").write_text(written)
    return partial(_train, trainer, resume, record, arguments.dataset_name, push)


def resume_from(config: DUETGRPOConfig) -> str | bool | None:
    """What `resume_from_checkpoint` of a command line means to the trainer.

    Raises:
        ValueError: If there is no such checkpoint.
    """
    asked = config.resume_from_checkpoint
    resume = {"true": True, "false": False}.get(str(asked).lower(), asked)
    found = any(Path(config.output_dir).glob("checkpoint-*")) if resume is True else Path(resume or ".").is_dir()
    if not found:
        place = config.output_dir if resume is True else resume
        raise ValueError(f"there is no checkpoint in {place!r}. Leave --resume_from_checkpoint {asked} out.")
    return resume


def _train(
    trainer: DUETGRPOTrainer, resume: str | bool | None, record: RunRecord, dataset_name: str | None, push: bool
) -> None:
    """Train, save and push; a Hub that cannot be reached is a RuntimeError, and the model is saved by then."""
    trainer.train(resume_from_checkpoint=resume)
    _save(trainer, dataset_name, push)
    if trainer.is_world_process_zero():
        state, folder = trainer.state, Path(trainer.args.output_dir)
        write_run(folder, replace(record, status="done", max_steps=state.max_steps, log=state.log_history))


def _save(trainer: DUETGRPOTrainer, dataset_name: str | None, push: bool) -> None:
    """Save model, state and card, then push them if that is asked for."""
    trainer.save_model(trainer.args.output_dir)
    if trainer.args.should_save:
        trainer.save_method_state(Path(trainer.args.output_dir))
    # The Hub refuses a card that names a data set by a place on this machine.
    published = None if dataset_name is None or Path(dataset_name).exists() else dataset_name
    name = Path(trainer.args.hub_model_id or trainer.args.output_dir).name
    trainer.create_model_card(model_name=name, dataset_name=published)
    if push:
        trainer.push_to_hub(dataset_name=published)


def recipe_yaml(arguments: ScriptArguments, config: DUETGRPOConfig, model: ModelConfig) -> str:
    """A file for `--config` that repeats a run, without how it was started and what follows from its batch."""
    leave_out = ["push_to_hub", "resume_from_checkpoint"]
    if config.steps_per_generation == config.gradient_accumulation_steps:
        leave_out.append("steps_per_generation")
    return configuration_yaml(arguments, model, config, leave_out=leave_out)


def load_suites(arguments: ScriptArguments) -> Mapping[str, Dataset]:
    """Problems of the suites that are measured.

    Raises:
        ValueError: If a suite is unknown or missing.
        PermissionError: If a suite is gated and this machine has no access.
        ConnectionError: If a suite cannot be fetched.
    """
    return {name: load_suite(name, arguments.sources.get(name)) for name in arguments.eval_suites}
