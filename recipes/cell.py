# SPDX-License-Identifier: Apache-2.0
"""What a configuration comes to, before anything is loaded: data, batches, steps, tokens, measurements.

`build_cell` computes it from the arguments alone and makes no model; `print_cell` shows it (`--dry_run`) and
`start_line` is its short form at the start of a run.
"""

import math
from dataclasses import dataclass

from cell_text import notes, print_cell, start_line
from command_line import RecipeArguments, RecipeConfig, accumulation_steps
from rows import Rows, check_file, count_rows
from trl import ModelConfig

from duet_trl.evaluation.suites import SUITES

__all__ = ["Cell", "build_cell", "measured_steps", "notes", "optimizer_steps", "print_cell", "start_line"]

MEAN_LENGTHS = {
    False: (660, "GRPO, Qwen3-1.7B, 676k per 1,024 rollouts"),
    True: (348, "DUET, Qwen3-1.7B, 356k per 1,024 rollouts"),
}
"""Tokens of a rollout in the paper's runs of Qwen3-1.7B on MATH, without and with the gate (per-step figure)."""
PAPER_LENGTH = 3072
"""Most tokens of a rollout there."""


@dataclass(frozen=True)
class Cell:
    """A resolved configuration.

    Attributes:
        arguments, config, model: What it was built from.
        dtype (str): Name of the dtype that the weights are loaded in.
        rows (Rows): Prompts of the training set and how they were counted.
        num_processes (int): GPUs, or processes on a CPU, that train.
        prompts_per_step (int): M, prompts of a generation step.
        accumulation_steps (int): Micro-batches of an optimizer step on each GPU.
        full_rollouts (int): Rollouts of a generation step at full budget.
        planned_rollouts (float | None): Rollouts that the budget plans; None: the budget is a number of tokens.
        most_rollouts (int): More are never generated in a step.
        most_tokens (int): Tokens that the plan of a step costs at most: every planned rollout at full length.
        mean_tokens (int | None): The same at `mean_length` tokens per rollout, which the paper reports for the method
            (`mean_source`); None: not MATH at the paper's length, or a budget in tokens.
        updates_per_step (float): Optimizer steps of a generation step.
        steps_per_epoch, optimizer_steps (int | None): None: the number of rows is not known.
        warmup_steps (int | None): Of the optimizer steps.
        measured_steps (list[int]): Optimizer steps after which the suites are measured; empty: none.
    """

    arguments: RecipeArguments
    config: RecipeConfig
    model: ModelConfig
    dtype: str
    rows: Rows
    num_processes: int
    prompts_per_step: int
    accumulation_steps: int
    full_rollouts: int
    planned_rollouts: float | None
    most_rollouts: int
    most_tokens: int
    mean_tokens: int | None
    mean_length: int
    mean_source: str
    updates_per_step: float
    steps_per_epoch: int | None
    optimizer_steps: int | None
    warmup_steps: int | None
    measured_steps: list[int]


def build_cell(
    arguments: RecipeArguments, config: RecipeConfig, model: ModelConfig, num_rows: int | None = None
) -> Cell:
    """What a configuration comes to.

    Args:
        arguments (RecipeArguments): Arguments of the recipe.
        config (RecipeConfig): Configuration of the trainer.
        model (ModelConfig): The policy and how it is loaded.
        num_rows (int | None): Rows of the loaded data set. None: they are counted without a network.

    Raises:
        ValueError: If the batch cannot be shared by the GPUs, the data set is smaller than a step, or a suite is
            unknown.
    """
    processes = _num_processes(arguments, config)
    prompts, accumulation, generation_steps = _batch(config, processes)
    full = prompts * config.num_generations
    rows = count_rows(arguments, config, model) if num_rows is None else Rows(num_rows, "loaded")
    per_epoch, steps = optimizer_steps(rows.num_rows, prompts, generation_steps, accumulation, config)
    mean_length, mean_source = MEAN_LENGTHS[config.gated]
    planned, tokens, mean = _tokens(arguments, config, full)
    return Cell(
        arguments=arguments,
        config=config,
        model=model,
        dtype=_dtype(config, model),
        rows=rows,
        num_processes=processes,
        prompts_per_step=prompts,
        accumulation_steps=accumulation,
        full_rollouts=full,
        planned_rollouts=planned,
        most_rollouts=_most_rollouts(config, full, planned),
        most_tokens=tokens,
        mean_tokens=mean,
        mean_length=mean_length,
        mean_source=mean_source,
        updates_per_step=config.num_iterations * generation_steps / accumulation,
        steps_per_epoch=per_epoch,
        optimizer_steps=steps,
        warmup_steps=None if steps is None else config.get_warmup_steps(steps),
        measured_steps=measured_steps(arguments, steps),
    )


def optimizer_steps(
    num_rows: int | None, prompts: int, generation_steps: int, accumulation: int, config: RecipeConfig
) -> tuple[int | None, int | None]:
    """Optimizer steps of an epoch and of the run, as `Trainer` derives them from `GRPOTrainer`'s sampler.

    The sampler deals out whole generation batches and leaves the rest of an epoch away; each is used for
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
    unknown = [name for name in arguments.eval_suites if name not in SUITES]
    if unknown:
        raise ValueError(f"unknown suite {unknown[0]!r} in eval_suites. Choose from {', '.join(SUITES)}.")
    for place in arguments.sources.values():
        check_file(place)
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


def _tokens(arguments: RecipeArguments, config: RecipeConfig, full: int) -> tuple[float | None, int, int | None]:
    """Planned rollouts of a step, tokens it may cost at most, and at the paper's mean length."""
    length = config.max_completion_length
    if config.budget_reading == "tokens":
        return None, int(min(config.budget_tokens, full * length)), None
    planned = config.budget_fraction * full
    comparable = arguments.recipe.startswith("math") and length >= PAPER_LENGTH
    return planned, int(planned * length), round(planned * MEAN_LENGTHS[config.gated][0]) if comparable else None


def _most_rollouts(config: RecipeConfig, full: int, planned: float | None) -> int:
    """The memory guarantee `max_rollouts`, whose default is the full batch; without the allocator, what is planned."""
    if planned is not None and not config.allocate and config.budget_reading == "rollouts":
        return math.ceil(planned)
    return full if config.max_rollouts == config.generation_batch_size else config.max_rollouts


def _dtype(config: RecipeConfig, model: ModelConfig) -> str:
    """Name of the dtype that the weights are loaded in."""
    return str((config.model_init_kwargs or {}).get("dtype", model.dtype) or "auto").removeprefix("torch.")
