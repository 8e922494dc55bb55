# SPDX-License-Identifier: Apache-2.0
"""What figures show of the runs of one model, computed apart from any drawing.

An arm is a method at a budget: runs that differ by their seed. Where a folder also holds ablations of a method,
figures that compare methods show its plain variant: nothing switched off, the paper's values, then the most runs.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .intervals import t_interval
from .runs import RunRecord, StoredRun, accuracy, series, step_seconds, suites
from .titles import METHODS, in_order, method_title

Variant = tuple[tuple[str, str], ...]
"""Options that tell variants of a method apart, and their values as text."""

OURS = ("duet", "paper", "duet_reuse")
"""The methods of this package: what compares methods at the full budget shows them at half of it, too."""

# What tells a method's plain variant from its ablations, where they were run.
_PLAIN = {
    "allocate": "True",
    "trim": "True",
    "abort": "True",
    "keep_probability": "0.05",
    "surrogate": "online",
    "surrogate_warmup": "1",
}

# Two runs that differ in these only are the same experiment.
_NO_VARIANT = frozenset(
    "seed data_seed output_dir run_name logging_dir logging_steps log_completions audit_log audit_columns "
    "save_strategy save_steps per_device_train_batch_size gradient_accumulation_steps steps_per_generation "
    "generation_batch_size gradient_checkpointing dataloader_num_workers use_vllm vllm_mode "
    "vllm_gpu_memory_utilization vllm_max_model_length".split()
)


class NotDrawn(ValueError):
    """Why a figure cannot be drawn, and what would have to be logged."""


@dataclass(frozen=True)
class Arm:
    """A method at a budget; `runs` differ by their seed (or only by `_NO_VARIANT`)."""

    method: str
    budget: float
    variant: Variant
    runs: tuple[StoredRun, ...]

    @property
    def records(self) -> list[RunRecord]:
        """What the runs were and logged."""
        return [run.record for run in self.runs]


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and its 95% t-interval; both ends are nan for a single seed."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    """A metric over optimizer steps, averaged over seeds, shape (T,) each; low and high are the extreme seeds."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    window: int = 1  # logged steps that each value is a running median of


def arms_of(runs: Sequence[StoredRun]) -> list[Arm]:
    """Arms of the runs of one model: methods in the order of legends, budgets from the largest, common variants first.

    A seed counts once: of two runs that differ in nothing, of two grids say, the first is taken.
    """
    found = []
    for method in in_order({run.record.method for run in runs}, METHODS):
        own = [run for run in runs if run.record.method == method]
        names = _varying(own)
        variants = {id(run): _variant(run.record, names) for run in own}
        common = Counter(variants.values())
        for budget in sorted({run.record.budget for run in own}, reverse=True):
            for variant in sorted(common, key=lambda one: (-common[one], one)):
                seeds: dict[int, StoredRun] = {}
                for run in own:
                    if run.record.budget == budget and variants[id(run)] == variant:
                        seeds.setdefault(run.record.seed, run)
                if seeds:
                    found.append(Arm(method, budget, variant, tuple(seeds.values())))
    return found


def plain(arms: Sequence[Arm]) -> list[Arm]:
    """The arms of each method's plain variant."""
    return [arm for arm in arms if arm.variant == plain_variant(arms, arm.method)]


def plain_variant(arms: Sequence[Arm], method: str) -> Variant:
    """The variant of a method with the most values of `_PLAIN`, of these that with the most runs."""
    runs: Counter[Variant] = Counter()
    for arm in arms:
        if arm.method == method:
            runs[arm.variant] += len(arm.runs)
    usual = {one: sum(_PLAIN.get(name) == value for name, value in one) for one in runs}
    return min(runs, key=lambda one: (-usual[one], -runs[one], one))


def percent(budget: float) -> str:
    """A budget as a share of the full one."""
    return f"{100 * budget:g}%"


def variant_text(variant: Variant) -> str:
    """Options of a variant as a note names them."""
    return ", ".join(f"{name}={value}" for name, value in variant)


def mean_over_seeds(values: Sequence[float]) -> Mean:
    """Mean of one value per seed, shape (S,), and its 95% t-interval."""
    array = np.asarray(values, dtype=np.float64)
    low, high = t_interval(array) or (np.nan, np.nan)
    return Mean(float(array.mean()), low, high)


def mean_curve(records: Sequence[RunRecord], points: Callable[[RunRecord], tuple[np.ndarray, np.ndarray]]) -> Curve:
    """A metric over the steps that every seed has; empty where the seeds share none.

    Args:
        records (Sequence[RunRecord]): One run per seed.
        points (Callable): Run -> steps and values, shape (T,) each.
    """
    logged = [dict(zip(*(column.tolist() for column in points(record)), strict=True)) for record in records]
    steps = sorted(set.intersection(*map(set, logged))) if logged else []
    values = np.array([[one[step] for step in steps] for one in logged], dtype=np.float64).reshape(len(logged), -1)
    if not steps:
        return Curve(*(np.empty(0) for _ in range(4)))
    return Curve(np.array(steps), values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def metric_curve(records: Sequence[RunRecord], key: str) -> Curve:
    """A logged metric over steps."""
    return mean_curve(records, lambda record: series(record.log, key))


def smooth(curve: Curve) -> Curve:
    """Running median that takes the noise out of a line and leaves about 40 independent points.

    The window is an odd number of logged steps. At both ends it is cut short, so that no value is made up.
    """
    half = len(curve.steps) // 80
    if half == 0:
        return curve

    def running(values: np.ndarray) -> np.ndarray:
        return np.array([np.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))])

    return Curve(curve.steps, *map(running, (curve.mean, curve.low, curve.high)), window=2 * half + 1)


def final_accuracy(arm: Arm, suite: str) -> Mean | None:
    """mean@k of the last measurement over the arm's seeds, in [0, 1]; None where it was not measured."""
    values = [value for record in arm.records if (value := accuracy(record, suite)) is not None]
    return mean_over_seeds(values) if values else None


def paired_difference(arm: Arm, reference: Arm, suite: str) -> Mean | None:
    """Accuracy of an arm minus that of another, seed by seed; None where no seed was measured in both."""
    values = [
        own - other
        for first, second in _pairs(arm, reference)
        if (own := accuracy(first, suite)) is not None and (other := accuracy(second, suite)) is not None
    ]
    return mean_over_seeds(values) if values else None


def speed_up(arm: Arm, reference: Arm) -> Mean | None:
    """Seconds of a step of the reference over those of the arm, seed by seed; None across engines or machines."""
    values = [
        other / own
        for first, second in _pairs(arm, reference)
        if same_machine(first, second)
        and (own := step_seconds(first)) is not None
        and (other := step_seconds(second)) is not None
    ]
    return mean_over_seeds(values) if values else None


def same_machine(first: RunRecord, second: RunRecord) -> bool:
    """Whether seconds of two runs may be compared."""
    return first.engine == second.engine and first.hardware == second.hardware


def on_one_machine(arms: Sequence[Arm]) -> tuple[list[Arm], list[str]]:
    """The runs on the engine and machine that most of them used, and a line for each arm that has others.

    Seconds are not compared across machines.
    """
    records = [record for arm in arms for record in arm.records]
    common = max(records, key=lambda one: sum(same_machine(one, other) for other in records))
    found, notes = [], []
    for arm in arms:
        runs = tuple(run for run in arm.runs if same_machine(run.record, common))
        if len(runs) < len(arm.runs):
            notes.append(
                f"{len(arm.runs) - len(runs)} of {len(arm.runs)} runs of {method_title(arm.method)} "
                f"{percent(arm.budget)} used another engine or machine than most: their seconds are not compared."
            )
        if runs:
            found.append(replace(arm, runs=runs))
    return found, notes


def full_grpo(arms: Sequence[Arm]) -> Arm:
    """GRPO at the full budget, to which the others are compared.

    Raises:
        NotDrawn: If there is none.
    """
    for arm in arms:
        if arm.method == "grpo" and arm.budget == 1:
            return arm
    raise NotDrawn("no run of GRPO at the full budget. Add a cell with method: grpo to the grid.")


def _pairs(arm: Arm, reference: Arm) -> list[tuple[RunRecord, RunRecord]]:
    by_seed = {record.seed: record for record in reference.records}
    return [(record, by_seed[record.seed]) for record in arm.records if record.seed in by_seed]


def _varying(runs: Sequence[StoredRun]) -> list[str]:
    """Options of a method that take several values at one budget; what follows from the budget is none of them."""
    names = set()
    for budget in {run.record.budget for run in runs}:
        options = [_options(run.record) for run in runs if run.record.budget == budget]
        known = set().union(*options) - _NO_VARIANT
        names |= {name for name in known if len({_text(one.get(name)) for one in options}) > 1}
    return sorted(names)


def _options(record: RunRecord) -> dict[str, Any]:
    """Options, and the suites that were measured: runs on another task are no other seed of this one."""
    return record.options | {"suites": sorted(suites(record))}


def _variant(record: RunRecord, names: Sequence[str]) -> Variant:
    return tuple((name, _text(_options(record).get(name))) for name in names)


def _text(value: Any) -> str:
    return "default" if value is None else str(value)
