# SPDX-License-Identifier: Apache-2.0
"""Configuration of a recipe: `ScriptArguments`, `DUETGRPOConfig` and TRL's `ModelConfig`, read by `TrlParser`.

Every field is an option and may be in the YAML file of `--config`. The command line takes precedence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trl import ModelConfig, TrlParser

from duet_trl import DUETGRPOConfig


def _option(help_text: str, default: Any) -> Any:
    return field(default=default, metadata={"help": help_text})


def _options(help_text: str) -> Any:
    return field(default_factory=list, metadata={"help": help_text})


@dataclass
class ScriptArguments:
    """Data and evaluation of a recipe."""

    dataset_name: str | None = _option(
        "Training data: a name on the Hub or a local .jsonl or .parquet file. None: the recipe's own.", None
    )
    heldout: str = _option(
        "math: where MATH-500 is, on the Hub or a local file; problems that are there too are reported. 'none': not "
        "checked.",
        "HuggingFaceH4/MATH-500",
    )
    drop_overlap: bool = _option("math: leave out problems that are in MATH-500 too. Paper: True.", True)
    max_prompt_length: int = _option("Longest prompt with its chat template, tokens; longer ones are left out.", 512)
    sandbox: str = _option("code: isolation of the tests, by name. 'auto': the strongest that works here.", "auto")
    full_generations: int | None = _option(
        "For run.json: num_generations at full budget; its own is a share of it. None: its own.", None
    )
    eval_suites: list[str] = _options("Suites measured before, while and after training. 'none': no suite.")
    eval_sources: list[str] = _options("Sources of suites other than their default on the Hub: 'math500=<file>'.")
    eval_every: int = _option("Optimizer steps between two measurements; 0: before and after only.", 30)
    eval_samples: int = _option("k of mean@k and best@k.", 4)
    eval_temperature: float = _option("Sampling temperature of mean@k and best@k.", 0.9)
    eval_top_p: float = _option("Nucleus of mean@k and best@k.", 0.95)

    def __post_init__(self) -> None:
        self.eval_suites = [name for name in dict.fromkeys(self.eval_suites) if name != "none"]

    @property
    def sources(self) -> dict[str, str]:
        """Places of suites by name.

        Raises:
            ValueError: If an entry is not of the form 'suite=place', or names a suite that is not measured.
        """
        found = {}
        for entry in self.eval_sources:
            name, _, place = entry.partition("=")
            if not place or name not in self.eval_suites:
                raise ValueError(f"eval_sources takes 'suite=place' for suites of eval_suites, got {entry!r}.")
            found[name] = place
        return found


def parse(argv: Sequence[str] | None = None) -> tuple[ScriptArguments, DUETGRPOConfig, ModelConfig]:
    """The configuration of a command line without its script; None: this process's.

    Raises:
        ValueError: For an unknown field or a value out of range.
    """
    parser = TrlParser((ScriptArguments, DUETGRPOConfig, ModelConfig), allow_abbrev=False)
    return parser.parse_args_and_config(argv)
