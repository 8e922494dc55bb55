# SPDX-License-Identifier: Apache-2.0
"""Records of runs, small enough to do by hand."""

import sys
from pathlib import Path

RECIPES = Path(__file__).parents[2] / "recipes"
PAPER = RECIPES / "paper"
# recipes/ is a folder of scripts that import each other by their file names.
sys.path.insert(0, str(RECIPES))

from run_file import RunRecord, write_run  # noqa: E402

HARDWARE = {"machine": "x86_64", "gpu": "H100"}
SWITCHES = {"allocate": True, "trim": True, "abort": True, "keep_probability": 0.05, "budget_fraction": 0.5}


def log_of(seconds, tokens, accuracies, every=1, **more):
    """Two logged entries of `every` steps each, and mean@4 of math500 before, between and after them.

    accuracies: of steps 0, every and 2 x every; more: further metrics of every training entry.
    """
    entry = {"loss": 0.0, "step_time": seconds, "duet/generated_tokens": tokens, **more}
    measured = [{"held_out/math500/mean@4": value, "held_out/math500/greedy": 1.0} for value in accuracies]
    return [
        {"step": 0, **measured[0]},
        {"step": every, **entry},
        {"step": every, **measured[1]},
        {"step": 2 * every, **entry},
        {"step": 2 * every, **measured[2]},
        {"step": 2 * every, "train_runtime": 1e6},
    ]


def record(method="grpo", budget=1.0, seed=0, *, accuracies=(0.1, 0.2, 0.3), seconds=8.0, tokens=100.0, **changes):
    """A run that is done; the cell is named by what it was."""
    settings = {"learning_rate": 1e-6, "seed": seed, **changes.pop("settings", {})}
    fields = {
        "cell": f"{method}_{budget:g}",
        "grid": "grid",
        "seed": seed,
        "model": "tiny",
        "method": method,
        "budget": budget,
        "num_generations": 8,
        "settings": settings,
        "engine": "vllm",
        "hardware": HARDWARE,
        "versions": {},
        "status": "done",
        "max_steps": 2,
        "log": log_of(seconds, tokens, accuracies),
    }
    return RunRecord(**(fields | changes))


def store(folder, *records):
    """Write records in the layout of the runner; the folder."""
    for one in records:
        write_run(folder / one.cell / f"seed_{one.seed}", one)
    return folder
