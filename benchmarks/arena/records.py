# SPDX-License-Identifier: Apache-2.0
"""The record of a run: what it was, what it cost, and which problems it had right at each measurement.

While an arena runs, `outputs/bench/arena/<profile>.jsonl` grows by a line with each finished run. What the documents
quote is committed as `benchmarks/results/arena.jsonl.xz`, from which anybody can recompute every figure.
"""

import json
import lzma
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

COMMITTED = Path(__file__).parents[1] / "results" / "arena.jsonl.xz"
FOLDER = Path("outputs/bench/arena")
START, TUNE, REPORT = "start", "tune", "report"
"""Stages: the policy before training; runs that choose a learning rate, on the tuning split; reported runs."""
STAGES = (START, TUNE, REPORT)


@dataclass(frozen=True)
class Measurement:
    """Held-out problems without a gate, after some optimizer steps, and what training had cost by then.

    Attributes:
        step (int): Optimizer steps done.
        generated_tokens (int): Tokens of all rollouts so far, measurements excluded.
        trained_tokens (int): Tokens of the rollouts that had a forward and backward pass.
        seconds (float): Wall-clock seconds of training, measurements excluded.
        processor_seconds (float): The same of the processor, user and system.
        samples (int): Samples of each problem at temperature 1.
        last (list[int]): Of these, those whose last answer is right, for each problem of the split, from its first.
        first (list[int]): Those whose first answer is right.
        greedy (list[int] | None): Whether the last answer of greedy decoding is right (0 or 1); None: not measured.
        length (float): Mean tokens of the samples.
        ended (float): Share of the samples that ended by themselves.
        entropy (float): Of the policy, nats per token: the mean of -log p of the sampled tokens.
        careful (float | None): Share of samples that took the long way, on a task that has two.
    """

    step: int
    generated_tokens: int
    trained_tokens: int
    seconds: float
    processor_seconds: float
    samples: int
    last: list[int]
    first: list[int]
    greedy: list[int] | None
    length: float
    ended: float
    entropy: float
    careful: float | None


@dataclass(frozen=True)
class Run:
    """A finished run of an entrant on a task.

    Attributes:
        task (str): Key of `benchmarks.arena.tasks.TASKS`.
        entrant (str): Key of `benchmarks.arena.entrants.ENTRANTS`; empty for `START`.
        stage (str): `START`, `TUNE` or `REPORT`.
        learning_rate (float): Constant.
        seed (int): Of the order of the prompts and of sampling.
        horizon (int): Batches of rollouts of a run of `TUNE`; the minimum of one of `REPORT`.
        measurements (list[Measurement]): In the order of their steps. The first is not at step 0: `START` has that.
        curves (dict[str, list[float | None]]): Metrics of every step.
        took (float): Wall-clock seconds of the process, start and measurements included.
        environment (dict[str, Any]): `hardware` and `versions`.
    """

    task: str
    entrant: str
    stage: str
    learning_rate: float
    seed: int
    horizon: int
    measurements: list[Measurement]
    curves: dict[str, list[float | None]]
    took: float
    environment: dict[str, Any]

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> "Run":
        """From `to_json`.

        Raises:
            ValueError: If it is no such record.
        """
        found = json.loads(line)
        _check(found, cls)
        for each in found["measurements"]:
            _check(each, Measurement)
        found["measurements"] = [Measurement(**each) for each in found["measurements"]]
        return cls(**found)


def _check(found: dict[str, Any], of: type) -> None:
    odd = ", ".join(sorted(found.keys() ^ {field.name for field in fields(of)}))
    if odd:
        raise ValueError(f"not the record of a run: {odd} missing or unknown. Run it again with this version.")


def read(path: Path) -> list[Run]:
    """Runs of a file, plain or compressed by its suffix; none if there is no file."""
    if not path.exists():
        return []
    opened = lzma.open(path, "rt") if path.suffix == ".xz" else path.open()
    with opened as lines:
        return [Run.from_json(line) for line in lines]


def append(path: Path, run: Run) -> None:
    """Add a finished run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lines:
        lines.write(run.to_json() + "\n")


def pack(runs: Iterable[Run], path: Path = COMMITTED) -> Path:
    """Write runs compressed, in the order of their names, so that the same runs are the same file."""
    lines = sorted(run.to_json() for run in runs)
    path.write_bytes(lzma.compress("".join(f"{line}\n" for line in lines).encode(), preset=9 | lzma.PRESET_EXTREME))
    return path
