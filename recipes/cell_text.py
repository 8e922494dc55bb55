# SPDX-License-Identifier: Apache-2.0
"""A cell in words: the lines of a dry run, and the one line at the start of a run."""

from pathlib import Path
from typing import TYPE_CHECKING

from duet_trl.evaluation.suites import SUITES

if TYPE_CHECKING:
    from cell import Cell


def print_cell(cell: "Cell") -> None:
    """Show a cell, one line for each question."""
    name = Path(cell.config.output_dir).name
    print(f"{name}: dry run of recipes/{cell.arguments.recipe}.py, nothing is loaded or trained")
    for title, lines in (
        ("method", [_method(cell)]),
        ("model", [_model(cell)]),
        ("data", [_data(cell)]),
        ("batch", _batch_lines(cell)),
        ("steps", _step_lines(cell)),
        ("tokens", _token_lines(cell)),
        ("evaluation", _evaluation_lines(cell)),
        ("notes", notes(cell)),
    ):
        for number, line in enumerate(lines):
            print(f"  {title if not number else '':12}{line}")


def start_line(cell: "Cell") -> str:
    """The cell in one line, for the start of a run."""
    return (
        f"{cell.model.model_name_or_path}, {_method(cell)}: {_number(cell.rows.num_rows)} prompts, "
        f"{cell.prompts_per_step} x {cell.config.num_generations} = {cell.full_rollouts:,} rollouts per step at full "
        f"budget, {_number(cell.optimizer_steps)} optimizer steps (the same for every method), at most "
        f"{cell.most_tokens:,} planned tokens per step"
    )


def notes(cell: "Cell") -> list[str]:
    """Settings of a cell under which `duet` is known to do worse than it can; none for GRPO."""
    config, found = cell.config, []
    if config.method != "duet":
        return found
    graded = cell.arguments.graded or ("first" if cell.arguments.recipe == "code_qwen3" else "last")
    if config.trim and graded == "last" and not config.ending_reward_weight:
        found.append(
            "the reward grades the last answer, the trim stops behind the first, and nothing teaches the policy to "
            "stop there: ending_reward_weight is 0, as in the paper. On the tiny task that costs 0.067 of last-answer "
            "accuracy, with --ending_reward_weight 0.1 it is 0.021 (docs/performance.md)"
        )
    if config.beta and not config.options.drop_zero_advantage:
        found.append(
            f"beta {config.beta:g}: the KL term also moves rollouts without an advantage, so all rollouts get a "
            "forward pass; drop_zero_advantage and advantage_cutoff are off. --beta 0 switches them on"
        )
    return found


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,g}" if value < 1e6 else f"{value:,.0f}"


def _method(cell: "Cell") -> str:
    config = cell.config
    if config.method == "grpo":
        return "grpo"
    budget = f"{config.budget_fraction:.0%} of the full budget (reading: {config.budget_reading})"
    if config.budget_reading == "tokens":
        budget = f"{config.budget_tokens:,.0f} tokens per step"
    off = [part for part in ("allocate", "trim", "abort") if not config.__dict__[part]]
    return f"{config.method}, {budget}" + (f", without {' and '.join(off)}" if off else "")


def _model(cell: "Cell") -> str:
    if cell.model.model_name_or_path is None:
        return "none is named: give --model_name_or_path, a name on the Hub or a folder"
    share = f"LoRA, r = {cell.model.lora_r}" if cell.model.use_peft else "all parameters trained"
    compute = "bf16" if cell.config.bf16 else "fp16" if cell.config.fp16 else cell.dtype
    return f"{cell.model.model_name_or_path}: {share}; {cell.dtype} weights, computes in {compute}"


def _data(cell: "Cell") -> str:
    prompts = "" if cell.rows.num_rows is None else f"{cell.rows.num_rows:,} prompts: "
    return prompts + cell.rows.source


def _batch_lines(cell: "Cell") -> list[str]:
    config = cell.config
    rollouts = f"{cell.prompts_per_step} prompts x {config.num_generations} = {cell.full_rollouts:,} rollouts per step"
    if config.duet_active:
        planned = "as many as the tokens pay for" if cell.planned_rollouts is None else _number(cell.planned_rollouts)
        rollouts += f" at full budget; planned: {planned}, never more than {cell.most_rollouts:,}"
    unit = "GPU" if cell.num_processes == cell.arguments.num_gpus else "process"
    plural = "" if cell.num_processes == 1 else "s" if unit == "GPU" else "es"
    return [
        rollouts,
        f"= {config.per_device_train_batch_size} per micro-batch x {cell.num_processes} {unit}{plural} x "
        f"{cell.accumulation_steps} accumulation steps",
    ]


def _step_lines(cell: "Cell") -> list[str]:
    config = cell.config
    per_epoch, epochs = _number(cell.steps_per_epoch), config.num_train_epochs
    source = f"{per_epoch} per epoch x {epochs:g} epoch{'s' if epochs != 1 else ''}"
    if config.max_steps > 0:
        source = f"max_steps; {per_epoch} per epoch"
    updates = "one update" if cell.updates_per_step == 1 else f"{cell.updates_per_step:g} updates"
    return [
        f"{_number(cell.optimizer_steps)} optimizer steps ({source}), the same for every method: {updates} per step",
        f"{config.optim.value}, learning rate {config.learning_rate:g} ({config.lr_scheduler_type.value}, "
        f"{_number(cell.warmup_steps)} warm-up steps), betas {config.adam_beta1:g} / {config.adam_beta2:g}, weight "
        f"decay {config.weight_decay:g}, KL {config.beta:g}",
    ]


def _token_lines(cell: "Cell") -> list[str]:
    length = cell.config.max_completion_length
    lines = [f"at most {_per_run(cell.most_tokens, cell)}, with every planned rollout at {length:,} tokens"]
    if cell.config.budget_reading == "tokens":
        lines = [f"at most {_per_run(cell.most_tokens, cell)}: the budget"]
    if cell.most_tokens < cell.most_rollouts * length:
        # The plan keeps the budget in expected lengths; rollouts may turn out longer.
        lines[0] += f"; in no case more than {cell.most_rollouts * length:,} in a step"
    if cell.mean_tokens is not None:
        per_run = _per_run(cell.mean_tokens, cell)
        lines.append(
            f"about {per_run} at {cell.mean_length} tokens per rollout, the paper's mean ({cell.mean_source})"
        )
    return lines


def _per_run(tokens: int, cell: "Cell") -> str:
    total = None if cell.optimizer_steps is None else round(tokens * cell.optimizer_steps / cell.updates_per_step)
    return f"{tokens:,} generated per step, {_number(total)} over the run"


def _evaluation_lines(cell: "Cell") -> list[str]:
    arguments = cell.arguments
    if not arguments.eval_suites:
        return ["none"]
    problems = sum(SUITES[name].num_problems for name in arguments.eval_suites)
    first, points = ", ".join(map(str, cell.measured_steps)), len(cell.measured_steps)
    return [
        f"{', '.join(arguments.eval_suites)}: {problems:,} problems",
        f"after steps {first or 'unknown'}: {points or 'unknown'} times, {arguments.eval_samples} samples of each "
        f"problem at temperature {arguments.eval_temperature:g} and top-p {arguments.eval_top_p:g}, one greedy",
    ]
