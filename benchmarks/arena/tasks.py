# SPDX-License-Identifier: Apache-2.0
"""What is learnt: the tasks, their policies, and problems that no other benchmark has seen."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from recipes.pretrained_models import FOLDER
from recipes.tiny_math.problems import HELD_OUT, TRAIN
from recipes.tiny_products import task as tiny_products
from recipes.tiny_two_ways import task as tiny_two_ways

from . import mixed
from .mixed import FRESH, KINDS, POOL, REPORT, TUNING, Kind
from .problem import Problem

RECIPES = Path(__file__).parents[2] / "recipes"
POOLS = Path(__file__).with_name("pools")
LINE = ("\n",)
"""The stop string of tasks whose answers end with their line."""


@dataclass(frozen=True)
class Task:
    """Problems, the policy that starts on them, and what a run has to know.

    Attributes:
        name (str): On the command line and in records.
        model (Path): The policy and its tokenizer.
        problems (Callable[[str], Sequence[Problem]]): Of a split: `POOL`, `TUNING`, `REPORT` or `FRESH`.
        marker (str): The gate's marker, and the extractor that grades.
        max_completion_length (int): Tokens at which completions are cut.
        stop (tuple[str, ...]): Strings that follow an answer, with which every policy is served; empty: the policy
            ends by itself.
        rates (tuple[float, ...]): Learning rates that are tried, ascending.
        fields (dict[str, Any]): Other fields of `DUETGRPOConfig`, the same for every entrant.
        length (float): Of its runs: a share of the profile's batches.
        kinds (tuple[Kind, ...]): Kinds of reasoning-gym from which its problems come; empty for other problems.
    """

    name: str
    model: Path
    problems: Callable[[str], Sequence[Problem]]
    marker: str
    max_completion_length: int
    stop: tuple[str, ...]
    rates: tuple[float, ...]
    fields: dict[str, Any] = field(hash=False)
    length: float = 1.0
    kinds: tuple[Kind, ...] = ()


def pretrained(
    name: str, model: str, lowest: float, length: float = 1.0, kinds: tuple[Kind, ...] = KINDS, bf16: bool = True
) -> Task:
    """A task for a model of `recipes/pretrained_models.py`, whose rates begin at `lowest` and double.

    Its weights are in float32, and multiplied in bfloat16 with `bf16`.
    """
    fields = {
        "model_init_kwargs": {"dtype": "float32"},
        "bf16": bf16,
        "vllm_max_model_length": 256,
        "per_device_train_batch_size": 64,
    }
    rates = tuple(lowest * 2**step for step in range(6))
    problems = partial(mixed.problems, kinds=kinds)
    return Task(name, FOLDER / model, problems, "math", 48, LINE, rates, fields, length, kinds)


def _tiny(name: str, task: Any, marker: str, pool: Callable[[], list[Any]]) -> Task:
    @cache
    def problems(split: str) -> tuple[Problem, ...]:
        if split == POOL:
            drawn = pool()
        else:
            elsewhere = task.sample_problems(HELD_OUT, 1000, 1)  # of other benchmarks and tests
            taken = {one.expression for one in elsewhere}
            drawn = [one for one in task.sample_problems(HELD_OUT, 1500, 2) if one.expression not in taken]
            drawn = drawn[{REPORT: slice(300), TUNING: slice(300, 450), FRESH: slice(450, 750)}[split]]
        return tuple(Problem(one.messages, name, one.level, one.expression, str(one.answer).__eq__) for one in drawn)

    fields = {
        "model_init_kwargs": {"dtype": "float32"},
        "bf16": False,
        "vllm_max_model_length": 512,
        "per_device_train_batch_size": 32,
        "vllm_importance_sampling_correction": False,  # in float32 engine and trainer agree to 1e-4
    }
    rates = (1.5e-4, 3e-4, 6e-4, 1.2e-3, 2.4e-3, 4.8e-3)
    return Task(
        name, RECIPES / f"tiny_{name}" / "checkpoint", problems, marker, task.MAX_COMPLETION_LENGTH, (), rates, fields
    )


def _products() -> list[Any]:
    """With problems that the policy always or never solves at the start."""
    entries = json.loads((POOLS / "tiny_products.json").read_text())["problems"]
    return [tiny_products.Problem(one["expression"], one["level"], one["answer"]) for one in entries]


def _two_ways() -> list[Any]:
    """A guess is right one time in four: no prompt is always or never solved."""
    return list(tiny_two_ways.sample_problems(TRAIN, 320, 3))


TASKS = {
    task.name: task
    for task in (
        pretrained("mixed_135m", "smollm2_135m", 1.5e-5),
        pretrained("mixed_270m", "gemma3_270m", 3.75e-6, 0.5),  # a batch takes twice as long
        _tiny("two_ways", tiny_two_ways, "math", _two_ways),
        _tiny("products", tiny_products, "code", _products),
    )
}
"""All tasks by name."""
