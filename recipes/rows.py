# SPDX-License-Identifier: Apache-2.0
"""How many prompts a recipe trains on, found out without a network: recorded for published sets, counted for files."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import data
from command_line import RecipeArguments, RecipeConfig
from datasets import Dataset
from sums import POOL_SIZE
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from trl import ModelConfig

from duet_trl.evaluation.suites import FILE_READERS, check_suite

PUBLISHED = {"math_qwen3": data.MATH, "code_qwen3": data.MBPP, "qa_qwen3": data.SCIQ}
"""The training set of each recipe that names none."""
PAPER_ROWS = 7431
"""Prompts of MATH that the paper's filter leaves; as many steps as without it."""


@dataclass(frozen=True)
class Rows:
    """Prompts of a training set.

    Attributes:
        num_rows (int | None): None: unknown.
        source (str): How they were counted, or what to do.
    """

    num_rows: int | None
    source: str


class _Unmeasured:
    """Stands in for a tokenizer that is not on this machine: every prompt has length 0."""

    chat_template = name_or_path = ""

    def apply_chat_template(self, *_: Any, **__: Any) -> list[int]:
        return []


def check_file(place: str) -> bool:
    """Whether a data set is on this machine; a name on the Hub is not looked up.

    Raises:
        ValueError: If the place is named as a file and is none.
    """
    path = Path(place)
    if path.suffix in FILE_READERS and not path.is_file():
        raise ValueError(f"there is no file {place!r}. Give an existing file or a data-set name on the Hub.")
    return path.exists()


def check_places(arguments: RecipeArguments) -> None:
    """Raise ValueError if a suite is unknown, or data or a suite is named as a file that is not there."""
    for name in arguments.eval_suites:
        check_suite(name, arguments.sources.get(name))
    for place in (arguments.dataset_name, *arguments.sources.values()):
        if place is not None:
            check_file(place)


def count_rows(arguments: RecipeArguments, config: RecipeConfig, model: ModelConfig) -> Rows:
    """Prompts that a recipe would train on, from what is on this machine.

    Args:
        arguments (RecipeArguments): Names the recipe and its data.
        config (RecipeConfig): How the chat template is rendered.
        model (ModelConfig): Names the tokenizer that measures prompts.

    Raises:
        ValueError: If a local file is missing, lacks a column, or has no row that can be graded.
    """
    if arguments.recipe == "pretrained":
        return Rows(POOL_SIZE, "drawn by sums.py")
    published = PUBLISHED[arguments.recipe]
    name, limit = arguments.dataset_name or published.hub_id, arguments.max_prompt_length
    if check_file(name):
        tokenizer = local_tokenizer(model)
        num_rows = len(load_train(arguments, config, name, tokenizer or _Unmeasured()))
        if tokenizer is not None:
            return Rows(num_rows, f"counted in {name}, prompts over {limit} tokens left out")
        missing = f"the tokenizer of {model.model_name_or_path} is not on this machine"
        return Rows(num_rows, f"gradable rows of {name}; not yet less prompts over {limit} tokens: {missing}")
    if name != published.hub_id:
        return Rows(None, f"unknown without a network: {name}. Give a local file, or max_steps")
    paper = f" (the paper: {PAPER_ROWS:,} left)" if published is data.MATH else ""
    return Rows(
        published.num_rows,
        f"gradable rows recorded of {name}; not yet less prompts over {limit} tokens, which the run counts{paper}",
    )


def local_tokenizer(model: ModelConfig) -> PreTrainedTokenizerBase | None:
    """The policy's tokenizer from a folder or the Hub's cache; None if it is not on this machine."""
    name = model.model_name_or_path
    if name is None or (Path(name).is_dir() and not any(Path(name).glob("tokenizer*"))):
        return None  # of a folder with a model alone transformers makes a tokenizer without a vocabulary
    try:
        return AutoTokenizer.from_pretrained(name, revision=model.model_revision, local_files_only=True)
    except OSError:
        return None


def load_train(arguments: RecipeArguments, config: RecipeConfig, name: str, tokenizer: Any) -> Dataset:
    """Training data of a recipe; problems that stand in MATH-500 too are left out if that is a local file."""
    limit, rendering = arguments.max_prompt_length, {"chat_template_kwargs": config.chat_template_kwargs}
    if arguments.recipe == "code_qwen3":
        return data.load_code_train(name, tokenizer, limit, **rendering)
    if arguments.recipe == "qa_qwen3":
        return data.load_qa_train(name, tokenizer, limit, **rendering)
    overlap = {
        "heldout": arguments.heldout if check_file(arguments.heldout) else None,
        "drop_overlap": arguments.drop_overlap,
    }
    with _no_word_on_the_overlap():
        return data.load_math_train(name, tokenizer, limit, **overlap, **rendering)


@contextmanager
def _no_word_on_the_overlap() -> Iterator[None]:
    """The loader warns that it could not compare with MATH-500; a dry run never compares with a set on the Hub."""

    def wanted(record: logging.LogRecord) -> bool:
        return "overlap with MATH-500 not checked" not in record.getMessage()

    data.logger.addFilter(wanted)
    try:
        yield
    finally:
        data.logger.removeFilter(wanted)
