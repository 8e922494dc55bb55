# SPDX-License-Identifier: Apache-2.0
"""Runs that differ in nothing but their seed, as one arm: what makes two arms different, and what an arm is called."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .runs import RunRecord
from .titles import METHODS, method_title

FAMILY = ("paper", "duet")
"""Methods whose parts `PARTS` switch."""
PARTS = ("allocate", "trim", "abort")
FULL = (True, True, True)
PART_TITLES = {
    (True, False, False): "allocation only",
    (False, True, True): "gate only",
    FULL: "both",
    (False, True, False): "trim only",
    (False, False, True): "abort only",
    (True, True, False): "allocation and trim",
    (True, False, True): "allocation and abort",
}

STANDARD: dict[str, Any] = {"keep_probability": 0.05, "surrogate_warmup": 1, "surrogate": "online", "keep_rate": 0.5}
"""Values of the paper of what its tables sweep: where runs have several, a row takes the arm that has this one."""

OF_THE_METHOD = frozenset(
    "method_kwargs num_generations allocate trim abort budget_fraction budget_reading budget_tokens num_rollouts_min "
    "num_rollouts_max max_rollouts marker grace_window keep_probability sentinel_token_id".split()
)
"""Settings by which arms of one comparison are meant to differ."""

OPERATIONAL = frozenset(
    "seed data_seed method output_dir run_name logging_dir logging_steps logging_first_step log_completions "
    "num_completions_to_print disable_tqdm report_to project trackio_space_id save_steps save_strategy "
    "save_total_limit save_only_model resume_from_checkpoint push_to_hub hub_model_id hub_strategy hub_private_repo "
    "hub_always_push hub_revision audit_log audit_columns dataloader_num_workers dataloader_pin_memory "
    "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps steps_per_generation "
    "generation_batch_size use_vllm vllm_mode vllm_server_base_url vllm_server_host vllm_server_port "
    "vllm_group_port vllm_server_timeout vllm_gpu_memory_utilization vllm_tensor_parallel_size "
    "vllm_max_model_length server_weight_sync server_weights_dir use_cpu num_gpus full_generations sandbox heldout "
    "eval_sources deepspeed fsdp fsdp_config ddp_timeout gradient_checkpointing max_steps".split()
)
"""Settings that say how a run was made, not what was trained; what follows of them is in `Arm.context`."""


@dataclass(frozen=True)
class Arm:
    """Runs of one setting.

    Attributes:
        runs (dict[int, RunRecord]): By seed.
    """

    runs: dict[int, RunRecord]

    @property
    def first(self) -> RunRecord:
        """Any run: they are equal in what is read of it."""
        return next(iter(self.runs.values()))

    @property
    def method(self) -> str:
        """Method of training."""
        return self.first.method

    @property
    def budget(self) -> float:
        """Nominal share of the full budget."""
        return self.first.budget

    @cached_property
    def own(self) -> dict[str, Any]:
        """Settings of the method, its options among them."""
        settings = {key: value for key, value in self.first.settings.items() if key in OF_THE_METHOD}
        return {key: value for key, value in settings.items() if key != "method_kwargs"} | (
            settings.get("method_kwargs") or {}
        )

    @cached_property
    def context(self) -> dict[str, Any]:
        """All other settings that change what is trained."""
        run = self.first
        settings = {k: v for k, v in run.settings.items() if k not in OF_THE_METHOD | OPERATIONAL}
        settings |= {"max_steps": run.max_steps, "steps_per_rollouts": run.steps_per_rollouts}
        if batch := run.settings.get("generation_batch_size"):
            settings["num_prompts"] = batch / run.num_generations
        return settings

    @property
    def subject(self) -> tuple[str, str]:
        """Model, and recipe and data set where the record names them: what one section of a table is about."""
        task = [self.first.settings.get(name) for name in ("recipe", "dataset_name")]
        return self.first.model, ", ".join(str(word) for word in task if word)

    @property
    def parts(self) -> tuple[bool, bool, bool]:
        """Which parts of DUET are on: allocation, trim, abort."""
        return tuple(bool(self.own.get(name, self.method in FAMILY)) for name in PARTS)

    @property
    def complete(self) -> bool:
        """Not an ablation."""
        return self.method not in FAMILY or self.parts == FULL

    def swept(self, names: Iterable[str] = tuple(STANDARD)) -> dict[str, Any]:
        """What it has of the swept settings, where that is not the standard value."""
        return {name: self.own[name] for name in names if self.own.get(name) not in (None, STANDARD[name])}


def find_arms(records: Sequence[RunRecord]) -> tuple[list[Arm], list[str]]:
    """Arms in the order of methods, the smaller budget first; a note for each run that repeats another one.

    Two grids can have a cell in common. One setting and seed counts once, by the first name of grid and cell.
    """
    found: dict[str, dict[int, RunRecord]] = {}
    notes = []
    for record in sorted(records, key=lambda one: (one.grid or "", one.cell, one.seed)):
        arm = Arm({record.seed: record})
        key = json.dumps([record.model, record.method, record.budget, arm.own, arm.context], sort_keys=True)
        runs = found.setdefault(key, {})
        if record.seed in runs:
            notes.append(f"{record.name} repeats {runs[record.seed].name} and is not counted.")
        runs.setdefault(record.seed, record)
    order = list(METHODS)
    arms = [Arm(dict(sorted(runs.items()))) for runs in found.values()]

    def place(arm: Arm) -> tuple[int, str, float, str]:
        rank = order.index(arm.method) if arm.method in order else len(order)
        return rank, arm.method, arm.budget, json.dumps([arm.own, arm.context], sort_keys=True)

    return sorted(arms, key=place), notes


def standard(arms: Sequence[Arm]) -> list[Arm]:
    """Arms without ablations; of one method and budget those of the standard values, if there are any."""
    complete = [arm for arm in arms if arm.complete]
    usual = {(arm.method, arm.budget) for arm in complete if not arm.swept()}
    return [arm for arm in complete if not arm.swept() or (arm.method, arm.budget) not in usual]


def reference_of(arm: Arm, arms: Sequence[Arm], method: str, budget: float) -> Arm | None:
    """The arm of a method and budget whose other settings are nearest to those of this arm, then to the paper's."""
    candidates = [other for other in arms if other.method == method and other.budget == budget and other.complete]

    def distance(other: Arm) -> tuple[int, int]:
        return len(differing([arm.context, other.context])), len(other.swept())

    return min(candidates, key=distance, default=None)


def differing(settings: Sequence[dict[str, Any]]) -> list[str]:
    """Names of settings that are not the same in all of these."""
    names = {name for one in settings for name in one}
    return sorted(name for name in names if any(one.get(name) != settings[0].get(name) for one in settings))


def labels(arms: Sequence[Arm], base: Arm, with_budget: bool) -> list[str]:
    """What rows are called: the method, and in brackets the budget, and what tells it from rows of that method.

    Args:
        arms (Sequence[Arm]): The rows of a section.
        base (Arm): The reference of the section: settings of no method are named where they differ from its own.
        with_budget (bool): Name a budget below 1.
    """
    found = []
    for arm in arms:
        alike = [one for one in arms if (one.method, one.budget, one.parts) == (arm.method, arm.budget, arm.parts)]
        values = arm.swept() | {name: arm.own.get(name) for name in differing([other.own for other in alike])}
        values |= {name: arm.context.get(name) for name in differing([base.context, arm.context])}
        words = [f"{100 * arm.budget:g}% budget"] if with_budget and arm.budget != 1 else []
        words += [PART_TITLES.get(arm.parts, "neither")] if not arm.complete else []
        words += [f"{name}={_word(value)}" for name, value in values.items()]
        found.append(f"+{method_title(arm.method)}" + (f" ({', '.join(words)})" if words else ""))
    times = Counter(found)
    return [one if times[one] == 1 else f"{one} [{arm.first.cell}]" for one, arm in zip(found, arms, strict=True)]


def sweeps(arms: Sequence[Arm], name: str) -> list[list[Arm]]:
    """Lists of two arms or more that differ in nothing but one setting of the method, by its value."""
    found: dict[str, list[Arm]] = {}
    for arm in arms:
        if arm.own.get(name) is not None:
            rest = {key: value for key, value in arm.own.items() if key != name}
            key = json.dumps([arm.subject, arm.method, arm.budget, rest, arm.context], sort_keys=True)
            found.setdefault(key, []).append(arm)
    return [sorted(group, key=lambda arm: arm.own[name]) for group in found.values() if len(group) > 1]


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
