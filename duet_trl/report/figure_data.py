# SPDX-License-Identifier: Apache-2.0
"""What figures show of the runs of one subject (a model and its task), computed apart from any drawing."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .arm_figures import comparable_seeds, mean, speed_up, suites_of
from .arms import FAMILY, Arm, find_arms, reference_of
from .layout import Value
from .runs import RunRecord, StoredRun, accuracy, generated_tokens, series, suites
from .titles import METHODS, in_order, method_title, suite_title

SURROGATES = ("online", "constant", "ridge")


class NotDrawn(ValueError):
    """Why a figure cannot be drawn, and what would have to be logged."""


@dataclass(frozen=True)
class Subject:
    """The runs of a model on a task.

    Attributes:
        arms (list[Arm]): All arms, ablations and sweeps among them.
        shown (list[Arm]): One per method and budget, in the order of legends and the largest budget first.
        folders (dict): Folder of each run by model and name.
    """

    arms: list[Arm]
    shown: list[Arm]
    folders: Mapping[tuple[str, str], Path]

    def of(self, method: str) -> list[Arm]:
        """The arms of a method that are shown."""
        return [arm for arm in self.shown if arm.method == method]


@dataclass(frozen=True)
class Curve:
    """A metric over optimizer steps, averaged over seeds, shape (T,) each; low and high are the extreme seeds."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    window: int = 1  # logged steps that each value is a running median of


@dataclass(frozen=True)
class Tokens:
    """Tokens of a mean step of an arm by what became of them; the first three add up to what was generated."""

    trained: float
    aborted: float
    untrained: float  # of rollouts that ended but taught nothing
    trimmed: float  # of those above, in trimmed rollouts
    reused: float  # taken from earlier rollouts instead of generated


def find_subjects(runs: Sequence[StoredRun]) -> tuple[dict[str, Subject], list[str]]:
    """Subjects by their name, the model and, if it has several, the task; and a line for runs that repeat others."""
    arms, notes = find_arms([run.record for run in runs])
    folders = {(run.record.model, run.record.name): run.folder for run in runs}
    found: dict[tuple[str, str], list[Arm]] = {}
    for arm in arms:
        found.setdefault(arm.subject, []).append(arm)
    models = [model for model, _ in found]
    return {
        model if models.count(model) == 1 else f"{model} {task}": Subject(own, shown_arms(own), folders)
        for (model, task), own in found.items()
    }, notes


def shown_arms(arms: Sequence[Arm]) -> list[Arm]:
    """One arm per method and budget: no ablation, settings nearest to full-budget GRPO's, then to the paper's."""
    anchor = next((arm for arm in arms if arm.method == "grpo" and arm.budget == 1), arms[0])
    budgets = sorted({arm.budget for arm in arms}, reverse=True)
    methods = in_order({arm.method for arm in arms}, METHODS)
    found = (reference_of(anchor, arms, method, budget) for method in methods for budget in budgets)
    return [arm for arm in found if arm is not None]


def percent(budget: float) -> str:
    """A budget as a share of the full one."""
    return f"{100 * budget:g}%"


def arm_name(arm: Arm) -> str:
    """Method and budget."""
    return f"{method_title(arm.method)} {percent(arm.budget)}"


def mean_curve(arm: Arm, points: Callable[[RunRecord], tuple[np.ndarray, np.ndarray]]) -> Curve:
    """A metric over the steps that every seed has; empty where the seeds share none.

    Args:
        arm (Arm): The runs.
        points (Callable): Run -> steps and values, shape (T,) each.
    """
    logged = [dict(zip(*(one.tolist() for one in points(run)), strict=True)) for run in arm.runs.values()]
    steps = sorted(set.intersection(*map(set, logged)))
    values = np.array([[one[step] for step in steps] for one in logged], dtype=np.float64)
    return Curve(np.array(steps, dtype=np.int64), values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def metric_curve(arm: Arm, key: str) -> Curve:
    """A logged metric over steps."""
    return mean_curve(arm, lambda run: series(run.log, key))


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


def full_grpo(subject: Subject) -> Arm:
    """GRPO at the full budget, to which the others are compared.

    Raises:
        NotDrawn: If there is none.
    """
    for arm in subject.of("grpo"):
        if arm.budget == 1:
            return arm
    raise NotDrawn("no run of GRPO at the full budget. Add a cell with method: grpo to the grid.")


def featured_arms(arms: Sequence[Arm]) -> list[Arm]:
    """Every method at the full budget, and ours at half of it."""
    return [arm for arm in arms if arm.budget == 1 or (arm.method in FAMILY and arm.budget == 0.5)]


def main_suite(arms: Sequence[Arm]) -> str:
    """The suite of a figure that shows one: the first in the order of the tables.

    Raises:
        NotDrawn: If no run measured any.
    """
    if not (found := suites_of(arms)):
        raise NotDrawn("no held-out accuracy in the log. Set eval_suites.")
    return found[0]


def accuracy_label(arms: Sequence[Arm], suite: str) -> str:
    """Label of an axis with the accuracy of a suite."""
    k = max(suites(run).get(suite, 0) for arm in arms for run in arm.runs.values())
    return f"{suite_title(suite)} mean@{k} (%)"


def final_accuracy(arm: Arm, suite: str) -> Value | None:
    """mean@k of the last measurement, in [0, 1]; None where it was not measured."""
    return mean(accuracy(run, suite) for run in arm.runs.values())


def tokens_of(arm: Arm) -> Value | None:
    """Tokens that a whole run of the arm generated."""
    return mean(generated_tokens(run) for run in arm.runs.values())


def accuracy_gain(arm: Arm, other: Arm, suite: str) -> Value | None:
    """Accuracy of an arm minus that of another, paired by seed; None where no seed was measured in both."""
    pairs = [(accuracy(arm.runs[s], suite), accuracy(other.runs[s], suite)) for s in comparable_seeds(arm, other)]
    return mean(a - b for a, b in pairs if a is not None and b is not None)


def speed_ups(subject: Subject) -> tuple[dict[tuple[str, float], Value], list[str]]:
    """Speed-up over full-budget GRPO by method and budget, within engine and machine, and what is missing."""
    try:
        reference = full_grpo(subject)
    except NotDrawn as reason:
        return {}, [f"no speed-up: {reason}"]
    speeds, notes = {}, []
    for arm in subject.shown:
        value, missing = speed_up(arm, reference)
        if value is not None:
            speeds[arm.method, arm.budget] = value
        if missing:
            notes.append(f"speed-up of {arm_name(arm)} {'not given' if value is None else 'in part'}: {missing}.")
    return speeds, notes


def on_one_machine(arms: Sequence[Arm]) -> tuple[list[Arm], list[str]]:
    """The runs on the engine and machine that most of them used, and a line for each arm that has others."""

    def same(one: RunRecord, other: RunRecord) -> bool:
        return one.engine == other.engine and one.hardware == other.hardware

    every = [run for arm in arms for run in arm.runs.values()]
    common = max(every, key=lambda run: sum(same(run, other) for other in every))
    kept = [Arm({seed: run for seed, run in arm.runs.items() if same(run, common)}) for arm in arms]
    notes = [
        f"{len(arm.runs) - len(own.runs)} of {len(arm.runs)} runs of {arm_name(arm)} had another engine or machine "
        "than most: their seconds are left out."
        for arm, own in zip(arms, kept, strict=True)
        if len(own.runs) < len(arm.runs)
    ]
    return [arm for arm in kept if arm.runs], notes


def decompose(arm: Arm) -> Tokens | None:
    """Tokens of a mean step, averaged over seeds; None where they were not logged.

    Where rollouts begin with reused tokens, those of untrained rollouts cannot be told from the others', and count as
    generated.
    """
    keys = ("generated_tokens", "trained_tokens", "aborted_tokens", "trimmed_tokens", "reused_tokens")
    logged = [metric_curve(arm, f"duet/{key}").mean for key in keys]
    if not logged[0].size:
        return None
    generated, trained, aborted, trimmed, reused = (float(one.mean()) if one.size else 0.0 for one in logged)
    lost = min(max(generated + reused - trained, 0.0), generated)
    aborted = min(aborted, lost)  # with aborted_rollouts="failure" they are trained
    return Tokens(generated - lost, aborted, lost - aborted, trimmed, reused)


def accuracy_deltas(arms: Sequence[Arm]) -> tuple[list[tuple[Arm, dict[str, Value]]], list[str]]:
    """Per arm and suite the paired difference from GRPO at the same budget, and a line for each arm without one.

    Raises:
        NotDrawn: If no arm has a reference.
    """
    references = {arm.budget: arm for arm in arms if arm.method == "grpo"}
    deltas, without = [], []
    for arm in arms:
        if arm.method == "grpo":
            continue
        reference = references.get(arm.budget)
        gains = {} if reference is None else {name: accuracy_gain(arm, reference, name) for name in suites_of([arm])}
        if found := {name: gain for name, gain in gains.items() if gain is not None}:
            deltas.append((arm, found))
        else:
            without.append(arm_name(arm))
    reason = "GRPO has no run at this budget with a seed, a suite and the number of steps in common."
    notes = [f"without {', '.join(without)}: {reason}"] if without else []
    if not deltas:
        raise NotDrawn(notes[0] if notes else "only GRPO was run.")
    return deltas, notes


def surrogate_arms(arms: Sequence[Arm]) -> dict[float, dict[str, Arm]]:
    """Arms by budget and surrogate (online, constant, ridge) of the first method that was run with several.

    Raises:
        NotDrawn: If no method was.
    """
    found: dict[str, dict[str, Arm]] = {}
    # Of arms that differ in another option of the surrogate the one with the paper's values comes first and stays.
    for arm in sorted(arms, key=lambda arm: (-arm.budget, len(arm.swept({"surrogate_warmup"})))):
        if arm.complete and arm.own.get("surrogate") in SURROGATES:
            own = {name: value for name, value in arm.own.items() if not name.startswith("surrogate")}
            alike = found.setdefault(json.dumps([arm.method, arm.budget, own, arm.context], sort_keys=True), {})
            alike.setdefault(arm.own["surrogate"], arm)
    groups = [alike for alike in found.values() if "online" in alike and len(alike) > 1]
    if groups:
        first = groups[0]["online"].method
        compared = {alike["online"].budget: alike for alike in reversed(groups) if alike["online"].method == first}
        return {
            budget: {name: compared[budget][name] for name in SURROGATES if name in compared[budget]}
            for budget in sorted(compared, reverse=True)
        }
    raise NotDrawn("no budget was run with the online surrogate and a static one. Add cells with surrogate: constant.")


def surrogate_gains(arms: Sequence[Arm], suite: str) -> dict[str, dict[float, Value]]:
    """Accuracy with the online surrogate minus that with a static one, by static one and budget.

    Raises:
        NotDrawn: If there is nothing to compare.
    """
    gains: dict[str, dict[float, Value]] = {}
    for budget, own in surrogate_arms(arms).items():
        for name, arm in own.items():
            if name != "online" and (gain := accuracy_gain(own["online"], arm, suite)) is not None:
                gains.setdefault(name, {})[budget] = gain
    if not gains:
        raise NotDrawn(f"the surrogates have no seed in common that measured {suite_title(suite)}.")
    return gains
