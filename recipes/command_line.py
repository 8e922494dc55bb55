# SPDX-License-Identifier: Apache-2.0
"""What all recipes are configured with: fields of YAML files (config_files.py) and the command line over them.

Every field of `RecipeArguments`, `RecipeConfig` and TRL's `ModelConfig` is an option and may stand in a file. The
command line has the last word.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from config_files import read_fields
from transformers.hf_argparser import string_to_bool
from trl import ModelConfig, TrlParser

from duet_trl import DUETGRPOConfig
from duet_trl.methods import METHODS

RECIPES = ("math_qwen3", "code_qwen3", "qa_qwen3", "pretrained")


def _listed(value: list[str] | str) -> list[str]:
    """What stands alone in a YAML file as the list that it is on the command line."""
    return [value] if isinstance(value, str) else value


def _option(help_text: str, default: Any) -> Any:
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata={"help": help_text})
    return field(default=default, metadata={"help": help_text})


@dataclass
class RecipeArguments:
    """What a recipe needs beside the trainer's configuration and TRL's `ModelConfig`."""

    recipe: str = _option("Recipe that the configuration is made for: the name of its script.", "math_qwen3")
    dry_run: bool = _option("Print the resolved cell and end, without model, data or network.", False)

    dataset_name: str | None = _option(
        "Training data: a name on the Hub or a local .jsonl or .parquet file. None: the recipe's own.", None
    )
    heldout: str = _option(
        "math: where MATH-500 is, on the Hub or a local file; problems that stand there too are reported. 'none': not "
        "checked.",
        "HuggingFaceH4/MATH-500",
    )
    drop_overlap: bool = _option("math: leave out problems that stand in MATH-500 too. Paper: True.", True)
    max_prompt_length: int = _option("Longest prompt with its chat template, tokens; longer ones are left out.", 512)
    graded: str | None = _option(
        "Answer that is graded: the 'first' of a completion or the 'last'. None: the last box or short answer, the "
        "first code block.",
        None,
    )
    sandbox: str = _option("code: isolation of the tests, by name. 'auto': the strongest that works here.", "auto")

    grid: str | None = _option("For the record of the run: the grid that its cell stands in.", None)
    cell: str | None = _option("For the record of the run: its cell; `--cell` and experiment.py set it.", None)
    full_generations: int | None = _option(
        "For the record of the run: num_generations at full budget, of which its own is a share. None: its own.", None
    )

    num_gpus: int = _option("GPUs that the configuration is made for; the dry run shares the batch by it.", 8)

    eval_suites: list[str] = _option("Suites measured before, while and after training. 'none': no suite.", [])
    eval_sources: list[str] = _option("Places of suites other than their own on the Hub: 'math500=<file>'.", [])
    eval_every: int = _option("Optimizer steps between two measurements; 0: before and after only.", 30)
    eval_samples: int = _option("k of mean@k and best@k.", 4)
    eval_temperature: float = _option("Sampling temperature of mean@k and best@k.", 0.9)
    eval_top_p: float = _option("Nucleus of mean@k and best@k.", 0.95)

    def __post_init__(self) -> None:
        named = [name.strip() for entry in _listed(self.eval_suites) for name in entry.split(",")]
        self.eval_suites = [name for name in dict.fromkeys(named) if name not in ("", "none")]
        self.eval_sources = _listed(self.eval_sources)
        for name, allowed in (("recipe", RECIPES), ("graded", (None, "first", "last"))):
            if self.__dict__[name] not in allowed:
                raise ValueError(f"{name} must be one of {list(allowed)}, got {self.__dict__[name]!r}.")
        for name in ("max_prompt_length", "num_gpus", "eval_samples"):
            if self.__dict__[name] < 1:
                raise ValueError(f"{name} must be at least 1, got {self.__dict__[name]}.")
        if self.eval_every < 0:
            raise ValueError(f"eval_every must be at least 0, got {self.eval_every}. 0 measures the two ends only.")
        for name, most in (("eval_temperature", float("inf")), ("eval_top_p", 1.0)):
            if not 0.0 < self.__dict__[name] <= most:
                raise ValueError(f"{name} must be in (0, {most:g}], got {self.__dict__[name]}.")

    @property
    def sources(self) -> dict[str, str]:
        """Places of suites by name.

        Raises:
            ValueError: If an entry is not of the form 'suite=place', or names a suite that is not measured.
        """
        found = {}
        for entry in self.eval_sources:
            name, separator, place = entry.partition("=")
            if not separator or not place or name not in self.eval_suites:
                raise ValueError(f"eval_sources takes 'suite=place' for suites of eval_suites, got {entry!r}.")
            found[name] = place
        return found


@dataclass
class RecipeConfig(DUETGRPOConfig):
    """`DUETGRPOConfig` whose accumulation steps follow from the batch, so that a cell is the same on any machine."""

    prompts_per_step: int | None = _option(
        "M, prompts of an optimizer step. gradient_accumulation_steps follows from it, the batch of a device and the "
        "number of processes.",
        None,
    )

    def __post_init__(self) -> None:
        if self.prompts_per_step is not None:
            steps = accumulation_steps(
                self.prompts_per_step,
                self.num_generations,
                self.per_device_train_batch_size,
                int(os.environ.get("WORLD_SIZE", 1)),
            )
            if self.gradient_accumulation_steps not in (1, steps):
                raise ValueError(
                    f"gradient_accumulation_steps={self.gradient_accumulation_steps} contradicts prompts_per_step="
                    f"{self.prompts_per_step}, from which {steps} follow. Remove one of them."
                )
            self.gradient_accumulation_steps = steps
        super().__post_init__()


def accumulation_steps(prompts_per_step: int, num_generations: int, micro_batch: int, processes: int) -> int:
    """Micro-batches that each process adds up in an optimizer step.

    Args:
        prompts_per_step (int): Prompts of a step over all processes.
        num_generations (int): Rollouts per prompt at full budget.
        micro_batch (int): Rollouts of one micro-batch.
        processes (int): Number of processes.

    Raises:
        ValueError: If the rollouts cannot be shared evenly.
    """
    rollouts = prompts_per_step * num_generations
    steps, rest = divmod(rollouts, micro_batch * processes)
    if rest or not steps:
        raise ValueError(
            f"prompts_per_step {prompts_per_step} x num_generations {num_generations} = {rollouts} rollouts cannot be "
            f"shared by {processes} processes with micro-batches of {micro_batch}. Choose another "
            "per_device_train_batch_size or number of processes, or unset prompts_per_step and set "
            "gradient_accumulation_steps."
        )
    return steps


def parse(recipe: str, argv: Sequence[str] | None = None) -> tuple[RecipeArguments, RecipeConfig, ModelConfig]:
    """Arguments of a recipe from its YAML file and the command line.

    Args:
        recipe (str): Name of the script.
        argv (Sequence[str] | None): Command line without the script; None: this process's.

    Returns:
        tuple[RecipeArguments, RecipeConfig, ModelConfig]: The recipe's, the trainer's and the policy's.

    Raises:
        ValueError: For an unknown field, a value out of range, or a configuration made for another recipe.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("config", "model", "cell"):
        first.add_argument(f"--{name}", action="append", default=[])
    first.add_argument("--dry_run", "--dry-run", type=string_to_bool, nargs="?", const=True)
    own, argv = first.parse_known_args(argv)
    given = {}
    for name in ("config", "model", "cell"):
        if len(found := getattr(own, name)) > 1:
            raise ValueError(f"--{name} takes one value, got {len(found)}. A file takes others in by `extends`.")
        given[name] = found[0] if found else None
    values = read_fields(**given)
    if own.dry_run is not None:
        values["dry_run"] = own.dry_run
    gate = values.pop("gate", {})
    if is_gated(values, argv):
        options = gate.get("method_kwargs", {}) | (values.get("method_kwargs") or {})
        values = gate | values | ({"method_kwargs": options} if options else {})
    bf16_gpu = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    if values.get("dry_run") and not bf16_gpu:
        argv += ["--use_cpu", "true"]  # transformers admits bf16 only where a GPU has it, or on a CPU by name
    parser = TrlParser((RecipeArguments, RecipeConfig, ModelConfig), allow_abbrev=False)
    with tempfile.TemporaryDirectory() as folder:
        merged = Path(folder, "config.yaml")
        merged.write_text(yaml.safe_dump(values))
        argv += ["--config", str(merged)]
        arguments, config, model = parser.parse_args_and_config(argv, fail_with_unknown_args=True)
    if arguments.recipe != recipe and not arguments.dry_run:
        raise ValueError(f"this configuration is made for recipes/{arguments.recipe}.py, not for {recipe}.py.")
    return arguments, config, model


def is_gated(values: dict[str, Any], argv: Sequence[str]) -> bool:
    """Whether the method that files and command line choose stops rollouts."""
    chosen = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    chosen.add_argument("--method", default=values.get("method", "duet"))
    for part in ("trim", "abort"):
        chosen.add_argument(f"--{part}", type=string_to_bool, nargs="?", const=True, default=values.get(part, True))
    found, _ = chosen.parse_known_args(argv)
    known = METHODS.get(found.method)  # the configuration refuses another name
    return known is not None and "grace_window" in known.reads and (found.trim or found.abort)
