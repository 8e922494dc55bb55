# SPDX-License-Identifier: Apache-2.0
"""What is learnt: the tasks, and everything in which a run on one differs from a run on another.

Two of them, of unlike shape, so that nothing is tuned to one: short solutions with boxed answers and long tails behind
them, and long chains whose answers, in code fences, come late, often never, and with hardly anything behind.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.tiny_math import task as tiny_math
from recipes.tiny_math.problems import Problem
from recipes.tiny_products import task as tiny_products

RECIPES = Path(__file__).parents[2] / "recipes"


@dataclass(frozen=True)
class Task:
    """Problems, the policy that starts on them, and what a run has to know.

    Attributes:
        name (str): Its name on the command line and in records.
        checkpoint (Path): The warm-started policy and its tokenizer.
        problem (Callable[[str, int, int], Problem]): (expression, level, answer) -> problem.
        sample_problems (Callable[[str, int, int], Sequence[Problem]]): (split, count, seed) -> distinct problems.
        pool (Path): File of the training prompts.
        pool_size (int): Prompts in it.
        candidates (int): Prompts that are sampled to find the pool's mix; more would only take longer.
        marker (str): The gate's marker, and the extractor that grades. An arm grades the first answer or the last.
        max_completion_length (int): Tokens at which completions are cut, as in the warm start.
        max_model_length (int): Tokens of prompt and completion for which the engine has room.
    """

    name: str
    checkpoint: Path
    problem: Callable[[str, int, int], Problem]
    sample_problems: Callable[[str, int, int], Sequence[Problem]]
    pool: Path
    pool_size: int
    candidates: int
    marker: str
    max_completion_length: int
    max_model_length: int = 512

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of `DUETGRPOConfig` that are the task's; no arm has a say in them."""
        return {
            "marker": self.marker,
            "max_completion_length": self.max_completion_length,
            "vllm_max_model_length": self.max_model_length,
        }


MATH = Task(
    name="math",
    checkpoint=RECIPES / "tiny_math" / "checkpoint",
    problem=tiny_math.Problem,
    sample_problems=tiny_math.sample_problems,
    pool=Path(__file__).with_name("pool.json"),
    pool_size=640,
    candidates=2400,
    marker="math",
    max_completion_length=tiny_math.MAX_COMPLETION_LENGTH,
)
PRODUCTS = Task(
    name="products",
    checkpoint=RECIPES / "tiny_products" / "checkpoint",
    problem=tiny_products.Problem,
    sample_problems=tiny_products.sample_problems,
    pool=Path(__file__).with_name("pool_products.json"),
    pool_size=320,
    candidates=1500,
    marker="code",
    max_completion_length=tiny_products.MAX_COMPLETION_LENGTH,
)
TASKS = {task.name: task for task in (MATH, PRODUCTS)}
"""All tasks by name; records of the first have its name in neither file nor label."""
