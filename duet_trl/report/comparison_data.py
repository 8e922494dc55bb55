# SPDX-License-Identifier: Apache-2.0
"""What the figures that compare methods show, computed apart from any drawing."""

from collections.abc import Sequence
from dataclasses import dataclass

from .figure_data import (
    OURS,
    Arm,
    Mean,
    NotDrawn,
    Variant,
    full_grpo,
    mean_over_seeds,
    metric_curve,
    on_one_machine,
    paired_difference,
    percent,
    plain,
    plain_variant,
    speed_up,
)
from .runs import generated_tokens, suites
from .titles import SUITES, in_order, method_title, suite_title

SURROGATES = ("online", "constant", "ridge")


@dataclass(frozen=True)
class Tokens:
    """Tokens of a mean step of an arm by what became of them; the first three add up to what was generated."""

    trained: float
    aborted: float
    untrained: float  # of rollouts that ended but taught nothing
    trimmed: float  # of those above, in trimmed rollouts
    reused: float  # taken from earlier rollouts instead of generated


def main_suite(arms: Sequence[Arm]) -> str:
    """The suite of a figure that shows one: the first in the order of the tables.

    Raises:
        NotDrawn: If no run measured any.
    """
    found = in_order({suite for arm in arms for record in arm.records for suite in suites(record)}, SUITES)
    if not found:
        raise NotDrawn("no held-out accuracy in the log. Set eval_suites.")
    return found[0]


def accuracy_label(arms: Sequence[Arm], suite: str) -> str:
    """Label of an axis with the accuracy of a suite."""
    k = max(suites(record).get(suite, 0) for arm in arms for record in arm.records)
    return f"{suite_title(suite)} mean@{k} (%)"


def featured_arms(arms: Sequence[Arm]) -> list[Arm]:
    """Every method at the full budget, and ours at half of it."""
    return [arm for arm in arms if arm.budget == 1 or (arm.method in OURS and arm.budget == 0.5)]


def arm_label(arm: Arm) -> str:
    """An arm among arms at the full budget."""
    return method_title(arm.method) + ("" if arm.budget == 1 else f" {percent(arm.budget)}")


def tokens_of(arm: Arm) -> Mean | None:
    """Tokens that a whole run of the arm generated."""
    values = [total for record in arm.records if (total := generated_tokens(record)) is not None]
    return mean_over_seeds(values) if values else None


def speed_ups(arms: Sequence[Arm]) -> tuple[dict[tuple[str, float], Mean], list[str]]:
    """Speed-up of the plain arms over full-budget GRPO by method and budget, and a line for each that has none."""
    shown, notes = on_one_machine(plain(arms))
    try:
        reference = full_grpo(shown)
    except NotDrawn as reason:
        return {}, [f"no speed-up: {reason}"]
    speeds = {}
    for arm in shown:
        if (found := speed_up(arm, reference)) is not None:
            speeds[arm.method, arm.budget] = found
        else:
            notes.append(f"no speed-up of {arm_label(arm)}: no seed in common with full-budget GRPO, or no step_time.")
    return speeds, notes


def decompose(arm: Arm) -> Tokens | None:
    """Tokens of a mean step, averaged over seeds; None where they were not logged.

    Where rollouts begin with reused tokens, those of untrained rollouts cannot be told from the others', and count as
    generated.
    """
    keys = ("generated_tokens", "trained_tokens", "aborted_tokens", "trimmed_tokens", "reused_tokens")
    logged = {key: metric_curve(arm.records, f"duet/{key}").mean for key in keys}
    generated, trained, aborted, trimmed, reused = (float(logged[k].mean()) if logged[k].size else 0.0 for k in keys)
    if not logged["generated_tokens"].size:
        return None
    lost = min(max(generated + reused - trained, 0.0), generated)
    aborted = min(aborted, lost)  # with aborted_rollouts="failure" they are trained
    return Tokens(generated - lost, aborted, lost - aborted, trimmed, reused)


def accuracy_deltas(arms: Sequence[Arm]) -> tuple[list[tuple[Arm, dict[str, Mean]]], list[str]]:
    """Per arm and suite the paired difference from GRPO at the same budget, and a line for each arm without one.

    Raises:
        NotDrawn: If no arm has a reference.
    """
    references = {arm.budget: arm for arm in arms if arm.method == "grpo"}
    deltas, notes = [], []
    for arm in arms:
        if arm.method == "grpo":
            continue
        names = in_order({suite for record in arm.records for suite in suites(record)}, SUITES)
        reference = references.get(arm.budget)
        found = {} if reference is None else {name: paired_difference(arm, reference, name) for name in names}
        found = {name: delta for name, delta in found.items() if delta is not None}
        if found:
            deltas.append((arm, found))
        else:
            notes.append(
                f"no difference of {method_title(arm.method)} {percent(arm.budget)}: GRPO has no run at this budget "
                "with a seed and a suite in common."
            )
    if not deltas:
        raise NotDrawn(f"nothing to compare with GRPO at the same budget ({'; '.join(notes) or 'only GRPO was run'}).")
    return deltas, notes


def surrogate_arms(arms: Sequence[Arm]) -> dict[float, dict[str, Arm]]:
    """Arms by budget and surrogate (online, constant, ridge) of the first method that was run with several.

    Raises:
        NotDrawn: If no method was.
    """
    for method in dict.fromkeys(arm.method for arm in arms):
        rest = _without_surrogate(plain_variant(arms, method))
        found: dict[float, dict[str, Arm]] = {}
        for arm in arms:
            surrogate = dict(arm.variant).get("surrogate")
            if arm.method == method and surrogate in SURROGATES and _without_surrogate(arm.variant) == rest:
                found.setdefault(arm.budget, {}).setdefault(surrogate, arm)  # of other variants the most common
        compared = {budget: _ordered(own) for budget, own in found.items() if "online" in own and len(own) > 1}
        if compared:
            return compared
    raise NotDrawn("no budget was run with the online surrogate and a static one. Add cells with surrogate: constant.")


def surrogate_gains(arms: Sequence[Arm], suite: str) -> dict[str, dict[float, Mean]]:
    """Accuracy with the online surrogate minus that with a static one, by static one and budget.

    Raises:
        NotDrawn: If there is nothing to compare.
    """
    gains: dict[str, dict[float, Mean]] = {}
    for budget, own in surrogate_arms(arms).items():
        for name, arm in own.items():
            if name != "online" and (gain := paired_difference(own["online"], arm, suite)) is not None:
                gains.setdefault(name, {})[budget] = gain
    if not gains:
        raise NotDrawn(f"the surrogates have no seed in common that measured {suite_title(suite)}.")
    return gains


def _ordered(own: dict[str, Arm]) -> dict[str, Arm]:
    return {name: own[name] for name in SURROGATES if name in own}


def _without_surrogate(variant: Variant) -> Variant:
    return tuple(pair for pair in variant if not pair[0].startswith("surrogate"))
