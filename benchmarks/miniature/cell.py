# SPDX-License-Identifier: Apache-2.0
"""One cell of the benchmark, an arm with a seed, in a process of its own: `python -m benchmarks.miniature.cell`.

A vLLM engine keeps state of the process it was built in, and processor time is counted per process.
"""

import argparse
import json
import resource
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CURVES = (
    "generated_tokens",
    "trained_tokens",
    "planned_tokens",
    "num_rollouts/mean",
    "num_rollouts/max",
    "poll_threshold",
    "abort_threshold",
    "abort_rate",
    "trim_rate",
    "keep_rate",
    "effective_sample_size",
    "weight_max",
    "seconds_generate",
    "seconds_update",
    "overhead_share",
)
"""Metrics of every step that are kept."""


@dataclass(frozen=True)
class Profile:
    """Size of a run.

    Attributes:
        steps (int): Optimizer steps.
        pool (int): Training prompts; 16 make a step.
        every (int): Steps between two measurements on the way.
        held_out (int): Problems of these.
        held_out_end (int): Problems of the last one.
        samples (int): Samples of each problem.
    """

    steps: int
    pool: int
    every: int
    held_out: int
    held_out_end: int
    samples: int


PROFILES = {
    "full": Profile(steps=80, pool=320, every=10, held_out=200, held_out_end=1000, samples=4),
    "fast": Profile(steps=20, pool=160, every=10, held_out=60, held_out_end=120, samples=4),
    "smoke": Profile(steps=2, pool=32, every=2, held_out=4, held_out_end=6, samples=2),
}


def processor_seconds() -> float:
    """Processor time of this process, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run(task_name: str, arm_name: str, seed: int, profile_name: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """Train one arm on one task and measure it.

    Args:
        task_name (str): Key of `TASKS`.
        arm_name (str): Key of `ARMS`.
        seed (int): Of the order of the prompts and of sampling. The pool and the held-out problems are the same for
            all.
        profile_name (str): Key of `PROFILES`.
        overrides (dict[str, Any]): Fields of the configuration that an experiment changes.

    Returns:
        dict[str, Any]: JSON types; `evaluations` with, for each problem, how many samples were right.
    """
    from datasets import Dataset
    from transformers import PrinterCallback

    from duet_trl import DUETGRPOConfig, DUETGRPOTrainer
    from recipes.tiny_math.problems import HELD_OUT

    from .arms import ARMS, configuration
    from .grading import AnswerReward
    from .measuring import Measurement
    from .pool import load_pool
    from .tasks import TASKS

    task, arm, profile = TASKS[task_name], ARMS[arm_name], PROFILES[profile_name]
    pool = load_pool(task, profile.pool)
    held_out = task.sample_problems(HELD_OUT, profile.held_out_end, 1)
    with tempfile.TemporaryDirectory() as folder:
        # the task's fields win over the arm's, an experiment's over both
        config = DUETGRPOConfig(**configuration(arm, Path(folder), profile.steps, seed, task.fields | overrides))
        trainer = DUETGRPOTrainer(
            model=str(task.checkpoint),
            reward_funcs=AnswerReward(arm.reward, task.marker),
            args=config,
            train_dataset=Dataset.from_list([{"prompt": p.messages, "answer": p.answer} for p in pool]),
        )
        measurement = Measurement(trainer, held_out, task.marker, profile, seed)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(measurement)
        trainer.train()
    history = [entry for entry in trainer.state.log_history if "duet/generated_tokens" in entry]
    return {
        "task": task.name,
        "arm": arm.name,
        "method": arm.method,
        "budget": arm.budget,
        "reward": arm.reward,
        "seed": seed,
        "profile": profile_name,
        "size": asdict(profile),
        "overrides": overrides,
        "finished": time.time(),
        "evaluations": measurement.evaluations,
        "curves": {name: [entry.get(f"duet/{name}") for entry in history] for name in CURVES},
    }


def main() -> None:
    """Run the cell of the command line and write its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arm")
    parser.add_argument("seed", type=int)
    parser.add_argument("profile", choices=PROFILES)
    parser.add_argument("output", type=Path)
    parser.add_argument("--task", default="math")
    parser.add_argument("--overrides", type=json.loads, default={})
    args = parser.parse_args()
    begin = time.perf_counter()
    record = run(args.task, args.arm, args.seed, args.profile, args.overrides)
    args.output.write_text(json.dumps(record | {"seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    main()
