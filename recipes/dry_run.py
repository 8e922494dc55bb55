# SPDX-License-Identifier: Apache-2.0
"""What follows exactly from a configuration before anything is loaded: steps, rollouts, tokens (`--dry_run`)."""

import math
from dataclasses import dataclass

from command_line import RecipeArguments, RecipeConfig, accumulation_steps
from rows import Rows, check_places, count_rows
from trl import ModelConfig

from duet_trl.evaluation.suites import read_rows, suite_named


@dataclass(frozen=True)
class Run:
    """A resolved configuration.

    Attributes:
        arguments, config, model: What it was built from.
        rows (Rows): Prompts of the training set and how they were counted.
        num_processes (int): GPUs, or processes on a CPU, that train.
        prompts_per_step (int): M, prompts of a generation step.
        accumulation_steps (int): Micro-batches of an optimizer step on each GPU.
        full_rollouts (int): Rollouts of a generation step at full budget.
        planned_rollouts (float | None): Rollouts that the budget plans; None: the budget is a number of tokens.
        max_rollouts (int): Maximum of a step.
        max_tokens (int): Maximum that the plan of a step costs: every planned rollout at full length.
        updates_per_step (float): Optimizer steps of a generation step.
        steps_per_epoch, optimizer_steps (int | None): None: the number of rows is not known.
        measured_steps (list[int]): Optimizer steps after which the suites are measured; empty: none.
    """

    arguments: RecipeArguments
    config: RecipeConfig
    model: ModelConfig
    rows: Rows
    num_processes: int
    prompts_per_step: int
    accumulation_steps: int
    full_rollouts: int
    planned_rollouts: float | None
    max_rollouts: int
    max_tokens: int
    updates_per_step: float
    steps_per_epoch: int | None
    optimizer_steps: int | None
    measured_steps: list[int]


def resolve(arguments: RecipeArguments, config: RecipeConfig, model: ModelConfig, num_rows: int | None = None) -> Run:
    """Compute what a configuration comes to; no model is made and nothing is loaded.

    Args:
        arguments (RecipeArguments): Data and evaluation.
        config (RecipeConfig): Of the trainer.
        model (ModelConfig): The policy.
        num_rows (int | None): Prompts, where they are loaded already; None: what is known without a network.

    Raises:
        ValueError: If the batch cannot be shared, the rows fill no step, or a file or suite does not exist.
    """
    processes = _num_processes(arguments, config)
    prompts, accumulation, generation_steps = _batch(config, processes)
    full, length = prompts * config.num_generations, config.max_completion_length
    rows = count_rows(arguments, config, model) if num_rows is None else Rows(num_rows, "loaded")
    per_epoch, steps = optimizer_steps(rows.num_rows, prompts, generation_steps, accumulation, config)
    tokens, planned = config.budget_tokens, None
    if tokens is None:  # a method without a budget plans the full one
        planned = (config.budget_fraction or 1.0) * full
    largest = full if config.max_rollouts == config.generation_batch_size else config.max_rollouts
    if planned is not None and not config.allocate and config.budget_reading == "rollouts":
        largest = math.ceil(planned)
    return Run(
        arguments=arguments,
        config=config,
        model=model,
        rows=rows,
        num_processes=processes,
        prompts_per_step=prompts,
        accumulation_steps=accumulation,
        full_rollouts=full,
        planned_rollouts=planned,
        max_rollouts=largest,
        max_tokens=int(planned * length if tokens is None else min(tokens, full * length)),
        updates_per_step=config.num_iterations * generation_steps / accumulation,
        steps_per_epoch=per_epoch,
        optimizer_steps=steps,
        measured_steps=measured_steps(arguments, steps),
    )


def optimizer_steps(
    num_rows: int | None, prompts: int, generation_steps: int, accumulation: int, config: RecipeConfig
) -> tuple[int | None, int | None]:
    """Optimizer steps of an epoch and of the run, as `Trainer` derives them from `GRPOTrainer`'s sampler.

    The sampler deals out whole generation batches and drops the remainder of an epoch; each is used for
    `num_iterations` x `steps_per_generation` micro-batches.

    Args:
        num_rows (int | None): Rows of the training set; None: unknown.
        prompts (int): Prompts of a generation step.
        generation_steps (int): Micro-batches of a generation step on each process.
        accumulation (int): Micro-batches of an optimizer step on each process.
        config (RecipeConfig): Epochs, or a fixed number of steps.

    Returns:
        tuple[int | None, int | None]: None for what does not follow without the number of rows.

    Raises:
        ValueError: If the rows do not fill one generation step.
    """
    fixed = config.max_steps if config.max_steps > 0 else None
    if num_rows is None:
        return None, fixed
    if num_rows < prompts:
        raise ValueError(
            f"{num_rows} rows do not fill one step of {prompts} prompts. Lower prompts_per_step (or the batch), or "
            "give more data."
        )
    batches = num_rows // prompts * config.num_iterations * generation_steps
    per_epoch = max(1, math.ceil(batches / accumulation))
    return per_epoch, fixed or math.ceil(config.num_train_epochs * per_epoch)


def measured_steps(arguments: RecipeArguments, steps: int | None) -> list[int]:
    """Optimizer steps after which the suites are measured: 0, every `eval_every`, the last.

    Raises:
        ValueError: If a suite is unknown, or its place is no file.
    """
    check_places(arguments)
    if not arguments.eval_suites or steps is None:
        return []
    every = arguments.eval_every or steps
    return sorted({*range(0, steps, every), steps})


def _num_processes(arguments: RecipeArguments, config: RecipeConfig) -> int:
    """Those of this launch; for a dry run of one process the GPUs that the configuration is made for.

    Without `prompts_per_step` the batch depends on the launch, so that only this one can be described.
    """
    described = arguments.dry_run and config.world_size == 1 and config.prompts_per_step is not None
    return arguments.num_gpus if described else config.world_size


def _batch(config: RecipeConfig, processes: int) -> tuple[int, int, int]:
    """Prompts of a generation step; micro-batches of an optimizer step and of a generation step on each process."""
    accumulation, generation_steps = config.gradient_accumulation_steps, config.steps_per_generation
    if config.prompts_per_step is not None:
        together = generation_steps == accumulation
        accumulation = accumulation_steps(
            config.prompts_per_step, config.num_generations, config.per_device_train_batch_size, processes
        )
        generation_steps = accumulation if together else generation_steps
    prompts = config.per_device_train_batch_size * processes * generation_steps // config.num_generations
    return prompts, accumulation, generation_steps


def _num_problems(name: str, source: str | None) -> int:
    known = suite_named(name).num_problems
    return len(read_rows(source)) if known is None else known


# ---- In words -------------------------------------------------------------------------------------------------------


def print_run(run: Run) -> None:
    """Show a run, one line for each question."""
    config, arguments, length = run.config, run.arguments, run.config.max_completion_length
    print(f"{config.output_dir}: dry run of recipes/{arguments.recipe}.py, nothing is loaded or trained")
    rollouts = f"{run.prompts_per_step} prompts x {config.num_generations} = {run.full_rollouts:,} rollouts per step"
    if config.duet_active:
        planned = "what the tokens pay for" if run.planned_rollouts is None else _number(run.planned_rollouts)
        rollouts += f" at full budget; planned: {planned}, maximum: {run.max_rollouts:,}"
    total = None
    if run.optimizer_steps is not None:
        total = round(run.max_tokens * run.optimizer_steps / run.updates_per_step)
    tokens = f"maximum {run.max_tokens:,} generated per step, {_number(total)} over the run"
    if config.budget_tokens is None:
        tokens += f": every planned rollout at {length:,} tokens"
    if run.max_tokens < run.max_rollouts * length:
        # The plan keeps the budget in expected lengths; rollouts may turn out longer.
        tokens += f"; never above {run.max_rollouts * length:,} in a step"
    evaluation = "none"
    if arguments.eval_suites:
        steps = ", ".join(map(str, run.measured_steps)) or "unknown"
        problems = sum(_num_problems(name, arguments.sources.get(name)) for name in arguments.eval_suites)
        evaluation = f"{', '.join(arguments.eval_suites)}: {problems:,} problems, after steps {steps}"
    count = "" if run.rows.num_rows is None else f"{run.rows.num_rows:,} prompts: "
    for title, line in (
        ("method", _method(config)),
        ("model", _model(run)),
        ("data", count + run.rows.source),
        ("batch", rollouts),
        (
            "",
            f"= {config.per_device_train_batch_size} per micro-batch x {run.num_processes} GPUs or processes x "
            f"{run.accumulation_steps} accumulation steps",
        ),
        ("steps", f"{_number(run.optimizer_steps)} optimizer steps, {_number(run.steps_per_epoch)} per epoch"),
        ("tokens", tokens),
        ("evaluation", evaluation),
        *(("note", note) for note in notes(run)),
    ):
        print(f"  {title:12}{line}")


def start_line(run: Run) -> str:
    """The run in one line, for its start."""
    return (
        f"{run.model.model_name_or_path}, {_method(run.config)}: {_number(run.rows.num_rows)} prompts, "
        f"{run.prompts_per_step} x {run.config.num_generations} = {run.full_rollouts:,} rollouts per step at full "
        f"budget, {_number(run.optimizer_steps)} optimizer steps, maximum {run.max_tokens:,} planned tokens per step"
    )


def notes(run: Run) -> list[str]:
    """Settings under which `duet` is known to do worse than it can; none for other methods."""
    config, found = run.config, []
    if config.method != "duet":
        return found
    graded = run.arguments.graded or ("first" if run.arguments.recipe == "code_qwen3" else "last")
    if config.trim and graded == "last" and not (config.options.teach_ending or config.ending_reward_weight):
        found.append(
            "the reward grades the last answer, the trim stops behind the first, and nothing teaches the policy to "
            "stop there: teach_ending is off (docs/recipes.md#ending)"
        )
    if config.beta and not config.options.drop_zero_advantage:
        found.append(
            f"beta {config.beta:g}: the KL term also moves rollouts without an advantage, so all rollouts get a "
            "forward pass; drop_zero_advantage and advantage_cutoff are off. --beta 0 switches them on"
        )
    return found


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,g}" if value < 1e6 else f"{value:,.0f}"


def _method(config: RecipeConfig) -> str:
    if not config.duet_active:
        return config.method
    budget = "" if config.budget_tokens is None else f", {config.budget_tokens:,.0f} tokens per step"
    if config.budget_reading is not None and config.budget_tokens is None:
        budget = f", {config.budget_fraction:.0%} of the full budget (reading: {config.budget_reading})"
    off = [part for part in ("allocate", "trim", "abort") if not config.__dict__[part]]
    options = f", {config.method_kwargs}" if config.method_kwargs else ""
    return config.method + budget + (f", without {' and '.join(off)}" if off else "") + options


def _model(run: Run) -> str:
    model, config = run.model, run.config
    if model.model_name_or_path is None:
        return "none is named: give --model, a file below configs/models/, a name on the Hub or a folder"
    dtype = str((config.model_init_kwargs or {}).get("dtype", model.dtype) or "auto").removeprefix("torch.")
    share = f"LoRA, r = {model.lora_r}" if model.use_peft else "all parameters trained"
    compute = "bf16" if config.bf16 else "fp16" if config.fp16 else dtype
    return f"{model.model_name_or_path}: {share}; {dtype} weights, computes in {compute}"
