# SPDX-License-Identifier: Apache-2.0
"""What all recipes do once they have data and a reward: train, measure, save, push.

What can be wrong without a GPU (arguments, tokenizer, data, suites, the sandbox) is read before the model is.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from command_line import RecipeArguments, RecipeConfig, parse
from data import prompt_length
from datasets import Dataset
from dry_run import notes, print_run, resolve, start_line
from run_file import write_run
from run_record import new_record
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PrinterCallback, ProgressCallback, TrainerCallback
from trl import ModelConfig, get_peft_config, get_quantization_config

from duet_trl.evaluation.callbacks import SuiteEvaluation
from duet_trl.evaluation.measure import Grader, Settings, build_graders
from duet_trl.evaluation.prompts import MODEL_REMEDY
from duet_trl.evaluation.suites import load_suite

if TYPE_CHECKING:
    from trl.trainer.grpo_trainer import RewardFunc

    from duet_trl import DUETGRPOTrainer

logger = logging.getLogger(__name__)

Main = Callable[[RecipeArguments, RecipeConfig, ModelConfig], None]


def start(recipe: str, main: Main, argv: Sequence[str] | None = None) -> None:
    """Run a recipe from its command line, or only show what it would do (`--dry_run`).

    Args:
        recipe (str): Name of the script, which a configuration must be made for.
        main (Main): Data and reward of the recipe, then `train`.
        argv (Sequence[str] | None): Command line without the script; None: this process's.
    """
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    arguments, config, model = parse(recipe, argv)
    if not arguments.dry_run:
        main(arguments, config, model)
    elif config.process_index == 0:
        print_run(resolve(arguments, config, model))


def load_tokenizer(config: RecipeConfig, model: ModelConfig) -> PreTrainedTokenizerBase:
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


def train(
    arguments: RecipeArguments,
    config: RecipeConfig,
    model: ModelConfig,
    tokenizer: PreTrainedTokenizerBase,
    dataset: Dataset,
    reward: "RewardFunc",
    callbacks: Sequence[TrainerCallback] = (),
) -> None:
    """Train, measure on the way, save, and push what is saved if that is asked for.

    Args:
        arguments (RecipeArguments): What is measured.
        config (RecipeConfig): Configuration of the trainer.
        model (ModelConfig): The policy and how it is loaded.
        tokenizer (PreTrainedTokenizerBase): Its tokenizer.
        dataset (Dataset): Training data.
        reward (RewardFunc): The verifier.
        callbacks (Sequence[TrainerCallback]): What the recipe does and prints on the way; empty: as transformers does.

    Raises:
        ValueError: If a suite cannot be measured with this configuration.
        RuntimeError: If the Hub cannot be reached at the end; the model is saved by then.
    """
    # A dry run does without these: they load vLLM where there is one.
    from duet_trl import DUETGRPOTrainer
    from duet_trl.seams.hub import configuration_yaml

    suites, graders = load_suites(arguments, config, tokenizer)
    derived = derived_fields(config)
    record = new_record(arguments, config, model)
    # With push_to_hub the Trainer would ask for the repository before a step is made, and fail without a network.
    push, config.push_to_hub = config.push_to_hub, False
    config.model_init_kwargs = {
        "revision": model.model_revision,
        "trust_remote_code": config.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(config.model_init_kwargs or {}),
    }
    described = resolve(arguments, config, model, num_rows=len(dataset))
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
        trainer.add_callback(suite_evaluation(trainer, arguments, suites, graders))
    trainer.card_configuration = configuration_yaml(arguments, model, config, leave_out=derived)
    if trainer.is_world_process_zero():
        Path(config.output_dir).mkdir(parents=True, exist_ok=True)
        Path(config.output_dir, "recipe.yaml").write_text(trainer.card_configuration)
        record = replace(record, max_steps=described.optimizer_steps)
        write_run(Path(config.output_dir), record)
        logger.info(start_line(described))
        for note in notes(described):
            logger.info(note)
    resume = config.resume_from_checkpoint
    trainer.train(resume_from_checkpoint={"true": True, "false": False}.get(str(resume).lower(), resume))
    _save(trainer, arguments.dataset_name, push)
    if trainer.is_world_process_zero():
        log = trainer.state.log_history
        write_run(Path(config.output_dir), replace(record, status="done", max_steps=trainer.state.max_steps, log=log))


def _save(trainer: "DUETGRPOTrainer", dataset_name: str | None, push: bool) -> None:
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


def derived_fields(config: RecipeConfig) -> list[str]:
    """Fields that `recipe.yaml` leaves out: how a run was started, and what follows from its other fields.

    Written out, what follows from the batch and the number of processes would make the cell another one on other GPUs,
    and what `train` puts into model_init_kwargs would win over the command line.
    """
    derived = ["push_to_hub", "dry_run", "resume_from_checkpoint"]
    if config.prompts_per_step is not None:
        derived.append("gradient_accumulation_steps")
    if config.steps_per_generation == config.gradient_accumulation_steps:
        derived.append("steps_per_generation")
    if config.model_init_kwargs is None:
        derived.append("model_init_kwargs")
    return derived


def load_suites(
    arguments: RecipeArguments, config: RecipeConfig, tokenizer: PreTrainedTokenizerBase
) -> tuple[dict[str, Dataset], dict[str, Grader]]:
    """Problems and graders of the suites that are measured.

    Raises:
        ValueError: If a suite is unknown or missing, or its longest prompt leaves the engine no room for a completion
            of full length.
        PermissionError: If a suite is gated and this machine has no access.
        ConnectionError: If a suite cannot be fetched.
    """
    sources = arguments.sources
    suites = {name: load_suite(name, sources.get(name)) for name in arguments.eval_suites}
    _check_room(suites, config, tokenizer)
    return suites, build_graders(suites, arguments.sandbox)


def _check_room(suites: Mapping[str, Dataset], config: RecipeConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse suites whose longest prompt and a completion of full length do not fit into the trainer's engine."""
    limit = config.vllm_max_model_length
    if limit is None or not config.use_vllm or config.vllm_mode != "colocate":
        return
    for name, problems in suites.items():
        lengths = [prompt_length(prompt, tokenizer, config.chat_template_kwargs) for prompt in problems["prompt"]]
        needed = max(lengths) + config.max_completion_length
        if needed > limit:
            raise ValueError(
                f"{name} needs sequences of {needed} tokens (longest prompt and max_completion_length), but "
                f"vllm_max_model_length is {limit}. Set it to {needed} or more, or leave {name} out of eval_suites."
            )


def suite_evaluation(
    trainer: "DUETGRPOTrainer",
    arguments: RecipeArguments,
    suites: Mapping[str, Dataset],
    graders: Mapping[str, Grader],
) -> SuiteEvaluation:
    """The callback that measures suites before, while and after training."""
    config = trainer.args
    return SuiteEvaluation(
        trainer,
        suites,
        config.output_dir,
        every=arguments.eval_every,
        settings=Settings(
            arguments.eval_samples,
            arguments.eval_temperature,
            arguments.eval_top_p,
            max_tokens=config.max_completion_length,
            thought_delimiters=None if config.thought_delimiters is None else tuple(config.thought_delimiters),
        ),
        graders=graders,
    )
