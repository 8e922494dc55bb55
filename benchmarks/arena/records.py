# SPDX-License-Identifier: Apache-2.0
"""The record of a run: what it was, what it cost, and which problems it had right at each measurement.

`benchmarks/results/arena.jsonl` grows by a line with each finished run and is committed: an arena that is interrupted
resumes on any machine with the same processor, and anybody can recompute every figure.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

COMMITTED = Path(__file__).parents[1] / "results" / "arena.jsonl"
START, TUNE, REPORT, CONFIRM = "start", "tune", "report", "confirm"
"""Stages: the policy before training; runs that choose a learning rate, on the tuning split; reported runs; runs
on problems that nobody has seen."""
STAGES = (START, TUNE, REPORT, CONFIRM)
FREE, STOPPED = "free", "stopped"
"""Servings: until the policy ends by itself; until the task's stop string."""


@dataclass(frozen=True)
class Serving:
    """Answers to held-out problems, without a gate.

    Attributes:
        right (list[int]): Samples at temperature 1 whose last answer is right, for each problem of the split, from its
            first.
        samples (int): Samples of each problem.
        greedy (list[int] | None): Whether the last answer of greedy decoding is right (0 or 1); None: not measured.
        length (float): Mean tokens of the samples.
        ended (float): Share of the samples that ended by themselves or by a stop string.
    """

    right: list[int]
    samples: int
    greedy: list[int] | None
    length: float
    ended: float

    @property
    def accuracy(self) -> float:
        """Share of right samples (mean@k)."""
        return sum(self.right) / (self.samples * len(self.right))


@dataclass(frozen=True)
class Measurement:
    """A policy after some batches, and what training had cost by then, measurements excluded.

    Attributes:
        batch (int): Batches of rollouts done.
        generated_tokens (int): Tokens of all rollouts so far.
        trained_tokens (int): Tokens of the rollouts that had a forward and backward pass.
        seconds (float): Wall-clock seconds of training.
        phases (dict[str, float]): Of these, seconds of `plan`, `generate`, `score` and `update`.
        servings (dict[str, Serving]): By `FREE` and `STOPPED`, as far as measured.
    """

    batch: int
    generated_tokens: int
    trained_tokens: int
    seconds: float
    phases: dict[str, float]
    servings: dict[str, Serving]


@dataclass(frozen=True)
class Run:
    """A finished run of an entrant on a task.

    Attributes:
        task (str): Key of `TASKS`.
        entrant (str): Key of `ENTRANTS`; empty for `START`.
        stage (str): Of `STAGES`.
        learning_rate (float): Where it starts.
        seed (int): Of the order of the prompts and of sampling.
        measurements (list[Measurement]): In the order of their batches.
        curves (dict[str, list[float | None]]): Metrics of every batch.
        took (float): Wall-clock seconds of the process, start and measurements included.
        began (str): UTC, ISO 8601.
        plan (str): Hash of the frozen plan, of a reported or confirming run; else empty.
        environment (dict[str, Any]): `hardware` and `versions`.
    """

    task: str
    entrant: str
    stage: str
    learning_rate: float
    seed: int
    measurements: list[Measurement]
    curves: dict[str, list[float | None]]
    took: float
    began: str
    plan: str
    environment: dict[str, Any]

    @property
    def key(self) -> tuple[str, str, str, float, int]:
        """What tells it from other runs."""
        return self.task, self.entrant, self.stage, self.learning_rate, self.seed

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> "Run":
        """From `to_json`.

        Raises:
            ValueError: If it is not such a record.
        """
        found = _checked(json.loads(line), cls)
        for place, one in enumerate(found["measurements"]):
            servings = {name: Serving(**_checked(own, Serving)) for name, own in one.get("servings", {}).items()}
            found["measurements"][place] = Measurement(**_checked(one, Measurement) | {"servings": servings})
        return cls(**found)


def _checked(found: dict[str, Any], of: type) -> dict[str, Any]:
    odd = ", ".join(sorted(found.keys() ^ {field.name for field in fields(of)}))
    if odd:
        raise ValueError(f"not the record of a run: {odd} missing or unknown. Run it again with this version.")
    return found


def read(path: Path) -> list[Run]:
    """Runs of a file; none if there is no file."""
    return [Run.from_json(line) for line in path.read_text().splitlines()] if path.exists() else []


def append(path: Path, run: Run) -> None:
    """Add a finished run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lines:
        lines.write(run.to_json() + "\n")
