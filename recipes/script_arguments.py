# SPDX-License-Identifier: Apache-2.0
"""Configuration of a recipe: `ScriptArguments`, `DUETGRPOConfig` and TRL's `ModelConfig`, read by `TrlParser`.

Every field is an option and may be in the YAML file of `--config`. The command line takes precedence.
"""

import argparse
import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, NoReturn

import yaml
from trl import ModelConfig, TrlParser

from duet_trl import DUETGRPOConfig
from duet_trl.config import DECLARED
from duet_trl.field_types import refuse_misplaced
from duet_trl.methods import METHODS

GROUPS = {
    "method": "method",
    "budget_fraction": "budget",
    "marker": "gate: when a rollout stops",
    "extra_eos_tokens": "reward and update",
    "engine": "vLLM server",
    "prompt_id_column": "records",
}
"""Headings of `--help`, each with the first field of `DUETGRPOConfig` below it."""


def _option(help_text: str, default: Any) -> Any:
    return field(default=default, metadata={"help": help_text})


def _options(help_text: str) -> Any:
    return field(default_factory=list, metadata={"help": help_text})


OF_TRL = ("model_name_or_path", "output_dir")
"""Options of TRL that every run needs."""


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
    sandbox: str = _option("code: isolation of the tests, by name; 'auto': the strongest that works here.", "auto")
    full_generations: int | None = _option(
        "For run.json: num_generations at full budget; its own is a share of it. None: its own.", None
    )
    eval_suites: list[str] = _options("Suites measured before, while and after training; 'none': no suite.")
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


KINDS = (ScriptArguments, DUETGRPOConfig, ModelConfig)


def parse(argv: Sequence[str] | None = None) -> tuple[ScriptArguments, DUETGRPOConfig, ModelConfig]:
    """The configuration of a command line without its script; None: this process's.

    Raises:
        ValueError: For a file that cannot be read, an unknown field or a value out of range.
    """
    parser = _Parser(KINDS, allow_abbrev=False, add_help=False)
    parser.add_argument("--help_all", action="help", help="show every option")
    words = sys.argv[1:] if argv is None else [*argv]
    if "--config" in words:
        following = words[words.index("--config") + 1 :]
        if not following:
            raise ValueError("--config needs a YAML file, such as one of recipes/configs/.")
        read_fields(Path(following[0]))
    *found, of_file, of_line = parser.parse_args_and_config(
        words, return_remaining_strings=True, separate_remaining_strings=True
    )
    for place, unknown in (("the command line", of_line), ("the file of --config", of_file)):
        if unknown:
            name = unknown[0].removeprefix("--")
            refuse_misplaced([name], DUETGRPOConfig, {method: entry.options for method, entry in METHODS.items()})
            near = difflib.get_close_matches(name, [one.name for kind in KINDS for one in fields(kind)], 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{place} has {unknown[0]!r}, which is not an option.{hint} --help_all lists them all.")
    return tuple(found)


class _Parser(TrlParser):
    def error(self, message: str) -> NoReturn:
        """Without the usage, which has hundreds of options."""
        raise ValueError(f"{message}. --help_all shows what it takes.")


def read_fields(place: Path) -> dict[str, Any]:
    """Fields and values of a YAML file.

    Raises:
        ValueError: If there is no such file, or it holds something else.
    """
    if not place.is_file():
        raise ValueError(f"there is no file {str(place)!r}. recipes/configs/ and recipes/grids/ have examples.")
    try:
        with place.open() as file:
            found = yaml.safe_load(file)
    except yaml.YAMLError as error:
        raise ValueError(f"{place} is not YAML: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{place} must hold fields and their values, got {type(found).__name__}.")
    return found


def short_help(recipe: Mapping[str, Any]) -> str:
    """What `--help` prints: the options of this package, a line for each, and the command of the recipe's first lines.

    Args:
        recipe: The names of the recipe's module.
    """
    lines = Path(recipe["__file__"]).read_text().splitlines()[1:]
    example = "\n".join(line.removeprefix("# ") for line in takewhile(lambda line: line.startswith("#"), lines))
    shown = argparse.ArgumentParser(
        usage="%(prog)s [--config FILE] [--option VALUE ...]",
        description=recipe["__doc__"].splitlines()[0],
        epilog=f"--help_all shows the options of TRL and transformers too.\n\nExample:\n\n{example}",
        add_help=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for title, options in _groups():
        group = shown.add_argument_group(title)
        for name, text in options.items():
            group.add_argument(f"--{name}", action="store_true", help=text.replace("%", "%%"))
    return shown.format_help()


def _groups() -> Iterator[tuple[str, dict[str, str]]]:
    """Headings of `--help` with their options."""
    run = {"config": "YAML file of options; those of the command line take precedence"}
    run |= {one.name: _summary(one) for one in (*fields(ModelConfig), *fields(DUETGRPOConfig)) if one.name in OF_TRL}
    yield "run", run
    yield "data and evaluation", {one.name: _summary(one) for one in fields(ScriptArguments)}
    own = [one for one in fields(DUETGRPOConfig) if one.name in DECLARED and one.name != "filled_in"]
    starts = [number for number, one in enumerate(own) if one.name in GROUPS]
    for start, end in pairwise([*starts, len(own)]):
        yield GROUPS[own[start].name], {one.name: _summary(one) for one in own[start:end]}


def _summary(one: Field) -> str:
    """The first sentence of an option's help, and its default if that is a value; of `duet` where methods differ."""
    default = one.default
    if default is None and one.name in DECLARED:
        default = DECLARED[one.name].methods.get("duet")
    text = one.metadata["help"].partition(". ")[0].rstrip(".")
    return f"{text} (default: {default})" if isinstance(default, str | float | int) else text
