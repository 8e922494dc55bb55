# SPDX-License-Identifier: Apache-2.0
"""What methods share that replace prompts without a signal: whole groups are kept or dropped, and others are drawn."""

from dataclasses import dataclass

import numpy as np

from ..field_types import Options, option
from ..rollouts import NoMorePrompts, Prompts, Rollouts
from .grouping import mixed_prompts
from .method import Setting


@dataclass(frozen=True)
class ResamplingOptions(Options):
    """How much a step may generate until M of its prompts have rewards that differ."""

    oversample: float = option(
        "Prompts of a full batch over M.",
        1.0,
        unit=">= 1",
        rule=(lambda x: 1 <= x < float("inf"), "at least 1, got {}: a batch holds M prompts"),
    )
    max_batches: int = option(
        "Maximum batches of a step. 1 filters and never resamples.",
        10,
        unit=">= 1",
        rule=(lambda x: x >= 1, "at least 1, got {}. 1 never resamples"),
    )


def check_groups(setting: Setting, num_prompts: int) -> None:
    """Refuse a run whose rollouts have nothing to be compared with, or whose first round is too large."""
    if setting.num_generations < 2:
        raise ValueError(
            f"num_generations must be at least 2, got {setting.num_generations}: this method compares the rollouts of "
            "a prompt."
        )
    rollouts = num_prompts * setting.num_generations
    if rollouts > setting.max_rollouts:
        raise ValueError(
            f"{num_prompts} prompts x num_generations={setting.num_generations} are {rollouts} rollouts, above "
            f"max_rollouts={setting.max_rollouts}. Raise max_rollouts, or lower num_generations or the batch."
        )


def draw(prompts: Prompts, count: int) -> tuple[range, str]:
    """More prompts, and what the data set says where it has fewer: then none, and the step ends with what it has."""
    if count < 1:
        return range(0), ""
    try:
        return prompts.more(count), ""
    except NoMorePrompts as error:
        return range(0), str(error)


def first_mixed(done: Rollouts, mixed: np.ndarray | None = None) -> np.ndarray:
    """Rollouts of the first M prompts whose rewards differ, M as the sampler drew; the surplus is discarded."""
    mixed = mixed_prompts(done) if mixed is None else mixed
    return (mixed & (np.cumsum(mixed) <= done.prompts.num_drawn))[done.prompt]


def resampling_metrics(done: Rollouts, mixed: np.ndarray) -> dict[str, float]:
    """Counts of a step: batches beyond the first, prompts that are degenerate, missing, or beyond M."""
    visited = len(np.unique(done.prompt))
    return {
        "resampled_batches": float(done.round.max()),
        "degenerate_prompts": float(visited - mixed.sum()),
        "unfilled_prompts": float(max(done.prompts.num_drawn - mixed.sum(), 0)),
        "surplus_prompts": float(max(mixed.sum() - done.prompts.num_drawn, 0)),
    }
