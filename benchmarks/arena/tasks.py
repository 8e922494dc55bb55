# SPDX-License-Identifier: Apache-2.0
"""What is learnt: the tasks, their policies, and problems that no other benchmark has seen.

Four of unlike shape, so that nothing is tuned to one: short solutions with long tails behind them; long chains with
late answers and many loops; a quick guess against a long careful way; and prompts that never come again.
"""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from recipes.tiny_math import task as tiny_math
from recipes.tiny_math.problems import HELD_OUT, LEVELS, TRAIN, Problem
from recipes.tiny_products import task as tiny_products
from recipes.tiny_two_ways import task as tiny_two_ways

RECIPES = Path(__file__).parents[2] / "recipes"
POOLS = Path(__file__).with_name("pools")
REPORT_SIZE, TUNING_SIZE = 400, 160


@dataclass(frozen=True)
class Task:
    """Problems, the policy that starts on them, and what a run has to know.

    Attributes:
        name (str): On the command line and in records.
        checkpoint (Path): The warm-started policy and its tokenizer.
        problem (Callable[[str, int, int], Problem]): (expression, level, answer) -> problem.
        sample_problems (Callable[[str, int, int], Sequence[Problem]]): (split, count, seed) -> distinct problems.
        pool_size (int): Training prompts.
        pool_seed (int | None): Of a pool that is drawn as it comes; None: it is read from a file, which `pool.py`
            mixed from prompts that are always, sometimes and never solved at the start.
        marker (str): The gate's marker, and the extractor that grades.
        max_completion_length (int): Tokens at which completions are cut, as in the warm start.
        elsewhere (tuple[tuple[int, int], ...]): (count, seed) of the held-out problems that other benchmarks, the
            demo and the tests of the recipes use.
        is_careful (Callable[[str], bool] | None): Whether a completion took the long way, on a task that has two.
        tuned_on (str): Task whose learning rates it takes; empty: it is tuned itself.
        max_model_length (int): Tokens of prompt and completion for which the engine has room.
    """

    name: str
    checkpoint: Path
    problem: Callable[[str, int, int], Problem]
    sample_problems: Callable[[str, int, int], Sequence[Problem]]
    pool_size: int
    pool_seed: int | None
    marker: str
    max_completion_length: int
    elsewhere: tuple[tuple[int, int], ...] = ()
    is_careful: Callable[[str], bool] | None = None
    tuned_on: str = ""
    max_model_length: int = 512

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of `DUETGRPOConfig` that are the task's, the same for every entrant."""
        return {
            "marker": self.marker,
            "max_completion_length": self.max_completion_length,
            "vllm_max_model_length": self.max_model_length,
        }

    @property
    def pool_file(self) -> Path:
        """Of a pool that is read."""
        return POOLS / f"{self.name}.json"

    def pool(self) -> list[Problem]:
        """The training prompts, the same for all entrants and seeds."""
        if self.pool_seed is not None:
            return list(self.sample_problems(TRAIN, self.pool_size, self.pool_seed))
        entries = json.loads(self.pool_file.read_text())["problems"][: self.pool_size]
        return [self.problem(entry["expression"], entry["level"], entry["answer"]) for entry in entries]

    def report_problems(self) -> tuple[Problem, ...]:
        """The report split: `REPORT_SIZE` held-out problems, the levels in turn."""
        return _fresh(self)[:REPORT_SIZE]

    def tuning_problems(self) -> tuple[Problem, ...]:
        """The tuning split: `TUNING_SIZE` other ones."""
        return _fresh(self)[REPORT_SIZE:]


@cache
def _fresh(task: Task) -> tuple[Problem, ...]:
    """Held-out problems of neither another benchmark nor a demo, the levels in turn."""
    taken = {p.expression for count, seed in task.elsewhere for p in task.sample_problems(HELD_OUT, count, seed)}
    size = REPORT_SIZE + TUNING_SIZE
    drawn = task.sample_problems(HELD_OUT, 2 * size if taken else size, 2)
    levels = [[p for p in drawn if p.level == level and p.expression not in taken] for level in LEVELS]
    found = tuple(itertools.chain.from_iterable(zip(*levels, strict=False)))[:size]
    if len(found) < size:
        raise ValueError(f"{task.name} has only {len(found)} of {size} problems that are used nowhere else.")
    return found


SUMS = Task(
    name="sums",
    checkpoint=RECIPES / "tiny_math" / "checkpoint",
    problem=tiny_math.Problem,
    sample_problems=tiny_math.sample_problems,
    pool_size=320,
    pool_seed=None,
    marker="math",
    max_completion_length=tiny_math.MAX_COMPLETION_LENGTH,
    elsewhere=((400, 0), (1000, 1)),
)
PRODUCTS = Task(
    name="products",
    checkpoint=RECIPES / "tiny_products" / "checkpoint",
    problem=tiny_products.Problem,
    sample_problems=tiny_products.sample_problems,
    pool_size=320,
    pool_seed=None,
    marker="code",
    max_completion_length=tiny_products.MAX_COMPLETION_LENGTH,
    elsewhere=((1000, 1),),
)
ONE_EPOCH = Task(
    name="one_epoch",
    checkpoint=SUMS.checkpoint,
    problem=tiny_math.Problem,
    sample_problems=tiny_math.sample_problems,
    pool_size=6400,
    pool_seed=3,
    marker="math",
    max_completion_length=tiny_math.MAX_COMPLETION_LENGTH,
    elsewhere=SUMS.elsewhere,
    tuned_on=SUMS.name,  # the same policy on the same kind of problems
)
TWO_WAYS = Task(
    name="two_ways",
    checkpoint=RECIPES / "tiny_two_ways" / "checkpoint",
    problem=tiny_two_ways.Problem,
    sample_problems=tiny_two_ways.sample_problems,
    pool_size=320,
    pool_seed=3,  # a guess is right one time in four: no prompt is always or never solved
    marker="math",
    max_completion_length=tiny_two_ways.MAX_COMPLETION_LENGTH,
    is_careful=tiny_two_ways.is_careful,
)
TASKS = {task.name: task for task in (SUMS, TWO_WAYS, PRODUCTS, ONE_EPOCH)}
"""All tasks by name."""
